"""The UCI benchmarks: every number of the paper has its configuration, folds are folds, and the report counts right."""

import csv
import math
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch

from stationary.lab.experiments import paper
from stationary.lab.experiments.uci import report as uci_report
from stationary.lab.experiments.uci import run as uci
from stationary.lab.experiments.uci.config import (
    DATASETS,
    METHODS,
    METRICS,
    SECONDS,
    Config,
    NetworkRow,
    SVGPRow,
    configs,
)
from stationary.lab.report.render import render_csv

SMALL = Config(epochs=2, hidden=(20, 10), n_inducing=20, n_samples=10)


def published():
    with (files("stationary.lab.experiments") / "paper_tables.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["experiment"] == "uci"]


def test_every_published_number_has_its_configurations():
    grid = configs("paper")
    folds = {}
    for config in grid:
        assert len(config.folds) == 1
        folds.setdefault((config.dataset, config.prior, config.method), []).append(config.folds[0])
    wanted = {(row["dataset"], row["prior"], row["method"]) for row in published()}
    assert len(published()) == 156 and wanted <= folds.keys()
    assert all(sorted(of) == list(range(10)) for of in folds.values())
    assert len(set(grid)) == len(grid)
    assert {row["metric"] for row in published()} == set(uci_report.COMPARED)


def test_methods_are_named_after_what_they_are():
    assert METHODS["NN learnable"] == NetworkRow("learnable") and METHODS["SVGP unit"] == SVGPRow(unit=True)
    assert METHODS["GPDNN 1e-3"].epsilon == 1e-3 and METHODS["GPDNN slow"].learning_rate == 1e-4
    assert {type(row) for row in METHODS.values()} == set(uci.PREDICTIONS)
    rules = {name: row.nlpd for name, row in METHODS.items()}
    assert {name for name, rule in rules.items() if rule == "expected_nll"} == {n for n in METHODS if n[:2] == "NN"}


def test_the_data_sets_are_those_that_there_are():
    assert DATASETS == uci.uci.DATASETS


SLOW = ("infinite width columns", "SV-DKL converged")  # as infinite width and SV-DKL, but with a longer training


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in METHODS]
)
def test_folds_together_are_the_folds_alone(method):
    config = replace(SMALL, method=method, prior="matern12" if method == "NN surrogate" else "matern32", epochs=4)
    if method == "SV-DKL converged":
        config = replace(config, epochs=1)
    together = uci.run(replace(config, folds=(3, 1)))
    for k, fold in enumerate((3, 1)):
        alone = uci.run(replace(config, folds=(fold,)))
        assert alone.keys() == together.keys()
        for name, value in alone.items():
            assert value.shape == (1,)
            if not name.startswith("seconds"):
                np.testing.assert_allclose(together[name][k], value[0], rtol=1e-6, err_msg=name)


def test_network_gives_three_rows():
    found = uci.run(replace(SMALL, prior="matern52"))
    methods = {name.split(": ")[0] for name in found if ": " in name}
    assert methods == {"NN", "NN exact", "NN restored"}
    assert "NN restored: NLPD" not in uci.run(replace(SMALL, prior="relu"))
    assert found["NN: NLPD"][0] > found["NN: NLPD mean-probability"][0]  # -E log p is at least -log E p
    assert set(METRICS) == {name.split(": ")[1] for name in found if name.startswith("NN: ")} - {"diverged"}


def test_activations_of_the_network():
    """e^(-x^2) is the RBF of length-scale 1; a row of its own has the length-scale of the Matérn ones."""
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    torch.testing.assert_close(uci._activation(METHODS["NN"], "rbf")(x), torch.exp(-x.square()))
    scaled = uci._activation(METHODS["NN lengthscale"], "rbf")(x)
    torch.testing.assert_close(scaled, (8 / math.pi) ** 0.25 * torch.exp(-4 * x.square()))


def test_baselines_average_inside_their_likelihood():
    found = uci.run(replace(SMALL, method="SVGP"))
    assert found["SVGP: NLPD"] == found["SVGP: NLPD mean-probability"]


def test_infinite_width_chooses_by_rows_that_its_trunk_has_not_seen(monkeypatch):
    """A tenth of the training rows; on the columns nothing is trained, and no row is left out."""
    split = uci._splits("diabetes", 10, 0, (2,), "cpu")[0]
    calls, trained, posterior, fit = [], [], uci.InfiniteWidth.posterior, uci.fit_folds

    def seen(self, networks, data, *, validation):
        calls.append((data, validation))
        return posterior(self, networks, data, validation=validation)

    monkeypatch.setattr(uci.InfiniteWidth, "posterior", seen)
    monkeypatch.setattr(
        uci,
        "fit_folds",
        lambda method, build, folds, *a, **k: trained.extend(folds) or fit(method, build, folds, *a, **k),
    )
    for name in ("infinite width", "infinite width columns"):
        found = uci.run(replace(SMALL, method=name, folds=(2,)))
        assert found[f"{name}: NLPD"] == found[f"{name}: NLPD mean-probability"] < 0.693
        assert found["seconds training"] > 0
    (train, held), (every, none) = calls
    assert len(trained) == 1 and trained[0][0] is train[0] and none is None
    assert len(held[0]) == round(len(split.x_train) / 10)
    rows = lambda x: {tuple(row) for row in x.tolist()}
    assert rows(train[0]) | rows(held[0]) == rows(split.x_train) == rows(every[0])


def test_divergence_is_reported(monkeypatch):
    """A learning rate that no network survives: the product of two weights is beyond float32, on every processor."""
    monkeypatch.setitem(uci.LEARNING_RATES, "diabetes", 1e37)
    found = uci.run(SMALL)
    assert found["NN: diverged"] == 1 and np.isnan(found["NN: NLPD"])
    section = uci_report.report([(SMALL, found)])
    assert "Diverged folds, left out of the means: NN Matérn-3/2 on diabetes, 1 of 1" in section.ours
    assert any(record["metric"] == "diverged folds" and record["mean"] == 1 for record in section.records)


def arrays(nlpd, acc=0.8, diverged=0.0, method="NN"):
    values = dict.fromkeys(METRICS, 0.5) | {"NLPD": nlpd, "ACC": acc, "diverged": diverged}
    found = {f"{method}: {name}": np.array([value]) for name, value in values.items()}
    return found | {name: np.array([0.25]) for name in SECONDS}


def test_report_compares_in_units_of_the_papers_std():
    config = Config(dataset="adult", prior="matern32")
    results = [(replace(config, folds=(k,)), arrays(nlpd)) for k, nlpd in enumerate((0.309, 0.325))]
    (row,) = uci_report.lines_of(results)
    assert (row.folds, row.diverged, row.seconds["seconds training"]) == (2, 0, 0.5)
    assert row.metrics["NLPD"].mean == pytest.approx(0.317) and row.metrics["NLPD"].std == pytest.approx(0.008)
    distances = dict(row.distances())
    assert distances["NLPD"] == pytest.approx(-(0.317 - 0.316) / 0.007)  # larger is worse
    assert distances["ACC"] == pytest.approx((0.8 - 0.854) / 0.005)
    section = uci_report.report(results)
    assert "NN: of 3 published numbers 1 agree" in section.ours and "adult Matérn-3/2 ACC by 10.8" in section.ours


def test_other_encodings_are_compared_with_the_paper_and_counted_apart():
    plain, codes = Config(dataset="connect-4"), Config(dataset="connect-4-codes")
    unit = replace(codes, method="SVGP unit")
    results = [(plain, arrays(0.45)), (codes, arrays(0.45, 0.828)), (unit, arrays(0.629, 0.75, method="SVGP unit"))]
    assert [dict(row.distances())["NLPD"] for row in uci_report.lines_of(results)] == [0, 0, 0]
    ours = uci_report.report(results).ours
    for name, agree in (("NN", 1), ("NN on connect-4-codes", 2), ("SVGP unit on connect-4-codes", 2)):
        assert f"\n{name}: of 3 published numbers {agree} agree" in ours


def test_report_says_why_where_it_is_known():
    """Each reason is for a row of the grid with published numbers."""
    published_rows = {(row["dataset"], row["prior"], row["method"]) for row in published()}
    assert uci_report.WHY.keys() <= published_rows
    section = uci_report.report([(Config(dataset="covtype", prior="rbf"), arrays(0.123, 0.96))])
    assert section.verdicts[0].found.startswith("Of 2 numbers of covtype "), "and not all four data sets"
    assert "covtype RBF NLPD by 3.5 (e^(-x^2) is the RBF of length-scale 1" in section.ours


def test_diverged_folds_do_not_count():
    config = Config(dataset="adult", prior="matern32")
    results = [(config, arrays(0.3)), (replace(config, folds=(1,)), arrays(np.nan, np.nan, 1.0))]
    (row,) = uci_report.lines_of(results)
    assert (row.folds, row.diverged, row.metrics["NLPD"].mean) == (2, 1, 0.3)


def test_a_std_of_zero_in_the_paper_is_rounding():
    found = paper.published("uci", "covtype", "matern32", "NN", "AUC")
    assert found is not None and found.std == 0
    (row,) = uci_report.lines_of([(Config(dataset="covtype"), arrays(0.1) | {"NN: AUC": np.array([0.9985])})])
    assert dict(row.distances())["AUC"] == pytest.approx(1.0)


def test_summary_has_each_number_once():
    configs = [replace(SMALL, method=method, folds=(k,)) for method in ("NN", "SVGP") for k in (0, 1)]
    results = [(config, uci.run(config)) for config in configs]
    lines = list(csv.DictReader(render_csv(uci_report.report(results)).splitlines()))
    assert list(lines[0]) == ["dataset", "prior", "method", "metric", "mean", "std"]
    keys = [tuple(line[key] for key in ("dataset", "prior", "method", "metric")) for line in lines]
    assert len(set(keys)) == len(keys)
    assert {("diabetes", "matern32", "NN", "NLPD"), ("diabetes", "matern32", "SVGP", "AUC")} <= set(keys)


@pytest.mark.slow
def test_the_network_is_as_good_as_the_papers():
    """Diabetes, all ten folds: within 2 of the paper's std, or better."""
    results = [(replace(Config(), folds=(k,)), uci.run(replace(Config(), folds=(k,)))) for k in range(10)]
    for row in uci_report.lines_of(results):
        assert all(distance > -2 for _, distance in row.distances()), row


def test_covtype_that_cannot_be_had_is_looked_for_once_and_left_out(monkeypatch):
    looked = []

    def load(name):
        looked.append(name)
        raise FileNotFoundError(f"no {name}; get it")

    grid = configs("paper")
    monkeypatch.setattr(uci.uci, "load", load)
    uci._no_covtype.cache_clear()
    assert uci.missing(grid) == "no covtype; get it"
    assert {config.dataset for config in grid if uci.missing([config])} == {"covtype"} and looked == ["covtype"]
    uci._no_covtype.cache_clear()
    monkeypatch.setattr(uci.uci, "load", lambda name: None)
    assert uci.missing(grid) is None
    uci._no_covtype.cache_clear()
