"""Pictures of what a prediction is worth: arrays in, Axes of Matplotlib out, on new axes or on yours."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stationary._extras import extra
from stationary.metrics import RiskCoverage, calibration_bins
from stationary.predictive import Categorical, Gaussian, Interval

with extra("experiments"):
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

KNOWN, UNKNOWN, GREY = "#0072B2", "#E69F00", "#888888"  # of the palette of Okabe and Ito


def reliability(pred: Categorical, y: Tensor, n_bins: int = 15, *, ax: Axes | None = None) -> Axes:
    """How often the predicted class is right, for predictions of like confidence: on the line where it is calibrated.

    Args:
        pred: the prediction.
        y: (n,) the true classes.
        n_bins: number of bins of equal width, as of ``metrics.ece``.
        ax: the axes to draw on; by default new ones.
    """
    ax, bins = _axes(ax), calibration_bins(pred, y, n_bins)
    some = bins.size > 0
    parts = torch.arange(n_bins) / n_bins, bins.confidence, bins.accuracy
    left, confidence, right = (part[some].numpy() for part in parts)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
    ax.bar(left, right, 1 / n_bins, align="edge", color=KNOWN, edgecolor="white", label="right")
    ax.plot(confidence, right, "o", color=UNKNOWN, markersize=4, label="at their mean confidence")
    ax.set(xlabel="confidence", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False, loc="upper left")
    return ax


def risk_coverage(curves: RiskCoverage | Mapping[str, RiskCoverage], *, ax: Axes | None = None) -> Axes:
    """The error of the inputs that are kept, for every share of them; lower is better.

    Args:
        curves: what ``metrics.risk_coverage`` returns, or several by name.
        ax: the axes to draw on; by default new ones.
    """
    ax = _axes(ax)
    named = {"": curves} if isinstance(curves, RiskCoverage) else curves
    for name, curve in named.items():
        ax.plot(
            100 * curve.coverage.numpy(), curve.risk.numpy(), label=f"{name} (area {curve.area:.3g})" if name else None
        )
    ax.set(xlabel="inputs that are kept, the surest first (%)", ylabel="mean loss of these", xlim=(0, 100))
    ax.set_ylim(bottom=0)
    if any(named):
        ax.legend(frameon=False)
    return ax


def interval(
    x: Tensor, pred: Gaussian, held: Interval | None = None, y: Tensor | None = None, *, ax: Axes | None = None
) -> Axes:
    """The mean and an interval along one input, with targets where they are given.

    Args:
        x: (k,) values of the input, in any order.
        pred: the prediction at these, of one target.
        held: the interval, as of ``conformal``; by default the one that the prediction itself gives 90 %.
        y: (k,) targets.
        ax: the axes to draw on; by default new ones.
    """
    if not isinstance(pred, Gaussian):
        raise TypeError(f"pred must be a Gaussian, got {type(pred).__name__}; a Categorical has reliability")
    x, y = torch.as_tensor(x).detach().cpu(), None if y is None else torch.as_tensor(y).detach().cpu().reshape(-1)
    if x.ndim != 1 or pred.mean.shape != (len(x), 1) or (y is not None and len(y) != len(x)):
        raise ValueError(
            f"x must be (k,), with the prediction of one target at each, and y (k,); got {tuple(x.shape)}, "
            f"{tuple(pred.mean.shape)} and {None if y is None else tuple(y.shape)}"
        )
    ax = _axes(ax)
    order = x.argsort()
    lower, upper = pred.interval(0.9) if held is None else held
    label = "90 % by the prediction" if held is None else "interval"
    low, high, mean = (values[:, 0].cpu()[order].numpy() for values in (lower, upper, pred.mean))
    ax.fill_between(x[order].numpy(), low, high, color=KNOWN, alpha=0.2, linewidth=0, label=label)
    ax.plot(x[order].numpy(), mean, color=KNOWN, label="mean")
    if y is not None:
        ax.plot(x.numpy(), y.numpy(), ".", color="black", markersize=3, label="targets")
    ax.set(xlabel="input", ylabel="target")
    ax.legend(frameon=False)
    return ax


def score_histograms(known: Tensor, unknown: Tensor, threshold: float | None = None, *, ax: Axes | None = None) -> Axes:
    """The scores of known and of unknown inputs, as shares of each, and the threshold between them.

    Args:
        known, unknown: (n,) and (m,) scores, as of ``OODDetector.scores``.
        threshold: the largest score that is accepted.
        ax: the axes to draw on; by default new ones.
    """
    given = {"known": known, "unknown": unknown}
    parts = {name: torch.as_tensor(scores).detach().double().cpu() for name, scores in given.items()}
    for name, scores in parts.items():
        if scores.ndim != 1 or not len(scores):
            raise ValueError(f"{name} must be scores (n,), at least one; got {tuple(scores.shape)}")
    ax = _axes(ax)
    both = torch.cat(list(parts.values()))
    edges: Any = torch.linspace(float(both.min()), float(both.max()), 41, dtype=torch.float64).tolist()
    for (name, scores), color in zip(parts.items(), (KNOWN, UNKNOWN), strict=True):
        share = torch.full((len(scores),), 1 / len(scores))
        ax.hist(scores.tolist(), edges, weights=share.tolist(), color=color, alpha=0.6, label=name)
    if threshold is not None:
        ax.axvline(threshold, color="black", linewidth=1, label="threshold")
    ax.set(xlabel="score", ylabel="share of the inputs")
    ax.legend(frameon=False)
    return ax


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(figsize=(4.5, 3.4), layout="constrained")[1] if ax is None else ax
