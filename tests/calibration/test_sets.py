"""Conformal sets and intervals: their definition, their coverage by its exact law, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import stationary as st
from stationary.calibration import Conformal


class Logits(nn.Module):
    """The inputs themselves as outputs."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return x


class Values(nn.Module):
    """A mean and a noise variance, from the two columns of the input."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return x[:, :1], x[:, 1:].square()


CLASSES, REAL = st.Point().posterior(Logits()), st.Point().posterior(Values())


def classes(n, seed=0, c=4):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial((0.5 * logits).softmax(-1), 1, generator=generator)[:, 0]  # the model is too bold


def values(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean, std, noise = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(3))
    std = std.abs() + 0.1
    return torch.stack([mean, std], 1), (mean + 2 * std * noise)[
        :, None
    ]  # the model's std is half of what it should be


def scores_by_hand(probs, score, penalty=0.01, free=1):
    """(n, c), class by class."""
    found = np.empty(probs.shape)
    for i, p in enumerate(probs.numpy()):
        for k in range(len(p)):
            above = [j for j in range(len(p)) if p[j] > p[k]]
            rank = len(above) + 1
            found[i, k] = {
                "lac": 1 - p[k],
                "aps": p[above].sum() + p[k],
                "raps": p[above].sum() + p[k] + penalty * max(0, rank - free),
            }[score]
    return found


# Definitions


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_are_their_definition(score, per_class, coverage):
    (x, y), (new, _) = classes(200), classes(50, seed=1)
    made = st.conformal(CLASSES, (x, y), coverage, score, per_class=per_class)
    by_hand = scores_by_hand(x.softmax(-1), score)[np.arange(200), y]
    thresholds = []
    for k in range(4):
        some = np.sort(by_hand[y.numpy() == k] if per_class else by_hand)
        thresholds.append(some[math.ceil((len(some) + 1) * coverage) - 1])
    np.testing.assert_allclose(np.broadcast_to(made.threshold.numpy(), 4), thresholds, rtol=1e-12)
    expected = scores_by_hand(new.softmax(-1), score) <= np.array(thresholds) + 1e-12
    np.testing.assert_array_equal(made.predict_set(new).numpy(), expected)
    np.testing.assert_array_equal(made.predict_set(new, batch_size=7).numpy(), expected)


@pytest.mark.parametrize("score", ["std", "absolute", "quantile"])
def test_intervals_are_their_definition(score):
    (x, y), (new, _) = values(99), values(20, seed=1)
    made = st.conformal(REAL, (x, y), 0.9, score, family=st.Gaussian)
    z = stats.norm.ppf(0.95)
    mean, std, y = x[:, 0].numpy(), x[:, 1].numpy(), y[:, 0].numpy()
    scores = {
        "std": np.abs(y - mean) / std,
        "absolute": np.abs(y - mean),
        "quantile": np.maximum(mean - z * std - y, y - mean - z * std),
    }[score]
    q = np.sort(scores)[89]
    reach = {"std": q * new[:, 1], "absolute": q + 0 * new[:, 1], "quantile": z * new[:, 1] + q}[score]
    lower, upper = made.predict_interval(new)
    assert lower.shape == upper.shape == (20, 1)
    np.testing.assert_allclose(lower[:, 0], new[:, 0] - reach, rtol=1e-6)
    np.testing.assert_allclose(upper[:, 0], new[:, 0] + reach, rtol=1e-6)


def test_defaults():
    assert st.conformal(CLASSES, classes(50)).score == "lac"
    made = st.conformal(REAL, values(50), family=st.Gaussian)
    assert isinstance(made, Conformal) and made.score == "std" and made.coverage == 0.9
    assert st.conformal(Logits(), classes(50), method=st.Point()).threshold.shape == ()


def test_several_targets_have_thresholds_of_their_own():
    x = torch.randn(100, 2, dtype=torch.float64)
    y = x + torch.tensor([1.0, 10.0]) * torch.randn(100, 2, dtype=torch.float64)
    made = st.conformal(Logits(), (x, y), 0.9, "absolute", st.Point(), family=st.Gaussian)
    lower, upper = made.predict_interval(x)
    assert (upper - lower)[0, 1] > 5 * (upper - lower)[0, 0]
    assert ((lower <= y) & (y <= upper)).double().mean(0).min() >= 0.9


# Coverage


def fits_beta_binomial(covered, n, new, coverage):
    """The p-value of coverages being what they must be: a randomised probability transform, and its uniformity."""
    k = math.ceil((n + 1) * coverage)
    law = stats.betabinom(new, k, n + 1 - k)
    uniform = np.random.default_rng(0).uniform(size=len(covered))
    return stats.kstest(law.cdf(covered - 1) + uniform * law.pmf(covered), "uniform").pvalue


@pytest.mark.parametrize(("n", "coverage"), [(50, 0.9), pytest.param(99, 0.8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("score", ["lac", "aps, randomized", "std", "absolute", "quantile"])
def test_coverage_has_its_exact_law(score, n, coverage):
    """500 data sets of n rows, 100 new rows each. The law of a coverage that is 0.01 too small is refused."""
    name, randomized = score.split(",")[0], "randomized" in score
    covered, new = [], 100
    for seed in range(500):
        if name in ("std", "absolute", "quantile"):
            x, y = values(n + new, seed=seed)
            made = st.conformal(REAL, (x[:n], y[:n]), coverage, name, family=st.Gaussian)
            lower, upper = made.predict_interval(x[n:])
            held = (lower <= y[n:]) & (y[n:] <= upper)
        else:
            x, y = classes(n + new, seed=seed)
            made = st.conformal(CLASSES, (x[:n], y[:n]), coverage, name, randomized=randomized, seed=seed)
            held = made.predict_set(x[n:])[torch.arange(new), y[n:]]
        covered.append(int(held.sum()))
    assert fits_beta_binomial(np.array(covered), n, new, coverage) > 1e-3
    assert fits_beta_binomial(np.array(covered), n, new, coverage - 0.02) < 1e-6, "the test can fail"


def test_randomized_sets_of_single_rows_are_those_of_a_batch():
    """One share for the first row of every call would cover far more, or far less, than asked for."""
    (x, y), (new, labels) = classes(2000), classes(1000, seed=1)
    for seed in range(3):
        made = st.conformal(CLASSES, (x, y), 0.8, "aps", randomized=True, seed=seed)
        sets = torch.cat([made.predict_set(row[None]) for row in new])
        assert torch.equal(sets, made.predict_set(new))
        assert sets.gather(1, labels[:, None]).double().mean().item() == pytest.approx(0.8, abs=0.05)


def test_each_class_is_covered():
    x, y = classes(4000)
    rare = (y != 3) | (torch.arange(4000) % 4 == 0)
    x, y = x[rare], y[rare]
    new, truth = classes(20_000, seed=1)
    each = []
    for per_class in (False, True):
        held = st.conformal(CLASSES, (x, y), 0.9, per_class=per_class).predict_set(new)
        each.append([held[truth == k, k].double().mean().item() for k in range(4)])
    assert min(each[1]) > 0.87  # 250 rows of a class: the standard deviation of its coverage is .019


def test_intervals_grow_away_from_the_data():
    x = torch.linspace(-2, 2, 200)[:, None]
    y = (3 * x).sin() + 0.1 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    wide = st.InfiniteWidth().posterior(nn.Linear(1, 1), (x[::2], y[::2]))
    made, flat = (st.conformal(wide, (x[1::2], y[1::2]), 0.9, score) for score in ("std", "absolute"))
    near, far = torch.zeros(1, 1), torch.full((1, 1), 50.0)
    width = lambda model, at: float((model.predict_interval(at).upper - model.predict_interval(at).lower)[0])
    assert width(made, far) > 5 * width(made, near) and width(flat, far) == pytest.approx(width(flat, near))


# What is refused


def test_rows_that_chose_something_are_refused():
    x, y = classes(200, c=3)
    network = nn.Linear(3, 3).double()
    chosen = st.InfiniteWidth(n_inducing=50).posterior(network, (x[:100], y[:100]), validation=(x[100:150], y[100:150]))
    plain = st.InfiniteWidth(n_inducing=50).posterior(network, (x[:100], y[:100]))
    tempered = st.calibrate(plain, (x[100:150], y[100:150]))
    for posterior in (chosen, tempered, st.calibrate(chosen, (x[150:160], y[150:160]))):
        with pytest.raises(ValueError, match="data must be rows that have chosen nothing before, got 10 that chose"):
            st.conformal(posterior, (x[140:150].repeat(1, 1), y[140:150]), 0.5)
    assert st.conformal(tempered, (x[150:], y[150:])).threshold.ndim == 0
    assert st.conformal(plain, (x[100:150], y[100:150])).threshold.ndim == 0


def test_too_few_rows_are_refused():
    x, y = classes(100)
    with pytest.raises(ValueError, match=r"data must have at least 9 rows for a coverage of 0.9; got 8"):
        st.conformal(CLASSES, (x[:8], y[:8]))
    assert st.conformal(CLASSES, (x[:9], y[:9])).predict_set(x).shape == (100, 4)
    with pytest.raises(ValueError, match=r"data of class 3 must have at least 9 rows .* got 0"):
        st.conformal(CLASSES, (x[y < 3], y[y < 3]), per_class=True)


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.5])
def test_coverage_is_a_share(coverage):
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got"):
        st.conformal(CLASSES, classes(20), coverage)


def test_scores_belong_to_a_kind_of_prediction():
    with pytest.raises(ValueError, match="score must be one of lac, aps, raps for a Categorical; got 'std'"):
        st.conformal(CLASSES, classes(20), score="std")
    with pytest.raises(ValueError, match="per_class must be False for real values"):
        st.conformal(REAL, values(20), family=st.Gaussian, per_class=True)
    with pytest.raises(
        ValueError, match="predict_interval needs a Gaussian prediction, got Categorical; use predict_set"
    ):
        st.conformal(CLASSES, classes(20)).predict_interval(classes(5)[0])
    with pytest.raises(ValueError, match="score 'std' needs a positive standard deviation everywhere"):
        st.conformal(Logits(), (torch.randn(20, 1), torch.randn(20, 1)), method=st.Point(), family=st.Gaussian)
