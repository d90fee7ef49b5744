"""Dual activations: E[sigma(z1) sigma(z2)] for Gaussian (z1, z2), the kernels of networks with Gaussian weights.

(z1, z2) ~ N(0, [[k11, k12], [k12, k22]]); the three are tensors that broadcast. ``derivative`` gives
E[sigma'(z1) sigma'(z2)], which is also the derivative in k12. A lengthscale ell of a local activation acts as
k -> k / ell^2 and kernel -> kernel / ell, so the duals here have lengthscale 1.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from stationary._pieces import PIECE
from stationary.theory.special import broadcast_in_pieces, half_line_integral

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Dual:
    """The dual of an activation of length-scale 1.

    Args:
        value: E[sigma(z1) sigma(z2)] as a function of (k11, k12, k22).
        derivative: E[sigma'(z1) sigma'(z2)] as a function of the same, or None where that is infinite or undefined.
        lengthscale: length-scale of the activation, or None if it has none.
        why_no_derivative: the reason why ``derivative`` is None, as it stands in an error message.
    """

    value: Function
    derivative: Function | None
    _: KW_ONLY
    lengthscale: float | None = None
    why_no_derivative: str = ""


class NoClosedForm(ValueError):  # noqa: N818 - it reads as what it says
    """The kernel of this activation is not known in closed form."""

    def __init__(self, what: str) -> None:
        super().__init__(f"no closed form is known for {what}; use monte_carlo_kernel(activation, x), which needs none")


# The angle between the inputs, and what depends on it alone


def angle(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
    """theta in [0, pi] with cos(theta) = k12 / sqrt(k11 k22); its gradient is 0 where theta is 0 or pi.

    atan2 of half the angle keeps full precision near 0, where acos loses half of the digits.
    """
    g = torch.sqrt(k11 * k22)
    near, far = g - k12, g + k12
    rounding = 8 * torch.finfo(g.dtype).eps * g
    inside = (near > rounding) & (far > rounding)
    theta = 2 * torch.atan2(torch.sqrt(torch.where(inside, near, 1.0)), torch.sqrt(torch.where(inside, far, 1.0)))
    return torch.where(inside, theta, torch.where(k12 > 0, 0.0, math.pi))


def step(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
    """(pi - theta) / (2 pi): Cho and Saul's arc-cosine kernel of order 0 is twice this."""
    return (math.pi - angle(k11, k12, k22)) / (2 * math.pi)


def relu(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
    """s1 s2 (sin(theta) + (pi - theta) cos(theta)) / (2 pi): the arc-cosine kernel of order 1 is twice this."""
    theta = angle(k11, k12, k22)
    return (torch.sqrt(k11 * k22) * torch.sin(theta) + (math.pi - theta) * k12) / (2 * math.pi)


def leaky_relu(slope: float) -> Dual:
    """(1 - slope)^2 ReLU + slope k12."""
    return Dual(
        lambda k11, k12, k22: (1 - slope) ** 2 * relu(k11, k12, k22) + slope * k12,
        lambda k11, k12, k22: (1 - slope) ** 2 * step(k11, k12, k22) + slope,
    )


def erf(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
    """2 / pi asin(2 k12 / sqrt((1 + 2 k11) (1 + 2 k22))), Williams' ERF-NN kernel."""
    return 2 / math.pi * torch.asin(2 * k12 / torch.sqrt((1 + 2 * k11) * (1 + 2 * k22)))


def erf_derivative(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
    return 4 / math.pi / torch.sqrt((1 + 2 * k11) * (1 + 2 * k22) - 4 * k12 * k12)


def sinusoid(frequency: float, sine: float, cosine: float) -> Function:
    """The dual of sine sin(frequency z) + cosine cos(frequency z)."""
    w2, same, mixed = frequency**2, (sine**2 + cosine**2) / 2, (cosine**2 - sine**2) / 2

    def value(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
        difference = torch.exp(-0.5 * w2 * (k11 + k22 - 2 * k12))
        return same * difference + (mixed * torch.exp(-0.5 * w2 * (k11 + k22 + 2 * k12)) if mixed else 0.0)

    return value


def sinusoid_dual(frequency: float, sine: float, cosine: float) -> Dual:
    derivative = sinusoid(frequency, frequency * cosine, frequency * sine)  # the sign of the sine drops out
    return Dual(sinusoid(frequency, sine, cosine), derivative)


# RBF


def rbf(lengthscale: float = 1.0, variance: float = 1.0) -> Dual:
    """The ridge form, sigma(w'x + b): sqrt(2 / pi) D^(-1/2), D = (1 + 2 k11) (1 + 2 k22) - 4 k12^2."""

    def determinant(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
        return (1 + 2 * k11) * (1 + 2 * k22) - 4 * k12 * k12

    amplitude = variance * math.sqrt(2 / math.pi)
    return Dual(
        lambda k11, k12, k22: amplitude * determinant(k11, k12, k22) ** -0.5,
        lambda k11, k12, k22: 4 * amplitude * k12 * determinant(k11, k12, k22) ** -1.5,
        lengthscale=lengthscale,
    )


# Matérn


def matern(nu: float = 2.5, lengthscale: float = 1.0, variance: float = 1.0) -> Dual:
    """The exact kernel of the Matérn activation with Gaussian weights, for any nu > 0.

    In polar coordinates of (z1, z2) the radius integrates to h_(2 nu), which leaves the angle eps between the axes:

        kappa = (2 lambda)^(2 nu) / (2 pi Gamma(2 nu))
                int_0^(pi - theta) (s1 s2 c1 c2)^p h_(2 nu)(lambda (s1 c1 + s2 c2)) d eps

    with p = nu - 1/2, c2 = sin(eps), c1 = sin(pi - theta - eps). Nothing cancels and nothing is singular at theta = 0.
    With N nodes for half-integer nu the error is below 1e-9 sqrt(kappa11 kappa22); other nu reach about 1e-9 too, down
    to 0.04, and 1e-7 for pre-activations of 10^4 length-scales.
    """
    rate2 = 2 * nu  # lambda^2 at lengthscale 1

    def value(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
        a = (rate2 * k for k in (k11, k12, k22))
        return variance * math.sqrt(rate2) * broadcast_in_pieces(lambda a11, a12, a22: _polar(a11, a12, a22, nu), *a)

    def derivative(k11: Tensor, k12: Tensor, k22: Tensor) -> Tensor:
        a = (rate2 * k for k in (k11, k12, k22))
        return (
            variance
            * rate2**1.5
            * broadcast_in_pieces(lambda a11, a12, a22: _polar(a11, a12, a22, nu, derivative=True), *a)
        )

    if nu > 1:
        return Dual(value, derivative, lengthscale=lengthscale)
    why = f"nu = {nu:g} <= 1, where the expected squared slope is infinite"
    return Dual(value, None, lengthscale=lengthscale, why_no_derivative=why)


def _polar(k11: Tensor, k12: Tensor, k22: Tensor, nu: float, derivative: bool = False) -> Tensor:
    """The polar integral for lambda = 1, or its derivative in k12 (nu > 1)."""
    p, n = nu - 0.5, 2 * nu
    power = p - 1 if derivative else p
    tiny = torch.finfo(k12.dtype).tiny
    s1, s2, theta = torch.sqrt(k11.clamp(min=tiny)), torch.sqrt(k22.clamp(min=tiny)), angle(k11, k12, k22)
    total, log_constant = torch.zeros_like(k12), n * math.log(2) - math.lgamma(n) - math.log(2 * math.pi)
    share = log_constant / power if power > 1 else 0.0  # a large power takes the constant along, lest it overflows
    for weight, c1, c2 in _angle_nodes(s1, s2, theta, power, n):
        t, product = s1 * c1 + s2 * c2, s1 * s2 * c1 * c2
        f = half_line_integral(t, n)
        if derivative:
            f = (p + product) * f - p * p * half_line_integral(t, n - 2)
        total = total + (weight * (f * (math.exp(share) * product) ** power if power else f)).sum(0)
    return total * math.exp(log_constant - power * share)


def _angle_nodes(
    s1: Tensor, s2: Tensor, theta: Tensor, power: float, n: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Weights and (c1, c2) of a rule over the angle, for an integrand with c1^power and c2^power at its ends.

    They come in groups of nodes, which are the first dimension: all at once for a small matrix, whose time is that of
    calling operations, down to one by one for a large matrix, whose time is that of moving memory.
    """
    if power.is_integer():
        yield from _gauss_legendre_nodes(s1, s2, theta, n)
    else:
        yield from _logit_nodes(s1, s2, theta, power)


def _gauss_legendre_nodes(s1: Tensor, s2: Tensor, theta: Tensor, n: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Gauss-Legendre after a logistic map that resolves the end layers, of width 1 / s and theta."""
    opening = math.pi - theta
    with torch.no_grad():
        left = (math.sqrt(n + 1) + s1 * theta) / (s1 + s2)
        right = (math.sqrt(n + 1) + s2 * theta) / (s1 + s2)
        largest = float(torch.maximum(s1, s2).max()) if s1.numel() else 0.0
    span = opening + left + right
    start, end = torch.log(left / (opening + right)), torch.log((opening + left) / right)
    half = 0.5 * (end - start)
    from_left, from_right = span * torch.sigmoid(-start), span * torch.sigmoid(end)
    order = 24 if largest < 3 else 32 if largest < 30 else 48 if largest < 300 else 64
    for x, w in _in_groups(_gauss_legendre(order), s1):
        a = half * (1 + x)
        up, down = torch.sigmoid(start + a), torch.sigmoid(-start - a)
        c1 = torch.sin(-from_right * down * torch.expm1(a - 2 * half))  # the distance to the end, without cancelling
        c2 = torch.sin(-from_left * up * torch.expm1(-a))
        yield w * half * span * up * down, c1, c2


def _logit_nodes(s1: Tensor, s2: Tensor, theta: Tensor, power: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The trapezoidal rule in the logit of the angle, for any power > -1 at the ends."""
    opening = math.pi - theta
    with torch.no_grad():
        reach = 24.0 / max(power + 1 + min(power, 0.0), 0.08) + torch.log1p(torch.maximum(s1, s2))  # e^-600 is not 0
        nodes = max(64, math.ceil(2 * float(reach.max()) / 0.45)) if reach.numel() else 1
    places = (2 * torch.arange(nodes, dtype=torch.float64) + 1) / nodes - 1
    for (place,) in _in_groups(places[None], s1):
        y = reach * place
        up, down = torch.sigmoid(y), torch.sigmoid(-y)
        near = opening * torch.minimum(up, down)  # the angle to the nearer end; where theta = 0, c1 and c2 both vanish
        small, large = torch.sin(near), torch.sin(theta + near)
        c1, c2 = torch.where(y > 0, small, large), torch.where(y > 0, large, small)
        yield opening * up * down * (2 * reach / nodes), c1, c2


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _gauss_legendre(order: int) -> Tensor:
    """Nodes and weights on [-1, 1], (2, order)."""
    return torch.from_numpy(np.stack(np.polynomial.legendre.leggauss(order)))


def _in_groups(nodes: Tensor, like: Tensor) -> Iterable[Tensor]:
    """Nodes (k, N) in groups (k, n, 1, ...) that broadcast with a tensor, n times which is about a piece in size."""
    columns = nodes.to(like).view(*nodes.shape, *[1] * like.dim())
    return columns.split(max(1, PIECE // max(1, like.numel())), dim=1)
