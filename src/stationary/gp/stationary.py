"""Exactly stationary kernels: the Matérn itself for any smoothness, and networks with a uniform bias."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from stationary._checks import check_positive
from stationary._extras import extra
from stationary.activations import RBF, Cosine, Matern, SinCos, Sine
from stationary.gp._base import NetworkKernel, distances, positive, register_positive
from stationary.gp.binary import sign_vectors
from stationary.theory.duals import NoClosedForm
from stationary.theory.special import broadcast_in_pieces, unit_matern_covariance

with extra("gp"):
    from gpytorch.kernels import Kernel


class MaternKernel(Kernel):
    """The Matérn kernel for any nu > 0; ``gpytorch.kernels.MaternKernel`` takes only 1/2, 3/2 and 5/2."""

    has_lengthscale = True
    nu: float

    def __init__(self, nu: float = 2.5, **kwargs: Any) -> None:
        check_positive("nu", nu, "use gpytorch.kernels.RBFKernel for nu = inf")
        if math.isinf(nu):
            raise ValueError("nu must be finite, got inf; use gpytorch.kernels.RBFKernel")
        super().__init__(**kwargs)
        self.nu = float(nu)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        u1, u2 = (x.double() / self.lengthscale.double() for x in (x1, x2))
        return unit_matern_covariance(distances(u1, u2, diag), self.nu).to(x1.dtype)


class UniformBiasKernel(NetworkKernel):
    """The kernel of a network with a uniform bias on [-B, B], B = sqrt(3) bias_std, for inputs well inside of it.

    A local activation sees a flat bias there, so the kernel is its autocorrelation in w'(x - x'), averaged over w and
    divided by 2 B; exactly stationary up to an error that falls exponentially in B - |w'x|. ``normalize`` multiplies by
    2 B. A periodic activation has the mean autocorrelation over a period, whatever B, if [-B, B] covers whole periods.

    - weights "one" or "binary": kappa(w'r), averaged over the signs. In d > 1 not isotropic: along a diagonal it tends
      to a constant.
    - weights "gaussian": isotropic, with a tail that falls only like 1 / |r|. Matérn: Gamma(nu + 1/2) / Gamma(nu)
      U(1/2, 1 - nu, (lambda |r|)^2 / 2); RBF: (1 + |r|^2 / ell^2)^(-1/2).
    - weights "sphere", activation ``Matern(dim=d)`` on d inputs: exactly the isotropic d-dimensional Matérn kernel.
    """

    weights: str
    periodic: bool

    def __init__(self, activation: nn.Module, *, weights: str = "gaussian", **kwargs: Any) -> None:
        local, periodic = isinstance(activation, (Matern, RBF)), isinstance(activation, (Sine, Cosine, SinCos))
        on_sphere = isinstance(activation, Matern) and weights == "sphere" and math.isfinite(activation.nu)
        unsuited = getattr(activation, "dim", 1) > 1 or weights == "sphere"
        if not (local or periodic) or (unsuited and not on_sphere):
            raise NoClosedForm(f"the kernel of {activation!r} with {weights} weights and a uniform bias")
        super().__init__(activation, **kwargs)
        self.weights, self.periodic = weights, periodic

    @property
    def is_stationary(self) -> bool:
        return True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        u1, u2 = self._weighted(x1), self._weighted(x2)
        lengthscale = self._hyper("lengthscale", diag) if self.has_lengthscale else torch.ones((), dtype=u1.dtype)
        if self.weights in ("one", "binary"):
            signs = sign_vectors(u1.shape[-1], self.weights).to(u1)
            total = torch.zeros((), dtype=u1.dtype, device=u1.device)
            for sign in signs:
                s1, s2 = u1 @ sign, u2 @ sign
                total = total + self._autocorrelation(
                    (s1 - s2 if diag else s1[..., :, None] - s2[..., None, :]) / lengthscale
                )
            result = total / len(signs)
        else:
            self._check_sphere(u1.shape[-1])
            distance = distances(u1, u2, diag) / lengthscale
            result = (
                self._autocorrelation(distance) if self.weights == "sphere" else self._over_gaussian_weights(distance)
            )
        return (self._factor(diag) * result).to(x1.dtype)

    def _factor(self, diag: bool) -> Tensor | float:
        amplitude = self.scale if self.periodic else self.scale * self.activation.variance
        if self.normalize or self.periodic:
            return amplitude
        return amplitude / (2 * math.sqrt(3) * self._hyper("bias_std", diag))

    def _autocorrelation(self, r: Tensor) -> Tensor:
        """Of the activation with length-scale 1 and unit variance."""
        a = self.activation
        if isinstance(a, (Sine, Cosine, SinCos)):
            return torch.cos(a.frequency * r) * (1.0 if isinstance(a, SinCos) else 0.5)
        if isinstance(a, RBF) or math.isinf(a.nu):
            return torch.exp(-0.5 * r * r)
        return unit_matern_covariance(r, a.nu)

    def _over_gaussian_weights(self, r: Tensor) -> Tensor:
        """E[autocorrelation(r xi)], xi ~ N(0, 1)."""
        a = self.activation
        if isinstance(a, (Sine, Cosine, SinCos)):
            return torch.exp(-0.5 * (a.frequency * r) ** 2) * (1.0 if isinstance(a, SinCos) else 0.5)
        if isinstance(a, RBF) or math.isinf(a.nu):
            return torch.rsqrt(1 + r * r)
        return broadcast_in_pieces(lambda r: _matern_over_weights(r, a.nu), r)

    def _check_sphere(self, dims: int) -> None:
        if self.weights == "sphere" and dims != self.activation.dim:
            raise ValueError(
                f"weights on the sphere need one input dimension for each dim of the activation, got {dims} inputs and "
                f"dim={self.activation.dim}; use Matern(dim={dims}) if {dims} is odd, else monte_carlo_kernel"
            )


def _matern_over_weights(r: Tensor, nu: float) -> Tensor:
    """E[kappa_Mat(r xi)] in the spectral domain: int (1 + w^2)^-(nu + 1/2) e^(-nu r^2 w^2) dw, w = sinh(v), normalised.

    The trapezoidal rule in v converges geometrically; v is scaled by the width of the Gaussian where that is narrower.
    """
    step = 0.25 / math.sqrt(max(1.0, nu / 2))  # large nu narrow the integrand too
    c = nu * r * r  # (lambda r)^2 / 2
    width = torch.rsqrt(1 + 2 * c)
    total = torch.full_like(r, 0.5)
    for i in range(1, math.ceil((9 + 19 / nu) / step)):
        v = i * step * width
        square = torch.sinh(v.clamp(max=350.0)) ** 2  # finite, for c may be 0
        total = total + torch.exp(-c * square - 2 * nu * (v + torch.log1p(torch.exp(-2 * v)) - math.log(2)))
    constant = 2 * math.exp(math.lgamma(nu + 0.5) - math.lgamma(nu)) / math.sqrt(math.pi)
    return constant * step * width * total


class RBFNNKernel(Kernel):
    """Williams' kernel of radial units e^(-|x - u|^2 / 2 lengthscale^2) with centres u ~ N(0, centre_std^2 I).

    With g the length-scale (width of a unit), c = centre_std and d inputs,

        (e / c)^d e^(-|x|^2 / 2 m^2) e^(-|x - x'|^2 / 2 s^2) e^(-|x'|^2 / 2 m^2),

    1 / e^2 = 2 / g^2 + 1 / c^2, s^2 = 2 g^2 + g^4 / c^2, m^2 = 2 c^2 + g^2.
    """

    has_lengthscale = True
    centre_std: property = positive("centre_std")

    def __init__(self, lengthscale: float = 1.0, *, centre_std: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        register_positive(self, "centre_std", centre_std)
        self.lengthscale = lengthscale

    @property
    def is_stationary(self) -> bool:
        return False

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        g2, c2 = torch.as_tensor(self.lengthscale).double() ** 2, self.centre_std.double() ** 2
        e2, s2, m2 = 1 / (2 / g2 + 1 / c2), 2 * g2 + g2**2 / c2, 2 * c2 + g2
        factor = torch.sqrt(e2 / c2).expand(*e2.shape[:-1], x1.shape[-1]).prod(-1, keepdim=True)
        near = distances(x1.double() / s2.sqrt(), x2.double() / s2.sqrt(), diag) ** 2
        square1, square2 = ((x.double().square() / m2).sum(-1) for x in (x1, x2))
        squares = square1 + square2 if diag else square1[..., :, None] + square2[..., None, :]
        return ((factor.squeeze(-1) if diag else factor) * torch.exp(-0.5 * (near + squares))).to(x1.dtype)
