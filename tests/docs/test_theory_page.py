"""Every section of docs/theory.md has a test here, by its heading: its formulas against integration, then the library.

The formulas are typed as the page writes them, and compared with integrals or sums that follow from definitions alone.
"""

import itertools
import math
import re
from importlib import import_module

import numpy as np
import pages
import pytest
import torch
from scipy import integrate, spatial, special, stats
from torch import nn

import stationary as st
from stationary.activations import dual_of
from stationary.gp import kernel_of, kernels, ntk_of
from stationary.theory import duals, mercer, spectral
from stationary.theory.logistic import of_dropout

PAGE = pages.ROOT / "docs" / "theory.md"
TEXT = PAGE.read_text(encoding="utf-8")
RATE = lambda nu, ell: math.sqrt(2 * nu) / ell


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def column(*values):
    return tensor(*values)[:, None]


def sigma(x, nu, ell):
    """The activation as the page writes it."""
    rate = RATE(nu, ell)
    q = math.sqrt(2 * math.sqrt(math.pi) * special.gamma(nu + 0.5) / special.gamma(nu) * rate ** (2 * nu))
    x = np.asarray(x, dtype=float)
    inside = np.where(x > 0, x, 1.0)
    return np.where(x > 0, q / special.gamma(nu + 0.5) * inside ** (nu - 0.5) * np.exp(-rate * inside), 0.0)


def matern_kernel(r, nu, ell):
    z = RATE(nu, ell) * np.maximum(np.abs(r), 1e-12)
    return 2 ** (1 - nu) / special.gamma(nu) * z**nu * special.kv(nu, z)


def on_half_line(function, start=0.0, step=1 / 64):
    """The integral over x > start, by the trapezoidal rule in log(x - start)."""
    u = np.exp(np.arange(-80, 5, step))
    return float(np.sum(function(start + u) * u) * step)


def over_normal(function, std=1.0, n=4001):
    """E[function(b)] for b ~ N(0, std^2) by a fine sum; for smooth functions."""
    b = np.linspace(-12 * std, 12 * std, n)
    return float(np.sum(function(b) * stats.norm.pdf(b, scale=std)) * (b[1] - b[0]))


def h(n, t):
    return on_half_line(lambda R: R**n * np.exp(-(R**2) / 2 - t * R))


def pair_mean(f, k11, k12, k22, n=1501):
    """E[f(z) f(z')] of a Gaussian pair, from independent normals on a grid; f is tame."""
    a = np.linspace(-9, 9, n)
    weight = stats.norm.pdf(a) * (a[1] - a[0])
    z = math.sqrt(k11) * a[:, None]
    second = k12 / math.sqrt(k11) * a[:, None] + math.sqrt(k22 - k12**2 / k11) * a
    return float(weight @ (f(z) * f(second)) @ weight)


# One test for each section


def test_random_networks():
    x = column(-0.5, 0.3, 1.0)
    exact = kernel_of(st.Matern(1.5))(x).to_dense().detach()
    mean, error = st.monte_carlo_kernel(st.Matern(1.5), x, n_units=20_000)
    assert ((mean - exact).abs() < 5 * error).all()
    _, quarter = st.monte_carlo_kernel(st.Matern(1.5), x, n_units=5_000)
    torch.testing.assert_close(quarter / error, torch.full_like(error, 2.0), rtol=0.1, atol=0)


@pytest.mark.parametrize(("nu", "ell"), [(0.5, 1.0), (1.5, 0.5), (2.2, 1.3)])
def test_activation_and_spectral_density(nu, ell):
    omega, rate = tensor(0.0, 0.7, 3.0), RATE(nu, ell)
    transform = [
        on_half_line(lambda x, w=w: sigma(x, nu, ell) * np.cos(w * x), step=1 / 512)
        - 1j * on_half_line(lambda x, w=w: sigma(x, nu, ell) * np.sin(w * x), step=1 / 512)
        for w in omega.tolist()
    ]
    q = math.sqrt(spectral.noise_density(nu, ell))
    np.testing.assert_allclose(transform, q * spectral.transfer_function(omega, nu, ell).numpy(), rtol=1e-5)
    np.testing.assert_allclose(np.abs(transform) ** 2, spectral.spectral_density(omega, nu, ell), rtol=1e-5)
    grid = torch.linspace(-4000, 4000, 4_000_001, dtype=torch.float64) * rate
    back = torch.trapezoid(spectral.spectral_density(grid, nu, ell) * torch.cos(grid * 0.8), grid) / (2 * math.pi)
    assert back.item() == pytest.approx(matern_kernel(0.8, nu, ell), abs=1e-3)


@pytest.mark.parametrize(("nu", "ell"), [(0.5, 1.0), (1.5, 0.5), (2.5, 2.0), (2.2, 1.3), (0.8, 1.0)])
def test_matern(nu, ell):
    x, rate = torch.linspace(-1, 5, 200, dtype=torch.float64), RATE(nu, ell)
    np.testing.assert_allclose(st.matern(x, nu, ell), sigma(x.numpy(), nu, ell), rtol=1e-12)
    squared = stats.gamma(2 * nu, scale=1 / (2 * rate))  # shape 2 nu, rate 2 lambda
    inside = x[x > 0].numpy()
    np.testing.assert_allclose(sigma(inside, nu, ell) ** 2, squared.pdf(inside), rtol=1e-10)
    amplitude = math.exp(spectral.log_amplitude(nu, ell))
    assert amplitude**2 == pytest.approx((2 * rate) ** (2 * nu) / special.gamma(2 * nu))
    assert squared.mean() == pytest.approx(nu / rate) == pytest.approx(ell * math.sqrt(nu / 2))
    assert squared.std() == pytest.approx(ell / 2)
    for r in (0.0, 0.3, 1.7):
        correlation = on_half_line(lambda u, r=r: sigma(u, nu, ell) * sigma(u + r, nu, ell))
        assert correlation == pytest.approx(matern_kernel(r, nu, ell), rel=1e-8)
        assert spectral.matern_covariance(tensor(r), nu, ell).item() == pytest.approx(correlation, rel=1e-8)
    if nu > 0.5:
        assert x[st.matern(x, nu, ell).argmax()].item() == pytest.approx((nu - 0.5) / rate, abs=0.04)
    if (nu + 0.5).is_integer():
        applied = mercer.matern_operator(lambda x: st.matern(x, nu, ell), tensor(-0.5, 0.5, 2.0), nu, ell)
        torch.testing.assert_close(applied, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-6)  # delta is at 0


def test_the_rbf_limit():
    ell, r = 1.4, np.linspace(0.5, 6, 2001)
    for nu in (30.0, 90.0):
        distance = np.abs(matern_kernel(r, nu, ell) - np.exp(-(r**2) / (2 * ell**2))).max()
        assert distance * nu == pytest.approx(0.23, abs=0.01)
    u = np.linspace(-15, 15, 20_001)
    bump = lambda x: (2 / (math.pi * ell**2)) ** 0.25 * np.exp(-(x**2) / ell**2)
    np.testing.assert_allclose(st.rbf(torch.tensor(u), ell), bump(u), rtol=1e-9, atol=1e-300)
    assert integrate.trapezoid(bump(u) * bump(u + 0.9), u) == pytest.approx(math.exp(-(0.9**2) / (2 * ell**2)))
    x = torch.tensor(u)
    gaps = [(st.matern(x, nu, ell, centered=True) - st.rbf(x, ell)).abs().max() for nu in (400.0, 1600.0)]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.05)  # 1 / sqrt(nu)
    torch.testing.assert_close(st.matern(x, math.inf, ell), st.rbf(x, ell))


def test_a_gaussian_bias_local_stationarity():
    ell, std, x, y = 0.8, 1.3, 0.4, -0.7
    bump = lambda z: st.rbf(torch.tensor(z), ell).numpy()
    integral = over_normal(lambda b: bump(x + b) * bump(y + b), std)
    page = stats.norm.pdf((x + y) / 2, 0, math.sqrt(std**2 + ell**2 / 4)) * math.exp(-((x - y) ** 2) / (2 * ell**2))
    kernel = kernel_of(st.RBF(ell), weights="binary", bias_std=std)(column(x), column(y)).to_dense().item()
    assert page == pytest.approx(integral) == pytest.approx(kernel)

    nu, rate, r = 2.5, RATE(2.5, ell), 0.6  # centre and width of sigma(u) sigma(u + r)
    product = lambda y: sigma(y - r / 2, nu, ell) * sigma(y + r / 2, nu, ell)
    mass, mean, square = (on_half_line(lambda y, n=n: y**n * product(y), r / 2) for n in range(3))
    centre = lambda rate, r: r / 2 * special.kv(nu + 1, rate * r) / special.kv(nu, rate * r)
    slope = (centre(rate + 1e-5, r) - centre(rate - 1e-5, r)) / 2e-5
    assert mean / mass == pytest.approx(centre(rate, r))
    assert square / mass - (mean / mass) ** 2 == pytest.approx(-slope / 2, rel=1e-5)
    assert centre(rate, 1e-6) == pytest.approx(nu / rate)
    assert -(centre(rate + 1e-5, 1e-6) - centre(rate - 1e-5, 1e-6)) / 4e-5 == pytest.approx(ell**2 / 4, rel=1e-4)

    std, x, y = 2.0, 0.5, 0.9  # the two envelopes
    variance = std**2 - (centre(rate + 1e-5, 0.4) - centre(rate - 1e-5, 0.4)) / 4e-5
    two = sum(stats.norm.pdf(s * (x + y) / 2, centre(rate, 0.4), math.sqrt(variance)) for s in (1, -1)) / 2
    exact = kernel_of(st.Matern(nu, ell), weights="binary", bias_std=std)(column(x), column(y)).to_dense().item()
    assert matern_kernel(0.4, nu, ell) * two == pytest.approx(exact, rel=0.01)

    wide = kernels.MaternEnvelopeKernel(nu, lengthscale=ell, bias_std=std)(column(x), column(y)).to_dense().item()
    m2 = 2 * std**2 + ell**2
    page = math.exp(-(x**2 + y**2) / (2 * m2)) * matern_kernel(x - y, nu, ell) / (math.sqrt(2 * math.pi) * std)
    assert wide == pytest.approx(page)
    ratios = []
    for kernel in (kernel_of(st.Matern(2.5), weights="binary"), kernels.MaternEnvelopeKernel(2.5)):
        at = kernel(column(0.0, 2.0), diag=True)
        ratios.append(round((at[1] / at[0]).item(), 2))
    assert ratios == [0.59, 0.26] and all(str(ratio) in TEXT for ratio in ratios)

    for t in (-1.0, 0.0, 2.0):  # the special function
        assert h(0, t) == pytest.approx(math.sqrt(math.pi / 2) * math.exp(t * t / 2) * math.erfc(t / math.sqrt(2)))
        assert h(1, t) == pytest.approx(1 - t * h(0, t))
        assert h(3, t) == pytest.approx(2 * h(1, t) - t * h(2, t))
    for nu in (0.5, 1.5, 3.5):  # the exact kernel, by the page's sum and by the integral
        s, other, rate, p = 0.7, -0.4, RATE(nu, ell), int(nu - 0.5)
        m, r = min(s, other), abs(s - other)
        t = 2 * rate * std - m / std
        terms = sum(math.comb(p, j) * r ** (p - j) * std ** (p + j) * h(p + j, t) for j in range(p + 1))
        constant = (2 * rate) ** (2 * nu) / (special.gamma(2 * nu) * math.sqrt(2 * math.pi))
        page = constant * math.exp(-rate * r - m**2 / (2 * std**2)) * terms
        integrand = lambda u, nu=nu, r=r, m=m: sigma(u, nu, ell) * sigma(u + r, nu, ell) * stats.norm.pdf(u - m, 0, std)
        kernel = kernel_of(st.Matern(nu, ell), weights="one", bias_std=std)(column(s), column(other)).to_dense()
        assert page == pytest.approx(on_half_line(integrand)) == pytest.approx(kernel.item())


def test_a_uniform_bias_stationary():
    nu, ell, X, bias_std = 1.5, 0.7, 1.0, 1.2
    B, rate = math.sqrt(3) * bias_std, RATE(nu, ell)
    bound = special.gammaincc(2 * nu, 2 * rate * (B - X))
    assert bound == pytest.approx(
        integrate.quad(lambda z: z ** (2 * nu - 1) * math.exp(-z), 2 * rate * (B - X), 60)[0] / special.gamma(2 * nu)
    )
    b = np.linspace(-B, B, 200_001)
    errors = []
    for x, y in itertools.product((-X, -0.2, 0.6, X), repeat=2):
        for sign in (1, -1):
            total = integrate.trapezoid(sigma(sign * x + b, nu, ell) * sigma(sign * y + b, nu, ell), b)
            errors.append(abs(total - matern_kernel(x - y, nu, ell)))
    assert 0.5 * bound < max(errors) < bound + 1e-6  # it is reached at the edge
    x = column(-0.4, 0.8)
    kernel = kernel_of(st.Matern(nu, ell), weights="binary", bias="uniform", bias_std=bias_std)(x).to_dense()
    assert kernel[0, 1].item() == pytest.approx(matern_kernel(1.2, nu, ell) / (2 * B))


def test_more_than_one_input():
    nu, ell, options = 1.5, 0.8, {"bias": "uniform", "normalize": True}
    zero, r = torch.zeros(1, 2, dtype=torch.float64), tensor(0.9, -0.3)[None]
    binary = kernel_of(st.Matern(nu, ell), weights="binary", **options)
    page = (matern_kernel(0.6, nu, ell) + matern_kernel(1.2, nu, ell)) / 2
    assert binary(zero, r).to_dense().item() == pytest.approx(page)
    assert binary(zero, tensor(9.0, 9.0)[None]).to_dense().item() == pytest.approx(0.5, abs=1e-6)

    distance = float(r.norm())
    for act, page in (
        (st.Matern(0.5, ell), math.exp(distance**2 / 2 / ell**2) * math.erfc(distance / math.sqrt(2) / ell)),
        (st.RBF(ell), (1 + distance**2 / ell**2) ** -0.5),
        (st.Matern(nu, ell), over_normal(lambda xi: matern_kernel(distance * xi, nu, ell), n=400_001)),
    ):
        assert kernel_of(act, **options)(zero, r).to_dense().item() == pytest.approx(page, rel=1e-6)
    far = [kernel_of(st.Matern(nu, ell), **options)(zero, s * r).to_dense().item() for s in (500, 1000)]
    assert far[0] / far[1] == pytest.approx(2, rel=1e-3)  # 1 / |r|

    d, k, rate = 3, 1, RATE(nu, ell)
    q2 = 2 * math.pi * special.gamma(nu + d / 2) / (special.gamma(nu) * special.gamma(d / 2)) * rate ** (2 * nu)
    assert math.exp(spectral.log_noise_density(nu, ell, dim=d)) == pytest.approx(q2)
    omega = tensor(0.3, 2.0)
    area = 2 * math.pi ** (d / 2) / special.gamma(d / 2) * omega ** (d - 1)
    spread = spectral.spectral_density(omega, nu, ell, dim=d) * area / (2 * math.pi) ** d  # per unit of omega
    along = q2 * omega ** (d - 1) / (rate**2 + omega**2) ** (nu + d / 2) / math.pi
    torch.testing.assert_close(along, spread)
    x = torch.linspace(0.01, 6, 50, dtype=torch.float64)
    polynomial = special.eval_genlaguerre(k, nu - 0.5, rate * x.numpy())
    factor = math.sqrt(q2) * math.factorial(k) / special.gamma(nu + k + 0.5)
    page = factor * polynomial * x.numpy() ** (nu - 0.5) * np.exp(-rate * x.numpy())
    np.testing.assert_allclose(st.matern(x, nu, ell, dim=d), page, rtol=1e-10)

    one = lambda u: st.matern(torch.tensor(u), nu, ell, dim=d).numpy()
    correlation = lambda s: on_half_line(lambda u: one(u) * one(u + abs(s)))
    nodes, weights = np.polynomial.legendre.leggauss(40)  # w'r / |r| is uniform on [-1, 1] for d = 3
    mean = sum(w * correlation(distance * c) for c, w in zip(nodes, weights, strict=True)) / 2
    assert mean == pytest.approx(matern_kernel(distance, nu, ell), rel=1e-4)
    with pytest.raises(ValueError, match="odd"):
        st.Matern(nu, dim=2)


def test_gaussian_weights_and_depth():
    k11, k12, k22 = 0.9, 0.4, 1.6
    args = tensor(k11), tensor(k12), tensor(k22)
    s1, s2 = math.sqrt(k11), math.sqrt(k22)
    theta = math.acos(k12 / (s1 * s2))
    assert duals.angle(*args).item() == pytest.approx(theta)
    relu = s1 * s2 * (math.sin(theta) + (math.pi - theta) * math.cos(theta)) / (2 * math.pi)
    determinant = (1 + 2 * k11) * (1 + 2 * k22) - 4 * k12**2
    table = {
        st.Step(): (lambda z: (z > 0).astype(float), (math.pi - theta) / (2 * math.pi)),
        nn.ReLU(): (lambda z: np.maximum(z, 0), relu),
        nn.LeakyReLU(0.1): (lambda z: np.where(z > 0, z, 0.1 * z), 0.9**2 * relu + 0.1 * k12),
        st.Erf(): (special.erf, 2 / math.pi * math.asin(2 * k12 / math.sqrt((1 + 2 * k11) * (1 + 2 * k22)))),
        st.RBF(): (lambda z: st.rbf(torch.tensor(z)).numpy(), math.sqrt(2 / math.pi) * determinant**-0.5),
        st.SinCos(): (lambda z: np.sin(z) + np.cos(z), math.exp(-(k11 + k22 - 2 * k12) / 2)),
    }
    for activation, (function, page) in table.items():
        assert dual_of(activation).value(*args).item() == pytest.approx(page)
        assert pair_mean(function, k11, k12, k22) == pytest.approx(
            page, abs=2e-3 if activation.__class__ == st.Step else 1e-5
        )

    nu, ell = 1.5, 1.0
    rate, p = RATE(nu, ell), nu - 0.5

    def integrand(eps):
        c1, c2 = math.sin(math.pi - theta - eps), math.sin(eps)
        return (s1 * s2 * c1 * c2) ** p * h(2 * nu, rate * (s1 * c1 + s2 * c2))

    constant = (2 * rate) ** (2 * nu) / (2 * math.pi * special.gamma(2 * nu))
    page = constant * integrate.quad(integrand, 0, math.pi - theta)[0]
    assert page == pytest.approx(duals.matern(nu).value(*args).item())
    assert page == pytest.approx(pair_mean(lambda z: sigma(z, nu, ell), k11, k12, k22), rel=1e-4)

    x = tensor(0.3, -1.0)[None]
    deep = kernel_of(st.Matern(nu), depth=2, weight_std=1.2, bias_std=0.7)(x, diag=True).item()
    first = 0.7**2 + 1.2**2 * float(x.square().sum())
    square = lambda k: pair_mean(lambda z: sigma(z, nu, ell), k, k * (1 - 1e-12), k)
    assert deep == pytest.approx(square(0.7**2 + 1.2**2 * square(first)), rel=1e-3)

    s = 1.4
    constant = (2 * rate) ** (2 * nu) / (special.gamma(2 * nu) * math.sqrt(2 * math.pi))
    page = constant * s ** (2 * p) * h(2 * p, 2 * rate * s)
    assert page == pytest.approx(duals.matern(nu).value(*(tensor(s * s),) * 3).item())
    linear = st.init_stationary_(nn.Linear(4000, 50), st.Matern(nu), input_std=s)
    assert linear.weight.var().item() == pytest.approx(1 / (4000 * page), rel=0.05)


def test_the_tangent_kernel():
    """Of the page's recursion; tests/gp/test_kernels.py compares with the gradients of wide networks."""
    nu, bw, bb, x, y = 2.5, 1.1, 0.8, column(0.4), column(-0.9)

    def layer(z):  # k12 = bias^2 + weight^2 kappa, for (x, x), (x, y), (y, y)
        return [bb**2 + bw**2 * value for value in z]

    def T(k, slope=False):
        dual = duals.matern(nu)
        function = dual.derivative if slope else dual.value
        triples = (k[0], k[0], k[0]), k, (k[2], k[2], k[2])
        return [function(*map(tensor, triple)).item() for triple in triples]

    k1 = layer([0.4 * 0.4, -0.4 * 0.9, 0.9 * 0.9])
    k2 = layer(T(k1))
    theta2 = k2[1] + bw**2 * k1[1] * T(k1, slope=True)[1]
    page = T(k2)[1] + theta2 * T(k2, slope=True)[1]
    assert ntk_of(st.Matern(nu), depth=2, weight_std=bw, bias_std=bb)(x, y).to_dense().item() == pytest.approx(page)
    k12 = tensor(k1[1]).requires_grad_()
    duals.matern(nu).value(tensor(k1[0]), k12, tensor(k1[2])).backward()
    assert T(k1, slope=True)[1] == pytest.approx(k12.grad.item())
    with pytest.raises(ValueError, match="nu = 1 <= 1"):
        ntk_of(st.Matern(1.0))


def test_periodic_activations_global_stationarity():
    frequency, weight = 1.7, 0.6
    x, y = tensor(0.5, -0.2)[None], tensor(8.0, 7.0)[None]
    for bias in (0.1, 3.0):
        kernel = kernel_of(st.SinCos(frequency), weight_std=weight, bias_std=bias)
        page = math.exp(-(frequency**2) * weight**2 * float((x - y).square().sum()) / 2)
        assert kernel(x, y).to_dense().item() == pytest.approx(page)
    shifted = [kernel_of(st.Sine(), bias_std=0.1)(x + s, diag=True).item() for s in (0.0, 1.0)]
    assert abs(shifted[0] - shifted[1]) > 0.01  # sine alone depends on where the inputs are
    z = torch.linspace(-7, 7, 101, dtype=torch.float64)
    odd = torch.arange(1, 20_001, 2, dtype=torch.float64)
    signs = torch.where((odd // 2) % 2 == 0, 1.0, -1.0)
    series = math.sqrt(2) * (signs * torch.sin(z[:, None] * odd) / odd**2).sum(1)
    torch.testing.assert_close(st.triangle_wave(z), series, rtol=0, atol=1e-3)
    both = (st.triangle_wave(z) + st.triangle_wave(z + math.pi / 2)) / math.sqrt(2)
    torch.testing.assert_close(st.periodic_relu(z), both)


def test_an_activation_for_any_kernel():
    rate, frequency = 0.8, 2.3
    found = st.activation_from_kernel(lambda r: torch.exp(-rate * r.abs()) * torch.cos(frequency * r), tail=0.5)
    x = torch.linspace(0.05, 6, 40, dtype=torch.float64)
    ratio = (math.sqrt(rate**2 + frequency**2) - rate) / frequency
    page = math.sqrt(2 * rate) * torch.exp(-rate * x) * (torch.cos(frequency * x) + ratio * torch.sin(frequency * x))
    torch.testing.assert_close(found(x), page, rtol=0, atol=1e-6)
    assert found.autocorrelation_error < 1e-6

    even = st.activation_from_kernel(
        spectral_density=lambda w: spectral.spectral_density(w, 1.5, 0.9), tail=1.5, phase="zero"
    )
    lam = RATE(1.5, 0.9)
    torch.testing.assert_close(even(x), math.sqrt(lam) * torch.exp(-lam * x), rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match="no causal factor"):
        st.activation_from_kernel(lambda r: torch.exp(-0.5 * r * r))

    # The page's cepstrum and Laguerre series, from a density of two peaks.
    nu0, lam0, n = 1.5, 1.0, 4096
    density = lambda w: sum(spectral.spectral_density(torch.tensor(w + s), nu0, 1.1).numpy() for s in (-2, 2)) / 2
    angle = 2 * np.pi * (np.arange(n) + 0.5) / n - np.pi
    omega = lam0 * np.tan(angle / 2)
    log_R = np.log(density(omega) * (lam0**2 + omega**2) ** (nu0 + 0.5))
    a = np.array([(2 - (j == 0)) * np.mean(log_R * np.cos(j * angle)) for j in range(200)])
    points = np.exp(2j * np.pi * np.arange(1024) / 1024)
    g = np.fft.fft(np.exp(0.5 * np.polynomial.polynomial.polyval(points, a))).real[:120] / 1024  # coefficients of z^n
    u = x.numpy()
    terms = [
        (-1) ** k * g[k] * math.factorial(k) / special.gamma(k + nu0 + 0.5)
        * special.eval_genlaguerre(k, nu0 - 0.5, 2 * lam0 * u)
        for k in range(120)
    ]  # fmt: skip
    page = u ** (nu0 - 0.5) * np.exp(-lam0 * u) * sum(terms)
    found = st.activation_from_kernel(spectral_density=lambda w: torch.tensor(density(w.numpy())), tail=nu0)
    np.testing.assert_allclose(found(x).numpy(), page, atol=1e-6)

    ell, std = 0.7, 1.3
    s = math.sqrt(1 + (2 * std / ell) ** 2)
    beta = (s - 1) / (s + 1)
    system = mercer.RBFEigensystem(ell, input_std=std)
    torch.testing.assert_close(system.eigenvalues(6), tensor(*((1 - beta) * beta**j for j in range(6))))
    grid = np.linspace(-10, 10, 4001)
    phi = system.eigenfunctions(torch.tensor(grid), 3).numpy()
    gram = np.exp(-((0.4 - grid) ** 2) / (2 * ell**2)) * stats.norm.pdf(grid, 0, std)
    eigen = system.eigenfunctions(tensor(0.4), 3).numpy()[0] * system.eigenvalues(3).numpy()
    np.testing.assert_allclose(integrate.trapezoid(gram[:, None] * phi, grid, axis=0), eigen, rtol=1e-8)
    inverse = [system.greens_function(tensor(0.4), tensor(0.4), n).item() for n in (10, 20, 40)]
    assert inverse[2] > 100 * inverse[1] > 100 * inverse[0]


def _small_head(drop=0.3, hidden=8):
    torch.manual_seed(1)
    head = st.StationaryHead(2, 2, hidden=hidden, activation="matern32", dropout=drop).double()
    return head, torch.randn(5, 2, dtype=torch.float64)


def _all_masks(head, x):
    """The outputs for every mask, (2^hidden, n, 2), and the probability of each mask."""
    features, drop = head.features(x), head.dropout.p
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=features.shape[1])), dtype=torch.float64)
    outputs = torch.stack([head.output(features * mask / (1 - drop)) for mask in masks]).detach()
    return outputs, torch.prod(masks * (1 - drop) + (1 - masks) * drop, 1)


def test_dropout_before_the_last_layer():
    head, x = _small_head()
    outputs, probability = _all_masks(head, x)
    mean = torch.einsum("s,sni->ni", probability, outputs)
    covariance = torch.einsum("s,sni,snj->nij", probability, outputs - mean, outputs - mean)
    phi, W, drop = head.features(x).detach(), head.output.weight.detach(), head.dropout.p
    torch.testing.assert_close(phi @ W.T + head.output.bias.detach(), mean)
    torch.testing.assert_close(drop / (1 - drop) * torch.einsum("ik,nk,jk->nij", W, phi**2, W), covariance)
    moments = st.ExactDropout().posterior(head).moments(x)
    torch.testing.assert_close(moments, (mean, covariance))
    predicted_mean, std = st.exact_predictor(head)(x)
    torch.testing.assert_close((predicted_mean, std.square()), (mean, covariance.diagonal(dim1=1, dim2=2)))

    p1 = outputs.softmax(-1)[..., 1]
    by_masks = probability @ p1
    entropy = probability @ (torch.special.entr(p1) + torch.special.entr(1 - p1))
    a = ((W[1] - W[0]) * phi / (1 - drop)).numpy()
    offset = float((head.output.bias[1] - head.output.bias[0]).detach())
    for i in range(len(x)):
        phi_t = lambda t, i=i: np.exp(1j * t * offset) * np.prod(drop + (1 - drop) * np.exp(1j * t * a[i]))
        page = 0.5 + integrate.quad(lambda t: phi_t(t).imag / np.sinh(np.pi * t), 1e-12, 12, limit=200)[0]
        weight = lambda t: (np.pi * t / np.tanh(np.pi * t) - 1) / (t * np.sinh(np.pi * t))
        page_entropy = integrate.quad(lambda t: phi_t(t).real * weight(t), 1e-6, 12, limit=200)[0]
        assert page == pytest.approx(by_masks[i].item(), abs=1e-8)
        assert page_entropy == pytest.approx(entropy[i].item(), abs=1e-5)
    exact = of_dropout(torch.full((5,), offset), (W[1] - W[0]) * phi, drop, torch.zeros(5))
    torch.testing.assert_close(exact.probability, by_masks)
    pred = st.predict(head, x, st.ExactDropout())
    torch.testing.assert_close(pred.probs[:, 1], by_masks)
    torch.testing.assert_close(pred.expected_entropy(), entropy)


def test_the_restored_prior():
    head, _ = _small_head()
    x = torch.randn(400, 2, dtype=torch.float64)
    with torch.no_grad():
        phi, logits = head.features(x), head.eval()(x)
    st.calibrate_prior(head, x)
    k = torch.quantile(phi.square().sum(-1), 0.05)
    s2 = (logits - logits.mean(-1, keepdim=True)).var(0, correction=0).mean()
    page = s2 * (1 - phi.square().sum(-1) / k).clamp(min=0) ** 2
    torch.testing.assert_close(head.restored_prior(phi)[:, 0], page)
    assert (page == 0).double().mean().item() == pytest.approx(0.95, abs=0.01)
    far = 1e4 * torch.ones(1, 2, dtype=torch.float64)
    mean, covariance = st.ExactDropout().posterior(head).moments(torch.cat([x[:50], far]))
    _, plain = st.ExactDropout(restore_prior=False).posterior(head).moments(torch.cat([x[:50], far]))
    eye = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(covariance[:50] - plain[:50], page[:50, None, None] * eye)
    torch.testing.assert_close((mean[50], covariance[50]), (head.output.bias.detach(), s2 * eye))
    odd = phi[page > 0][:1]  # for two classes: the characteristic function times e^(-v t^2)
    v, W, drop = page[page > 0][0].item(), head.output.weight.detach(), head.dropout.p
    a = ((W[1] - W[0]) * odd[0] / (1 - drop)).numpy()
    offset = float((head.output.bias[1] - head.output.bias[0]).detach())

    def integrand(t):
        phi_t = np.exp(1j * t * offset - v * t * t) * np.prod(drop + (1 - drop) * np.exp(1j * t * a))
        return phi_t.imag / np.sinh(np.pi * t)

    pred = st.predict(head, x[page > 0][:1], st.ExactDropout())
    assert pred.probs[0, 1].item() == pytest.approx(0.5 + integrate.quad(integrand, 1e-12, 12)[0], abs=1e-7)


def test_the_head_of_infinite_width():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    method = st.InfiniteWidth(lengthscale=1.2, variance=4.0, temperature=1.0, n_inducing=12)
    posterior = method.posterior(torch.nn.Linear(2, 3).double(), (x, y))
    u = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    kappa = lambda a, b: (1 + (r := math.sqrt(5) / 1.2 * spatial.distance.cdist(a, b)) + r**2 / 3) * np.exp(-r)
    Z = posterior.basis.inducing.numpy()
    phi = np.linalg.solve(np.linalg.cholesky(kappa(Z, Z)), kappa(Z, u)).T
    r = 4.0 * (1 - (phi**2).sum(1))
    a = (1 + math.pi * r / 8) ** -0.5
    W = posterior.mean.numpy()
    p = special.softmax(a[:, None] * phi @ W, axis=1)
    slope = phi.T @ (a[:, None] * (p - np.eye(3)[y])) + W / 4.0  # of the sum, 0 at its minimum
    assert np.abs(slope).max() < 1e-6
    H = np.eye(12) / 4.0 + phi.T @ ((a**2 * (1 - (p**2).sum(1)))[:, None] * phi)
    mean, variance = posterior.moments(x)
    np.testing.assert_allclose(mean.numpy(), phi @ W, atol=1e-8)
    expected = np.einsum("nm,mk,nk->n", phi, np.linalg.inv(H), phi) + r
    np.testing.assert_allclose(variance.numpy(), expected[:, None].repeat(3, 1), rtol=1e-6)
    far_mean, far_variance = posterior.moments(1e4 * x)
    assert far_mean.abs().max() < 1e-9 and (far_variance - 4.0).abs().max() < 1e-9


def test_a_gradient_for_the_jump():
    ell, tau = 0.9, 0.2
    rate = RATE(0.5, ell)
    x = torch.linspace(-0.8, 2, 15, dtype=torch.float64, requires_grad=True)
    value = st.matern(x, 0.5, ell, surrogate=tau)
    torch.testing.assert_close(value, st.matern(x, 0.5, ell))
    (slope,) = torch.autograd.grad(value.sum(), x)
    u = x.detach().numpy()
    blurred = math.sqrt(2 * rate) * (
        stats.norm.pdf(u, 0, tau)
        - rate * np.exp(-rate * u + rate**2 * tau**2 / 2) * stats.norm.cdf(u / tau - rate * tau)
    )
    np.testing.assert_allclose(slope.numpy(), blurred, rtol=1e-8)
    mean = lambda c: on_half_line(lambda z: sigma(z, 0.5, ell) * stats.norm.pdf(z - c, 0, tau), step=1 / 512)
    for c, page in zip(u[::5], blurred[::5], strict=True):
        assert (mean(c + 1e-4) - mean(c - 1e-4)) / 2e-4 == pytest.approx(page, rel=1e-3)
    (of_step,) = torch.autograd.grad(st.step(x, surrogate=tau).sum(), x)
    np.testing.assert_allclose(of_step.numpy(), stats.norm.pdf(u, 0, tau), rtol=1e-8)


# The page itself


def test_every_section_has_a_test():
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    slugs = {"test_" + re.sub(r"\W+", "_", heading.lower().replace("matérn", "matern")) for heading in headings}
    assert slugs - {"test_sources"} <= set(globals())


def test_every_link_to_the_api_names_an_object():
    names = re.findall(r"\(api/\w+\.md#(stationary[\w.]+)\)", TEXT)
    assert len(names) > 30
    for name in names:
        parts = name.split(".")
        found = import_module("stationary")
        for i, part in enumerate(parts[1:], 2):
            found = getattr(found, part, None) or import_module(".".join(parts[:i]))
        assert found is not None
    pages_named = set(re.findall(r"\((api/\w+\.md)#", TEXT))
    assert all((PAGE.parent / page).exists() for page in pages_named)
