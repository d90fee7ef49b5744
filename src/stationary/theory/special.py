"""The one special function behind every Matérn kernel, and how to evaluate such functions in little memory.

    h_n(t) = integral over R > 0 of R^n e^(-R^2 / 2 - t R) dR,    n > -1,    h_n' = -h_(n+1).

It is Gamma(n + 1) e^(t^2 / 4) D_(-n-1)(t), a parabolic cylinder function.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Tensor

from stationary._pieces import PIECE, cut, in_pieces

BACKWARD_PIECE = 2**14  # autograd keeps about 1500 intermediates of a quadrature: 200 MB


def log_half_line_integral(n: float, t: float) -> float:
    """log h_n(t) for any t, to float64 rounding.

    In u = log R the integrand is analytic and falls off fast on both sides, so the trapezoidal rule converges
    geometrically.
    """
    root = math.sqrt(t * t + 4 * (n + 1))
    peak = 2 * (n + 1) / (t + root) if t >= 0 else (root - t) / 2  # of (n + 1) log R - R^2 / 2 - t R
    step = min(0.05, 0.25 / math.sqrt(2 * peak**2 + t * peak))
    u = np.arange(-1 - 40 / (n + 1) - math.sqrt(80 / (n + 1)), math.log(1 + 40 / peak), step)  # around log peak
    R = peak * np.exp(u)
    exponent = (n + 1) * u - 0.5 * (R**2 - peak**2) - t * (R - peak)
    return math.log(step * np.exp(exponent).sum()) + (n + 1) * math.log(peak) - 0.5 * peak**2 - t * peak


def half_line_integral(t: Tensor, n: float) -> Tensor:
    """h_n(t) for t >= 0 in float64, to about 1e-12, differentiable in t any number of times."""
    return _HalfLineIntegral.apply(t, float(n))


class _HalfLineIntegral(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, n: float) -> Tensor:
        ctx.save_for_backward(t)
        ctx.n = n
        scale, coefficients = _chebyshev(n)
        u = t + scale
        twice_y = (t - scale).mul_(2).div_(u)
        b1, b2 = torch.zeros_like(t), torch.zeros_like(t)
        for a in coefficients[:0:-1]:  # Clenshaw's recurrence, in place
            torch.sub(a, b2, out=b2).addcmul_(twice_y, b1)
            b1, b2 = b2, b1
        return b1.mul_(twice_y).mul_(0.5).sub_(b2).add_(coefficients[0]).sub_(u.log_(), alpha=n + 1).exp_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (t,) = ctx.saved_tensors
        return -grad * half_line_integral(t, ctx.n + 1), None


@lru_cache(maxsize=128)
def _chebyshev(n: float, degree: int = 40) -> tuple[float, list[Tensor]]:
    """c and the series of log h_n(t) + (n + 1) log(t + c) in y = (t - c) / (t + c), which covers all t >= 0.

    c makes the function vanish at t = inf relative to t = 0: c^(n+1) = Gamma(n + 1) / h_n(0).
    """
    c = math.exp((math.lgamma(n + 1) - log_half_line_integral(n, 0.0)) / (n + 1))
    angle = np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)
    t = c * (1 + np.cos(angle)) / (1 - np.cos(angle))
    values = np.array([log_half_line_integral(n, v) for v in t]) + (n + 1) * np.log(t + c)
    series = 2 / (degree + 1) * np.cos(np.outer(np.arange(degree + 1), angle)) @ values
    series[0] /= 2
    keep = np.nonzero(np.abs(series) > 1e-15 * np.abs(series).max())[0][-1] + 1
    return c, [torch.tensor(a, dtype=torch.float64) for a in series[:keep]]


def scaled_half_line_integrals(t: Tensor, orders: range) -> list[Tensor]:
    """h_n(t) e^(-min(t, 0)^2 / 2) for the integers n in orders, any t, in float64.

    Left of 0 the recurrence h_(n+1) = n h_(n-1) - t h_n has only positive terms; right of 0 it cancels, and the
    Chebyshev series takes over.
    """
    left, right = t.clamp(max=0.0), t.clamp(min=0.0)
    forward = [math.sqrt(math.pi / 2) * torch.special.erfc(left / math.sqrt(2))]
    forward.append(torch.exp(-0.5 * left * left) - left * forward[0])
    for n in range(1, orders.stop):
        forward.append(n * forward[n - 1] - left * forward[n])
    return [torch.where(t < 0, forward[n], half_line_integral(right, n)) for n in orders]


def shifted_half_line_integral(t: Tensor, r: Tensor, p: float) -> Tensor:
    """Integral over R > 0 of R^p (R + r)^p e^(-R^2 / 2 - t R) dR times e^(-min(t, 0)^2 / 2), r >= 0, p > -1/2.

    A sum of h_n for integer p, else trapezoidal rules, to about 1e-9 and once differentiable.
    """
    if float(p).is_integer():
        return broadcast_in_pieces(lambda t, r: _shifted_by_sum(t, r, int(p)), t, r)
    t, r = torch.broadcast_tensors(t, r)
    return _ShiftedByQuadrature.apply(t.reshape(-1), r.reshape(-1), p).view(t.shape)


def _shifted_by_sum(t: Tensor, r: Tensor, p: int) -> Tensor:
    h = scaled_half_line_integrals(t, range(p, 2 * p + 1))
    return sum((math.comb(p, j) * r ** (p - j) * h[j] for j in range(p + 1)), torch.zeros_like(t))


class _ShiftedByQuadrature(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, r: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(t, r)
        ctx.p = p
        return torch.cat([_shifted_by_quadrature(a, b, p)[0] for a, b in cut(PIECE, t, r)])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        slopes = [_shifted_by_quadrature(a, b, ctx.p, slopes=True)[1:] for a, b in cut(PIECE, *ctx.saved_tensors)]
        in_t, in_r = (torch.cat(parts) for parts in zip(*slopes, strict=True))
        return grad * in_t, grad * in_r, None


def _shifted_by_quadrature(t: Tensor, r: Tensor, p: float, slopes: bool = False) -> tuple[Tensor, ...]:
    """The integral and, if asked for, its derivatives in t and r, from the same nodes."""
    right = t >= 0
    results = tuple(torch.empty_like(t) for _ in range(3 if slopes else 1))
    for side, rule in ((right, _right_nodes), (~right, _left_nodes)):
        t_side, r_side = t[side], r[side]
        sums = [torch.zeros_like(t_side) for _ in results]
        for R, log_weight in rule(t_side, p):
            shifted = r_side + R
            f = torch.log(shifted).mul_(p).add_(log_weight).exp_()
            sums[0] += f
            if slopes:
                sums[1] -= f * (R + t_side.clamp(max=0.0))
                sums[2] += f.div_(shifted).mul_(p)
        for result, total in zip(results, sums, strict=True):
            result[side] = total
    return results


def _right_nodes(t: Tensor, p: float) -> Iterator[tuple[Tensor, Tensor]]:
    """For t >= 0 in u, R = e^u / (1 + t); closer nodes where the peak is narrower."""
    step = 0.2 / math.sqrt(1 + max(p, 0.0) / 2)
    scale = 1 / (1 + t)
    quadratic, linear, constant = 0.5 * scale**2, t * scale, math.log(step) + (p + 1) * torch.log(scale)
    for u in np.arange(-22 / (p + 1 + min(p, 0.0)), math.log(60 + 8 * max(p, 0.0)), step):
        x = math.exp(u)
        yield x * scale, torch.add(constant + (p + 1) * u, quadratic, alpha=-x * x).sub_(linear, alpha=x)


def _left_nodes(t: Tensor, p: float) -> Iterator[tuple[Tensor, Tensor]]:
    """For t < 0 in y, R = softplus(y): the integrand is a bump around R = -t, for p < 0 with a long tail to R = 0."""
    nodes = math.ceil(96 / (1 + 2 * min(p, 0.0)))
    end = math.sqrt(2 * (45 + 4 * max(p, 0.0))) - t
    start = torch.where(t < -12, -t - 10.0, -32 / (p + 1 + min(p, 0.0)))
    step = (end - start) / nodes
    for i in range(nodes):
        y = start + (i + 0.5) * step
        R = torch.nn.functional.softplus(y, threshold=40.0)
        yield R, torch.log(step * torch.sigmoid(y)) + p * torch.log(R) - 0.5 * (R + t) ** 2


def broadcast_in_pieces(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """An element-wise function of tensors that broadcast, a piece at a time, keeping only the tensors for backward.

    So a quadrature over a hundred nodes of a million matrix entries takes the memory of the matrix.
    """
    tensors = torch.broadcast_tensors(*tensors)
    flat = in_pieces(function, [t.reshape(-1) for t in tensors], backward_size=BACKWARD_PIECE)
    return flat.view(tensors[0].shape)


def unit_matern_covariance(r: Tensor, nu: float) -> Tensor:
    """The Matérn kernel of lengthscale 1, 2^(1 - nu) / Gamma(nu) z^nu K_nu(z), z = sqrt(2 nu) |r|; once differentiable.

    For half-integer nu a polynomial times e^-z, else SciPy's Bessel function, on the CPU.
    """
    if nu > 100:
        raise ValueError(f"nu must be at most 100 or math.inf, got {nu!r}; from there the kernel is the RBF to 0.3 %")
    z = (math.sqrt(2 * nu) * r.abs()).clamp(max=1e4)  # there the kernel is 0
    p = nu - 0.5
    if not p.is_integer():
        return _BesselMatern.apply(z, nu)
    k = int(p)
    polynomial = torch.zeros_like(z)
    for i in range(k, -1, -1):
        polynomial = polynomial * z + math.comb(k, i) * 2**i / math.perm(2 * k, i)
    return polynomial * torch.exp(-z)


class _BesselMatern(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, nu: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.nu = nu
        return _power_bessel(z, nu, nu, near_zero=1 - z * z / (4 * max(nu - 1, 1.0)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors  # (z^nu K_nu)' = -z^nu K_(nu-1)
        return -grad * _power_bessel(z, ctx.nu, ctx.nu - 1, near_zero=z / (2 * max(ctx.nu - 1, 1.0))), None


def _power_bessel(z: Tensor, nu: float, order: float, near_zero: Tensor) -> Tensor:
    """2^(1 - nu) / Gamma(nu) z^nu K_order(z), and the Taylor series near 0, where the Bessel function overflows."""
    values = z.detach().cpu().double().numpy()
    safe = np.where(values > 0, values, 1.0)
    with np.errstate(over="ignore"):
        bessel = scipy.special.kve(order, safe)
        log_power = (1 - nu) * math.log(2) - math.lgamma(nu) + nu * np.log(safe) - safe
        result = torch.from_numpy(np.exp(log_power) * np.where(np.isfinite(bessel), bessel, 0.0)).to(z)
    usable = torch.from_numpy((values > 0) & np.isfinite(bessel)).to(z.device)
    return torch.where(usable, result, near_zero.detach())
