"""Every experiment at its smoke scale: it runs, it is right, and it has something to show."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.banana import config as banana_config
from stationary.lab.experiments.banana import report as banana_report
from stationary.lab.experiments.covariance import config as covariance_config
from stationary.lab.experiments.covariance import report as covariance_report
from stationary.lab.experiments.covariance import run as covariance
from stationary.lab.experiments.digits import config as digits_config
from stationary.lab.experiments.digits import run as digits
from stationary.lab.experiments.far_from_data import config as far_config
from stationary.lab.experiments.far_from_data import report as far_report
from stationary.lab.experiments.far_from_data import run as far_from_data
from stationary.lab.experiments.regression import config as regression_config
from stationary.lab.experiments.regression import run as regression
from stationary.lab.report.content import Section
from stationary.lab.report.latex import render_latex
from stationary.lab.report.page import Part, render_html
from stationary.lab.report.render import render_markdown

SCALES = ("smoke", "demo", "paper")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_says_what_it_is(name):
    experiment = EXPERIMENTS[name]
    assert experiment.config.TITLE and experiment.config.REPRODUCES and experiment.config.VERSION >= 1
    assert tuple(experiment.config.DURATION) == SCALES
    for scale in SCALES:
        configs = experiment.config.configs(scale)
        assert len(set(configs)) == len(configs) >= 1, "each configuration is hashable, and another one"
        assert all(isinstance(config, experiment.config.Config) for config in configs)


@cache
def found(name, config):
    """What a configuration gives; several tests look at the same one."""
    return EXPERIMENTS[name].run.run(config, "cpu")


# What takes long and has tests of its own: each method of the arena on the same generated data and each way of asking,
# in test_arena.py, test_arena_tables.py and test_active_learning.py; each kernel of a Gaussian process, in tests/gp;
# and each activation in a head, in tests/nn.
LONG = {
    "arena": lambda config: config.method in ("mc dropout", "ensemble", "random forest", "gaussian process"),
    "active": lambda config: config.method.startswith("infinite width") and config.method != "infinite width bald",
    "banana": lambda config: config.prior not in (("matern52",) if config.model == "gp" else ("relu", "matern52")),
    "radar": lambda config: config.method == "infinite width",  # test_radar.py has it, on a few emitters
    "digits": lambda config: config.prior not in ("relu", "matern52", "sincos", "matern52 infinite width"),
}


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        *(pytest.param(name, name not in LONG, id=name) for name in EXPERIMENTS if name != "cifar10"),
        *(pytest.param(name, True, marks=pytest.mark.slow, id=f"all of {name}") for name in LONG),
        # GoogLeNet on a processor takes its time; test_cifar10.py has the same on small features
        pytest.param("cifar10", True, marks=pytest.mark.slow, id="cifar10"),
    ],
)
def test_runs_and_reports(name, whole):
    experiment = EXPERIMENTS[name]
    configs = experiment.config.configs("smoke")
    if name == "bo" and (reason := experiment.run.missing(configs)):
        pytest.skip(reason)
    results = [(config, found(name, config)) for config in configs if whole or not LONG[name](config)]
    config, first = results[0]
    again = experiment.run.run(config)
    assert first.keys() == again.keys()
    same = [np.array_equal(first[key], again[key]) for key in first if not key.startswith("seconds")]
    assert all(same), "same seed, same numbers"
    for _, arrays in results:
        assert not any(np.isnan(value).any() for value in arrays.values() if value.dtype.kind == "f")
    section = experiment.report.report(results)
    assert isinstance(section, Section) and section.paper and section.ours
    assert section.figures.keys() == section.captions.keys() and section.tables
    page = render_html({"a": Part(section)})
    assert page.count("<svg") >= len(section.figures)
    assert render_markdown([section]) and render_latex([section])


@pytest.mark.parametrize("name", ["digits", "arena", "active"])  # whose claims compare methods with each other
def test_each_result_can_be_reported_alone(name):
    experiment = EXPERIMENTS[name]
    for config in experiment.config.configs("smoke"):
        if not LONG[name](config):
            section = experiment.report.report([(config, found(name, config))])
            assert section.tables and render_markdown([section])


# Covariance


def test_monte_carlo_covariance_agrees_with_the_integral():
    results = covariance.run(covariance_config.Config(n_points=31))
    for weights in ("binary", "gaussian"):
        exact, error = results[f"{weights}_exact"], results[f"{weights}_standard_error"]
        z = (results[f"{weights}_monte_carlo"] - exact) / (error + 1e-12)
        assert abs(z).max() < 4.5  # 4 x 31 correlated values, each N(0, 1)


def test_gram_matrix_has_the_covariance_as_its_middle_row():
    results = covariance.run(covariance_config.Config(n_points=31, n_gram=31))
    for i in range(3):
        np.testing.assert_allclose(results["gram"][i, 15], results["binary_exact"][i], rtol=1e-9)


def test_draws_of_networks_and_of_the_process_have_the_same_variance():
    config = covariance_config.Config(n_points=21, n_draws=300, widths=(200,))
    draws = covariance.run(config)["draws"]  # (nu, width or process, draw, x)
    network, process = draws[:, 0].var(axis=(1, 2)), draws[:, 1].var(axis=(1, 2))
    np.testing.assert_allclose(network, process, rtol=0.3)


def test_covariance_report_judges_by_the_numbers():
    (config,) = covariance_config.configs("smoke")
    arrays = found("covariance", config)
    good = covariance_report.report([(config, arrays)])
    assert "kernels agree" in good.ours and "The kernel decays" in good.ours
    at_half = np.isclose(arrays["x"], 0.5)
    assert good.tables[0].rows[0][3] == pytest.approx(arrays["binary_exact"][0, at_half].item())
    shifted = arrays | {"binary_monte_carlo": arrays["binary_monte_carlo"] + 10 * arrays["binary_standard_error"]}
    assert "do not agree" in covariance_report.report([(config, shifted)]).ours
    flat = arrays | {"gram": np.ones_like(arrays["gram"])}
    assert "does not decay" in covariance_report.report([(config, flat)]).ours


# Infinite width


@pytest.fixture(scope="module")
def limits():
    """By model, what infinite width says of Banana, without and with a trunk."""
    configs = [config for config in banana_config.configs("smoke") if config.model in banana_config.INFINITE]
    return {config.model: (config, found("banana", config)) for config in configs}


def test_infinite_width_has_no_rays_around_banana(limits):
    """On the columns from radius 20, where the finite network has .1 in some direction; behind a trunk from 400."""
    without, behind = (limits[model][1]["least, plain"] for model in banana_config.INFINITE)
    assert (without > 0.499).all() and (behind[:, 1] > 0.499).all()
    for _, arrays in limits.values():
        assert arrays["accuracy"].min() > 0.85, "a model that knows nothing has no rays either"
    config = next(config for config in banana_config.configs("smoke") if config.model == "network")
    assert found("banana", config)["least, plain"].max() < 0.49


def test_banana_report_says_where_it_is_surest(limits):
    section = banana_report.report(list(limits.values()))
    assert (
        "With Matérn-5/2, the least in any direction at radius 20, in the worst seed: infinite width 0.50"
        in section.ours
    )
    *_, least = section.tables
    assert [row[0] for row in least.rows] == [f"{model}, Matérn-5/2" for model in banana_config.INFINITE]
    old = [(c, {key: a for key, a in arrays.items() if "least" not in key}) for c, arrays in limits.values()]
    section = banana_report.report(old)
    assert "At radius 20" not in section.ours and not section.tables[-1].rows, "results of before have no such number"


def test_the_four_models_of_banana_stand_side_by_side(limits):
    configs = {(config.model, config.prior): config for config in banana_config.configs("smoke")}
    network, process = (configs[model, "matern52"] for model in ("network", "gp"))
    results = [*limits.values(), *((config, found("banana", config)) for config in (network, process))]
    section = banana_report.report(results)
    titles = [ax.get_title() for ax in section.figures["banana_four"].axes]
    assert titles == ["network, 50 units", "with restored prior", "infinite width", "Gaussian process"]
    figure = section.figures["banana_four"]
    figure.draw_without_rendering()
    widths = [ax.title.get_window_extent().width / ax.bbox.width for ax in figure.axes]
    smallest = min(ax.title.get_fontsize() for ax in figure.axes) / 72 / figure.get_figwidth() * 400
    assert max(widths) < 1 and smallest > 12, "titles fit their panels, and are read where it is 400 pixels wide"
    arrays = results[2][1]
    plain, restored = arrays["seed 0"], arrays["total, restored map"]
    assert (restored >= plain - 1e-5).all() and (restored > plain + 1e-3).any(), "it only adds uncertainty"
    assert "banana_four" not in banana_report.report(results[:3]).figures


def test_infinite_width_is_the_gaussian_process_of_the_regression():
    """With the same kernel: it is unsure in the gap and returns to its prior far away, where the network is sure."""
    configs = {(c.model, c.prior): c for c in regression_config.configs("paper")}
    limit, process, network = (
        regression.run(replace(configs[model, "matern52"], n_repeats=1, epochs=150, gp_steps=300))
        for model in ("infinite width", "gp", "network")
    )
    np.testing.assert_allclose(limit["mean, plain"], process["mean, plain"], atol=0.1)
    np.testing.assert_allclose(limit["places, plain"], process["places, plain"], rtol=0.3)
    assert limit["places, plain"][0, 3] > 5 * network["places, plain"][0, 3]


def test_infinite_width_tells_unknown_digits_by_the_spread_of_its_outputs():
    """With dropout that spread is upside down."""
    limit, finite = (
        digits.run(digits_config.Config(prior, epochs=30, n_seeds=1))
        for prior in ("matern52 infinite width", "matern52")
    )
    assert limit["accuracy"] > 0.97 and limit["auroc std, plain"] > 0.85 > 0.5 > finite["auroc std, plain"]


# Far from the data


def test_far_from_the_data_matern_returns_to_one_half_and_relu_does_not():
    (config,) = far_config.configs("paper")
    results = far_from_data.run(far_config.Config(**{**config.__dict__, "n_members": 2, "epochs": 250}))
    far = np.abs(results["grid"]) > 9
    confidence = {name: np.maximum(results[name], 1 - results[name])[:, far].mean() for name in ("relu", "matern")}
    assert confidence["relu"] > 0.95
    assert confidence["matern"] < 0.8


def test_far_from_data_report_judges_by_the_numbers():
    (config,) = far_config.configs("smoke")
    grid = np.linspace(-10, 10, 41)
    arrays = {"x": np.array([-2.0, 2.0]), "y": np.array([0, 1]), "grid": grid}
    sure, unsure = np.full((2, 41), 0.01), np.where(abs(grid) > 9, 0.6, 0.9) * np.ones((2, 1))
    section = far_report.report([(config, arrays | {"relu": sure, "matern": unsure})])
    assert section.ours.startswith("The claim holds.") and "0.990" in section.ours and "0.600" in section.ours
    (_, near, far) = section.tables[0].rows[1]
    assert (near.mean, far.mean, far.std) == pytest.approx((0.9, 0.6, 0))
    swapped = far_report.report([(config, arrays | {"relu": unsure, "matern": sure})])
    assert swapped.ours.startswith("The claim does not hold")
