"""The constants behind the Matérn activation: rate, amplitude, spectral density, transfer function.

Every function takes Python floats or tensors, so that a learnable ``nu`` or ``lengthscale`` gets its gradient
(the digamma terms come from differentiating log Gamma).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Number = float | Tensor


def _elementary(
    on_float: Callable[[float], float], on_tensor: Callable[[Tensor], Tensor]
) -> Callable[[Number], Number]:
    return lambda a: on_tensor(a) if isinstance(a, Tensor) else on_float(a)


sqrt = _elementary(math.sqrt, torch.sqrt)
exp = _elementary(math.exp, torch.exp)
log = _elementary(math.log, torch.log)


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
lgamma = _elementary(math.lgamma, _lgamma_of_tensor)


def precise(a: Number) -> Number:
    """A tensor in float64, since the constants of a large nu overflow float32 (but on MPS, which has no float64)."""
    return a.double() if isinstance(a, Tensor) and a.device.type != "mps" else a


def rate(nu: Number, lengthscale: Number) -> Number:
    """The decay rate lambda = sqrt(2 nu) / lengthscale of the Matérn family."""
    return sqrt(2 * nu) / lengthscale


def log_noise_density(nu: Number, lengthscale: Number, dim: int = 1) -> Number:
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


def log_amplitude(nu: Number, lengthscale: Number, dim: int = 1) -> Number:
    """log of q_d / Gamma(nu + 1/2), the factor of x^(nu - 1/2) e^(-lambda x) in the activation of unit variance."""
    return log_noise_density(nu, lengthscale, dim) / 2 - lgamma(nu + 0.5)
