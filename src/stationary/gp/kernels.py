"""Every kernel, by name, and ``kernel_of``: from an activation to the kernel of its infinitely wide network."""

from typing import Any

from torch import nn

from stationary._extras import extra
from stationary.activations import activation as activation_by_name
from stationary.gp._base import NetworkKernel
from stationary.gp.binary import BinaryNetworkKernel as BinaryNetworkKernel
from stationary.gp.binary import MaternEnvelopeKernel as MaternEnvelopeKernel
from stationary.gp.gaussian import ArcCos0Kernel as ArcCos0Kernel
from stationary.gp.gaussian import ArcCos1Kernel as ArcCos1Kernel
from stationary.gp.gaussian import CosineNNKernel as CosineNNKernel
from stationary.gp.gaussian import ErfNNKernel as ErfNNKernel
from stationary.gp.gaussian import GaussianNetworkKernel as GaussianNetworkKernel
from stationary.gp.gaussian import LeakyReLUNNKernel as LeakyReLUNNKernel
from stationary.gp.gaussian import MaternNNKernel as MaternNNKernel
from stationary.gp.gaussian import NeuralTangentKernel as NeuralTangentKernel
from stationary.gp.gaussian import RidgeRBFNNKernel as RidgeRBFNNKernel
from stationary.gp.gaussian import SinCosNNKernel as SinCosNNKernel
from stationary.gp.gaussian import SineNNKernel as SineNNKernel
from stationary.gp.stationary import MaternKernel as MaternKernel
from stationary.gp.stationary import RBFNNKernel as RBFNNKernel
from stationary.gp.stationary import UniformBiasKernel as UniformBiasKernel
from stationary.theory.duals import NoClosedForm
from stationary.theory.monte_carlo import BIASES, WEIGHTS, check_choice

with extra("gp"):
    from gpytorch.kernels import RBFKernel as RBFKernel


def kernel_of(
    activation: nn.Module | str,
    *,
    weights: str = "gaussian",
    bias: str = "gaussian",
    weight_std: float = 1.0,
    bias_std: float = 1.0,
    depth: int = 1,
    normalize: bool = False,
    **kwargs: Any,
) -> NetworkKernel:
    """The kernel of an infinitely wide network with this activation, E[sigma(w'x + b) sigma(w'x' + b)].

    Args:
        activation: a module of this library or its name, ``nn.ReLU`` or ``nn.LeakyReLU``.
        weights: distribution of the weights: "gaussian", "binary" (signs, as in the paper), "sphere" (uniform on the
            unit sphere) or "one" (all ones).
        bias: distribution of the bias: "gaussian", or "uniform" on [-sqrt(3) bias_std, sqrt(3) bias_std], which makes
            the kernels of Matérn and RBF exactly stationary.
        weight_std: initial standard deviation of the weights, a hyperparameter of the kernel.
        bias_std: initial standard deviation of the bias, a hyperparameter of the kernel.
        depth: number of hidden layers, above 1 for Gaussian weights only; depth L ends with E[sigma sigma'].
        normalize: whether to multiply the kernel by sqrt(2 pi) bias_std, or by the width of a uniform bias, so that
            those of Matérn and RBF are near 1.
        kwargs: arguments of every gpytorch kernel, such as ard_num_dims, batch_shape and active_dims.

    Returns:
        A ``gpytorch`` kernel, differentiable in lengthscale, weight_std and bias_std.

    Raises:
        NoClosedForm: a ValueError that names ``monte_carlo_kernel``, where no closed form is known.
    """
    check_choice("weights", weights, WEIGHTS)
    check_choice("bias", bias, BIASES)
    activation = activation_by_name(activation) if isinstance(activation, str) else activation
    options = {"weight_std": weight_std, "bias_std": bias_std, "normalize": normalize, **kwargs}
    if weights == "gaussian" and bias == "gaussian":
        return GaussianNetworkKernel(activation, depth=depth, **options)
    if depth != 1:
        raise NoClosedForm(f"depth {depth!r} with {weights} weights and a {bias} bias (Gaussian ones have one)")
    if bias == "uniform":
        return UniformBiasKernel(activation, weights=weights, **options)
    if weights == "sphere":
        raise NoClosedForm(f"the kernel of {activation!r} with weights on the sphere and a Gaussian bias")
    return BinaryNetworkKernel(activation, weights=weights, **options)


def ntk_of(
    activation: nn.Module | str, *, depth: int = 1, weight_std: float = 1.0, bias_std: float = 1.0, **kwargs: Any
) -> NeuralTangentKernel:
    """The neural tangent kernel of the same network with Gaussian weights; the activation must be differentiable."""
    activation = activation_by_name(activation) if isinstance(activation, str) else activation
    return NeuralTangentKernel(activation, depth=depth, weight_std=weight_std, bias_std=bias_std, **kwargs)
