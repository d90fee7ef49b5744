"""The characteristic function of a sum of weighted coins, which is what dropout makes of a logit.

For coins that add a_k with the probability 1 - drop, and else nothing,

    log phi(t) = sum_k f(t a_k),    f(s) = log(drop + (1 - drop) e^(is)).

Light coins, |a| <= A, need no factors of their own. For each t a polynomial in a / A without a constant, even for the
real part of f(t a) and odd for the imaginary part, takes the place of f, and then log phi(t) depends on the coins only
through the sums of their powers. Heavy coins are multiplied one by one.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

DEGREE = 12  # of the polynomials; each degree costs about as much as a tenth of a node with all factors
POINTS = 2 * DEGREE  # at which they are fitted, and their error is measured
HEAVIEST = 8.0  # no coin above it is light at any accuracy that is worth the name


def sums_of_powers(a: Tensor, heaviest: float) -> Tensor:
    """(DEGREE, n), the sums over coins of (a / A)^j for j from 1, where a is (n, coins)."""
    x = a / heaviest
    power, sums = x.clone(), x.new_empty(DEGREE, len(x))
    for j in range(DEGREE):
        torch.sum(power, -1, out=sums[j])
        power *= x
    return sums


def log_characteristic(sums: Tensor, t: Tensor, drop: float, heaviest: float) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part (nodes, n) of log phi for light coins, from their sums of powers."""
    (real, imaginary), (even, odd) = _log_factor(heaviest * t, drop), _fit(t.device)
    return real @ even @ sums[1::2], imaginary @ odd @ sums[::2]


@lru_cache(maxsize=64)
def heaviest_light(drop: float, coins: int, accuracy: float) -> float:
    """The greatest A at which the polynomials change no expectation of ``logistic`` by more than the accuracy.

    If their error at the time t is e(t), they change phi(t) by at most e^(coins e(t)) - 1. The expectations are
    integrals of phi with weights below 2 pi e^(-pi t) (1 + 1 / t^2).
    """
    step = 0.05
    t = torch.arange(step, math.log(1 / accuracy) / math.pi + 1, step, dtype=torch.float64)
    weight = 2 * math.pi * step * torch.exp(-math.pi * t) * (1 + 1 / t.square())
    x, (even, odd) = _points(t.device), _fit(t.device)
    powers = x[:, None] ** torch.arange(1, DEGREE + 1)
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


@lru_cache(maxsize=4)
def _fit(device: torch.device) -> tuple[Tensor, Tensor]:
    """(POINTS, DEGREE / 2) each: from values at the points to the coefficients of the even and the odd powers."""
    powers = _points(device)[:, None] ** torch.arange(1, DEGREE + 1, device=device)
    return torch.linalg.pinv(powers[:, 1::2]).T, torch.linalg.pinv(powers[:, ::2]).T
