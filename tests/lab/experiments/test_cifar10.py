"""CIFAR-10 with unknown classes: every number is what its definition says, and the report shows it beside the paper."""

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from typer.testing import CliRunner

import stationary as st
from stationary import activations, metrics
from stationary.inference import MCDropout, predict
from stationary.lab.cli import app as cli
from stationary.lab.data import cifar10 as data
from stationary.lab.data.split import Split
from stationary.lab.experiments import networks, paper
from stationary.lab.experiments.cifar10 import config as settings
from stationary.lab.experiments.cifar10 import report as cifar10_report
from stationary.lab.experiments.cifar10 import run as cifar10
from stationary.lab.experiments.cifar10 import trunk
from stationary.lab.report.content import Measured
from stationary.lab.report.latex import render_latex
from stationary.lab.report.page import Part, render_html
from stationary.lab.report.render import render_csv, render_markdown
from stationary.nn import StationaryHead
from stationary.nn.restored_prior import calibrate_prior
from stationary.training import Training, train

SMALL = settings.Config("generated", hidden=32, epochs=5, batch_size=25, dropout=0.3)
PRIORS = tuple(prior.key for prior in (*settings.PUBLISHED, *settings.BEYOND))
SCORES = ("std", "entropy", "mutual_information", "max_probability", "energy")
IMAGES = data.generated(120, 40, seed=0)


def small_features(setting="generated", device="cpu", copies=0):
    """16 features instead of 1024, in which the classes overlap."""
    generator = torch.Generator().manual_seed(len(setting))
    centres = torch.randn(10, 16, generator=generator)
    centres[8:] *= 3  # two of the unknown classes are far away
    known = IMAGES.y_train < 5
    y_train, y_test = IMAGES.y_train[known], IMAGES.y_test
    x_train, x_test = (centres[y] + torch.randn(len(y), 16, generator=generator) for y in (y_train, y_test))
    if copies:
        noise = torch.randn(copies, *x_train.shape, generator=generator)
        x_train, y_train = (x_train + 0.1 * noise).flatten(0, 1), y_train.repeat(copies)
    return Split(x_train, y_train, x_test, y_test, tuple(map(str, range(16))), data.CLASSES)


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(trunk, "features", small_features)
        monkeypatch.setattr(trunk, "images_of", lambda setting: IMAGES)


# Configurations


def test_the_paper_has_every_activation_five_times_on_both_trunks():
    grid = settings.configs("paper")
    assert settings.configs() == grid and len(grid) == len(set(grid)) == 2 * (8 + 6 + 4 * 8 + 2) * 5 + 2 * (8 + 2) * 5
    seeds = {}
    for config in grid:
        assert config == settings.Config(config.setting, config.prior, config.seeds), "the paper's own settings"
        seeds.setdefault((config.setting, config.prior), []).append(config.seeds)
    ways = ("augmented", "steps", "augmented steps", "L2 steps")
    rows = {*PRIORS, *(f"{prior} {how}" for prior in PRIORS[:8] for how in ways)}
    limits = {"matern52 infinite width", "matern32 infinite width"}
    wanted = {(setting, row) for setting in ("paper", "strict") for row in rows | limits}
    wanted |= {(f"{setting}-held-out", row) for setting in ("paper", "strict") for row in {*PRIORS[:8], *limits}}
    assert set(seeds) == wanted
    assert all(of == [(0,), (1,), (2,), (3,), (4,)] for of in seeds.values())
    assert set(PRIORS[:8]) == {
        prior for prior in paper.NAMES if paper.published("cifar10", "cifar-10", prior, "NN", "ACC known")
    }
    config = grid[0]
    assert (config.hidden, config.lengthscale, config.dropout, config.n_samples) == (512, 1.0, 0.2, 10)
    assert (config.epochs, config.batch_size, config.learning_rate, config.weight_decay) == (100, 128, 0.01, 0.01)


def test_smaller_scales():
    demo, smoke = settings.configs("demo"), settings.configs("smoke")
    assert [(c.setting, c.prior) for c in demo] == [(s, p) for s in ("paper", "strict") for p in PRIORS[:8]]
    assert {config.setting for config in smoke} == {"generated"} and {config.prior for config in smoke} <= {
        *PRIORS,
        "matern52 infinite width",
    }
    assert {config.seeds for config in (*demo, *smoke)} == {(0,)} and {config.epochs for config in (*demo, *smoke)} == {
        10
    }


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    folder = tmp_path / "results" / "cifar10"
    folder.mkdir(parents=True)
    for scale in ("demo", "paper"):
        assert "no trained network " in cifar10.missing(settings.configs(scale))
    assert cifar10.missing(settings.configs("smoke")) is None
    (folder / "trunk-10.safetensors").touch()
    assert "stationary trunk strict" in cifar10.missing(settings.configs("demo"))
    (folder / "trunk-5.safetensors").touch()
    assert "`stationary data cifar10` downloads it" in cifar10.missing(settings.configs("demo"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "test_batch.bin").touch()
    assert cifar10.missing(settings.configs("demo")) is None


def test_trunks_that_hold_images_out_are_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    said = cifar10.missing([settings.Config("paper-held-out")])
    assert "trunk-10-held-out.safetensors" in said and said.endswith("stationary trunk paper-held-out --device cuda")


# Infinite width


def test_infinite_width_is_the_posterior_on_the_features():
    """It learns from nine tenths of the known images and is judged by the others; its seed draws inducing inputs."""
    config = replace(SMALL, setting="paper-held-out", prior="matern52 infinite width")
    found, split = cifar10.run(config), small_features("paper-held-out")
    held = torch.zeros(len(split.y_train), dtype=torch.bool)
    for label in range(5):
        rows = (split.y_train == label).nonzero()[:, 0]
        held[rows[-(len(rows) // 10) :]] = True
    parts = [(split.x_train[rows], split.y_train[rows]) for rows in (~held, held)]
    method = st.InfiniteWidth("matern52", geometry="polar", per_column=False)
    pred = st.predict(method.posterior(torch.nn.Linear(16, 5), parts[0], validation=parts[1]), split.x_test)
    known = split.y_test < 5
    y, probs = split.y_test[known].numpy(), pred.probs[known].numpy()
    assert found["matern52 infinite width: ACC known"] == pytest.approx((probs.argmax(1) == y).mean())
    losses = -np.log(probs[np.arange(len(y)), y])
    assert found["matern52 infinite width: NLPD known mean-probability"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["matern52 infinite width: AUROC std"] > 0.7, "two of the unknown classes are far away"
    assert not any("restored" in name for name in found)


def test_infinite_width_scores_unknown_classes_at_temperature_1():
    split, config = small_features("paper-held-out"), replace(SMALL, setting="paper-held-out")
    cold = [
        st.InfiniteWidth(geometry="polar", lengthscale=1.0, variance=3.0, temperature=t).posterior(
            torch.nn.Linear(16, 5), split.train
        )
        for t in (0.01, 1.0)
    ]
    found = [dict(cifar10._row("row", config, posterior, split)) for posterior in cold]
    for name, value in found[0].items():
        if "AUROC" in name or "FPR95" in name:
            assert value == found[1][name], name
    assert found[0]["row: NLPD known mean-probability"] != found[1]["row: NLPD known mean-probability"]
    pred = st.predict(cold[1], split.x_test)
    assert found[0]["row: AUROC energy"] == pytest.approx(
        roc_auc_score((split.y_test >= 5).numpy(), pred.energy().numpy())
    )


def test_trunks_that_saw_all_images_take_the_numbers_of_those_that_did_not():
    config = replace(SMALL, setting="paper", prior="matern52 infinite width")
    row, other = settings.TRAINED[config.prior], replace(config, setting="paper-held-out")
    chosen = cifar10._infinite_width(row, other, 0, "cpu")
    taken = cifar10._infinite_width(row, config, 0, "cpu")
    assert float(taken.numbers.lengthscale) == float(chosen.numbers.lengthscale)
    assert (taken.numbers.variance, taken.numbers.temperature) == (chosen.numbers.variance, chosen.numbers.temperature)
    assert len(taken.rows) == len(small_features("paper").y_train) > len(chosen.rows)


def test_images_that_a_trunk_has_not_seen_train_no_head(monkeypatch):
    seen = []
    monkeypatch.setattr(cifar10, "fit_folds", lambda method, build, data, *rest, **more: seen.extend(data) or [])
    for setting in ("paper", "paper-held-out"):
        with pytest.raises(IndexError):  # there is no posterior to evaluate
            cifar10.run(replace(SMALL, setting=setting, prior="relu"))
    assert len(seen[0][0]) > len(seen[1][0]) == int((~trunk.is_held_out(seen[0][1])).sum())


# Activations


def head_activation(prior, lengthscale=1.0):
    head = cifar10._head(settings.TRAINED[prior], replace(SMALL, lengthscale=lengthscale), small_features())
    assert isinstance(head, StationaryHead)
    return head.activation


def number(value):
    return value.item() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    ("prior", "kind"),
    [
        ("rbf", activations.RBF),
        ("erf", activations.Erf),
        ("step", activations.Step),
        ("step surrogate", activations.Step),
        ("relu", nn.ReLU),
        ("siren", activations.Sine),
        ("sincos", activations.SinCos),
        ("triangle_wave", activations.TriangleWave),
        ("periodic_relu", activations.PeriodicReLU),
        ("matern52", activations.Matern),
        ("matern32", activations.Matern),
        ("matern12", activations.Matern),
        ("matern12 surrogate", activations.Matern),
        ("matern52 learnable", activations.Matern),
    ],
)
def test_activations(prior, kind):
    act = head_activation(prior)
    assert type(act) is kind
    name, _, variant = prior.partition(" ")
    assert len(list(act.parameters())) == (2 if variant == "learnable" else 0)
    if kind in (activations.Step, activations.Matern):
        assert act.surrogate == (1.0 if variant == "surrogate" else None)
    if kind is activations.Matern:
        nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}[name]
        assert number(act.nu) == pytest.approx(nu) and number(act.lengthscale) == pytest.approx(1)
        assert act.variance == pytest.approx((2 * nu) ** 0.5 / nu), "as in the authors' code"
        longer = head_activation(prior, lengthscale=2.0)
        assert number(longer.lengthscale) == pytest.approx(2)
        assert longer.surrogate == (2.0 if variant == "surrogate" else None)
    if prior == "siren":
        x = torch.linspace(-3, 3, 7)
        torch.testing.assert_close(act(x), torch.sin(x))


def test_what_learns_is_learnt_by_each_network_alone():
    one, other = head_activation("matern52 learnable"), head_activation("matern52 learnable")
    assert not set(map(id, one.parameters())) & set(map(id, other.parameters()))


@pytest.mark.parametrize("prior", ["relu surrogate", "matern52 surrogate", "siren learnable", "matern12 learned"])
def test_a_variant_that_is_none_is_refused(prior):
    with pytest.raises(ValueError, match=f"prior must be one of 170 names, such as .*; got '{prior}'$"):
        cifar10.run(replace(SMALL, prior=prior))


# Numbers


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def trained(prior, seed=0):
    """The same network, by the same library, but with each setting written down."""
    split = small_features()
    act = partial(networks.activation, paper.TRAINABLE[prior], 1.0, code_scale=True)
    training = Training(epochs=5, batch_size=25, optimizer="adamw", learning_rate=0.01, weight_decay=0.01)
    build = lambda: StationaryHead(16, 5, hidden=32, activation=act(), dropout=0.3)
    return train(build, split.train, training, seeds=[seed])[0]


def of_samples(model):
    """What the metrics are made of, for known and for unknown test images, in float64."""
    split = small_features()
    found = {}
    for group, rows in (("known", split.y_test < 5), ("unknown", split.y_test >= 5)):
        kept = predict(model, split.x_test[rows], MCDropout(10), keep_samples=True).samples
        z = kept.double().numpy()
        p, mean = softmax(z).mean(0), z.mean(0)
        entropy = lambda q: -(q * np.log(q)).sum(-1)
        found[group] = SimpleNamespace(
            samples=z,
            at_mean=softmax(mean),
            mean_of=p,
            places=rows.nonzero()[:, 0].numpy(),
            y=split.y_test[rows].numpy(),
            std=z.std(0).mean(-1),
            entropy=entropy(p),
            mutual_information=entropy(p) - entropy(softmax(z)).mean(0),
            max_probability=1 - p.max(-1),
            energy=-np.log(np.exp(mean).sum(-1)),
        )
    return found["known"], found["unknown"]


@pytest.mark.parametrize("prior", ["matern52", "relu", "step surrogate"])
def test_accuracy_and_nlpd_by_both_rules(prior):
    found, (known, unknown) = cifar10.run(replace(SMALL, prior=prior)), of_samples(trained(prior))
    assert known.samples.shape == (10, 20, 5)
    for rule, of in (("", "at_mean"), (" mean-probability", "mean_of")):
        p, q = getattr(known, of), getattr(unknown, of)
        expected = {
            "ACC known": (p.argmax(-1) == known.y).mean(),
            "NLPD known": -np.log(p[np.arange(20), known.y]).mean(),
            "NLPD unknown": -np.log(5 / 4 * (1 - q.max(-1))).mean(),
            "clipped unknown": 0,
        }
        for name, value in expected.items():
            assert found[f"{prior}: {name}{rule}"] == pytest.approx([value], rel=1e-4), name + rule
    assert 0.2 < found[f"{prior}: ACC known"][0] < 1
    assert abs(found[f"{prior}: NLPD known"] / found[f"{prior}: NLPD known mean-probability"] - 1)[0] > 1e-3
    bins = np.ceil(known.mean_of.max(-1) * 15)
    gaps = (known.mean_of.argmax(-1) == known.y) - known.mean_of.max(-1)
    assert found[f"{prior}: ECE known"] == pytest.approx(
        [sum(abs(gaps[bins == b].sum()) for b in range(16)) / 20], rel=1e-4
    )


@pytest.mark.parametrize("prior", ["matern32", "relu"])
def test_scores_against_scikit_learn(prior):
    found, (known, unknown) = cifar10.run(replace(SMALL, prior=prior)), of_samples(trained(prior))
    truth = np.repeat([0, 1], 20)
    for name in SCORES:
        inside, outside = getattr(known, name), getattr(unknown, name)
        both = np.concatenate([inside, outside])
        accepted = (outside <= np.sort(inside)[18]).mean()  # 19 of 20 are 95 %
        assert found[f"{prior}: AUROC {name}"] == pytest.approx([roc_auc_score(truth, both)]), name
        assert found[f"{prior}: AUPR {name}"] == pytest.approx([average_precision_score(truth, both)]), name
        assert found[f"{prior}: FPR95 {name}"] == pytest.approx([accepted]), name
    assert len({found[f"{prior}: AUROC {name}"].item() for name in SCORES}) > 1


@pytest.mark.parametrize("name", ["std", "entropy"])
def test_histograms_count_every_image(name):
    found, groups = cifar10.run(replace(SMALL, prior="erf")), of_samples(trained("erf"))
    (edges,) = found[f"erf: {name} edges"]
    values = [getattr(group, name) for group in groups]
    assert edges[0] == 0 and edges[-1] == pytest.approx(max(np.quantile(v, 0.99) for v in values))
    np.testing.assert_allclose(np.diff(edges), edges[-1] / 40, rtol=1e-9)
    for group, scores in zip(("known", "unknown"), values, strict=True):
        (counts,) = found[f"erf: {name} {group}"]
        assert counts.sum() == 20 and counts.shape == (40,)
        expected = Counter(np.minimum(scores // edges[1], 39).astype(int))
        assert counts.tolist() == [expected[i] for i in range(40)]
    assert max(v.max() for v in values) > edges[-1], "and what is beyond the last edge"


@pytest.mark.parametrize("prior", ["matern52", "relu"])
def test_the_images_at_the_ends(prior):
    found, (known, unknown) = cifar10.run(replace(SMALL, prior=prior)), of_samples(trained(prior))
    for name, group, order in (("known", known, np.argsort(-known.std)), ("unknown", unknown, np.argsort(unknown.std))):
        (ends,), (pixels,) = found[f"{prior}: ends {name}"], found[f"{prior}: pixels {name}"]
        first = order[:7]
        assert ends.shape == (7, 4) and ends[:, 0].tolist() == group.places[first].tolist()
        assert ends[:, 1].tolist() == group.y[first].tolist()
        assert ends[:, 2].tolist() == group.at_mean[first].argmax(-1).tolist()
        np.testing.assert_allclose(ends[:, 3], group.at_mean[first].max(-1), rtol=1e-4)
        assert pixels.dtype == np.uint8 and np.array_equal(pixels, IMAGES.x_test[ends[:, 0]].numpy())
    assert (found[f"{prior}: ends known"][..., 1] < 5).all() and (found[f"{prior}: ends unknown"][..., 1] >= 5).all()


@pytest.mark.parametrize("prior", PRIORS)
def test_the_prior_is_restored_where_it_decays(prior):
    found = cifar10.run(replace(SMALL, prior=prior, epochs=1))
    local = prior in ("rbf", "matern52", "matern32", "matern12")
    rows = {prior, f"{prior} restored"} if local else {prior}
    assert {name.split(": ")[0] for name in found} == rows
    names = {row: {name.split(": ")[1] for name in found if name.startswith(f"{row}: ")} for row in rows}
    rules = [f"{name}{rule}" for rule in ("", " mean-probability") for name in ("ACC known", "NLPD known")]
    rules += [f"{name} unknown{rule}" for rule in ("", " mean-probability") for name in ("NLPD", "clipped")]
    drawn = [f"{name} {of}" for name in ("std", "entropy") for of in ("edges", "known", "unknown")]
    ends = [f"{name} {group}" for name in ("ends", "pixels") for group in ("known", "unknown")]
    scores = [f"{metric} {score}" for metric in ("AUROC", "AUPR", "FPR95") for score in SCORES]
    assert all(of == {*rules, *drawn, *ends, *scores, "ECE known"} for of in names.values())
    assert all(array.shape[0] == 1 and not np.isnan(array.astype(float)).any() for array in found.values())


def test_restoring_the_prior_changes_the_spread_and_not_the_mean():
    found, split = cifar10.run(replace(SMALL, prior="matern32")), small_features()
    for name in ("ACC known", "NLPD known", "NLPD unknown"):
        assert found[f"matern32 restored: {name}"] == pytest.approx(found[f"matern32: {name}"], rel=1e-6)
    model = calibrate_prior(trained("matern32"), split.x_train)
    known, unknown = of_samples(model)
    assert len(known.samples) == 70, "the prior is sampled too"
    for name, nlpd in {
        "NLPD known": -np.log(known.mean_of[np.arange(20), known.y]).mean(),
        "NLPD unknown": -np.log(5 / 4 * (1 - unknown.mean_of.max(-1))).mean(),
    }.items():
        assert found[f"matern32 restored: {name} mean-probability"] == pytest.approx([nlpd], rel=1e-4)
    assert found["matern32: NLPD unknown mean-probability"] > 1.001 * nlpd, "it is a little less sure"
    inside, outside = (
        predict(model, split.x_test[r], MCDropout(10)).std() for r in (split.y_test < 5, split.y_test > 4)
    )
    expected = roc_auc_score(np.repeat([0, 1], 20), torch.cat([inside, outside]).numpy())
    assert found["matern32 restored: AUROC std"] == pytest.approx([expected])
    assert found["matern32 restored: std edges"][0, -1] > found["matern32: std edges"][0, -1]


@pytest.mark.parametrize("prior", ["matern52", "relu", "step surrogate", "matern52 learnable"])
def test_seeds_together_are_the_seeds_alone(prior):
    together = cifar10.run(replace(SMALL, prior=prior, seeds=(3, 1)))
    for k, seed in enumerate((3, 1)):
        alone = cifar10.run(replace(SMALL, prior=prior, seeds=(seed,)))
        assert alone.keys() == together.keys()
        for name, value in alone.items():
            assert together[name].shape == (2, *value.shape[1:]) and value.shape[0] == 1
            np.testing.assert_allclose(together[name][k], value[0], rtol=1e-3, atol=1e-6, err_msg=name)
    nlpd = together[f"{prior}: NLPD known"]
    assert nlpd[0] != pytest.approx(nlpd[1], rel=1e-3)
    known, _ = of_samples(trained(prior, seed=3))
    assert nlpd[0] == pytest.approx(-np.log(known.at_mean[np.arange(20), known.y]).mean(), rel=1e-3)


# Report


@pytest.fixture(scope="module")
def results():
    """Both settings, three activations, two seeds each, in files of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trunk, "features", small_features)
        patch.setattr(trunk, "images_of", lambda setting: IMAGES)
        configs = [
            replace(SMALL, setting=setting, prior=prior, seeds=(seed,), epochs=2)
            for setting in ("paper", "strict")
            for prior in ("matern52", "relu", "step surrogate")
            for seed in (0, 1)
        ]
        return [(config, cifar10.run(config)) for config in configs]


@pytest.fixture(scope="module")
def section(results):
    return cifar10_report.report(results)


LABELS = ["Matérn-5/2", "Matérn-5/2 restored", "ReLU", "step surrogate"]


def test_tables_compare_with_the_paper_where_it_has_the_same(section):
    assert [table.caption.split(";")[0] for table in section.tables] == [
        *["The trunk was trained on all ten classes"] * 3,
        *["The trunk was trained on the five known classes"] * 3,
    ]
    assert all("mean and std over 2 seeds" in table.caption for table in section.tables)
    with_paper = {}
    for number, table in enumerate(section.tables):
        assert [row[0] for row in table.rows] == LABELS
        for row in table.rows:
            for column, cell in zip(table.columns[1:], row[1:], strict=True):
                if cell.paper:
                    with_paper[number, row[0], column] = cell.paper.mean, cell.better
    assert with_paper == {
        (0, "Matérn-5/2", "ACC known"): (0.974, 1),
        (0, "Matérn-5/2", "NLPD known"): (0.11, -1),
        (0, "Matérn-5/2", "NLPD unknown"): (0.754, -1),
        (0, "ReLU", "ACC known"): (0.973, 1),
        (0, "ReLU", "NLPD known"): (0.181, -1),
        (0, "ReLU", "NLPD unknown"): (float("inf"), -1),
    }


def test_tables_have_every_number(results, section):
    by_setting = {setting: section.tables[3 * i : 3 * i + 3] for i, setting in enumerate(("paper", "strict"))}
    rows = dict(zip(("matern52", "matern52 restored", "relu", "step surrogate"), range(4), strict=True))
    for setting, tables in by_setting.items():
        for row, number in rows.items():
            arrays = [a for c, a in results if (c.setting, c.prior) == (setting, row.removesuffix(" restored"))]
            cells = {c: cell for t in tables for c, cell in zip(t.columns[1:], t.rows[number][1:], strict=True)}
            assert len(cells) == 3 + 4 + 3 * 5
            for metric, cell in cells.items():
                name = metric.replace("mutual information", "mutual_information").replace("max p", "max_p")
                values = [a[f"{row}: {name}"].item() for a in arrays]
                assert (cell.mean, cell.std) == pytest.approx((np.mean(values), np.std(values))), (row, metric)


def test_infinity_is_shown(results, section):
    words = replace(section, figures={}, captions={})
    for text in (render_markdown([section]), render_html({"cifar10": Part(words)})):
        assert "∞" in text and "0.754" in text
    assert r"$\infty$" in render_latex([section])
    alone = cifar10_report.report([(config, arrays) for config, arrays in results if config.prior == "relu"])
    assert "∞" in render_markdown([alone])  # the only number of the paper in its column


def test_records_have_each_number_once(results, section):
    lines = list(csv.DictReader(render_csv(section).splitlines()))
    assert list(lines[0]) == ["setting", "prior", "metric", "mean", "std"]
    keys = [(line["setting"], line["prior"], line["metric"]) for line in lines]
    assert len(set(keys)) == len(keys) == 2 * 4 * (3 + 4 + 3 * 5)
    for setting, prior, metric in (
        ("strict", "matern52 restored", "AUROC mutual_information"),
        ("paper", "relu", "ECE known"),
    ):
        values = [
            arrays[f"{prior}: {metric}"].item()
            for config, arrays in results
            if config.setting == setting and config.prior == prior.removesuffix(" restored")
        ]
        line = lines[keys.index((setting, prior, metric))]
        assert [float(line["mean"]), float(line["std"])] == pytest.approx([np.mean(values), np.std(values)], rel=1e-5)


@pytest.fixture
def empty_figures(monkeypatch):
    monkeypatch.setattr(cifar10_report, "_figure", lambda rows: Figure())


def told(results, setting, changes):
    """What the report says of a setting whose numbers are those, and else 0.6."""
    numbers = (*cifar10_report.COMPARED, *cifar10_report.OTHERS, *cifar10_report.OOD)
    made_up = []
    for config, arrays in results:
        new = {n: np.full(1, changes.get(n, 0.6)) if n.split(": ")[1] in numbers else a for n, a in arrays.items()}
        made_up.append((config, new))
    texts = cifar10_report.report(made_up).ours.split("\n\n")
    return next(text for text in texts if text.startswith(cifar10_report.SETTINGS[setting]))


@pytest.mark.usefixtures("empty_figures")
def test_the_text_says_what_the_numbers_say(results, section):
    assert [text.split(":")[0] for text in section.ours.split("\n\n")] == [
        "The trunk was trained on all ten classes",
        "The trunk was trained on the five known classes",
    ]
    said = told(
        results,
        "strict",
        {
            "relu: ACC known": 0.9,
            "step surrogate: ACC known": 0.25,
            "matern52: NLPD unknown": 0.125,
            "matern52 restored: AUROC std": 0.875,
            "step surrogate: AUROC entropy": 0.75,
            "relu: AUROC std": 0.49,
        },
    )
    assert "accuracy on known classes from 0.250 to 0.900." in said
    assert "The NLPD of unknown classes is lowest with Matérn-5/2 (0.125)." in said
    assert (
        "told apart best with Matérn-5/2 restored by std (AUROC 0.875) and with step surrogate by entropy (AUROC 0.750)"
    ) in said
    assert said.endswith("larger for known classes, below 0.5, with ReLU.")
    assert told(results, "paper", {}).endswith("below 0.5, with no activation.")


def test_figures_show_the_histogram_and_the_images(results, section):
    assert list(section.figures) == list(section.captions) == ["cifar10-paper", "cifar10-strict"]
    for setting in ("paper", "strict"):
        figure = section.figures[f"cifar10-{setting}"]
        file = io.BytesIO()
        if setting == "paper":  # the other one is drawn in the same way
            figure.savefig(file, format="svg")
            assert b"</svg>" in file.getvalue()
        axes = np.array(figure.axes).reshape(4, 12)
        first = next(a for c, a in results if (c.setting, c.prior, c.seeds) == (setting, "relu", (0,)))
        line = axes[LABELS.index("ReLU")]
        assert line[0].get_ylabel() == "ReLU" and not line[6].axison
        heights = [patch.get_data().values for patch in line[0].patches]
        for height, group in zip(heights, ("known", "unknown"), strict=True):
            np.testing.assert_allclose(height, first[f"relu: std {group}"][0] / 20)
        for group, places in (("known", line[1:6]), ("unknown", line[7:])):
            assert len(places) == 5
            ends, pixels = (first[f"relu: {what} {group}"][0][:5] for what in ("ends", "pixels"))
            for ax, end, image in zip(places, ends, pixels, strict=True):
                assert np.array_equal(ax.images[0].get_array(), image.transpose(1, 2, 0))
                true, predicted = data.CLASSES[int(end[1])], data.CLASSES[int(end[2])]
                assert ax.get_title() == f"{true}\n{predicted} {end[3]:.2f}"


def test_a_report_of_one_seed_and_setting(results):
    section = cifar10_report.report(results[:1])
    assert list(section.figures) == ["cifar10-paper"] and len(section.tables) == 3
    assert all(isinstance(cell, Measured) and cell.std is None for cell in section.tables[0].rows[0][1:])
    assert "; one seed: " in section.tables[0].caption


@pytest.mark.gpu
@pytest.mark.parametrize("prior", ["matern52", "relu", "step surrogate", "matern52 learnable", "siren", "sincos"])
def test_on_a_gpu(prior, monkeypatch):
    on_cpu = small_features()
    monkeypatch.setattr(trunk, "features", lambda setting, device, copies: on_cpu.to(device))
    config = replace(SMALL, prior=prior, seeds=(0, 1))
    arrays, alone = cifar10.run(config, "cuda"), cifar10.run(replace(config, seeds=(0,)), "cpu")
    assert arrays.keys() == alone.keys()
    for name, values in arrays.items():
        assert values.shape[1:] == alone[name].shape[1:] and len(values) == 2, name
    accuracy = arrays[f"{prior}: ACC known"]
    np.testing.assert_allclose(accuracy[0], alone[f"{prior}: ACC known"][0], atol=0.25)  # another order and other masks


@pytest.mark.parametrize("how", [recipe.key for recipe in settings.OTHERWISE])
def test_heads_trained_otherwise(how, monkeypatch):
    """The same network, on copies of the images, with steps of the learning rate, by Adam; the paper's beside it."""
    config = replace(SMALL, setting="paper", prior=f"matern52 {how}", epochs=20)
    arrays = cifar10.run(config)
    copies = cifar10.COPIES if "augmented" in how else 1
    split = small_features("paper", copies=copies if copies > 1 else 0)
    training = Training(
        epochs=20 // copies,
        batch_size=config.batch_size,
        optimizer="adam" if "L2" in how else "adamw",
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        milestones=(10 // copies,) if "steps" in how else (),
    )
    act = partial(networks.activation, paper.Prior("matern52"), 1.0, code_scale=True)
    build = lambda: StationaryHead(16, 5, hidden=32, activation=act(), dropout=0.3)
    (model,) = train(build, split.train, training)
    known = split.y_test < 5
    pred = predict(model, split.x_test[known], MCDropout(config.n_samples))
    assert arrays[f"matern52 {how}: NLPD known mean-probability"][0] == metrics.nlpd(pred, split.y_test[known])
    assert not any("restored" in name for name in arrays)
    alone = cifar10_report.report([(config, arrays)])
    assert len(alone.tables) == 1 and f"Matérn-5/2 {how}" in alone.ours and alone.figures
    plain = replace(config, prior="matern52")
    monkeypatch.setattr(cifar10_report, "_figure", lambda rows: Figure())  # which the first has already
    section = cifar10_report.report([(config, arrays), (plain, cifar10.run(plain))])
    assert len(section.tables) == 4 and [row[0] for row in section.tables[3].rows] == [f"Matérn-5/2 {how}"]
    assert section.tables[3].rows[0][3].paper.mean == 0.754 and "trained otherwise" in section.tables[3].caption
    assert {line["prior"] for line in section.records} == {"matern52", "matern52 restored", f"matern52 {how}"}


@pytest.mark.parametrize("how", ["steps", "L2 steps"])
def test_decay_in_the_gradient_empties_the_layer_before_a_step(how):
    """Adam makes full steps of a gradient that is all decay; AdamW's decay only shrinks. So the paper's step fails."""
    split = small_features("paper")
    config, row = replace(SMALL, prior=f"step {how}", epochs=40, batch_size=8), settings.TRAINED[f"step {how}"]
    (model,) = train(partial(cifar10._head, row, config, split), split.train, cifar10._training(row, config))
    largest = model.hidden.weight.abs().max()
    assert largest < 1e-6 if how == "L2 steps" else largest > 0.05


@pytest.mark.usefixtures("empty_figures")
def test_where_a_number_is_infinite(results):
    config, arrays = results[0]
    infinite = {name: np.full_like(a, np.inf) if name.endswith("NLPD known") else a for name, a in arrays.items()}
    table = cifar10_report.report([(config, infinite), (results[1][0], results[1][1])]).tables[0]
    assert table.rows[0][2].mean == np.inf and table.rows[0][2].std is None and table.rows[0][1].std is not None


# The command line


@pytest.mark.slow
def test_from_the_command_line(tmp_path, monkeypatch):
    """GoogLeNet itself, with random weights."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    options = ["cifar10", "--scale", "smoke", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, ["run", *options])
    assert result.exit_code == 0 and "4 done, 0 reused, 0 failed" in result.output, result.output
    assert "4 reused" in CliRunner().invoke(cli.app, ["run", *options]).output
    for form in ("html", "csv"):
        result = CliRunner().invoke(cli.app, ["report", *options, "--format", form])
        assert result.exit_code == 0, result.output
    page = (tmp_path / "report-cifar10.html").read_text()
    assert settings.TITLE in page and "Generated images, untrained trunk" in page and "<svg" in page
    assert (tmp_path / "figures" / "cifar10-generated.png").read_bytes().startswith(b"\x89PNG")
    lines = list(csv.DictReader((tmp_path / "cifar10.csv").read_text().splitlines()))
    found = {(line["prior"], line["metric"]): float(line["mean"]) for line in lines}
    rows = {"matern52", "matern52 restored", "relu", "step surrogate", "matern52 infinite width"}
    assert {prior for prior, _ in found} == rows
    chance, images = 1 / 5, 40  # of the known classes among 80
    assert found["matern52", "ACC known"] > chance + 3 * (chance * (1 - chance) / images) ** 0.5, (
        "even random features tell colours apart"
    )
    assert re.search(r"accuracy on known classes from 0\.\d{3} to [01]\.\d{3}", page)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["last-out.txt"], "no features are kept"
