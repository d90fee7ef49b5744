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
    for figure_name, figure in experiment.draw(results).items():
        png, svg = save_figure(tmp_path / figure_name, figure)
        assert png.read_bytes().startswith(b"\x89PNG") and b"</svg>" in svg.read_bytes()


def test_monte_carlo_covariance_agrees_with_the_integral():
    results = covariance.run(covariance.Config(n_points=31))
    for weights in ("binary", "gaussian"):
        exact, error = results[f"{weights}_exact"], results[f"{weights}_standard_error"]
        z = (results[f"{weights}_monte_carlo"] - exact) / (error + 1e-12)
        assert abs(z).max() < 4.5  # 4 x 31 correlated values, each N(0, 1)


def test_gram_matrix_has_the_covariance_as_its_middle_row():
    results = covariance.run(covariance.Config(n_points=31, n_gram=31))
    for i in range(3):
        np.testing.assert_allclose(results["gram"][i, 15], results["binary_exact"][i], rtol=1e-9)


def test_draws_of_networks_and_of_the_process_have_the_same_variance():
    config = covariance.Config(n_points=21, n_draws=300, widths=(200,))
    draws = covariance.run(config)["draws"]  # (nu, width or process, draw, x)
    network, process = draws[:, 0].var(axis=(1, 2)), draws[:, 1].var(axis=(1, 2))
    np.testing.assert_allclose(network, process, rtol=0.3)


def test_far_from_the_data_matern_returns_to_one_half_and_relu_does_not():
    (config,) = far_from_data.configs("paper")
    results = far_from_data.run(far_from_data.Config(**{**config.__dict__, "n_members": 2, "epochs": 600}))
    far = np.abs(results["grid"]) > 9
    confidence = {name: np.maximum(results[name], 1 - results[name])[:, far].mean() for name in ("relu", "matern")}
    assert confidence["relu"] > 0.95
    assert confidence["matern"] < 0.8
