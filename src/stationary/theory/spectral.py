"""The constants behind the Matérn activation: rate, amplitude, spectral density, transfer function.

Every function takes Python floats or tensors, so that a learnable ``nu`` or ``lengthscale`` gets its gradient
(the digamma terms come from differentiating log Gamma).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from stationary._checks import check_finite, check_positive
from stationary.theory.special import unit_matern_covariance

Number = float | Tensor


def _elementary(
    on_float: Callable[[float], float], on_tensor: Callable[[Tensor], Tensor]
) -> Callable[[Number], Number]:
    return lambda a: on_tensor(a) if isinstance(a, Tensor) else on_float(a)


sqrt: Callable[[Number], Number] = _elementary(math.sqrt, torch.sqrt)
exp: Callable[[Number], Number] = _elementary(math.exp, torch.exp)
log: Callable[[Number], Number] = _elementary(math.log, torch.log)


def _lgamma_of_tensor(z: Tensor) -> Tensor:
    """log Gamma(z), z > 0, by Stirling's series at z + 8, to float64 rounding. ONNX has no log Gamma and no digamma."""
    shifted = z + 8
    product = z
    for k in range(1, 8):
        product = product * (z + k)
    series = sum(c / shifted**n for n, c in STIRLING)
    return (shifted - 0.5) * torch.log(shifted) - shifted + 0.5 * math.log(2 * math.pi) + series - torch.log(product)


STIRLING = (
    (1, 1 / 12),
    (3, -1 / 360),
    (5, 1 / 1260),
    (7, -1 / 1680),
    (9, 1 / 1188),
    (11, -691 / 360360),
    (13, 1 / 156),
)
lgamma: Callable[[Number], Number] = _elementary(math.lgamma, _lgamma_of_tensor)


def number(a: Number) -> float:
    """A Python float, also of a tensor that requires a gradient."""
    return a.item() if isinstance(a, Tensor) else float(a)


def precise(a: Number) -> Number:
    """A tensor in float64, since the constants of a large nu overflow float32 (but on MPS, which has no float64)."""
    return a.double() if isinstance(a, Tensor) and a.device.type != "mps" else a


def rate(nu: Number, lengthscale: Number) -> Number:
    """The decay rate lambda = sqrt(2 nu) / lengthscale of the Matérn family."""
    return sqrt(2 * nu) / lengthscale


def log_noise_density(nu: Number, lengthscale: Number, *, dim: int = 1) -> Number:
    """log q_d^2, the constant of the one-dimensional spectral density of the ``dim``-dimensional Matérn kernel.

    q_d^2 = 2 pi Gamma(nu + d/2) lambda^(2 nu) / (Gamma(nu) Gamma(d/2)); d = 1 is the paper's q^2.
    """
    return (
        math.log(2 * math.pi)
        + lgamma(nu + dim / 2)
        + 2 * nu * log(rate(nu, lengthscale))
        - lgamma(nu)
        - math.lgamma(dim / 2)
    )


def log_amplitude(nu: Number, lengthscale: Number, *, dim: int = 1) -> Number:
    """log of q_d / Gamma(nu + 1/2), the factor of x^(nu - 1/2) e^(-lambda x) in the activation of unit variance."""
    return log_noise_density(nu, lengthscale, dim=dim) / 2 - lgamma(nu + 0.5)


def noise_density(nu: Number, lengthscale: Number, variance: Number = 1.0) -> Number:
    """q^2, the spectral density of the white noise that ``transfer_function`` turns into the Matérn process.

    q^2 = 2 sqrt(pi) variance lambda^(2 nu) Gamma(nu + 1/2) / Gamma(nu), so that S = q^2 |G|^2 (``log_noise_density``
    is its logarithm: it does not overflow at a large nu).
    """
    return variance * exp(log_noise_density(nu, lengthscale))


def transfer_function(omega: Tensor, nu: float, lengthscale: float) -> Tensor:
    """G(i omega) = (lambda + i omega)^-(nu + 1/2), complex; q G is the Fourier transform of the Matérn activation."""
    _check_matern(nu, lengthscale)
    return torch.complex(torch.full_like(omega, float(rate(nu, lengthscale))), omega) ** -(nu + 0.5)


def spectral_density(
    omega: Tensor, nu: float = 2.5, lengthscale: float = 1.0, variance: float = 1.0, *, dim: int = 1
) -> Tensor:
    """The spectral density of the Matérn kernel on R^dim, kappa(r) = (2 pi)^-dim integral of S(omega) e^(i omega r).

    S(omega) = variance 2^d pi^(d/2) Gamma(nu + d/2) lambda^(2 nu) / (Gamma(nu) (lambda^2 + |omega|^2)^(nu + d/2)) with
    d = dim; for d = 1 it is q^2 |G(i omega)|^2. The process has ceil(nu) - 1 mean-square derivatives: the k-th exists
    where the integral of |omega|^(2k) S is finite, which is for k < nu.

    Args:
        omega: |omega|, the frequency in radians per unit; any floating-point tensor.
        nu: smoothness of the kernel; ``math.inf`` gives the density of the RBF kernel.
        lengthscale: length-scale of the kernel; positive.
        variance: variance of the kernel; positive.
        dim: dimension of the input; a positive integer.
    """
    _check_matern(nu, lengthscale, rbf=True)
    check_finite("variance", variance)
    if not isinstance(dim, int) or dim < 1:
        raise ValueError(f"dim must be a positive integer, got {dim!r}; it is the dimension of the input")
    scaled = (omega * lengthscale).square()
    log_density = math.log(variance) + dim * math.log(lengthscale) + dim / 2 * math.log(2 * math.pi)
    if math.isinf(nu):
        return torch.exp(log_density - scaled / 2)
    # In units of lambda, lambda^(2 nu) / lambda^(2 nu + dim) is lengthscale^dim (2 nu)^(-dim/2): nothing overflows.
    log_density += dim / 2 * math.log(2 / (2 * nu)) + math.lgamma(nu + dim / 2) - math.lgamma(nu)
    return torch.exp(log_density - (nu + dim / 2) * torch.log1p(scaled / (2 * nu)))


def matern_covariance(r: Tensor, nu: float = 2.5, lengthscale: float = 1.0, variance: float = 1.0) -> Tensor:
    """The Matérn kernel, variance 2^(1 - nu) / Gamma(nu) z^nu K_nu(z), z = lambda |r| (eq. 6 of the paper).

    It is once differentiable in r; nu = ``math.inf`` gives the RBF kernel.
    """
    _check_matern(nu, lengthscale, rbf=True)
    check_finite("variance", variance)
    scaled = r.double() / lengthscale
    unit = torch.exp(-scaled.square() / 2) if math.isinf(nu) else unit_matern_covariance(scaled, nu)
    return (variance * unit).to(r.dtype)


def _check_matern(nu: float, lengthscale: float, rbf: bool = False) -> None:
    (check_positive if rbf else check_finite)("nu", nu, "use 0.5 (rough) up to " + ("math.inf" if rbf else "50"))
    check_finite("lengthscale", lengthscale)
