"""The arena: what the protocol says is what runs, nobody chooses by unknown or test rows, and the report is right.

In make's own environment the peers are not installed; ``make arena`` runs all of this where they are.
"""

import hashlib
import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from stationary import metrics
from stationary.lab.data import cifar10, clinc150, corrupted, grey_images
from stationary.lab.experiments.arena import (
    config,
    frozen,
    images,
    ranks,
    report,
    report_opening,
    report_second,
    run,
    trunks,
)
from stationary.lab.experiments.arena.methods import METHODS, Judged, ours
from stationary.lab.experiments.arena.methods.base import by_doubt, by_entropy
from stationary.lab.experiments.arena.methods.classifiers import vbll_outputs
from stationary.lab.experiments.arena.protocol import (
    CALIBRATED,
    FROM_NETWORK,
    INFINITE_WIDTH,
    MORE_ROWS,
    PROTOCOL,
    ROWS_OF_FEATURE,
    SCORES,
)
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT
from stationary.lab.experiments.arena.tasks import Standardised, folded

installed = lambda name: not PROTOCOL[name].needs or find_spec(PROTOCOL[name].needs) is not None
HERE = [name for name in PROTOCOL if installed(name)]


def sharp(task):
    """The same task with a network that is right, which a few steps of training are not."""
    network = nn.Linear(task.n_features, task.n_classes)
    with torch.no_grad():
        network.weight.copy_(3 * torch.eye(task.n_features)[: task.n_classes])
        network.bias.zero_()
    return replace(task, network=network.requires_grad_(False))


@pytest.fixture(scope="module")
def task():
    return sharp(run.generated(0))


@pytest.fixture(scope="module")
def fitted(task):
    """A method by its name, fitted once to the task."""
    return cache(lambda name: METHODS[name](task, 0))


def test_every_method_has_a_protocol():
    assert list(METHODS) == list(PROTOCOL)
    assert all(entry.score in SCORES for entry in PROTOCOL.values())
    ours = {"finite head", "restored prior", INFINITE_WIDTH, FROM_NETWORK, MORE_ROWS, CALIBRATED}
    assert {name for name, entry in PROTOCOL.items() if entry.ours} == ours


@pytest.mark.filterwarnings("default")  # other libraries may warn
@pytest.mark.parametrize("name", PROTOCOL)
def test_a_method_learns_and_is_judged_by_its_score(name, task, fitted):
    if not installed(name):
        pytest.skip(f"{PROTOCOL[name].code} is not installed: make arena")
    known, far = fitted(name)(task.test[0]), fitted(name)(task.unknown["far away"])
    assert known.probs.shape == (150, 4) and known.scores.shape == (150,)
    torch.testing.assert_close(known.probs.sum(-1), torch.ones(150).double(), atol=1e-5, rtol=0)
    if name != "vbll":  # too few steps here
        assert (known.probs.argmax(-1) == task.test[1]).double().mean() > 0.85
    score = PROTOCOL[name].score
    if score in ("doubt", "entropy"):
        expected = {"doubt": by_doubt, "entropy": by_entropy}[score](known.probs).scores
        torch.testing.assert_close(known.scores, expected, atol=1e-5, rtol=0)
    if name in ("mahalanobis", "ddu", "knn", "lof", "isolation forest", "finite head", "infinite width"):
        assert metrics.auroc(known.scores, far.scores) > 0.8, "it sees what is far away"
    chosen = fitted(name).chosen
    assert set(chosen) >= {key for key, _ in PROTOCOL[name].grid}
    for key, tried in PROTOCOL[name].grid:
        assert chosen[key] in tried


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", HERE)
def test_test_and_unknown_rows_choose_nothing(name, task, fitted):
    x = task.test[0]
    hidden = replace(task, test=(torch.full_like(x, torch.nan), task.test[1]), unknown={})
    assert METHODS[name](hidden, 0)(x).scores.equal(fitted(name)(x).scores)


def test_the_demo_is_a_part_of_the_paper_scale_with_one_seed():
    demo, paper = config.configs("demo"), config.configs("paper")
    assert set(demo) < set(paper) and {one.dataset for one in demo} == set(config.DEMO)
    assert {one.seeds for one in demo} == {(0,)}


@pytest.mark.filterwarnings("default")
def test_a_column_that_hardly_varies_does_not_choose_the_prior_of_laplace(task, fitted):
    if not installed("laplace"):
        pytest.skip("laplace-torch is not installed: make arena")
    network = nn.Linear(task.n_features + 1, task.n_classes)
    with torch.no_grad():
        network.weight.copy_(torch.cat([task.network.weight, torch.full((task.n_classes, 1), 1e7)], 1))
        network.bias.copy_(task.network.bias)
    flat = lambda x: torch.cat([x, 1e-9 * torch.sign(x[:, :1])], 1)
    changed = replace(task, train=(flat(task.train[0]), task.train[1]), network=network.requires_grad_(False))
    chosen = METHODS["laplace"](changed, 0).chosen["prior_precision"]
    assert chosen == pytest.approx(fitted("laplace").chosen["prior_precision"], rel=0.2), (
        "an unused weight changes it a little"
    )


@pytest.mark.filterwarnings("default")
def test_the_outputs_of_vbll_are_those_of_its_own_code():
    if not installed("vbll"):
        pytest.skip("vbll is not installed: make arena")
    from vbll import DiscClassification

    torch.manual_seed(0)
    layer, x = DiscClassification(7, 4, 0.01, "diagonal").double(), torch.randn(20, 7).double()
    ours, theirs = vbll_outputs(layer, x), layer.logit_predictive(x)
    assert torch.allclose(ours.mean, theirs.mean) and torch.allclose(ours.scale, theirs.scale)


def test_a_method_stores_other_scores_than_the_one_that_judges(task, fitted):
    known, far = (fitted(MORE_ROWS)(x) for x in (task.test[0], task.unknown["far away"]))
    second = fitted(FROM_NETWORK)(task.test[0])
    assert known.others["energy"].equal(second.scores), "300 rows are fewer than 1,000"
    found = run.judged(known, task.test[1], {"u": far})
    assert found["AUROC: u"] == metrics.auroc(known.scores, far.scores)
    assert found["AUROC by the energy: u"] == metrics.auroc(known.others["energy"], far.others["energy"])
    assert not any(name.startswith("AUROC by") for name in run.judged(second, task.test[1], {"u": second}))


def test_metrics_are_those_of_the_definition():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]).double()
    known = Judged(probs, torch.tensor([0.0, 1.0, 2.0]))
    found = run.judged(known, torch.tensor([0, 1, 1]), {"u": Judged(probs, torch.tensor([1.5, 3.0, 4.0]))})
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["NLPD"] == pytest.approx(-np.log([0.9, 0.4, 0.7]).mean())
    assert found["AUROC: u"] == pytest.approx(8 / 9), "of nine pairs one is the wrong way round"
    assert found["FPR95: u"] == pytest.approx(1 / 3)


def test_a_layer_on_standardised_columns_is_a_layer_on_the_columns():
    torch.manual_seed(0)
    x = 5 + torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.0])
    network = Standardised(x, nn.Linear(3, 2))
    torch.testing.assert_close(folded(network)(x), network(x), atol=1e-4, rtol=1e-4)


def test_missing_peers_and_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    assert run.missing(config.configs("smoke")) is None
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    text = run.missing(config.configs("paper"))
    assert text.startswith("catboost, laplace-torch, pytorch-ood, tabpfn and vbll are not installed; make arena")
    base = [one for one in config.configs("paper") if one.event not in OF_EVENT and not PROTOCOL[one.method].needs]
    assert "clinc150.json.xz" in run.missing(base)
    assert "arena.trunks" in run.missing([one for one in base if one.dataset == "fashion-mnist"])


# The report


def results(means, n=3):
    """Results of methods whose AUROC has these means and differs between seeds in the same way."""
    found = []
    for method, mean in means.items():
        for seed in range(n):
            numbers = {"accuracy": 0.9, "NLPD": 0.3, "ECE": 0.02, "seconds fit": 1.0, "seconds a row": 1e-3}
            numbers |= {"AUROC: u": mean + 0.01 * seed, "FPR95: u": 0.2, "AUPR: u": 0.8}
            arrays = {name: np.array([value]) for name, value in numbers.items()} | {"features": np.array(["a"])}
            found.append((config.Config("generated", "generated", method, (seed,)), arrays))
    return found


def test_the_report_begins_with_who_is_better():
    section = report.report(results({"msp": 0.8, "knn": 0.95, "infinite width": 0.9, "finite head": 0.97}))
    said = section.ours.split("\n\n")[1]
    assert said.startswith(
        "generated features, generated. Against u infinite width has an AUROC of 0.910; better is KNN "
    )
    assert "KNN (0.960). On known inputs" in said, "our own other heads are no peers"
    assert "There are no results of energy, " in said and "VBLL" in said
    first = section.tables[0]
    assert [row[0] for row in first.rows] == ["ours, finite head", "KNN", "ours, infinite width", "MSP"]
    paired = next(row[-2] for row in first.rows if row[0] == "MSP")
    assert paired.mean == pytest.approx(0.1) and paired.std == pytest.approx(0, abs=1e-9), "seeds are paired"
    record = next(r for r in section.records if (r["method"], r["metric"]) == ("knn", "AUROC"))
    assert record["mean"] == pytest.approx(0.96) and record["n"] == 3 and record["std"] == pytest.approx(0.01)
    assert list(record) == ["event", "data", "unknown", "method", "metric", "mean", "std", "n"]


def test_the_second_configuration_stands_beside_the_first_and_the_network():
    """Three seeds; differences are 0.2, 0.1 and 0.3, of standard error 0.1 / sqrt 3; one peer is ahead of the first."""
    auroc = {"infinite width": (0.5, 0.6, 0.4), "infinite width from the network": (0.7, 0.7, 0.7)}
    auroc |= {"knn": (0.7, 0.7, 0.65), "msp": (0.1, 0.9, 0.1), "finite head": (0.9, 0.9, 0.9)}
    methods = {
        name: {seed: {"AUROC: far": value, "NLPD": 1 - value, "ECE": 0.1} for seed, value in enumerate(values)}
        for name, values in auroc.items()
    }
    rows = report_second.table({("event", "data"): methods, ("event", "other"): {"knn": methods["knn"]}}).rows
    assert [row[:2] for row in rows] == [("data", "AUROC, far"), ("data", "NLPD"), ("data", "ECE")]
    first, second, difference, beside, peers = rows[0][2:]
    assert (first.mean, second.mean) == pytest.approx((0.5, 0.7)) and beside is None and peers == "1, 0"
    assert (difference.mean, difference.std) == pytest.approx((0.2, 0.1 / 3**0.5))
    assert rows[1][5].mean == pytest.approx(np.mean([0.1 - 0.7, 0.9 - 0.7, 0.1 - 0.7])) and rows[1][6] is None


def test_the_third_configuration_has_more_rows_where_features_are_many(monkeypatch):
    rows = []
    monkeypatch.setattr(ours, "_limit", lambda task, network, method, *_, **__: rows.append(method.n_inducing))
    for features in (8, 1280):
        for one in (ours.with_more_rows, ours.calibrated):
            one(run.generated(0, 20, features), 0)
    assert rows == [1000] * 2 + [1280 * ROWS_OF_FEATURE] * 2


def test_calibrated_it_has_other_probabilities_and_the_same_score():
    task = run.generated(0, 60, 8)
    x = task.test[0]
    plain, calibrated = (one(task, 0) for one in (ours.with_more_rows, ours.calibrated))
    temperature = calibrated.chosen.pop("temperature of probabilities")
    assert plain.chosen == calibrated.chosen and temperature != 1
    tempered = (plain.judge(x).probs.double().log() / temperature).softmax(-1)
    torch.testing.assert_close(calibrated.judge(x).probs.double(), tempered, atol=1e-5, rtol=0)
    torch.testing.assert_close(calibrated.judge(x).scores, plain.judge(x).scores)


def test_the_third_configuration_stands_beside_the_others_and_has_no_rank():
    auroc = {INFINITE_WIDTH: (0.5, 0.6), FROM_NETWORK: (0.6, 0.8), MORE_ROWS: (0.8, 0.8), "knn": (0.9, 0.85)}
    auroc |= {"msp": (0.7, 0.7)}
    methods = {
        name: {seed: {"AUROC: far": value, "NLPD": 1 - value, "ECE": 0.1} for seed, value in enumerate(values)}
        for name, values in auroc.items()
    }
    found = {("event", "cifar10-imagenet"): methods, ("event", "other"): {"knn": methods["knn"]}}
    rows = report_second.table_of_third(found).rows
    assert [row[0].split(": ")[1] for row in rows] == ["far", "NLPD", "ECE"]
    assert [value.mean for value in rows[0][1:4]] == pytest.approx([0.55, 0.7, 0.8])
    assert rows[0][4:] == ("+0.1000 ± 0.1000", "KNN 0.8750", "\N{MINUS SIGN}0.0750 ± 0.0250", 1)
    assert rows[1][5:] == ("the network 0.3000", "\N{MINUS SIGN}0.1000 ± 0.0000", None)
    methods[MORE_ROWS] = {
        seed: numbers | {"AUROC by the energy: far": 0.7 + 0.1 * seed} for seed, numbers in methods[MORE_ROWS].items()
    }
    assert report_second.by_energy(found) == "0.750"
    assert not report_second.table_of_calibrated(found).rows
    methods[CALIBRATED] = {seed: numbers | {"NLPD": 0.25 + 0.1 * seed} for seed, numbers in methods["msp"].items()}
    of_nlpd, of_ece = report_second.table_of_calibrated(found).rows
    assert [value.mean for value in of_nlpd[1:5]] == pytest.approx([0.3, 0.2, 0.3, 0.3])
    assert of_nlpd[5].endswith("0.0000 ± 0.0500") and of_ece[5] == "+0.0000 ± 0.0000"
    (of,) = [of for (data, _), of in ranks.ranks(found).items() if data == "cifar10-imagenet"]
    assert MORE_ROWS not in of and CALIBRATED not in of and of["knn"] == 1
    assert not any("more rows" in said for said in report.in_words({"knn": methods["knn"]}))
    grid = {one.dataset for one in config.configs() if one.method == MORE_ROWS}
    assert grid == set(PROTOCOL[MORE_ROWS].only)


def test_a_single_seed_has_no_difference():
    section = report.report(results({"knn": 0.95, "infinite width": 0.9}, n=1))
    assert (
        all(row[-2] is None for row in section.tables[0].rows) and "so that there is no standard error" in section.ours
    )


def test_what_is_better_is_told_in_sentences_for_any_number_of_unknown_inputs():
    aurocs = {"a": {"knn": 0.9, "ddu": 0.8}, "out of scope": {"knn": 0.5, "ddu": 0.5}, "c": {"knn": 0.95, "ddu": 0.99}}
    known = {"accuracy": 0.9, "NLPD": 0.2, "ECE": 0.05}
    of = {method: known | {f"AUROC: {u}": each.get(method, 0.7) for u, each in aurocs.items()} for method in PROTOCOL}
    of["ensemble"] |= {"accuracy": 0.95, "ECE": 0.01}
    of["mc dropout"] |= {"NLPD": 0.1}
    methods = {method: dict.fromkeys(range(2), numbers) for method, numbers in of.items()}
    assert report.in_words(methods) == [
        "Against a infinite width has an AUROC of 0.700; better are KNN (0.900) and DDU (0.800).",
        "Against questions out of scope it has 0.700, and no other method is better.",
        "Against c it has 0.700; better are DDU (0.990) and KNN (0.950).",
        "On known inputs the ensemble of 5 has the best accuracy (0.950, our finite head 0.900) and ECE (0.010, our "
        "finite head 0.050); MC dropout has the best NLPD (0.100, our finite head 0.200).",
    ]


def test_a_peer_that_has_run_once_is_named_where_it_is_higher():
    found = results({"knn": 0.95, "msp": 0.8, "infinite width": 0.9})
    found += results({"lof": 0.97, "isolation forest": 0.85}, n=1)
    said = report.report(found).ours
    assert "better are KNN (0.960) and LOF (0.970, one run)." in said and "isolation forest (" not in said


def test_the_target_of_ours_is_counted_for_every_method():
    """A paired standard error is the limit; one that has run once, ours or theirs, has its mean."""
    values = {"infinite width": (0.5, 0.6), "knn": (0.5, 0.62), "msp": (0.4, 0.3), "lof": (0.5,)}
    methods = {name: {seed: {"AUROC: u": one} for seed, one in enumerate(of)} for name, of in values.items()}
    count = lambda **more: report_opening.nobody_above({("unknown images", "data"): methods | more})
    assert count() == {"knn": 1, "infinite width": 1, "msp": 0, "lof": 0}
    assert count(energy={0: {"AUROC: u": 0.9}}) == {"energy": 1, "knn": 0, "infinite width": 0, "msp": 0, "lof": 0}


def test_the_opening_has_both_configurations_beside_the_best_peer():
    auroc = {"infinite width": (0.5, 0.6), "infinite width from the network": (0.7, 0.7), "knn": (0.7, 0.9)}
    auroc |= {"msp": (0.9,), "finite head": (0.99, 0.99)}
    methods = {
        name: {seed: {"AUROC: u": value, "NLPD": 1 - value, "ECE": 0.1} for seed, value in enumerate(values)}
        for name, values in auroc.items()
    }
    found = {("unknown images", "cifar10-strict"): methods, ("recipes", "cifar10-strict-longer"): methods}
    table = report_opening.table(found, "cifar10-strict-longer")
    assert [row[0].endswith("trunk 'longer, stronger augmentation': u") for row in table.rows] == [False, True]
    once = "no: 1 of 2 is better; MSP higher, one run"
    assert table.rows[0][1:] == ("0.550", "0.700", "MSP 0.900 (one run)", None, once)
    del methods["msp"]
    (row,) = report_opening.table({("unknown images", "data"): methods}).rows
    assert row[3:] == ("KNN 0.800", "−0.2500 ± 0.0500", "no: 1 of 1 is better")
    del methods["knn"]
    methods["msp"] = {seed: {"AUROC: u": 0.1, "NLPD": value, "ECE": 0.1} for seed, value in enumerate((0.3, 0.2))}
    (row,) = report_opening.table({("unknown images", "data"): methods}).rows
    assert row[-1] == "yes", "our other heads are no peers"
    (row,) = report_opening.table_of_known({("unknown images", "data"): methods}).rows
    assert row == ("data", "+0.2000 ± 0.0000", "+0.0500 ± 0.0500", "+0.0000 ± 0.0000", "+0.0000 ± 0.0000")
    said = report_opening.worse_than_network({("unknown images", "data"): methods}, "infinite width")
    assert said == "NLPD is higher on data. The ECE is higher on none"


def test_the_opening_says_who_is_better_under_shift_and_on_other_recipes():
    known = lambda *of: (
        {f"accuracy: severity {k}": value for k, value in enumerate(of, 1)} | {"AUROC: other classes": of[0]}
    )
    of = {"infinite width": (0.6, 0.5), "infinite width from the network": (0.7, 0.4), "ensemble": (0.8, 0.45)}
    methods = {name: dict.fromkeys(range(2), known(*values)) for name, values in (of | {"knn": (0.9, 0.9)}).items()}
    (said,) = report_opening.under_shift(methods)
    assert said == "accuracy: ours 0.550 and 0.550, the ensemble of 5 0.625, better than both at severity 1"
    (said,) = report_opening.in_recipes({"cifar10-strict-bounded": methods})
    assert said == "bounded convolutions: KNN (0.900) and the ensemble of 5 (0.800); ours has 0.600"
    assert report_opening.second_in_recipes({"cifar10-strict-bounded": methods}) == (
        "above it on 'bounded convolutions' (+0.1000 ± 0.0000)"
    )


# Trunks and their features

FOLDER = images.SOURCES["fashion-mnist"].folder


def small_parts(n=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 1, 28, 28), generator=generator, dtype=torch.uint8)
    y = torch.arange(n) % 10
    return dict.fromkeys(("train", "validation", "test"), (x, y)) | {
        "mnist": (x, None),
        "notmnist": (255 - x, None),
    }


@pytest.fixture
def features(tmp_path, monkeypatch):
    """Two trunks of one epoch, where the event looks for them."""
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path))
    images.task.cache_clear()
    recipes = [trunks.Recipe(epochs=1, batch_size=20, learning_rate=0.01, seed=seed) for seed in range(2)]
    trunks.write(tmp_path / FOLDER, small_parts(), recipes, "cpu")
    yield tmp_path / FOLDER
    images.task.cache_clear()


def test_features_are_those_of_the_trunk_and_its_last_layer(features):
    parts = small_parts()
    network = trunks.trained(parts, trunks.Recipe(epochs=1, batch_size=20, learning_rate=0.01, seed=1), "cpu")
    x = trunks.prepared(parts["test"][0])
    task = images.task("fashion-mnist", 1)
    with torch.no_grad():
        torch.testing.assert_close(task.network(task.test[0]), network(x), atol=1e-2, rtol=1e-2)
    assert task.unknown.keys() == {"MNIST", "notMNIST"} and task.test[1].equal(parts["test"][1])
    with np.load(features / "seed-1.npz") as arrays:
        about = json.loads(str(arrays["about"]))
    assert about["recipe"]["seed"] == 1 and about["environment"]["versions"]["torch"] == torch.__version__


def test_the_ensemble_averages_the_trunks(features, monkeypatch):
    monkeypatch.setattr(images, "SEEDS", 2)
    members, both = [images.task("fashion-mnist", seed) for seed in range(2)], images.ensemble("fashion-mnist")
    expected = torch.stack([task.network(task.test[0]).softmax(-1) for task in members]).mean(0)
    torch.testing.assert_close(METHODS["ensemble"](both, 0)(both.test[0]).probs, expected.double())


def test_damaged_features_are_refused(features):
    path = features / "seed-0.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"seed-0.npz is damaged .* restore it"):
        images.task("fashion-mnist", 0)


def test_other_features_than_those_of_the_stored_results_are_named(features, monkeypatch, caplog):
    images.task("fashion-mnist", 0)
    digest = hashlib.sha256((features / "seed-0.npz").read_bytes()).hexdigest()
    assert f"{features / 'seed-0.npz'} is not a file behind the stored results: its SHA-256 {digest}" in caplog.text
    images.task.cache_clear()
    caplog.clear()
    monkeypatch.setitem(images.FEATURES, FOLDER, (digest,))
    images.task("fashion-mnist", 0)
    assert not caplog.text


# CIFAR-10


def coloured(tmp_path, n_classes, seed=0):
    """A trunk of one epoch on generated colour images, where the events with CIFAR-10 look for it."""
    found = cifar10.generated(60, 40, seed=0)
    parts = {"train": (found.x_train, found.y_train), "validation": (found.x_test, found.y_test)}
    parts = {name: (x[y < n_classes], y[y < n_classes]) for name, (x, y) in parts.items()}
    parts["test"] = found.x_test, found.y_test
    parts |= dict.fromkeys(("mnist", "notmnist", "noise"), (255 - found.x_test, None))
    parts |= {f"severity {k}": (found.x_test // k, found.y_test) for k in (1, 5)}
    recipe = trunks.Recipe(1, 20, 0.01, shift=4, widths=(8, 8), blocks=1, seed=seed)
    folder = tmp_path / ("arena-cifar10" if n_classes == 10 else "arena-cifar10-strict")
    trunks.write(folder, parts, [recipe], "cpu", trunks.kept)
    return parts


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path))
    images.task.cache_clear()
    yield tmp_path
    images.task.cache_clear()


def test_five_known_classes_leave_the_others_unknown(data):
    parts = coloured(data, 10)
    of_ten, of_five = images.task("cifar10", 0), images.task("cifar10-five", 0)
    y = parts["test"][1]
    assert of_ten.unknown.keys() == {"MNIST", "notMNIST", "noise"} and of_ten.n_classes == 10
    assert of_five.n_classes == 5 and of_five.train[1].max() == 4 and of_five.test[1].equal(y[y < 5])
    assert of_five.unknown["other classes"].equal(of_ten.test[0][y >= 5])
    torch.testing.assert_close(of_five.network(of_five.test[0]), of_ten.network(of_ten.test[0])[y < 5, :5])
    assert of_ten.shifted.keys() == {"severity 1", "severity 5"} and not of_five.shifted
    torch.testing.assert_close(of_ten.shifted["severity 1"][0], of_ten.test[0])


def test_a_strict_trunk_has_seen_the_known_classes_alone(data):
    coloured(data, 5)
    task = images.task("cifar10-strict", 0)
    assert task.n_classes == 5 and task.train[1].max() == 4 and len(task.unknown["other classes"]) == 20


def test_corrupted_inputs_are_judged_by_own_probabilities(data):
    coloured(data, 10)
    found = run.run(config.Config(config.IMAGES, "cifar10", "finite head"))
    assert found["accuracy: severity 1"] == found["accuracy"], "nothing is corrupted there"
    assert found["NLPD: severity 1"][0] == pytest.approx(found["NLPD"][0])
    assert found["NLPD: severity 5"] != found["NLPD"]
    found = run.run(config.Config(config.IMAGES, "cifar10", "isolation forest"))
    assert not any("severity" in name for name in found), "its probabilities are the network's"


def test_a_frozen_trunk_has_one_file_and_seeds_draw_its_rows(data):
    parts = coloured(data, 10)
    (data / "arena-cifar10").rename(data / "arena-cifar10-imagenet")
    tasks = [images.task("cifar10-imagenet-five", seed) for seed in range(2)]
    known = int((parts["train"][1] < 5).sum())
    assert [len(task.train[0]) + len(task.validation[0]) for task in tasks] == [known, known]
    assert not tasks[0].train[0].equal(tasks[1].train[0]) and tasks[0].test[0].equal(tasks[1].test[0])


def test_the_first_images_of_each_class_are_kept(monkeypatch):
    monkeypatch.setattr(trunks, "KEPT", 2)
    y = torch.tensor([1, 0, 1, 1, 0, 0])
    x, labels = trunks.kept({"train": (torch.arange(6), y)})["train"]
    assert x.tolist() == [0, 1, 2, 4] and labels.tolist() == [1, 0, 1, 0]


def test_corrupted_images_are_all_corruptions_of_a_severity(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (15, 5, 3, 32, 32, 3)).astype(np.uint8)
    np.savez_compressed(tmp_path / corrupted.FILE, x=x, y=np.array([3, 8, 0], np.uint8))
    found = corrupted.load(tmp_path)
    assert list(found) == [f"severity {k}" for k in range(1, 6)]
    part = found["severity 2"]
    assert part.x.shape == (45, 3, 32, 32) and part.y[:4].tolist() == [3, 8, 0, 3]
    assert np.array_equal(part.x[4].permute(1, 2, 0).numpy(), x[1, 1, 1])
    (tmp_path / corrupted.FILE).write_bytes(b"no")
    with pytest.raises(ValueError, match=r"is damaged .*interop/corrupt_cifar10.py"):
        corrupted.load(tmp_path)


def test_a_frozen_trunk_needs_no_corrupted_images(tmp_path, monkeypatch):
    grey = grey_images.Images(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), None)
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path))  # where there are none
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    monkeypatch.setattr(cifar10, "load", lambda folder: cifar10.generated(40, 20, 0))
    monkeypatch.setattr(grey_images, "load", lambda name, part, folder: grey)
    assert list(frozen.images(None)) == ["train", "test", "mnist", "notmnist", "noise"]
    with pytest.raises(FileNotFoundError, match=corrupted.FILE):
        trunks.EVENTS["cifar10"].load(None)


def test_ranks_are_by_mean_auroc_and_shift_is_its_own_event():
    found = results({"msp": 0.8, "knn": 0.95, "infinite width": 0.9})
    for one, arrays in found:
        if one.method != "knn":
            arrays |= {f"{metric}: severity 1": np.array([0.5]) for metric in report.KNOWN}
    assert ranks.ranks(report.by_dataset(found)) == {("generated", "u"): {"knn": 1, "infinite width": 2, "msp": 3}}
    tied = ranks.ranks(report.by_dataset(results({"msp": 1.0, "knn": 1.0, "infinite width": 0.9})))
    assert tied == {("generated", "u"): {"msp": 1, "knn": 1, "infinite width": 3}}, "equal ones share theirs"
    section = report.report(found)
    shifted = [record for record in section.records if record["event"] == config.SHIFT]
    assert {record["method"] for record in shifted} == {"msp", "infinite width"} and len(shifted) == 6
    table = next(table for table in section.tables if config.SHIFT in table.caption)
    assert {row[0] for row in table.rows} == {"the network itself", "ours, infinite width"}


# Data


def test_means_under_shift_have_a_spread_and_a_paired_difference():
    names = ("NLPD: severity 1", "NLPD: severity 2")
    of = {"infinite width": ((1.0, 3.0), (2.0, 4.0)), "msp": ((2.0, 3.0), (4.0, 4.0)), "ensemble": ((1.0, 1.0),)}
    methods = {
        method: {seed: dict(zip(names, pair, strict=True)) for seed, pair in enumerate(values)}
        for method, values in of.items()
    }
    (table,) = report.shift_tables("cifar10", methods)
    assert table.columns[-2:] == ("mean", "ours minus it")
    rows = {row[0]: row[-2:] for row in table.rows}
    assert list(rows) == ["ensemble of 5", "ours, infinite width", "the network itself"]
    mean, difference = rows["the network itself"]
    assert (mean.mean, mean.std) == (3.25, pytest.approx(0.75 * 2**0.5))
    assert (difference.mean, difference.std) == (-0.75, 0.25)
    assert rows["ensemble of 5"][0].std is None and rows["ensemble of 5"][1] is None


def test_questions_are_verified(tmp_path):
    content = {name: [[f"{name} {i}", "intent"] for i in range(3)] for name in clinc150.SIZES}
    (tmp_path / "data_full.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"must have .* with the SHA-256 d7a093f8.*; got .*'train': 3"):
        clinc150.load(tmp_path)
    (tmp_path / "data_full.json").write_text("{}")
    with pytest.raises(ValueError, match="must be the JSON file of CLINC150"):
        clinc150.load(tmp_path)


def test_questions_are_downloaded_whole_or_not_at_all(tmp_path, monkeypatch):
    content = {name: [[f"{name} {i}", "intent"] for i in range(3)] for name in clinc150.SIZES}
    source = tmp_path / "source.json"
    source.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="SHA-256"):
        clinc150.download(tmp_path / "new", source.as_uri())
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(
        clinc150,
        "SHA256",
        clinc150.digest(
            {name: clinc150.Questions(*map(tuple, zip(*rows, strict=True))) for name, rows in content.items()}
        ),
    )
    path = clinc150.download(tmp_path / "new", source.as_uri())
    assert clinc150.load(tmp_path / "new")["oos_val"].texts[2] == "oos_val 2" and path.name == "data_full.json"
    with pytest.raises(OSError, match=r"could not be downloaded .* STATIONARY_DATA"):
        clinc150.download(tmp_path / "new", (tmp_path / "absent").as_uri())


def test_idx_files_are_read_and_verified(tmp_path, monkeypatch):
    import gzip
    import hashlib

    pixels = np.arange(2 * 28 * 28).astype(np.uint8).reshape(2, 28, 28)
    content = bytes([0, 0, 8, 3]) + np.array(pixels.shape, ">i4").tobytes() + pixels.tobytes()
    monkeypatch.setitem(grey_images.FILES, ("mnist", "test"), {"mnist/t10k": hashlib.md5(content).hexdigest()})
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k.gz").write_bytes(gzip.compress(content))
    x, y = grey_images.load("mnist", "test", tmp_path)
    assert y is None and x.shape == (2, 1, 28, 28) and np.array_equal(x[:, 0].numpy(), pixels)
    (tmp_path / "mnist" / "t10k.gz").write_bytes(gzip.compress(content[:-1]))
    with pytest.raises(ValueError, match="must have the MD5"):
        grey_images.load("mnist", "test", tmp_path)
    with pytest.raises(ValueError, match="name and part must be one of"):
        grey_images.load("mnist", "train", tmp_path)
