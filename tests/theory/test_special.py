"""The special function behind the kernels against mpmath, and its evaluation in pieces."""

import mpmath
import numpy as np
import oracles
import pytest
import torch
from scipy.special import spherical_jn

from stationary._pieces import PIECE
from stationary.theory._panels import DEGREE, spherical_bessels
from stationary.theory.special import (
    broadcast_in_pieces,
    half_line_integral,
    log_half_line_integral,
    scaled_half_line_integrals,
    shifted_half_line_integral,
    unit_matern_covariance,
)

F64 = torch.float64


def log_h(n, t):
    mpmath.mp.dps = 40
    value = mpmath.gamma(mpmath.mpf(n) + 1) * mpmath.exp(mpmath.mpf(t) ** 2 / 4) * mpmath.pcfd(-mpmath.mpf(n) - 1, t)
    return mpmath.log(value)


@pytest.mark.parametrize("n", [-0.9, -0.4, 0.0, 2.3, 20.0, 99.0])
@pytest.mark.parametrize("t", [-30.0, -1.0, 0.0, 0.5, 40.0, 1000.0])
def test_half_line_integral_is_a_parabolic_cylinder_function(n, t):
    assert log_half_line_integral(n, t) == pytest.approx(float(log_h(n, t)), rel=1e-13, abs=1e-11)


@pytest.mark.parametrize("n", [-0.4, 0.0, 1.0, 3.0, 4.4, 5.0, 10.0, 21.0])
def test_chebyshev_series(n):
    t = torch.tensor([0.0, 1e-3, 0.3, 1.0, 2.5, 7.0, 50.0, 1e3, 1e5], dtype=F64)
    exact = np.array([float(mpmath.exp(log_h(n, v))) for v in t.tolist()])
    np.testing.assert_allclose(half_line_integral(t, n), exact, rtol=3e-12)


def test_chebyshev_series_differentiates():
    t = torch.tensor([0.1, 1.0, 6.0], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: half_line_integral(t, 2.2), t)
    assert torch.autograd.gradgradcheck(lambda t: half_line_integral(t, 2.2), t)


def test_scaled_integrals_on_both_sides_of_zero():
    t = torch.tensor([-25.0, -3.0, -1e-8, 0.0, 1e-8, 2.0, 30.0], dtype=F64)
    for n, values in zip(range(7), scaled_half_line_integrals(t, range(7)), strict=True):
        exact = [float(mpmath.exp(log_h(n, v) - mpmath.mpf(min(v, 0)) ** 2 / 2)) for v in t.tolist()]
        np.testing.assert_allclose(values, exact, rtol=1e-11)


@pytest.mark.parametrize("p", [-0.2, 0.0, 0.3, 1.0, 1.7, 2.0, 5.2, 20.3])
@pytest.mark.parametrize("t", [-1e4, -20.0, -2.0, 0.0, 3.0, 100.0])
def test_shifted_integral(p, t):
    for r in (0.0, 0.4, 6.0):
        ours = shifted_half_line_integral(torch.tensor(t, dtype=F64), torch.tensor(r, dtype=F64), p).item()
        centre = max(-t, 0.0)
        u = np.concatenate([np.arange(-120, 12, 1 / 256)])
        R = np.exp(u) / (1 + max(t, 0)) if centre < 50 else centre + np.linspace(-15, 15, len(u))
        weight = R / 256 if centre < 50 else 30 / (len(u) - 1)
        exponent = p * np.log(R) + p * np.log(R + r) - 0.5 * R**2 - t * R - 0.5 * min(t, 0.0) ** 2
        if centre >= 50:
            exponent = p * np.log(R) + p * np.log(R + r) - 0.5 * (R + t) ** 2
        assert ours == pytest.approx(float((np.exp(exponent) * weight).sum()), rel=2e-8)


@pytest.mark.parametrize("nu", [0.3, 0.8, 1.5, 2.2, 6.5])
def test_matern_covariance_and_its_slope(nu):
    r = torch.tensor([0.05, 0.4, 1.0, 5.0, 40.0], dtype=F64, requires_grad=True)
    np.testing.assert_allclose(
        unit_matern_covariance(r, nu).detach(), oracles.matern_kernel(r.detach().numpy(), nu), rtol=1e-10
    )
    assert torch.autograd.gradcheck(lambda r: unit_matern_covariance(r, nu), r)
    zero = torch.zeros(1, dtype=F64, requires_grad=True)
    unit_matern_covariance(zero, nu).backward()
    assert zero.grad.item() == 0


def test_all_spherical_bessel_functions_at_once():
    z = np.concatenate([[0.0, 1e-300], np.geomspace(1e-20, 1e6, 2000), np.linspace(DEGREE - 4, DEGREE + 4, 2000)])
    exact = [spherical_jn(n, z) for n in range(DEGREE)]
    rounding = 2 * DEGREE * np.finfo(float).eps  # two roundings in each step of the recurrence, of numbers up to 1
    np.testing.assert_allclose(spherical_bessels(z), exact, rtol=0, atol=rounding)


def test_pieces_do_not_show():
    x, y = (torch.rand(PIECE + 1000, dtype=F64, requires_grad=True) for _ in range(2))
    function = lambda a, b: torch.sin(a) * b**2
    whole, cut = function(x, y), broadcast_in_pieces(function, x, y)
    torch.testing.assert_close(cut, whole)
    weights = torch.randn(x.shape, dtype=F64)
    expected = torch.autograd.grad((whole * weights).sum(), (x, y))
    torch.testing.assert_close(torch.autograd.grad((cut * weights).sum(), (x, y)), expected)
    broadcast = broadcast_in_pieces(function, x[:3, None], y[None, :4].detach())
    assert broadcast.shape == (3, 4)
    assert broadcast_in_pieces(function, x[:0], y[:0]).shape == (0,)
    few = x[:3].detach().requires_grad_(), y[:3].detach().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, b: broadcast_in_pieces(function, a, b), few)
