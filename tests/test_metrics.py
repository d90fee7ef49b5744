"""Metrics against scikit-learn, torchmetrics, quadrature and brute force, and what they refuse."""

import itertools
import math
import sys

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics.functional.classification as tm
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from stationary import metrics
from stationary.predictive import Categorical, Gaussian, Members

quickly = settings(max_examples=50, deadline=None, derandomize=True)
CLOSE = {"rel": 1e-12, "abs": 1e-12}  # float64 against float64: a few hundred roundings


def categorical(outputs):
    return Categorical.from_members([Members(outputs)], len(outputs), keep_samples=True)


def of_probs(probs, dtype=torch.float64):
    """One member with these probabilities, exactly."""
    probs = torch.tensor(probs, dtype=dtype)
    entropy = torch.special.entr(probs).sum(-1)
    return Categorical(probs, probs.log(), entropy, probs.log(), torch.zeros_like(probs))


def gaussian(mean, variance):
    mean, variance = (torch.as_tensor(a, dtype=torch.float64) for a in (mean, variance))
    return Gaussian(mean, 0.25 * variance, 0.75 * variance)


def example(n=400, c=4, members=7):
    outputs = 2 * torch.randn(members, n, c, dtype=torch.float64)
    y = torch.where(torch.rand(n) < 0.6, outputs.mean(0).argmax(-1), torch.randint(c, (n,)))
    return categorical(outputs), y


@pytest.fixture(params=[2, 4], ids=["two classes", "four classes"])
def classified(request):
    return example(c=request.param)


@pytest.fixture(params=[1, 3], ids=["one target", "three targets"])
def regressed(request):
    shape = (50, request.param)
    return gaussian(torch.randn(shape), 0.1 + torch.rand(shape)), torch.randn(shape, dtype=torch.float64)


def test_accuracy(classified):
    pred, y = classified
    assert metrics.accuracy(pred, y) == pytest.approx(sk.accuracy_score(y, pred.probs.argmax(-1)), **CLOSE)


def test_nlpd_and_expected_nll_are_the_two_orders_of_log_and_mean(classified):
    pred, y = classified
    p = pred.samples.softmax(-1)[:, torch.arange(len(y)), y].numpy()  # (members, n)
    assert metrics.nlpd(pred, y) == pytest.approx(
        sk.log_loss(y, pred.probs, labels=range(pred.probs.shape[1])), **CLOSE
    )
    assert metrics.nlpd(pred, y) == pytest.approx(-np.log(p.mean(0)).mean(), **CLOSE)
    assert metrics.expected_nll(pred, y) == pytest.approx(-np.log(p).mean(), **CLOSE)
    assert metrics.expected_nll(pred, y) > metrics.nlpd(pred, y)  # Jensen


def test_nlpd_of_the_impossible_is_infinite():
    pred = of_probs([[1.0, 0.0], [0.5, 0.5]])
    assert metrics.nlpd(pred, torch.tensor([1, 0])) == math.inf
    assert metrics.nlpd(pred, torch.tensor([0, 0])) == pytest.approx(math.log(2) / 2, **CLOSE)


def test_auc(classified):
    pred, y = classified
    c = pred.probs.shape[1]
    if c == 2:
        assert metrics.auc(pred, y) == pytest.approx(tm.binary_auroc(pred.probs[:, 1], y).item(), rel=1e-6)
    else:  # torchmetrics works in float32: n roundings of 6e-8
        assert metrics.auc(pred, y) == pytest.approx(tm.multiclass_auroc(pred.probs, y, c).item(), rel=1e-6)
    each = [pairs_in_order(pred.probs[y != k, k], pred.probs[y == k, k]) for k in range(c)]
    assert metrics.auc(pred, y) == pytest.approx(each[1] if c == 2 else np.mean(each), **CLOSE)


def test_auc_needs_every_class():
    pred, y = example()
    with pytest.raises(ValueError, match=r"y must hold every one.*got none of class \[2\]"):
        metrics.auc(pred, y.where(y != 2, torch.tensor(1)))
    two = of_probs([[0.5, 0.5]] * 3)
    with pytest.raises(ValueError, match=r"y must hold every one.*got none of class \[1\]"):
        metrics.auc(two, torch.zeros(3).long())
    assert math.isnan(metrics.classification(two, torch.zeros(3).long())["auc"])


def test_brier(classified):
    pred, y = classified
    c = pred.probs.shape[1]
    oracle = sk.brier_score_loss(y, pred.probs, labels=range(c), scale_by_half=False)
    assert metrics.brier(pred, y) == pytest.approx(oracle, **CLOSE)
    worst = of_probs([[1.0] + [0.0] * (c - 1)])
    assert metrics.brier(worst, torch.tensor([1])) == 2.0


@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_ece_is_that_of_torchmetrics_away_from_the_edges(classified, n_bins):
    pred, y = classified
    c = pred.probs.shape[1]
    oracle = tm.multiclass_calibration_error(pred.probs, y, c, n_bins=n_bins).item()
    assert metrics.ece(pred, y, n_bins) == pytest.approx(oracle, abs=6e-8 * len(y))  # it adds n terms in float32


def slow_ece(confidence, correct, n_bins, dtype):
    """By the definition, with edges b / B rounded to the type of the confidence."""
    edge = lambda b: dtype(b / n_bins)
    total = 0.0
    for b in range(1, n_bins + 1):
        inside = [i for i, p in enumerate(confidence) if edge(b - 1) < p <= edge(b) or (b == 1 and p == 0)]
        if inside:
            gap = np.mean([correct[i] for i in inside]) - np.mean([float(confidence[i]) for i in inside])
            total += len(inside) / len(confidence) * abs(gap)
    return total


@quickly
@given(
    some.lists(some.tuples(some.integers(10, 20), some.booleans()), min_size=2, max_size=12),
    some.sampled_from([np.float32, np.float64]),
)
def test_ece_of_confidences_on_the_edges(cases, dtype):
    """Of 0.5, 0.55, ..., 1 every second one is an edge of ten bins, in either precision, and in the bin below it."""
    confidence = np.array([k / 20 for k, _ in cases], dtype=dtype)
    probs = torch.from_numpy(np.stack([confidence, 1 - confidence], -1))
    pred = Categorical(probs, probs, probs[:, 0], probs, probs)
    y = torch.tensor([0 if right else 1 for _, right in cases])
    correct = (pred.predict() == y).tolist()  # argmax decides at 0.5
    assert metrics.ece(pred, y, 10) == pytest.approx(slow_ece(confidence, correct, 10, dtype), rel=1e-12, abs=1e-12)


def test_ece_keeps_a_confidence_of_one_in_the_last_bin():
    """torchmetrics issue 3510: 0.95, right, and 1.0, wrong, share a bin: |1/2 - 0.975|, not (0.05 + 1) / 2."""
    pred = of_probs([[0.05, 0.95], [0.0, 1.0]])
    assert metrics.ece(pred, torch.tensor([1, 0]), n_bins=10) == pytest.approx(0.475, **CLOSE)
    pred = of_probs([[0.1, 0.9], [0.0, 1.0]])  # 0.9 is the end of the bin before
    assert metrics.ece(pred, torch.tensor([1, 0]), n_bins=10) == pytest.approx((0.1 + 1) / 2, **CLOSE)
    zero = Categorical(*(torch.zeros(1, 2),) * 2, torch.zeros(1), *(torch.zeros(1, 2),) * 2)
    assert metrics.ece(zero, torch.tensor([0])) == 1.0  # a confidence of 0 that was right: in the first bin


def test_ece_needs_a_bin():
    for wrong in (2.5, "ten"):
        with pytest.raises(ValueError, match=rf"n_bins must be an integer of at least 1, got {wrong!r}"):
            metrics.ece(*example(), n_bins=wrong)
    with pytest.raises(ValueError, match=r"n_bins must be an integer of at least 1, got 0"):
        metrics.ece(*example(), n_bins=0)


@pytest.mark.parametrize("c", [2, 5])
def test_unknown_nlpd_is_the_papers(c):
    pred, _ = example(c=c)
    value, clipped = metrics.unknown_nlpd(pred)
    oracle = -np.mean([math.log(c / (c - 1)) + math.log1p(-max(row)) for row in pred.probs.tolist()])
    assert value == pytest.approx(oracle, rel=1e-9)  # log1p loses eps / (1 - y_max)
    assert clipped == 0
    uniform = of_probs([[1 / c] * c])
    assert metrics.unknown_nlpd(uniform).value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("paper", "y_max"), [(0.754, 0.62), (2.73, 0.95)])
def test_unknown_nlpd_of_the_papers_examples(paper, y_max):
    """The appendix: 0.754 "corresponds to a maximum class probability of around 62 %", 2.73 to 95 %, of five."""
    pred = of_probs([[y_max] + [(1 - y_max) / 4] * 4])
    rounding = 0.005 / (1 - y_max)  # of y_max to a per cent, times the derivative
    assert metrics.unknown_nlpd(pred).value == pytest.approx(paper, abs=rounding)


def test_unknown_nlpd_counts_what_it_clips():
    outputs = torch.tensor([[0.0, 30.0], [0.0, 60.0], [0.0, 200.0]])  # float32, whose softmax is 1 from 17 on
    value, clipped = metrics.unknown_nlpd(categorical(outputs[None]))
    assert clipped == 2
    assert value == pytest.approx((30 + 2 * 53 * math.log(2)) / 3 - math.log(2), rel=1e-6)


def test_the_papers_cifar_table_takes_the_softmax_of_the_mean_output():
    pred, y = example(c=5)
    mean = metrics.at_mean_output(pred)
    probs = pred.samples.mean(0).softmax(-1)
    torch.testing.assert_close(mean.probs, probs)
    assert metrics.nlpd(mean, y) == pytest.approx(sk.log_loss(y, probs, labels=range(5)), **CLOSE)
    assert not mean.mutual_information().gt(1e-12).any()


def test_rmse_and_gaussian_nlpd(regressed):
    pred, y = regressed
    assert metrics.rmse(pred, y) == pytest.approx(sk.root_mean_squared_error(y.flatten(), pred.mean.flatten()), **CLOSE)
    density = stats.norm(pred.mean, pred.variance().sqrt()).logpdf(y)
    assert metrics.nlpd(pred, y) == pytest.approx(-density.mean(), **CLOSE)


@quickly
@given(some.floats(-8, 8), some.floats(-3, 3), some.floats(0.05, 20))
def test_crps_is_its_integral(y, mean, std):
    """Gauss-Legendre between breaks at y and every standard deviation; the integrand is 0 beyond them all."""
    breaks = np.unique([y, *(mean + std * np.arange(-10, 11))])
    node, weight = np.polynomial.legendre.leggauss(20)
    half, middle = np.diff(breaks)[:, None] / 2, (breaks[1:] + breaks[:-1])[:, None] / 2
    t = middle + half * node
    integral = (half * weight * (stats.norm.cdf(t, mean, std) - (t >= y)) ** 2).sum()
    crps = metrics.crps(gaussian([[mean]], [[std**2]]), torch.tensor([y], dtype=torch.float64))
    assert crps == pytest.approx(integral, rel=1e-11)


def test_crps_of_a_point_mass_is_the_absolute_error():
    pred = gaussian([[1.0], [2.0]], [[0.0], [0.0]])
    assert metrics.crps(pred, torch.tensor([3.0, 2.0])) == 1.0


def test_crps_is_a_mean_over_inputs_and_targets(regressed):
    pred, y = regressed
    cells = [
        metrics.crps(gaussian([[m]], [[v]]), torch.tensor([[t]], dtype=torch.float64))
        for m, v, t in zip(pred.mean.flatten(), pred.variance().flatten(), y.flatten(), strict=True)
    ]
    assert metrics.crps(pred, y) == pytest.approx(np.mean(cells), **CLOSE)


def test_density_needs_a_variance():
    pred = gaussian([[0.0], [0.0]], [[1.0], [0.0]])
    with pytest.raises(ValueError, match=r"the variance must be positive.*got 0 in row 1.*with_noise"):
        metrics.nlpd(pred, torch.zeros(2))
    assert metrics.nlpd(pred.with_noise(1.0), torch.zeros(2)) > 0


scores = some.lists(some.integers(0, 5).map(float), min_size=1, max_size=20).map(torch.tensor)  # many ties


def pairs_in_order(low, high):
    """P(high > low) + P(equal) / 2 by counting pairs."""
    return np.mean([(b > a) + 0.5 * (b == a) for a in low.tolist() for b in high.tolist()])


@quickly
@given(scores, scores)
def test_auroc_and_aupr(inside, outside):
    truth = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    both = torch.cat([inside, outside])
    assert metrics.auroc(inside, outside) == pytest.approx(pairs_in_order(inside, outside), **CLOSE)
    p = both / 5  # torchmetrics takes probabilities, and works in float32
    assert metrics.auroc(inside, outside) == pytest.approx(tm.binary_auroc(p, truth).item(), rel=1e-5)
    assert metrics.aupr(inside, outside) == pytest.approx(tm.binary_average_precision(p, truth).item(), rel=1e-5)
    other = tm.binary_average_precision(1 - p, 1 - truth).item()
    assert metrics.aupr(inside, outside, positive="in") == pytest.approx(other, rel=1e-5)


@quickly
@given(scores, scores)
def test_fpr95_by_trying_every_threshold(inside, outside):
    enough = [t for t in inside.tolist() if sum(s <= t for s in inside.tolist()) >= 0.95 * len(inside)]
    assert metrics.fpr95(inside, outside) == pytest.approx(
        np.mean([s <= min(enough) for s in outside.tolist()]), **CLOSE
    )


def test_fpr95_accepts_exactly_95_of_100():
    inside = torch.arange(100.0)
    assert metrics.acceptance_threshold(inside, 0.95) == 94
    assert metrics.fpr95(inside, torch.tensor([93.5, 94.0, 94.5, 200.0])) == 0.5
    assert metrics.fpr95(inside, inside + 1000) == 0
    assert metrics.fpr95(inside, inside - 1000) == 1


@quickly
@given(some.integers(1, 300), some.integers(1, 1000))
def test_acceptance_threshold_is_the_smallest_that_accepts_enough(n, per_mille):
    """0.07 * 100 is 7.000000000000001 in floating point: the eighth of 100 scores would be one too many."""
    rank = -(-per_mille * n // 1000)  # in integers
    assert metrics.acceptance_threshold(torch.arange(float(n)), per_mille / 1000) == rank - 1


def test_risk_coverage_averages_over_the_order_of_ties():
    probs = [[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.8, 0.2], [0.6, 0.4]]
    pred, y = of_probs(probs), torch.tensor([0, 1, 1, 0, 1])
    uncertainty = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0])
    wrong = np.array([0, 1, 0, 0, 1])
    curves = [
        np.cumsum(wrong[list(order)]) / np.arange(1, 6)
        for order in itertools.permutations(range(5))
        if uncertainty[list(order)].diff().ge(0).all()
    ]
    assert len(curves) == 6
    coverage, risk, area, _ = metrics.risk_coverage(pred, y, uncertainty)
    assert coverage.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert risk.tolist() == pytest.approx(np.mean(curves, 0), **CLOSE)
    assert area == pytest.approx(np.mean(curves), **CLOSE)
    assert metrics.risk_coverage(pred, y).risk.tolist() == pytest.approx(
        risk.tolist(), **CLOSE
    )  # 1 - y_max: same order


def test_risk_coverage_ends_at_the_error_and_is_least_in_the_order_of_the_loss(classified):
    pred, y = classified
    by_entropy = metrics.risk_coverage(pred, y, pred.entropy())
    assert by_entropy.risk[-1].item() == pytest.approx(1 - metrics.accuracy(pred, y), **CLOSE)
    best = metrics.risk_coverage(pred, y, (pred.predict() != y).double())
    worst = metrics.risk_coverage(pred, y, (pred.predict() == y).double())
    assert best.area < by_entropy.area < worst.area
    assert best.excess == pytest.approx(0, abs=1e-12)
    assert by_entropy.excess == pytest.approx(by_entropy.area - best.area, **CLOSE)


def test_risk_coverage_of_regression(regressed):
    pred, y = regressed
    order = pred.std().mean(-1).argsort()
    losses = (pred.mean - y).square().mean(-1)[order].numpy()
    _, risk, area, excess = metrics.risk_coverage(pred, y)
    expected = np.cumsum(losses) / np.arange(1, len(losses) + 1)
    np.testing.assert_allclose(risk, expected, rtol=1e-12)
    assert risk[-1].item() == pytest.approx(metrics.rmse(pred, y) ** 2, **CLOSE)
    assert area == pytest.approx(expected.mean(), **CLOSE)
    least = np.cumsum(np.sort(losses)) / np.arange(1, len(losses) + 1)
    assert excess == pytest.approx((expected - least).mean(), **CLOSE)


def test_the_standard_sets(classified, regressed):
    pred, y = classified
    table = metrics.classification(pred, y)
    assert table == {name: getattr(metrics, name)(pred, y) for name in table}
    assert set(table) == {"accuracy", "nlpd", "expected_nll", "auc", "brier", "ece"}
    pred, y = regressed
    table = metrics.regression(pred, y)
    assert table == {name: getattr(metrics, name)(pred, y) for name in table}
    assert set(table) == {"rmse", "nlpd", "crps"}
    assert all(type(value) is float for value in table.values())


def test_float32_predictions_and_small_integers_give_nearly_the_same(classified):
    pred, y = classified
    single = categorical(pred.samples.float())
    for name, value in metrics.classification(pred, y).items():
        other = metrics.classification(single, y.to(torch.uint8))[name]
        # A confidence next to an edge may change its bin and no other metric is that sensitive: none does here.
        assert other == pytest.approx(value, rel=1e-5), name


CLASS_METRICS = [metrics.accuracy, metrics.nlpd, metrics.expected_nll, metrics.auc, metrics.brier, metrics.ece]
CLASS_METRICS += [metrics.risk_coverage, metrics.classification]
REAL_METRICS = [metrics.rmse, metrics.nlpd, metrics.crps, metrics.risk_coverage, metrics.regression]


@pytest.mark.parametrize("metric", CLASS_METRICS)
def test_bad_labels(metric):
    pred, y = example(n=6, c=3)
    for bad, error, message in [
        (y.double(), TypeError, r"y must be.*integer.*float64.*long\(\)"),
        (y > 0, TypeError, r"y must be.*integer.*bool"),
        (y.tolist(), TypeError, r"y must be a tensor.*list"),
        (y[:, None], ValueError, r"y must have shape.*6 predictions.*\(6, 1\)"),
        (y[:5], ValueError, r"y must have shape.*6 predictions.*\(5,\)"),
        (y.index_fill(0, torch.tensor([4]), 3), ValueError, r"y must be in 0..2.*got 3 in row 4"),
        (y.index_fill(0, torch.tensor([1]), -1), ValueError, r"y must be in 0..2.*got -1 in row 1"),
    ]:
        with pytest.raises(error, match=message):
            metric(pred, bad)
    broken = categorical(torch.full((1, 6, 3), math.nan))
    with pytest.raises(ValueError, match=r"pred.probs must be finite.*row 0"):
        metric(broken, y)


@pytest.mark.parametrize("metric", REAL_METRICS)
def test_bad_targets(metric):
    pred, y = gaussian(torch.zeros(4, 2), torch.ones(4, 2)), torch.zeros(4, 2)
    for bad, error, message in [
        (y[:, 0], ValueError, r"y must have the shape of pred.mean, \(4, 2\).*\(4,\)"),
        (y[:3], ValueError, r"y must have the shape of pred.mean.*\(3, 2\)"),
        (y.numpy(), TypeError, r"y must be a tensor.*ndarray"),
        (y.index_fill(0, torch.tensor([2]), math.nan), ValueError, r"y must be finite.*row 2"),
    ]:
        with pytest.raises(error, match=message):
            metric(pred, bad)


def test_the_wrong_kind_of_prediction():
    with pytest.raises(TypeError, match=r"pred must be a Gaussian, got Categorical"):
        metrics.rmse(*example())
    with pytest.raises(TypeError, match=r"pred must be a Categorical, got Gaussian"):
        metrics.accuracy(gaussian([[0.0]], [[1.0]]), torch.tensor([0]))


def test_bad_scores():
    good = torch.rand(5)
    for metric in (metrics.auroc, metrics.aupr, metrics.fpr95):
        with pytest.raises(ValueError, match=r"scores_in must be.*shape.*\(5, 1\)"):
            metric(good[:, None], good)
        with pytest.raises(ValueError, match=r"scores_out must be.*shape.*\(0,\)"):
            metric(good, good[:0])
        with pytest.raises(ValueError, match=r"scores_out must be finite.*row 5"):
            metric(good, torch.cat([good, torch.tensor([math.nan])]))
        with pytest.raises(TypeError, match=r"scores_in must be a tensor.*list"):
            metric(good.tolist(), good)
    with pytest.raises(ValueError, match=r"positive must be 'out' or 'in', got 'ood'"):
        metrics.aupr(good, good, positive="ood")
    with pytest.raises(ValueError, match=r"accept must be a share in \(0, 1\], got 95"):
        metrics.acceptance_threshold(good, 95)
    with pytest.raises(ValueError, match=r"uncertainty must have one value for each of 400 predictions, got 5"):
        metrics.risk_coverage(*example(), good)


def test_a_missing_scikit_learn_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ImportError, match=r"pip install 'stationary\[sklearn\]'"):
        metrics.aupr(torch.rand(3), torch.rand(3))
    for metric in (metrics.fpr95, metrics.auroc):
        assert 0 <= metric(torch.rand(3), torch.rand(3)) <= 1


@pytest.mark.gpu
def test_on_a_gpu():
    pred, y = example()
    on_gpu = pred.to("cuda")
    assert metrics.classification(on_gpu, y.cuda()) == metrics.classification(on_gpu.to("cpu"), y)
    assert metrics.unknown_nlpd(on_gpu) == metrics.unknown_nlpd(pred)
    assert metrics.risk_coverage(on_gpu, y.cuda(), on_gpu.entropy()).area > 0
    assert metrics.auroc(on_gpu.entropy(), pred.std()) >= 0
