"""Active learning: what is asked for, when infinite width is fitted again, what is not looked at, and the report."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stationary.lab.data import grey_images, uci_regression
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.active import config, learners, problems, report, run
from stationary.lab.experiments.active.config import CLASSES_ONLY, SECONDS, WAYS, Config
from stationary.lab.report.render import render_csv
from stationary.lab.runs import inside
from stationary.lab.runs.execute import run_missing
from stationary.lab.runs.store import RunStore
from stationary.lab.runs.units import Task

SMOKE = {(c.dataset, c.method): c for c in config.configs("smoke")}


@pytest.fixture(scope="module")
def results():
    """By data set and method, the arrays of the scale smoke."""
    return {key: run.run(one) for key, one in SMOKE.items()}


# What is asked for


def test_no_row_is_asked_for_twice_and_all_begin_alike(results):
    for (dataset, method), arrays in results.items():
        if method == SECONDS:
            continue
        rows, one = arrays["asked"][0], SMOKE[dataset, method]
        assert len(rows) == one.labels == len(set(rows.tolist())) and rows.min() >= 0 and rows.max() < one.n_pool
        assert rows[: one.start].tolist() == list(range(one.start)), "the same first rows for all"
        random = rows.tolist() == list(range(one.labels))
        assert random == (WAYS[method].score is None), "random rows are the next of a pool in random order"


def test_curves_have_a_number_for_each_round_and_begin_at_the_same_one(results):
    for (dataset, method), arrays in results.items():
        one = SMOKE[dataset, method]
        assert one.counts == (20, 30, 40)
        if method != SECONDS:
            names = {"accuracy", "NLPD"} if dataset == "digits" else {"RMSE", "NLPD"}
            assert set(arrays) == names | {"asked"}
            for name in names:
                assert arrays[name].shape == (1, 3)
                first = results[dataset, report.random_of(method)][name][0, 0]
                assert arrays[name][0, 0] == first, "before the first question all ways of one learner are alike"


def test_labels_help_infinite_width(results):
    """From 20 to 40 labels, with whichever rows: 100 test rows and no luck involved but that of one seed."""
    for (dataset, method), arrays in results.items():
        if dataset == "digits" and method.startswith("infinite width"):
            assert arrays["accuracy"][0, -1] > arrays["accuracy"][0, 0] > 0.3


def test_all_scores_ask_for_the_same_values():
    """With one noise for all rows every score grows with the variance, so their runs would be the same run."""
    one = SMOKE["diabetes", "infinite width bald"]
    problem = problems.load(one, 0)
    first = torch.arange(one.start)
    posterior = learners.infinite_width(problem, first)
    for batch in ("joint", "top"):
        ways = [config.Way("infinite width", score, batch) for score in ("bald", "variance", "entropy")]
        bald, *others = (run.asked(one, 0, way, problem, posterior, first, 10) for way in ways)
        assert all(bald.equal(other) for other in others)
    methods = {c.method for c in config.configs("paper") if c.dataset == "energy"}
    assert methods == {*WAYS, SECONDS} - set(CLASSES_ONLY)


@pytest.mark.parametrize("method", ["infinite width bald", "dropout bald", "ensemble entropy"])
def test_test_rows_choose_nothing(method, results):
    one = SMOKE["digits", method]
    problem = problems.load(one, 0)
    other = problem._replace(y_test=(problem.y_test + 1) % 10)
    found = run.curve(one, 0, other)
    assert found["asked"].tolist() == results["digits", method]["asked"][0].tolist()
    assert not np.array_equal(found["NLPD"], results["digits", method]["NLPD"][0])


# Learning


def test_numbers_are_chosen_again_when_the_labels_have_doubled(monkeypatch):
    fits, whole = [], learners.infinite_width
    monkeypatch.setattr(learners, "infinite_width", lambda p, rows: fits.append(len(rows)) or whole(p, rows))
    small = replace(SMOKE["diabetes", "infinite width random"], labels=80)
    run.run(small)
    assert fits == [20, 40, 80]
    fits.clear()
    run.run(replace(small, growth=1.5, labels=45))
    assert fits == [20, 30, 45], "the last batch may be smaller"
    fits.clear()
    run.run(replace(small, method="infinite width bald new fits", labels=40))
    assert fits == [20, 30, 40]


def test_update_has_all_rows_and_the_numbers_of_the_last_fit():
    one = SMOKE["diabetes", "infinite width random"]
    problem = problems.load(one, 0)
    learner = run.Infinite(one, WAYS[one.method])
    first, second = (learner(problem, torch.arange(count)) for count in (20, 30))
    assert (len(first.rows), len(second.rows)) == (20, 30)
    assert second.numbers.lengthscale is first.numbers.lengthscale and second.numbers.noise is first.numbers.noise
    torch.testing.assert_close(second.rows.y, problem.y[:30])


def test_rows_of_classes_are_all_learnt():
    one = SMOKE["digits", "infinite width random"]
    problem = problems.load(one, 0)
    train, held = learners.divided(torch.arange(20))
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(20)) and len(held) == 5
    assert len(learners.infinite_width(problem, torch.arange(20)).rows) == 20


# Data


def test_values_are_measured_in_the_units_of_the_data(monkeypatch):
    """Targets ten times as large: ten times the RMSE, and log 10 more of NLPD."""
    one = SMOKE["diabetes", "infinite width random"]
    found, whole = run.run(one), problems.load_diabetes
    tenfold = lambda return_X_y: (lambda x, y: (x, 10 * y))(*whole(return_X_y=return_X_y))
    monkeypatch.setattr(problems, "load_diabetes", tenfold)
    again = run.run(one)
    np.testing.assert_allclose(again["RMSE"], 10 * found["RMSE"], rtol=1e-6)
    np.testing.assert_allclose(again["NLPD"], found["NLPD"] + np.log(10), rtol=1e-6)


@pytest.mark.parametrize("dataset", config.DATASETS)
def test_pool_and_test_rows_are_others(dataset, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(300, 3, generator=generator).double(), torch.arange(300)[:, None].double()
    split = uci_regression.Rows(torch.arange(270), torch.arange(270, 300))
    table = uci_regression.Regression(x, y, {"standard": (split,)})
    images = grey_images.Images(torch.arange(300 * 784).view(300, 1, 28, 28).to(torch.uint8), torch.arange(300) % 10)
    monkeypatch.setattr(uci_regression, "load", lambda name: table)
    monkeypatch.setattr(grey_images, "load", lambda name, part: images)
    one = Config(dataset, labels=40, n_pool=200, n_test=50)
    problem = problems.load(one, 0)
    assert len(problem.x) == len(problem.y) == 200 and len(problem.x_test) == len(problem.y_test) >= 30
    if dataset in config.UCI:
        targets = torch.cat([problem.y, problem.y_test]) * problem.scale
        assert (targets - targets.min()).round().unique().numel() == len(targets), "each row of the table once"
        assert problem.y[:20].mean().abs() < 1e-9 and abs(float(problem.y[:20].std()) - 1) < 1e-9
        with pytest.raises(ValueError, match="seeds must be below 1"):
            problems.load(one, 1)
    if dataset not in config.IMAGES:
        torch.testing.assert_close(problem.x.mean(0), torch.zeros_like(problem.x[0]), atol=1e-9, rtol=0)
    again = problems.load(replace(one, method="dropout bald"), 0)
    assert problem.x.equal(again.x) and problem.x_test.equal(again.x_test), "the same for every method"
    with pytest.raises(ValueError, match="labels must be at most"):
        problems.load(replace(one, labels=2000, n_pool=3000), 0)


def test_what_cannot_run_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path))
    monkeypatch.setattr(uci_regression, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(grey_images, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(grey_images, "DEBIAN", str(tmp_path))
    for dataset, words in (("energy", "uci-regression"), ("fashion-mnist", "t10k-images")):
        problem = run.missing([Config(dataset)])
        assert problem is not None and words in problem and "--scale demo" in problem
    assert run.missing(config.configs("demo")) is None
    with pytest.raises(ValueError, match="method must be one of"):
        Config(method="guess")
    with pytest.raises(ValueError, match="start must be at least 4"):
        Config(start=50, labels=40)


# Runs


def test_what_is_stored_is_not_run_again(tmp_path, monkeypatch, results):
    """After an interruption the missing runs are made, and give what they would have given."""
    active, store = EXPERIMENTS["active"], RunStore(tmp_path)
    tasks = [Task(active, SMOKE["diabetes", f"infinite width {way}"]) for way in ("random", "bald")]
    run_missing(tasks[:1], store)
    asked, whole = [], run.run
    monkeypatch.setattr(run, "run", lambda one, device="cpu": asked.append(one.method) or whole(one, device))
    summary = run_missing(tasks, store)
    assert (summary.done, summary.reused, asked) == (1, 1, ["infinite width bald"])
    stored = store.load("active", config.VERSION, tasks[1].config)
    np.testing.assert_array_equal(stored.arrays["NLPD"], results["diabetes", "infinite width bald"]["NLPD"])


@pytest.mark.usefixtures("kept_each_epoch")
def test_seconds_of_a_run_that_was_stopped_are_kept(tmp_path, monkeypatch):
    """Stopped in the second round, it measures the first one no more, and knows the same rows in the second."""
    one, measured, timed = SMOKE["digits", SECONDS], [], run.timed

    def stopping(taken, name, work, *arguments):
        measured.append(name)
        if measured.count(name) == 2 and len(measured) == 8:
            raise KeyboardInterrupt
        return timed(taken, name, work, *arguments)

    monkeypatch.setattr(run, "timed", stopping)
    with inside.a_run([], tmp_path), pytest.raises(KeyboardInterrupt):
        run.run(one)
    asked, ask = [], run.asked
    monkeypatch.setattr(run, "asked", lambda *arguments: asked.append(arguments[4]) or ask(*arguments))
    with inside.a_run([], tmp_path):
        arrays = run.run(one)
    assert len(measured) == 8 + 7 and all(seconds.shape == (1, 2) for seconds in arrays.values())
    assert len(asked[0].rows) == one.counts[2], "those of the first round as well"


def test_seconds_of_every_learner_in_every_round(results):
    arrays = results["digits", SECONDS]
    steps = {name.removeprefix("seconds: ") for name in arrays}
    names = ("infinite width", "dropout", "ensemble")
    assert steps == {f"ask, {name}" for name in names} | {"learn, dropout", "learn, ensemble"} | {
        f"learn, infinite width, {how}" for how in ("update", "new fit")
    }
    assert all(values.shape == (1, 2) and (values > 0).all() for values in arrays.values())


# Report


def curves(method, seeds, accuracy):
    """Results of a way of asking, one for each seed, with these curves of accuracy by seed."""
    for seed, values in zip(seeds, accuracy, strict=True):
        one = replace(SMOKE["digits", method], seeds=(seed,))
        yield one, {"accuracy": np.array([values]), "NLPD": 1 - np.array([values]), "asked": np.arange(40)[None]}


def test_differences_to_random_are_paired_by_seed():
    """Whatever the order in which seeds come; a seed that only one of both has is left out."""
    random = curves("infinite width random", (0, 1, 2), ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0, 0, 0.9]))
    bald = curves("infinite width bald", (1, 0), ([0.5, 0.7, 0.8], [0.2, 0.4, 0.5]))
    ways = report.by_dataset([*random, *bald])["digits"]
    difference = report.difference(ways, "infinite width bald", "accuracy")
    np.testing.assert_allclose(difference, [[0.1, 0.2, 0.2], [0.1, 0.2, 0.2]])
    assert report.compared(ways) == ["infinite width bald"]
    assert report.enough(ways, "infinite width bald", "accuracy") == 40  # 0.6, where it has .35, .55 and .65
    section = report.report([*curves("infinite width random", (0,), ([0.1, 0.2, 0.3],))])
    assert "nothing to compare" in section.ours
    assert all("Standard errors" in table.caption for table in section.tables), "the page says: standard deviations"


@pytest.mark.parametrize(
    ("pairs", "name", "word"),
    [
        ([0.1, 0.11, 0.09], "accuracy", "better"),
        ([0.1, 0.11, 0.09], "NLPD", "worse"),
        ([-0.1, -0.11, -0.09], "RMSE", "better"),
        ([0.1, 0.2, 0.0], "accuracy", "undecided"),
        ([2.6 + 10**0.5, 2.6 - 10**0.5, 2.6, 2.6, 2.6], "accuracy", "undecided"),  # 2.6 standard errors; t has 2.78
        ([2.9 + 10**0.5, 2.9 - 10**0.5, 2.9, 2.9, 2.9], "accuracy", "better"),
        ([0.1], "accuracy", "undecided"),
    ],
)
def test_students_t_decides(pairs, name, word):
    assert report.judged(np.array(pairs), name) == word


def test_picture_has_a_panel_for_each_learner_and_data_set():
    found = report.by_dataset([*curves("infinite width random", (0, 1), [[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]])])
    found["diabetes"] = found["digits"]
    axes = report.figure(found, 1).axes
    titles = [ax.get_title() for ax in axes[:4]]
    assert titles == ["infinite width", "infinite width, new fits", "dropout", "ensemble"] and len(axes) == 8
    assert [axes[k].get_ylabel() for k in (0, 4)] == ["digits: NLPD", "diabetes: NLPD"]
    (line,) = axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.8, 0.7, 0.6])
    low, high = axes[0].get_ylim()
    assert low < 0.5 and high > 0.9, "with its standard error of 0.1 it is all inside"


def test_report_has_the_mean_and_its_standard_error():
    random = [*curves("ensemble random", (0, 1), ([0.1, 0.2, 0.3], [0.2, 0.3, 0.4]))]
    lines = render_csv(report.report(random)).splitlines()
    assert "digits,ensemble random,accuracy,end,,0.35,0.05,2" in lines
    assert "digits,ensemble random,accuracy,mean over rounds,,0.25,0.05,2" in lines
