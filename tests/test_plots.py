"""Pictures: they show the numbers that they are given, on the axes that they are given."""

import matplotlib.pyplot as plt
import pytest
import torch

import stationary as st
from stationary import metrics, plots


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def classes(n=200):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 3, generator=generator)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return st.Categorical.from_isotropic(logits, torch.ones(n)), y


def test_reliability_shows_the_bins_of_the_calibration_error():
    pred, y = classes()
    ax = plt.subplots()[1]
    assert plots.reliability(pred, y, 10, ax=ax) is ax
    bins = metrics.calibration_bins(pred, y, 10)
    some = bins.size > 0
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(bins.accuracy[some].tolist())
    gaps = (bins.accuracy - bins.confidence)[some].abs()
    assert (gaps * bins.size[some]).sum() / 200 == pytest.approx(metrics.ece(pred, y, 10))
    assert bins.size.sum() == 200


def test_risk_coverage_shows_one_curve_or_several():
    pred, y = classes()
    curve = metrics.risk_coverage(pred, y)
    [line] = plots.risk_coverage(curve).lines
    assert line.get_ydata() == pytest.approx(curve.risk.numpy())
    ax = plots.risk_coverage({"a": curve, "b": curve})
    assert len(ax.lines) == 2 and f"area {curve.area:.3g}" in ax.get_legend().get_texts()[0].get_text()


def test_interval_shows_mean_band_and_targets():
    x = torch.tensor([2.0, 0.0, 1.0])
    pred = st.Gaussian(x[:, None] ** 2, torch.ones(3, 1), torch.zeros(3, 1))
    ax = plots.interval(x, pred, y=x)
    assert ax.lines[0].get_xdata().tolist() == [0, 1, 2] and ax.lines[0].get_ydata().tolist() == [0, 1, 4]
    wide = plots.interval(x, pred, st.predictive.Interval(pred.mean - 9, pred.mean + 9))
    assert wide.get_ylim()[0] < -8
    for wrong in ((x[:2], pred), (x, pred, None, x[:2])):
        with pytest.raises(
            ValueError, match=r"x must be \(k,\), with the prediction of one target at each, and y \(k,\)"
        ):
            plots.interval(*wrong)
    plots.interval(x.numpy(), pred, y=x.tolist())
    with pytest.raises(TypeError, match="pred must be a Gaussian, got Tensor; a Categorical has reliability"):
        plots.interval(x, pred.mean)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.1, 0.7)])  # float32 would leave 0.1 and 0.7 outside
def test_histograms_are_shares(low, high):
    known, unknown = torch.full((10,), low, dtype=torch.float64), torch.full((1000,), high, dtype=torch.float64)
    ax = plots.score_histograms(known, unknown, threshold=0.5)
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(2)
    assert ax.lines[0].get_xdata()[0] == 0.5
    again = plots.score_histograms(known.numpy(), unknown.tolist())
    assert [bar.get_height() for bar in again.patches] == [bar.get_height() for bar in ax.patches]
    for wrong in (known[:0], known[:, None]):
        with pytest.raises(ValueError, match=r"unknown must be scores \(n,\), at least one; got \("):
            plots.score_histograms(known, wrong)
