"""Every experiment at its smoke scale: it runs, it is right, its figure is drawn."""

import numpy as np
import pytest

from stationary.experiments import EXPERIMENTS, covariance, far_from_data
from stationary.runs import save_figure


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_and_draws(name, tmp_path):
    experiment = EXPERIMENTS[name]
    (config,) = experiment.configs("smoke")
    results = experiment.run(config)
    again = experiment.run(config)
    assert all(np.array_equal(results[key], again[key]) for key in results), "same seed, same numbers"
    assert all(np.isfinite(value).all() for key, value in results.items() if key != "nu")
    png, svg = save_figure(tmp_path / name, experiment.draw(results))
    assert png.read_bytes().startswith(b"\x89PNG") and b"</svg>" in svg.read_bytes()


def test_monte_carlo_covariance_agrees_with_the_integral():
    results = covariance.run(covariance.Config(n_points=31))
    for weights in ("binary", "gaussian"):
        exact, error = results[f"{weights}_exact"], results[f"{weights}_standard_error"]
        z = (results[f"{weights}_monte_carlo"] - exact) / (error + 1e-12)
        assert abs(z).max() < 4.5  # 4 x 31 correlated values, each N(0, 1)


def test_integral_agrees_with_closed_forms():
    """nu = 1/2 and the RBF have closed forms for binary weights (THEORY sections 2 and 3)."""
    from scipy.special import erfcx

    config = covariance.Config(n_points=31)
    results, x = covariance.run(config), np.linspace(-3, 3, 31)
    rate, s = 1 / config.lengthscale, config.bias_std

    def one_sign(a):
        m, r = np.minimum(a, 0), np.abs(a)
        return rate * np.exp(-rate * r - m**2 / (2 * s**2)) * erfcx((2 * rate * s**2 - m) / (np.sqrt(2) * s))

    exponential = np.sqrt(2 * np.pi) * s * (one_sign(x) + one_sign(-x)) / 2
    np.testing.assert_allclose(results["binary_exact"][0], exponential, rtol=1e-7)
    v = s**2 + config.lengthscale**2 / 4
    rbf = s / np.sqrt(v) * np.exp(-(x**2) / 8 / v) * np.exp(-(x**2) / (2 * config.lengthscale**2))
    np.testing.assert_allclose(results["binary_exact"][3], rbf, rtol=1e-7)


def test_far_from_the_data_matern_returns_to_one_half_and_relu_does_not():
    (config,) = far_from_data.configs("paper")
    results = far_from_data.run(far_from_data.Config(**{**config.__dict__, "n_members": 2, "epochs": 600}))
    far = np.abs(results["grid"]) > 9
    confidence = {name: np.maximum(results[name], 1 - results[name])[:, far].mean() for name in ("relu", "matern")}
    assert confidence["relu"] > 0.95
    assert confidence["matern"] < 0.8
