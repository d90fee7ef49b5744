"""What the kernels of random networks share: weight_std, bias_std, and the layout of their tensors."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from stationary._checks import check_finite
from stationary._extras import extra
from stationary.activations import RBF, Matern
from stationary.theory.spectral import number

with extra("gp"):
    from gpytorch.constraints import Positive
    from gpytorch.kernels import Kernel


def positive(name: str) -> property:
    """A hyperparameter kept positive: reads and writes the parameter raw_NAME through its constraint."""

    def get(kernel: Kernel) -> Tensor:
        return getattr(kernel, f"raw_{name}_constraint").transform(getattr(kernel, f"raw_{name}"))

    def set_(kernel: Kernel, value: Any) -> None:
        raw = getattr(kernel, f"raw_{name}")
        value = torch.as_tensor(value).to(raw).expand_as(raw)
        kernel.initialize(**{f"raw_{name}": getattr(kernel, f"raw_{name}_constraint").inverse_transform(value)})

    return property(get, set_)


def register_positive(kernel: Kernel, name: str, value: float, dims: int = 1) -> None:
    check_finite(name, value)
    constraint = Positive()
    raw = constraint.inverse_transform(torch.full((*kernel.batch_shape, 1, dims), float(value)))
    kernel.register_parameter(f"raw_{name}", nn.Parameter(raw))
    kernel.register_constraint(f"raw_{name}", constraint)


class NetworkKernel(Kernel):
    """A kernel of a random network, with the standard deviations of its weights and of its bias as hyperparameters.

    Args:
        activation: the activation; its length-scale, if it has one, becomes a hyperparameter of the kernel.
        weight_std: initial standard deviation of the weights.
        bias_std: initial standard deviation of the bias.
        normalize: whether to multiply the kernel by sqrt(2 pi) bias_std, so that a local activation of unit variance
            has a kernel near 1.
        scale: a constant factor on the kernel.
        ard_num_dims: number of input dimensions, if each of them has a weight_std of its own.
        kwargs: arguments of every gpytorch kernel: batch_shape, active_dims, lengthscale_prior, lengthscale_constraint.
    """

    activation: Any
    weight_std: property = positive("weight_std")
    bias_std: property = positive("bias_std")
    normalize: bool
    scale: float
    lengthscale: Any

    def __init__(
        self,
        activation: nn.Module,
        *,
        weight_std: float = 1.0,
        bias_std: float = 1.0,
        normalize: bool = False,
        scale: float = 1.0,
        ard_num_dims: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.__dict__["has_lengthscale"] = isinstance(activation, (Matern, RBF))  # read by gpytorch's __init__
        super().__init__(**kwargs)  # its ard_num_dims would be of the length-scale, which here is one for all inputs
        self.ard_num_dims = ard_num_dims
        self.activation, self.normalize, self.scale = _fixed(activation), normalize, scale
        register_positive(self, "weight_std", weight_std, ard_num_dims or 1)
        register_positive(self, "bias_std", bias_std)
        if self.has_lengthscale:
            self.lengthscale = self.activation.lengthscale

    def __call__(self, x1: Any, x2: Any = None, *args: Any, **params: Any) -> Any:
        """The kernel between x1 (n, d) and x2 (m, d), by default x1: tensors or arrays."""
        x2 = None if x2 is None else torch.as_tensor(x2)
        return super().__call__(torch.as_tensor(x1), x2, *args, **params)

    @property
    def is_stationary(self) -> bool:
        """Networks with a Gaussian bias are stationary only locally."""
        return False

    def _factor(self, diag: bool) -> Tensor | float:
        """What turns E[sigma sigma'] into the kernel asked for."""
        return self.scale * (math.sqrt(2 * math.pi) * self._hyper("bias_std", diag) if self.normalize else 1.0)

    def _hyper(self, name: str, flat: bool) -> Tensor:
        """A scalar hyperparameter in float64, shaped to broadcast against a matrix or a vector of entries."""
        value: Tensor = getattr(self, name).double()
        return value.squeeze(-1) if flat else value

    def _weighted(self, x: Tensor) -> Tensor:
        return x.double() * self.weight_std.double()


def is_symmetric(x1: Tensor, x2: Tensor, diag: bool) -> bool:
    """Whether the matrix is that of one set of inputs with itself, so that half of it is enough."""
    return not diag and x1.shape == x2.shape and torch.equal(x1, x2)


def upper_indices(x: Tensor) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(x.shape[-2], x.shape[-2], device=x.device)
    return i, j


def mirror(upper: Tensor, n: int) -> Tensor:
    """The symmetric matrix with these entries on and above its diagonal."""
    i, j = torch.triu_indices(n, n, device=upper.device)
    matrix = upper.new_empty(*upper.shape[:-1], n, n)
    matrix[..., i, j] = upper
    matrix[..., j, i] = upper
    return matrix


def distances(u1: Tensor, u2: Tensor, diag: bool) -> Tensor:
    """Euclidean distances by differences: exactly 0 between equal inputs, where a matrix product leaves 1e-8."""
    if diag:
        return torch.linalg.vector_norm(u1 - u2, dim=-1)
    return torch.cdist(u1, u2, compute_mode="donot_use_mm_for_euclid_dist")


def _fixed(activation: nn.Module) -> nn.Module:
    """A copy without parameters of its own: the kernel holds the length-scale."""
    if isinstance(activation, Matern) and activation.learnable:
        nu, lengthscale = number(activation.nu), number(activation.lengthscale)
        return Matern(nu, lengthscale, activation.variance, centered=activation.centered, dim=activation.dim)
    if isinstance(activation, RBF) and activation.learnable:
        return RBF(number(activation.lengthscale), activation.variance)
    return copy.deepcopy(activation)
