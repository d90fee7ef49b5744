"""The theory: constants against mpmath, autocorrelations against the Matérn kernel, limits at their known rates."""

import math

import mpmath
import numpy as np
import oracles
import pytest
import torch
from scipy import integrate, special

import stationary as st
from stationary.theory import spectral

NUS = (0.3, 0.5, 0.8, 1.5, 2.2, 2.5, 3.5, 10.0)


def on_numpy(activation):
    return lambda x: activation(torch.as_tensor(x, dtype=torch.float64)).numpy()


@pytest.mark.parametrize("nu", [0.01, 0.3, 0.5, 1.5, 2.2, 10.0, 50.0, 300.0])
@pytest.mark.parametrize("lengthscale", [0.05, 1.0, 7.0])
def test_constants_against_mpmath(nu, lengthscale):
    mpmath.mp.dps = 30
    n = mpmath.mpf(nu)
    rate = mpmath.sqrt(2 * n) / mpmath.mpf(lengthscale)
    q2 = 2 * mpmath.sqrt(mpmath.pi) * rate ** (2 * n) * mpmath.gamma(n + 0.5) / mpmath.gamma(n)
    amplitude = mpmath.sqrt(q2) / mpmath.gamma(n + 0.5)
    short = (2 * rate) ** n / mpmath.sqrt(mpmath.gamma(2 * n))  # by Legendre's duplication
    assert abs(amplitude / short - 1) < 1e-25
    # The logarithms are sums of terms of size nu log nu, so that is what the rounding is relative to.
    size = 1 + nu * (abs(math.log(nu)) + abs(math.log(lengthscale)) + 2)
    for kind in (float, lambda v: torch.tensor(v, dtype=torch.float64)):
        arguments = kind(nu), kind(lengthscale)
        assert float(spectral.rate(*arguments)) == pytest.approx(float(rate), rel=1e-15)
        assert float(spectral.log_noise_density(*arguments)) == pytest.approx(
            float(mpmath.log(q2)), abs=1e-15 * 4 * size
        )
        assert float(spectral.log_amplitude(*arguments)) == pytest.approx(
            float(mpmath.log(amplitude)), abs=1e-15 * 4 * size
        )


@pytest.mark.parametrize("z", [1e-3, 0.2, 1.0, 2.7, 10.0, 123.4])
def test_log_gamma_and_its_derivative(z):
    argument = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    value = spectral.lgamma(argument)
    (slope,) = torch.autograd.grad(value, argument)
    assert value.item() == pytest.approx(math.lgamma(z), rel=1e-14, abs=1e-14 * (1 + z * abs(math.log(z))))
    assert slope.item() == pytest.approx(special.digamma(z), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("nu", [*NUS, 50.0])
@pytest.mark.parametrize("lengthscale", [0.3, 2.0])
def test_values_against_mpmath(nu, lengthscale):
    x = np.array([-1.0, 0.0, 1e-300, 1e-12, 0.01, 0.4, 1.0, 2.5, 9.0]) * lengthscale
    exact = [float(oracles.matern_activation(v, nu, lengthscale)) for v in x]
    ours = on_numpy(lambda t: st.matern(t, nu, lengthscale))(x)
    np.testing.assert_allclose(ours, exact, rtol=1e-12 * max(1, nu), atol=1e-300)


@pytest.mark.parametrize(
    ("nu", "centered"),
    # Centred below 1/2, start + u would round away the singularity that the quadrature needs.
    [(nu, centered) for nu in NUS for centered in (False, True) if not (centered and nu < 0.5)],
)
def test_autocorrelation_is_the_matern_kernel(nu, centered):
    """The claim of the paper, for every nu: integral of sigma(u) sigma(u + r) du = variance Matérn(r)."""
    lengthscale, variance = 0.7, 1.9
    start = -lengthscale * math.sqrt(nu / 2) if centered else 0.0
    sigma = on_numpy(lambda x: st.matern(x, nu, lengthscale, variance, centered=centered))
    for r in (0.0, 0.05, 0.3, 1.0, 2.5):
        expected = variance * float(oracles.matern_kernel(r, nu, lengthscale))
        assert oracles.autocorrelation(sigma, r, start, lengthscale) == pytest.approx(expected, abs=1e-8)


def test_autocorrelation_of_the_rbf():
    for r in (0.0, 0.4, 1.5):
        value, _ = integrate.quad(lambda u: float(on_numpy(st.rbf)(u) * on_numpy(st.rbf)(u + r)), -8, 8, epsabs=1e-12)
        assert value == pytest.approx(math.exp(-(r**2) / 2), abs=1e-10)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.2])
@pytest.mark.parametrize("dim", [3, 5])
def test_dim_gives_the_isotropic_kernel_on_the_sphere(nu, dim):
    """With a flat bias the kernel is E[autocorrelation(r cos)], cos the projection of a uniform unit vector."""
    sigma = on_numpy(lambda x: st.matern(x, nu, 0.8, dim=dim))
    autocorrelation = lambda s: oracles.autocorrelation(sigma, abs(s), 0.0, 0.8)
    node, weight = np.polynomial.legendre.leggauss(40)
    c, weight = (node + 1) / 2, weight * (1 - ((node + 1) / 2) ** 2) ** ((dim - 3) / 2)
    for r in (0.0, 0.5, 2.0):
        kernel = sum(w * autocorrelation(r * t) for w, t in zip(weight, c, strict=True)) / weight.sum()
        assert kernel == pytest.approx(float(oracles.matern_kernel(r, nu, 0.8)), abs=1e-6 if nu == 0.5 else 1e-8)


@pytest.mark.parametrize(("nu", "dim"), [(0.5, 3), (1.5, 3), (2.2, 5), (2.5, 21)])
def test_dim_values_against_mpmath(nu, dim):
    x = np.array([0.01, 0.3, 1.0, 2.0, 5.0, 12.0])
    exact = [float(oracles.matern_activation(v, nu, dim=dim)) for v in x]
    np.testing.assert_allclose(on_numpy(lambda t: st.matern(t, nu, dim=dim))(x), exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dim", [1, 3, 7])
def test_centre_and_spread_of_sigma_squared(dim):
    """Centre nu / lambda for every dim (so that centered is centred); spread lengthscale^2 / 4 for dim = 1."""
    nu, lengthscale = 1.7, 0.6
    u = 1e-9 * np.exp(np.arange(0, 26, 1e-3))
    density = on_numpy(lambda x: st.matern(x, nu, lengthscale, dim=dim))(u) ** 2 * u * 1e-3
    centre = (u * density).sum() / density.sum()
    assert centre == pytest.approx(nu / spectral.rate(nu, lengthscale), rel=1e-8)
    if dim == 1:
        assert density.sum() == pytest.approx(1, rel=1e-8)
        assert ((u - centre) ** 2 * density).sum() == pytest.approx(lengthscale**2 / 4, rel=1e-8)


def test_rbf_limit_of_the_activation_has_the_known_rate():
    """sup |centred Matérn - RBF| ~ 0.20 nu^(-1/2), from the skewness of the Gamma density."""
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    nus = np.array([200.0, 800.0, 3200.0, 12800.0])
    gap = np.array([(st.matern(x, nu, centered=True) - st.rbf(x)).abs().max().item() for nu in nus])
    slope = np.polyfit(np.log(nus), np.log(gap), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.02)
    assert gap[-1] * math.sqrt(nus[-1]) == pytest.approx(0.20, abs=0.01)


def test_nu_inf_is_the_rbf():
    x = torch.linspace(-3, 3, 50)
    assert torch.equal(st.matern(x, math.inf, 0.5, 2.0), st.rbf(x, 0.5, 2.0))


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (st.sincos, lambda x: np.sin(x) + np.cos(x)),
        (st.triangle_wave, lambda x: np.sqrt(2) * np.sin(x)),
        (st.periodic_relu, lambda x: np.sin(x) + np.cos(x)),
    ],
    ids=["sincos", "triangle_wave", "periodic_relu"],
)
def test_fundamental_of_the_periodic_activations(function, exact):
    """The waves differ from the sinusoid they stand for in their overtones only."""
    x = np.arange(4096) * 2 * np.pi / 4096
    first, expected = np.fft.rfft(on_numpy(function)(x))[1], np.fft.rfft(exact(x))[1]
    assert first == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(on_numpy(function)(x + 6 * np.pi), on_numpy(function)(x), atol=1e-12)


# The densities in closed form


@pytest.mark.parametrize("nu", [0.3, 0.5, 1.5, 2.2, 10.0])
@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_spectral_density_against_mpmath(nu, dim):
    mpmath.mp.dps = 30
    n, d, lengthscale, variance = mpmath.mpf(nu), mpmath.mpf(dim), mpmath.mpf(0.7), mpmath.mpf(1.9)
    rate2 = 2 * n / lengthscale**2
    constant = variance * 2**d * mpmath.pi ** (d / 2) * mpmath.gamma(n + d / 2) * rate2**n / mpmath.gamma(n)
    omega = [0.0, 0.1, 1.0, 30.0, 1e4]
    exact = [float(constant / (rate2 + mpmath.mpf(w) ** 2) ** (n + d / 2)) for w in omega]
    ours = spectral.spectral_density(torch.tensor(omega, dtype=torch.float64), nu, 0.7, 1.9, dim=dim)
    np.testing.assert_allclose(ours, exact, rtol=1e-12)


@pytest.mark.parametrize("nu", [2.2, 3.5, math.inf])
def test_the_kernel_is_the_transform_of_the_density_in_one_two_and_three_dimensions(nu):
    """kappa(r) = (2 pi)^-d integral of S e^(i omega r): a cosine, a Bessel and a sinc transform."""
    waves = {
        1: lambda w, r: math.cos(w * r) / math.pi,
        2: lambda w, r: special.j0(w * r) * w / (2 * math.pi),
        3: lambda w, r: np.sinc(w * r / math.pi) * w**2 / (2 * math.pi**2),
    }
    for dim, wave in waves.items():
        density = on_numpy(lambda w: spectral.spectral_density(w, nu, 0.8, 1.7, dim=dim))
        for r in (0.0, 0.4, 1.5):
            kernel, _ = integrate.quad(lambda w: float(density(w)) * wave(w, r), 0, 400, limit=2000, epsabs=1e-11)
            exact = math.exp(-((r / 0.8) ** 2) / 2) if nu == math.inf else float(oracles.matern_kernel(r, nu, 0.8))
            assert kernel == pytest.approx(1.7 * exact, abs=1e-8)


@pytest.mark.parametrize("nu", [0.5, 0.8, 2.2, 2.5])
def test_the_activation_is_the_impulse_response_of_the_transfer_function(nu):
    """q G(i omega) is the integral of sigma(x) e^(-i omega x), and S = q^2 |G|^2."""
    lengthscale, variance = 0.6, 1.9
    omega = torch.tensor([0.0, 0.7, -3.0, 12.0], dtype=torch.float64)
    q2 = spectral.noise_density(nu, lengthscale, variance)
    transfer = spectral.transfer_function(omega, nu, lengthscale)
    density = spectral.spectral_density(omega, nu, lengthscale, variance)
    np.testing.assert_allclose(q2 * transfer.abs() ** 2, density, rtol=1e-13)
    v = np.arange(-120, 5, 1 / 64)
    x = np.exp(v)
    sigma = on_numpy(lambda t: st.matern(t, nu, lengthscale, variance))(x) * x / 64
    for w, g in zip(omega.tolist(), transfer.tolist(), strict=True):
        assert (sigma * np.exp(-1j * w * x)).sum() == pytest.approx(math.sqrt(q2) * g, abs=1e-9)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("nu", [0.3, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 2.2, 2.5, 3.0, 3.7])
def test_mean_square_derivatives(nu, dim):
    """ceil(nu) - 1 of them: the k-th needs a finite integral of omega^(2k) S, so octaves of it that shrink."""

    def octave(k, low):
        omega = torch.linspace(low, 2 * low, 2001, dtype=torch.float64)
        density = spectral.spectral_density(omega, nu, dim=dim) * omega ** (2 * k + dim - 1)
        return torch.trapezoid(density, omega).item()

    # At k = nu the octaves are all alike (a logarithm), below they shrink by 4^(nu - k) each, and by 2^20 that in ten.
    derivatives = 0
    while octave(derivatives + 1, 1e3 * 2**10) < 0.5 * octave(derivatives + 1, 1e3):
        derivatives += 1
    assert derivatives == math.ceil(nu) - 1


@pytest.mark.parametrize(("nu", "exists"), [(0.5, False), (0.9, False), (1.1, True), (1.5, True), (2.5, True)])
def test_the_first_mean_square_derivative_seen_in_the_kernel(nu, exists):
    """E[(f(x + h) - f(x))^2] / h^2 settles at lambda^2 / (2 (nu - 1)) as h falls, or grows without end."""
    h = torch.tensor([1e-4, 1e-6], dtype=torch.float64)
    quotient = 2 * (1 - spectral.matern_covariance(h, nu)) / h.square()
    if exists and nu > 1.2:
        assert quotient[0].item() == pytest.approx(spectral.rate(nu, 1.0) ** 2 / (2 * (nu - 1)), rel=1e-2)
    assert (quotient[1] / quotient[0] < 2) == exists


@pytest.mark.parametrize("nu", [0.3, 0.5, 1.0, 2.2, 10.0, 100.0])
def test_matern_covariance_against_mpmath(nu):
    mpmath.mp.dps = 30
    for r in (1e-9, 1e-3, 0.4, 2.0, 9.0):
        z = mpmath.sqrt(2 * mpmath.mpf(nu)) * mpmath.mpf(r) / mpmath.mpf(0.7)
        exact = float(1.9 * 2 ** (1 - mpmath.mpf(nu)) / mpmath.gamma(nu) * z**nu * mpmath.besselk(nu, z))
        ours = spectral.matern_covariance(torch.tensor([r, -r], dtype=torch.float64), nu, 0.7, 1.9)
        np.testing.assert_allclose(ours, exact, rtol=1e-11)
    ends = spectral.matern_covariance(torch.tensor([0.0, math.inf], dtype=torch.float64), nu, 0.7, 1.9)
    assert ends.tolist() == [1.9, 0.0]


def test_closed_forms_check_their_arguments():
    omega = torch.ones(3)
    with pytest.raises(ValueError, match="dim must be a positive integer, got 0"):
        spectral.spectral_density(omega, dim=0)
    with pytest.raises(ValueError, match="nu must be a positive number, got -1"):
        spectral.spectral_density(omega, nu=-1.0)
    with pytest.raises(ValueError, match="nu must be finite, got inf"):
        spectral.transfer_function(omega, math.inf, 1.0)
    with pytest.raises(ValueError, match="nu must be at most 100"):
        spectral.matern_covariance(omega, 200.0)
