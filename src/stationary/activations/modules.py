"""The activation functions as modules, and by name. ``functional`` has their formulas."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import LeakyReLU as LeakyReLU
from torch.nn import ReLU as ReLU

from stationary._checks import check_finite, check_positive
from stationary.activations._cpu import MaternTwin
from stationary.activations.functional import (
    NU_HINT,
    check_dim,
    check_surrogate,
    cosine,
    erf,
    matern,
    matern_twin,
    periodic_relu,
    rbf,
    sincos,
    sine,
    step,
    triangle_wave,
)
from stationary.theory.spectral import Number


class Matern(nn.Module):
    """Module of ``matern``.

    Args:
        nu: smoothness of the kernel; ``math.inf`` is the RBF.
        lengthscale: length-scale of the kernel.
        variance: variance of the kernel.
        learnable: whether nu and lengthscale are parameters, stored as logarithms so that they stay positive.
        centered: whether the centre of mass of the squared activation is at 0.
        dim: dimension of the isotropic kernel that weights on the unit sphere give; odd.
        surrogate: standard deviation of the noise that blurs the gradient at the jump of nu = 1/2.
    """

    variance: float
    learnable: bool
    centered: bool
    dim: int
    surrogate: float | None
    log_nu: nn.Parameter
    log_lengthscale: nn.Parameter

    def __init__(
        self,
        nu: float = 2.5,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        *,
        learnable: bool = False,
        centered: bool = False,
        dim: int = 1,
        surrogate: float | None = None,
    ) -> None:
        super().__init__()
        check_positive("nu", nu, NU_HINT)
        check_finite("lengthscale", lengthscale)
        check_finite("variance", variance)
        check_dim(dim)
        check_surrogate(surrogate, nu)
        if learnable and (nu == math.inf or surrogate is not None):
            raise ValueError(
                f"learnable needs a finite nu and no surrogate, got nu={nu!r}, surrogate={surrogate!r}; "
                "use RBF(learnable=True) for nu = inf, or start from nu = 0.6 instead of a surrogate"
            )
        self.variance, self.learnable = variance, learnable
        self.centered, self.dim, self.surrogate = centered, dim, surrogate
        if learnable:
            self.log_nu, self.log_lengthscale = _log_parameter(nu), _log_parameter(lengthscale)
        else:
            self._nu, self._lengthscale = nu, lengthscale

    @property
    def nu(self) -> Number:
        """The smoothness of the kernel; a tensor if it is learnable."""
        return self.log_nu.exp() if self.learnable else self._nu

    @property
    def lengthscale(self) -> Number:
        """The length-scale of the kernel; a tensor if it is learnable."""
        return self.log_lengthscale.exp() if self.learnable else self._lengthscale

    def forward(self, x: Tensor) -> Tensor:
        return matern(
            x, self.nu, self.lengthscale, self.variance, centered=self.centered, dim=self.dim, surrogate=self.surrogate
        )

    def extra_repr(self) -> str:
        return _repr(
            nu=self.nu, lengthscale=self.lengthscale, variance=self.variance, learnable=self.learnable,
            centered=self.centered, dim=self.dim, surrogate=self.surrogate,
        )  # fmt: skip


class RBF(nn.Module):
    """Module of ``rbf``; ``learnable=True`` makes the length-scale a parameter, stored as its logarithm."""

    variance: float
    learnable: bool
    log_lengthscale: nn.Parameter

    def __init__(self, lengthscale: float = 1.0, variance: float = 1.0, *, learnable: bool = False) -> None:
        super().__init__()
        check_finite("lengthscale", lengthscale)
        check_finite("variance", variance)
        self.variance, self.learnable = variance, learnable
        if learnable:
            self.log_lengthscale = _log_parameter(lengthscale)
        else:
            self._lengthscale = lengthscale

    @property
    def lengthscale(self) -> Number:
        """The length-scale of the kernel; a tensor if it is learnable."""
        return self.log_lengthscale.exp() if self.learnable else self._lengthscale

    def forward(self, x: Tensor) -> Tensor:
        return rbf(x, self.lengthscale, self.variance)

    def extra_repr(self) -> str:
        return _repr(lengthscale=self.lengthscale, variance=self.variance, learnable=self.learnable)


class Erf(nn.Module):
    """Module of ``erf``."""

    def forward(self, x: Tensor) -> Tensor:
        return erf(x)


class Step(nn.Module):
    """Module of ``step``."""

    def __init__(self, *, surrogate: float | None = None) -> None:
        super().__init__()
        check_surrogate(surrogate)
        self.surrogate = surrogate

    def forward(self, x: Tensor) -> Tensor:
        return step(x, surrogate=self.surrogate)

    def extra_repr(self) -> str:
        return _repr(surrogate=self.surrogate)


class _Periodic(nn.Module):
    """What the modules of the periodic activations share.

    Args:
        frequency: factor on the input, in radians per unit.
    """

    def __init__(self, frequency: float = 1.0) -> None:
        super().__init__()
        check_finite("frequency", frequency)
        self.frequency = frequency

    def extra_repr(self) -> str:
        return _repr(frequency=self.frequency)


class Sine(_Periodic):
    """Module of ``sine``."""

    def forward(self, x: Tensor) -> Tensor:
        return sine(x, self.frequency)


class Cosine(_Periodic):
    """Module of ``cosine``."""

    def forward(self, x: Tensor) -> Tensor:
        return cosine(x, self.frequency)


class SinCos(_Periodic):
    """Module of ``sincos``."""

    def forward(self, x: Tensor) -> Tensor:
        return sincos(x, self.frequency)


class TriangleWave(_Periodic):
    """Module of ``triangle_wave``."""

    def forward(self, x: Tensor) -> Tensor:
        return triangle_wave(x, self.frequency)


class PeriodicReLU(_Periodic):
    """Module of ``periodic_relu``."""

    def forward(self, x: Tensor) -> Tensor:
        return periodic_relu(x, self.frequency)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "matern12": lambda: Matern(0.5),
    "exponential": lambda: Matern(0.5),
    "matern32": lambda: Matern(1.5),
    "matern52": lambda: Matern(2.5),
    "matern72": lambda: Matern(3.5),
    "rbf": RBF,
    "erf": Erf,
    "step": Step,
    "relu": ReLU,
    "leaky_relu": LeakyReLU,
    "sine": Sine,
    "siren": lambda: Sine(30.0),
    "cosine": Cosine,
    "sincos": SinCos,
    "triangle_wave": TriangleWave,
    "periodic_relu": PeriodicReLU,
}


def activation(name: str) -> nn.Module:
    """A new activation module with default parameters, by name: "matern32", "rbf", "relu", ...

    For other parameters call the class, ``Matern(nu=2.2, lengthscale=0.5)``.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation name must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return ACTIVATIONS[name]()


def twin_of(module: nn.Module) -> MaternTwin | None:
    """The faster version of a Matérn or RBF activation with fixed parameters; None for any other module."""
    if isinstance(module, RBF) and not module.learnable:
        return matern_twin(math.inf, module.lengthscale, module.variance, centered=False)
    if isinstance(module, Matern) and not module.learnable and module.dim == 1 and module.surrogate is None:
        return matern_twin(module.nu, module.lengthscale, module.variance, centered=module.centered)
    return None


def _log_parameter(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(math.log(value)))


def _repr(**attributes: object) -> str:
    """The attributes as the arguments that would make the module again, tensors as their numbers."""
    return ", ".join(
        f"{k}={v.item() if isinstance(v, Tensor) else v!r}" for k, v in attributes.items() if v not in (None, False)
    )
