"""The characteristic function of a sum of weighted coins, which is what dropout makes of a logit.

For coins that add a_k with the probability 1 - drop, and else nothing,

    log phi(t) = sum_k f(t a_k),    f(s) = log(drop + (1 - drop) e^(is)).

Light coins, |a| <= A, need no factors of their own. For each t a polynomial in a / A without a constant, even for the
real part of f(t a) and odd for the imaginary part, takes the place of f, and then log phi(t) depends on the coins only
through the sums of their powers. Heavy coins are multiplied one by one.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from stationary._native import in_c

DEGREES = 6, 8, 12  # of the polynomials; each degree costs about as much as a tenth of a node with all factors
POINTS = 2 * DEGREES[-1]  # at which they are fitted, and their error is measured
HEAVIEST = 8.0  # no coin above it is light at any accuracy that is worth the name
ELEMENTS = {"cpu": 2**15, "cuda": 2**24}  # at work: a core's cache, enough to fill a GPU


class Scale(NamedTuple):
    """The polynomials for a set of coins."""

    degree: int
    heaviest: float  # A


def scale_for(largest: float, drop: float, coins: int, accuracy: float) -> Scale:
    """The lowest degree whose polynomials take all coins of at most this size; the highest where none does."""
    scales = (Scale(degree, heaviest_light(drop, coins, accuracy, degree)) for degree in DEGREES)
    return next(scale for scale in scales if scale.heaviest >= largest or scale.degree == DEGREES[-1])


def sums_of_powers(weights: Tensor, factors: Tensor, degree: int) -> Tensor:
    """(degree, n), the sums over coins of x^j for j from 1, where x = weights (n, coins) factors is at most 1 in size.

    Coins beyond 1 are left out. Some rows are taken at a time: no array of all coins in float64 is made.
    """
    n, coins = weights.shape
    sums = factors.new_zeros(degree, n)
    name = "power_sums" if weights.dtype == torch.float64 else "power_sums_single"
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).contiguous()
    if in_c(name, (n, coins, degree), weights, factors, sums):
        return sums
    size = max(1, ELEMENTS.get(weights.device.type, ELEMENTS["cpu"]) // coins)
    for rows, some in zip(weights.split(size), sums.split(size, 1), strict=True):
        x = rows * factors
        x = x.masked_fill_(x.abs() > 1, 0)
        power = x.clone()
        for j in range(degree):
            some[j] = power.sum(-1)
            power *= x
    return sums


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def coefficients(t: Tensor, drop: float, scale: Scale) -> tuple[Tensor, Tensor]:
    """The real part (nodes, degree / 2) of log phi at times t in the even sums, and the imaginary part in the odd."""
    (real, imaginary), (even, odd) = _log_factor(scale.heaviest * t, drop), _fit(t.device, scale.degree)
    return (real @ even).contiguous(), (imaginary @ odd).contiguous()


@lru_cache(maxsize=256)
def heaviest_light(drop: float, coins: int, accuracy: float, degree: int) -> float:
    """The greatest A at which the polynomials change no expectation of ``logistic`` by more than the accuracy.

    If their error at the time t is e(t), they change phi(t) by at most e^(coins e(t)) - 1. The expectations are
    integrals of phi with weights below 2 pi e^(-pi t) (1 + 1 / t^2).
    """
    step = 0.05
    t = torch.arange(step, math.log(1 / accuracy) / math.pi + 1, step, dtype=torch.float64)
    weight = 2 * math.pi * step * torch.exp(-math.pi * t) * (1 + 1 / t.square())
    x, (even, odd) = _points(t.device), _fit(t.device, degree)
    powers = x[:, None] ** torch.arange(1, degree + 1)
    low, high = 0.0, HEAVIEST
    for _ in range(20):
        middle = (low + high) / 2
        real, imaginary = _log_factor(middle * t, drop)
        error = torch.hypot(real @ even @ powers[:, 1::2].T - real, imaginary @ odd @ powers[:, ::2].T - imaginary)
        good = bool(weight @ torch.expm1(coins * error.amax(1)) <= accuracy)
        low, high = (middle, high) if good else (low, middle)
    return low


def _log_factor(reach: Tensor, drop: float) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of f (nodes, POINTS), at the points of [0, reach]."""
    s, less = reach[:, None] * _points(reach.device), min(drop, 1 - drop)
    real = 0.5 * torch.log1p(-4 * drop * (1 - drop) * (s / 2).sin().square())
    angle = torch.atan2(less * s.sin(), 1 - less + less * s.cos())  # less than a right angle, so without a jump
    return real, angle if drop >= 0.5 else s - angle


@lru_cache(maxsize=4)
def _points(device: torch.device) -> Tensor:
    """The positive half of 2 POINTS Chebyshev points; polynomials are even or odd, so the other half adds nothing."""
    k = torch.arange(POINTS, dtype=torch.float64, device=device)
    return torch.cos((2 * k + 1) * (math.pi / (4 * POINTS)))


@lru_cache(maxsize=16)
def _fit(device: torch.device, degree: int) -> tuple[Tensor, Tensor]:
    """(POINTS, degree / 2) each: from values at the points to the coefficients of the even and the odd powers."""
    powers = _points(device)[:, None] ** torch.arange(1, degree + 1, device=device)
    return torch.linalg.pinv(powers[:, 1::2]).T, torch.linalg.pinv(powers[:, ::2]).T
