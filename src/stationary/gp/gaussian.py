"""Networks with Gaussian weights and bias: one hidden layer or many, the infinite-width limit and its tangent kernel.

Layer by layer (Neal, 1995; Lee et al., 2018; Jacot et al., 2018), with the dual kappa of the activation:

    k_1 = bias_std^2 + weight_std^2 x'x,    k_(l+1) = bias_std^2 + weight_std^2 kappa(k_l)

A kernel of depth L is kappa(k_L), that of an output layer with unit weights. Only the first layer has a weight_std for
each input when ``ard_num_dims`` is given; deeper layers take the mean square of them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from stationary import activations as act
from stationary._checks import is_count
from stationary.activations import dual_of
from stationary.gp._base import NetworkKernel, is_symmetric, mirror, upper_indices
from stationary.theory.duals import Dual

Triple = tuple[Tensor, Tensor, Tensor]
Indices = tuple[Tensor, Tensor]  # rows and columns of the entries on and above the diagonal


class GaussianNetworkKernel(NetworkKernel):
    """The exact kernel E[sigma(w'x + b) sigma(w'x' + b)] of an activation, Gaussian w and b, any depth.

    Args:
        activation: a module that ``stationary.activations.dual_of`` knows.
        depth: the number of hidden layers.
        kwargs: arguments of ``NetworkKernel``.
    """

    def __init__(self, activation: nn.Module, *, depth: int = 1, **kwargs: Any) -> None:
        if not is_count(depth):
            raise ValueError(f"depth counts the hidden layers, a positive integer; got {depth!r}")
        dual_of(activation)  # an activation without a dual is refused here
        super().__init__(activation, **kwargs)
        self.depth = depth

    @property
    def dual(self) -> Dual:
        return dual_of(self.activation)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        symmetric = is_symmetric(x1, x2, diag)
        first = self._first_layer(x1, x2, diag)
        if symmetric:
            upper = upper_indices(x1)
            result = mirror(self._output(_upper(first, *upper), True, upper), x1.shape[-2])
        else:
            result = self._output(first, diag)
        return (self._factor(diag) * result).to(x1.dtype)

    def _output(self, k: Triple, flat: bool, upper: Indices | None = None) -> Tensor:
        for _ in range(self.depth - 1):
            k = self._next_layer(k, flat, upper)
        return self._kappa(*k, flat=flat)

    def _first_layer(self, x1: Tensor, x2: Tensor, diag: bool) -> Triple:
        bias = self._hyper("bias_std", diag) ** 2
        u1, u2 = self._weighted(x1), self._weighted(x2)
        k11, k22 = bias + u1.square().sum(-1, keepdim=not diag), bias + u2.square().sum(-1, keepdim=not diag)
        if diag:
            return k11, bias + (u1 * u2).sum(-1), k22
        return k11, bias + u1 @ u2.mT, k22.mT

    def _next_layer(self, k: Triple, flat: bool, upper: Indices | None) -> Triple:
        bias, weight = self._hyper("bias_std", flat) ** 2, self._mean_square_weight(flat)
        k11, k12, k22 = k
        if upper is not None:  # the diagonal is among the entries
            i, j = upper
            new = bias + weight * self._kappa(k11, k12, k22, flat=flat)
            own = new[..., i == j]
            return own[..., i], new, own[..., j]
        triples = (k11, k11, k11), torch.broadcast_tensors(k11, k12, k22), (k22, k22, k22)
        lengthscale = self._hyper("lengthscale", flat) if self.has_lengthscale else 1.0
        scaled = [[part / lengthscale**2 for part in triple] for triple in triples]
        columns = (torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*scaled, strict=True))
        values = self.dual.value(*columns).split([triple[0].numel() for triple in scaled])  # one call is faster
        return tuple(
            bias + weight * value.view(triple[0].shape) / lengthscale
            for value, triple in zip(values, scaled, strict=True)
        )

    def _mean_square_weight(self, flat: bool) -> Tensor:
        mean_square: Tensor = self.weight_std.double().square().mean(-1, keepdim=True)
        return mean_square.squeeze(-1) if flat else mean_square

    def _kappa(self, k11: Tensor, k12: Tensor, k22: Tensor, *, flat: bool) -> Tensor:
        if not self.has_lengthscale:
            return self.dual.value(k11, k12, k22)
        lengthscale = self._hyper("lengthscale", flat)
        return self.dual.value(k11 / lengthscale**2, k12 / lengthscale**2, k22 / lengthscale**2) / lengthscale

    def _slope(self, k11: Tensor, k12: Tensor, k22: Tensor, *, flat: bool) -> Tensor:
        derivative = self.dual.derivative
        assert derivative is not None
        if not self.has_lengthscale:
            return derivative(k11, k12, k22)
        lengthscale = self._hyper("lengthscale", flat)
        return derivative(k11 / lengthscale**2, k12 / lengthscale**2, k22 / lengthscale**2) / lengthscale**3


class NeuralTangentKernel(GaussianNetworkKernel):
    """The neural tangent kernel of the same network, all layers trained, in its infinite-width parametrisation.

    Theta_1 = k_1, Theta_(l+1) = k_(l+1) + weight_std^2 Theta_l kappa'(k_l); the output layer has unit weights.
    """

    def __init__(self, activation: nn.Module, *, depth: int = 1, **kwargs: Any) -> None:
        super().__init__(activation, depth=depth, **kwargs)
        if self.dual.derivative is None:
            raise ValueError(
                f"activation must be differentiable for a tangent kernel, got {activation!r}: "
                f"{self.dual.why_no_derivative}; use kernel_of, or a smoother activation such as Matern(nu=1.5)"
            )

    def _output(self, k: Triple, flat: bool, upper: Indices | None = None) -> Tensor:
        tangent = k[1]
        for _ in range(self.depth - 1):
            slope = self._slope(*k, flat=flat)
            k = self._next_layer(k, flat, upper)
            tangent = k[1] + self._mean_square_weight(flat) * tangent * slope
        return self._kappa(*k, flat=flat) + tangent * self._slope(*k, flat=flat)


def _upper(k: Triple, i: Tensor, j: Tensor) -> Triple:
    """The entries on and above the diagonal, as vectors; on the diagonal the three agree to the last bit."""
    k11, k12, _ = k
    own = k11.squeeze(-1).expand(*k12.shape[:-1])
    return own[..., i], torch.where(i == j, own[..., i], k12[..., i, j]), own[..., j]


class MaternNNKernel(GaussianNetworkKernel):
    """The exact kernel of the Matérn activation with Gaussian weights, any nu > 0, any depth."""

    def __init__(self, nu: float = 2.5, lengthscale: float = 1.0, variance: float = 1.0, **kwargs: Any) -> None:
        super().__init__(act.Matern(nu, lengthscale, variance), **kwargs)


class RidgeRBFNNKernel(GaussianNetworkKernel):
    """RBF units along random directions, sigma(w'x + b) with the Gaussian bump sigma."""

    def __init__(self, lengthscale: float = 1.0, variance: float = 1.0, **kwargs: Any) -> None:
        super().__init__(act.RBF(lengthscale, variance), **kwargs)


class ErfNNKernel(GaussianNetworkKernel):
    """Williams' ERF-NN kernel."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(act.Erf(), **kwargs)


class ArcCos0Kernel(GaussianNetworkKernel):
    """Cho and Saul's arc-cosine kernel of order 0: twice that of the step activation, 1 - theta / pi."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(act.Step(), scale=2.0, **kwargs)


class ArcCos1Kernel(GaussianNetworkKernel):
    """Cho and Saul's arc-cosine kernel of order 1: twice that of ReLU."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nn.ReLU(), scale=2.0, **kwargs)


class LeakyReLUNNKernel(GaussianNetworkKernel):
    """The kernel of leaky ReLU."""

    def __init__(self, negative_slope: float = 0.01, **kwargs: Any) -> None:
        super().__init__(nn.LeakyReLU(negative_slope), **kwargs)


class SineNNKernel(GaussianNetworkKernel):
    """The kernel of sin(frequency z)."""

    def __init__(self, frequency: float = 1.0, **kwargs: Any) -> None:
        super().__init__(act.Sine(frequency), **kwargs)


class CosineNNKernel(GaussianNetworkKernel):
    """The kernel of cos(frequency z)."""

    def __init__(self, frequency: float = 1.0, **kwargs: Any) -> None:
        super().__init__(act.Cosine(frequency), **kwargs)


class SinCosNNKernel(GaussianNetworkKernel):
    """The kernel of sin(frequency z) + cos(frequency z): exactly the RBF kernel with length-scale 1 / frequency."""

    def __init__(self, frequency: float = 1.0, **kwargs: Any) -> None:
        super().__init__(act.SinCos(frequency), **kwargs)
