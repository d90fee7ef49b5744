"""The arena's events with tables: what the protocol says is what runs, test rows choose nothing, the test is right."""

import math
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy import stats

from stationary.lab.data import uci, uci_regression
from stationary.lab.experiments.arena import (
    config,
    report,
    report_left_out,
    report_paired,
    report_tables,
    run,
    tables,
    values,
)
from stationary.lab.experiments.arena.config import GENERATED_TABLE, GENERATED_VALUES, Config
from stationary.lab.experiments.arena.methods.regressors import REGRESSORS, with_noise
from stationary.lab.experiments.arena.methods.tabular import CLASSIFIERS
from stationary.lab.experiments.arena.protocol import SCORES
from stationary.lab.experiments.arena.protocol_tables import (
    MOST,
    MUTUAL_INFORMATION,
    OF_EVENT,
    SPLITS,
    TABLES_EVENT,
    TESTED_CLASSES,
    TESTED_VALUES,
    VALUES_EVENT,
    rows_of_classes,
    rows_of_values,
)

VALUES, TABLE = OF_EVENT[VALUES_EVENT], OF_EVENT[TABLES_EVENT]
installed = lambda entry: not entry.needs or find_spec(entry.needs) is not None


@pytest.fixture(scope="module")
def standard():
    return dict(values.tasks(GENERATED_VALUES, 0))["standard"]


@pytest.fixture(scope="module")
def regressor(standard):
    """A method by its name, fitted once."""
    return cache(lambda name: REGRESSORS[name](standard, 0))


@pytest.fixture(scope="module")
def fits():
    return list(tables.tasks(GENERATED_TABLE, 0))


@pytest.fixture(scope="module")
def classifier(fits):
    """A method by its name, fitted once."""
    return cache(lambda name: CLASSIFIERS[name](fits[0], 0))


def test_every_method_has_a_protocol():
    assert list(REGRESSORS) == list(VALUES) and list(CLASSIFIERS) == list(TABLE)
    assert {entry.score for entry in TABLE.values()} <= {*SCORES, MUTUAL_INFORMATION}
    for heading, rows in (rows_of_values(), rows_of_classes()):
        assert all(len(row) == len(heading) and all(row) for row in rows)


# Values


@pytest.mark.filterwarnings("default")  # other libraries may warn
@pytest.mark.parametrize("name", VALUES)
def test_a_regressor_learns_and_says_how_sure_it_is(name, standard, regressor):
    if not installed(VALUES[name]):
        pytest.skip(f"{VALUES[name].code} is not installed: make arena")
    said = regressor(name)(standard.test_x)
    assert said.mean.shape == said.variance.shape == standard.test_y.shape and (said.variance > 0).all()
    found = values.judged(said, standard.test_y)
    if name != "marginal":
        assert found["log-likelihood"] > -1.4 and found["RMSE"] < 0.6, "better than mean and variance of all targets"
    assert found["coverage"] > 0.5


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in VALUES if installed(VALUES[name])])
def test_targets_of_test_rows_choose_nothing(name, standard, regressor):
    hidden = replace(standard, test_x=torch.full_like(standard.test_x, torch.nan), test_y=standard.test_y * torch.nan)
    x = standard.test_x
    assert REGRESSORS[name](hidden, 0)(x).mean.equal(regressor(name)(x).mean)


def test_metrics_of_values_are_those_of_the_definition():
    mean, variance = torch.tensor([0.0, 1.0, -1.0]).double(), torch.tensor([1.0, 0.25, 4.0]).double()
    y = torch.tensor([0.5, 2.5, -1.0]).double()
    found = values.judged(values.Normal(mean, variance), y)
    normal = stats.norm(mean.numpy(), variance.sqrt().numpy())
    lower, upper = normal.interval(0.9)
    assert found["log-likelihood"] == pytest.approx(normal.logpdf(y.numpy()).mean())
    assert found["RMSE"] == pytest.approx(math.sqrt(np.mean((y - mean).numpy() ** 2)))
    assert found["coverage"] == pytest.approx(np.mean((lower <= y.numpy()) & (y.numpy() <= upper)))
    assert found["width"] == pytest.approx(np.mean(upper - lower))


def test_noise_is_the_one_of_the_highest_likelihood():
    generator = torch.Generator().manual_seed(0)
    y = 0.3 * torch.randn(4000, generator=generator).double()
    _, noise = with_noise(torch.zeros(4000).double(), torch.zeros(4000).double(), y)
    assert noise == pytest.approx(y.square().mean().item(), rel=1e-2)


def test_splits_are_standardised_by_their_training_rows_and_cut():
    n = MOST + TESTED_VALUES + 1500
    generator = torch.Generator().manual_seed(0)
    x = 3 + 2 * torch.randn(n, 2, generator=generator).double()
    y = torch.arange(n).double()
    rows = uci_regression.Rows(torch.arange(1000, n - TESTED_VALUES - 10), torch.arange(n - TESTED_VALUES - 10, n))
    task = values.split(x, y, rows, 1)
    assert task.x.shape == (MOST, 2) and task.test_x.shape == (TESTED_VALUES, 2)
    torch.testing.assert_close(task.x.mean(0), torch.zeros(2).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(task.y.std(correction=0), torch.ones(()).double())
    assert task.held.sum() == MOST / 10
    assert task.test_y.min() > task.y.max(), "the targets are the numbers of the rows: no test row is trained on"
    assert values.split(x, y, rows, 1).x.equal(task.x) and not values.split(x, y, rows, 2).x.equal(task.x)


def test_what_a_table_has_no_split_for_is_not_a_number(monkeypatch):
    whole = values.generated(1)
    monkeypatch.setattr(values, "generated", lambda k: whole._replace(splits=whole.splits | {"gap": ()}))
    arrays = run.run(Config(VALUES_EVENT, GENERATED_VALUES, "marginal", (0, 1)))
    assert np.isnan(arrays["log-likelihood: gap"]).all() and np.isfinite(arrays["log-likelihood: tail"]).all()
    found = report_tables.found_of([(Config(VALUES_EVENT, GENERATED_VALUES, "marginal", (0, 1)), arrays)], VALUES_EVENT)
    assert "log-likelihood: gap" not in found[GENERATED_VALUES]["marginal"]


# Classes


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TABLE)
def test_a_classifier_learns_and_is_judged_by_its_score(name, fits, classifier):
    if not installed(TABLE[name]):
        pytest.skip(f"{TABLE[name].code} is not installed: make arena")
    rows = fits[0]
    known = classifier(name)(rows.test[0])
    assert known.probs.shape == (60, 3) and known.scores.shape == (60,)
    torch.testing.assert_close(known.probs.sum(-1).double(), torch.ones(60).double(), atol=1e-5, rtol=0)
    assert (known.probs.argmax(-1) == rows.test[1]).double().mean() > 0.5, "of clouds that overlap; chance is a third"
    p = known.probs.double()
    expected = {"doubt": 1 - p.max(-1).values, "entropy": torch.special.entr(p).sum(-1)}.get(TABLE[name].score)
    if expected is not None:
        torch.testing.assert_close(known.scores.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in TABLE if installed(TABLE[name]) and name != "tabpfn"])
def test_test_and_unknown_rows_choose_nothing(name, fits, classifier):
    rows = fits[0]
    x = rows.test[0]
    hidden = replace(rows, test=(torch.full_like(x, torch.nan), rows.test[1]), unknown={})
    assert CLASSIFIERS[name](hidden, 0)(x).scores.equal(classifier(name)(x).scores)


def test_unknown_rows_were_not_trained_on(fits):
    factor, region, left_out = fits
    assert factor.unknown["columns times 5"].equal(5 * factor.test[0])
    column = region.unknown["a region left out"][:, 0]
    assert column.min() > max(region.x[:, 0].max(), region.test[0][:, 0].max()), "seed 0 leaves out high values of it"
    whole = tables.generated()
    of_class = {tuple(row) for row in whole.x[whole.y == 0].tolist()}
    assert {tuple(row) for row in left_out.unknown["a class left out"].tolist()} <= of_class
    assert not of_class & {tuple(row) for row in left_out.x.tolist()} and left_out.n_classes == 2
    assert set(left_out.y.tolist()) == {0, 1}, "classes have no gap"
    for rows in fits:
        trained = {tuple(row) for row in rows.x.tolist()}
        assert not trained & {tuple(row) for row in rows.test[0].tolist()}


def test_tables_are_cut_and_columns_and_classes_go_by_the_seed(monkeypatch):
    n = 6 * TESTED_CLASSES
    table = replace(tables.generated(n), numeric=torch.tensor([False, True, False, True]))
    monkeypatch.setattr(tables, "_table", lambda name: table)
    factor, region, _ = tables.tasks("any", 1)
    assert len(factor.x) == MOST and len(factor.test[0]) == TESTED_CLASSES
    assert region.unknown["a region left out"][:, 3].min() > region.x[:, 3].max(), "the second numeric column"


def test_a_table_of_two_classes_has_none_to_leave_out(monkeypatch):
    whole = tables.generated()
    two = uci.Tabular(whole.x[whole.y < 2], whole.y[whole.y < 2], whole.numeric, whole.feature_names, ("0", "1"))
    monkeypatch.setattr(tables, "_table", lambda name: two)
    names = [name for rows in tables.tasks("any", 0) for name in rows.unknown]
    assert names == ["columns times 5", "a region left out"]


# Running and reporting


def test_missing_tables_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    assert "uci-regression" in run.missing([Config(VALUES_EVENT, "boston", "marginal")])
    assert "covtype.csv.xz" in run.missing([Config(TABLES_EVENT, "covtype", "mlp")])
    assert "`stationary data covtype` downloads it" in run.missing([Config(TABLES_EVENT, "covtype", "mlp")])
    assert (
        run.missing([Config(TABLES_EVENT, "adult", "mlp"), Config(VALUES_EVENT, GENERATED_VALUES, "marginal")]) is None
    )
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert "catboost is not installed" in run.missing([Config(TABLES_EVENT, "adult", "catboost")])


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="method of event='regression away from the data' must be one of"):
        run.run(Config(VALUES_EVENT, GENERATED_VALUES, "tabpfn"))


def test_configurations_are_those_of_the_protocol():
    grid = config.configs("paper")
    assert len([one for one in grid if one.event == VALUES_EVENT]) == 9 * SPLITS * len(VALUES)
    assert len([one for one in grid if one.event == TABLES_EVENT]) == (3 * SPLITS + 7) * len(TABLE)
    seeds = {seed for one in grid if one.dataset == "covtype" for seed in one.seeds}
    assert seeds == set(range(len(uci.EXPECTED["covtype"][1]))), "each class is left out once"


def test_holm_is_the_definition():
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert report_tables.holm(p) == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert report_tables.holm({}) == {}


def of_values(methods, n=5):
    """Results whose log-likelihoods have these means, and noise that the methods share but for a little."""
    shared, generator = np.random.RandomState(0).randn(n), np.random.RandomState(1)
    found = []
    for method, level in methods.items():
        arrays = {}
        for kind in ("standard", "gap", "tail"):
            arrays[f"log-likelihood: {kind}"] = level + shared + 0.01 * generator.randn(n)
            arrays |= {f"{name}: {kind}": np.full(n, 0.9) for name in ("RMSE", "coverage", "width")}
        found.append((Config(VALUES_EVENT, "boston", method, tuple(range(n))), arrays))
    return found


def test_the_report_marks_what_is_beyond_chance():
    results = of_values({"marginal": -1.4, "random forest": -0.5, "ensemble": 0.5, "infinite width": 0.0})
    section = report.report(results)
    rows = {row[0]: row[1] for row in section.tables[0].rows}
    assert rows["ensemble of 5"].endswith("▲") and rows["random forest"].endswith("▽")
    higher = "On standard splits the ensemble of 5 has a higher log-likelihood than infinite width on 1 of 1 tables."
    assert f"{higher} Over all tables none of this is beyond chance." in section.ours
    assert "more than one nat below the marginal Gaussian on 0 of 15 splits" in section.ours
    found = report_tables.found_of(results, VALUES_EVENT)
    assert report_tables.better_peers(found, "gap")["ensemble"] == ["boston"]
    p = report_tables.compared(found["boston"], "log-likelihood: gap")["ensemble"].p
    theirs, ours = ({c.method: a for c, a in results}[m]["log-likelihood: gap"] for m in ("ensemble", "infinite width"))
    assert p <= 3 * stats.ttest_rel(theirs, ours).pvalue + 1e-9, "paired, and counted at most three times"
    record = next(r for r in section.records if r["metric"] == "log-likelihood of infinite width minus it")
    assert list(record) == ["event", "data", "unknown", "method", "metric", "mean", "std", "n"]
    assert record["method"] == "marginal" and record["mean"] == pytest.approx(1.4, abs=0.05)


def test_differences_within_chance_have_no_mark():
    name, differences = "log-likelihood: standard", [0.5, -0.4, 0.3, -0.2, 0.1]
    arrays = {"random forest": {name: np.array(differences)}, "infinite width": {name: np.zeros(5)}}
    results = [(Config(VALUES_EVENT, "boston", m, tuple(range(5))), a) for m, a in arrays.items()]
    found = report_tables.compared(report_tables.found_of(results, VALUES_EVENT)["boston"], name)["random forest"]
    assert found.mark == "" and found.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


def test_how_far_below_the_marginal_is_counted_by_split():
    found = report_tables.found_of(of_values({"marginal": 0.0, "infinite width": -1.5}), VALUES_EVENT)
    gaps = report_tables.below_marginal(found)
    assert len(gaps) == 15 and all(gap == pytest.approx(-1.5, abs=0.1) for gap, *_ in gaps)
    assert "on 15 of 15 splits" in " ".join(report_tables.losses_of_values(found))


def test_the_target_says_whether_it_is_met():
    methods = {"random forest": -0.5, "ensemble": 0.5, "infinite width": 0.0}
    one = report_tables.found_of(of_values(methods), VALUES_EVENT)["boston"]
    for n, verdict in ((2, "met"), (3, "missed")):
        said = report_tables.target({f"table {k}": one for k in range(n)})
        assert said.startswith(f"{verdict}: most often better is the ensemble of 5 on {n} of {n} tables of standard")
    once = report_tables.found_of(of_values(methods, n=1), VALUES_EVENT)
    assert report_tables.target(once) == "not decided, with one split of each kind."


def test_differences_stand_with_their_paired_errors_and_intervals_by_table():
    found = report_tables.found_of(of_values({"marginal": 0.0, "ensemble": 0.5, "infinite width": -1.5}), VALUES_EVENT)
    tables = list(report_paired.of_values(found))
    assert len(tables) == 3 + 3 * 3, "differences of each kind of split; error, coverage and width of each"
    of = {method: numbers["log-likelihood: gap"] for method, numbers in found["boston"].items()}
    paired = np.array([of["infinite width"][k] - of["ensemble"][k] for k in range(5)])
    row = next(row for row in tables[1].rows if row[0] == "ensemble of 5")
    assert row[1] == f"{paired.mean():+.2f} ± {stats.sem(paired):.2f}".replace("-", "\N{MINUS SIGN}")
    assert "ours, infinite width" not in [row[0] for row in tables[1].rows]
    said = report_paired.far_below(found)
    assert said[1] == (
        "Boston, gap splits 0, 1, 2, 3 and 4: RMSE 0.90, intervals 0.90 wide, which hold a share of 0.90"
    )
    near = report_tables.found_of(of_values({"marginal": 0.0, "infinite width": -0.5}), VALUES_EVENT)
    assert report_paired.far_below(near) == []
    single = {"adult": {m: {"NLPD": {0: 0.5}, "ECE": {0: 0.1, 1: 0.1}} for m in ("catboost", "infinite width")}}
    (table,) = report_paired.of_classes(single)
    assert table.columns == ("method", "NLPD", "ECE") and table.rows == (("CatBoost", None, "+0.000 ± 0.000"),)


def test_the_report_of_classes_has_a_table_for_each_data_set():
    arrays = run.run(Config(TABLES_EVENT, GENERATED_TABLE, "logistic regression", (0, 1)))
    other = {name: values + 0.1 for name, values in arrays.items()}
    names = ("logistic regression", "infinite width")
    results = [
        (Config(TABLES_EVENT, GENERATED_TABLE, name, (0, 1)), numbers)
        for name, numbers in zip(names, (arrays, other), strict=True)
    ]
    (table,) = report.report(results).tables
    assert table.columns[:4] == ("method", "NLPD", "accuracy", "ECE")
    assert "AUROC, a class left out" in table.columns and table.rows[0][0] == "logistic regression"
    assert 1 / 3 <= arrays["confidence: columns times 5"][0] <= 1
    (line,) = report_tables.losses_of_classes(report_tables.found_of(results, TABLES_EVENT))
    assert line.startswith("On generated table logistic regression has the lowest NLPD (") and ", ours " in line
    assert "AUROC" not in line, "where ours is not the best"


def test_differences_over_tables_are_judged_by_signed_ranks():
    results = [
        (Config(VALUES_EVENT, dataset, method, (0,)), {"log-likelihood: gap": np.array([level * (1 + k)])})
        for k, dataset in enumerate(config.DATASETS[VALUES_EVENT][:9])
        for method, level in {"ensemble": 0.1, "laplace": (-0.1) ** (k % 2), "infinite width": 0.0}.items()
    ]
    found = report_tables.found_of(results, VALUES_EVENT)
    over = report_tables.over_tables(found, "log-likelihood: gap")
    assert over["ensemble"].mark == "▲" and over["ensemble"].p == pytest.approx(2 * 2 / 2**9), "all nine have one sign"
    assert over["laplace"].mark == "" and report_tables.higher(found, "laplace", "log-likelihood: gap") == (5, 9)


def test_what_was_left_out_stands_by_class_and_column():
    """Connect-4 has three classes, so that seeds 0 and 3 leave out the same one."""
    name = {kind: f"AUROC: {kind}" for kind in ("a class left out", "a region left out")}
    numbers = {
        method: {one: {seed: level + seed / 10 for seed in range(4)} for one in name.values()}
        for method, level in {"mlp": 0.5, "infinite width": 0.4}.items()
    }
    of_class, of_column = report_left_out.tables({"connect-4": numbers})
    assert of_class.columns == ("method", "draw", "loss", "win")
    assert of_class.rows[0] == ("MLP", "0.650", "0.600", "0.700")
    assert of_column.columns == ("method", "a1", "a2", "a3", "a4") and of_column.rows[1][1] == "0.400"
    (said,) = report_left_out.in_words({"connect-4": numbers})
    assert "draw by the MLP (0.650, ours 0.550), loss" in said
    assert list(report_left_out.columns("covtype"))[:2] == ["Elevation", "Aspect"]


def test_names_of_what_is_left_out_are_those_of_the_rows():
    """The columns and classes that the page names are those that ``tables.tasks`` takes."""
    table = uci.load("connect-4")
    assert report_left_out.classes("connect-4") == table.class_names
    assert report_left_out.columns("adult") == uci.load("adult").feature_names[:6]
    assert report_left_out.columns("adult")[3] == "capital-gain"
