"""Metrics: each is a function of a prediction and its targets, or of scores, and most return one number.

Everything is computed on the CPU in float64, so that any device gives the same number. Means are over inputs, and for
regression over targets too.
"""

import math
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from stationary._checks import is_count, is_number
from stationary._extras import extra
from stationary.predictive import Categorical, Gaussian, Members, Predictive

CLIP = 2.0**-53  # 1 - y_max of the largest float64 below 1: what log1p(-y_max) can still tell from certainty


class UnknownNLPD(NamedTuple):
    """The modified NLPD of ``unknown_nlpd``.

    Attributes:
        value: the modified NLPD.
        clipped: number of inputs whose 1 - y_max was below ``CLIP``, and was replaced by it.
    """

    value: float
    clipped: int


class RiskCoverage(NamedTuple):
    """The curve of ``risk_coverage``.

    Attributes:
        coverage: (n,) shares of the inputs that are kept: 1/n, 2/n, ..., 1.
        risk: (n,) mean loss of the least uncertain inputs that make up each share.
        area: area under the curve (AURC), the mean of ``risk``.
        excess: what it is above that of the best order of the same losses (excess AURC), at least 0.
    """

    coverage: Tensor
    risk: Tensor
    area: float
    excess: float


class CalibrationBins(NamedTuple):
    """Predictions by their confidence, in bins of equal width.

    Attributes:
        size: (B,) number of predictions in each bin.
        confidence: (B,) their mean confidence; NaN where there are none.
        accuracy: (B,) the share of them that is right; NaN where there are none.
    """

    size: Tensor
    confidence: Tensor
    accuracy: Tensor


def classification(pred: Categorical, y: Tensor) -> dict[str, float]:
    """The standard metrics of a classifier by name. ``auc`` is NaN where y lacks a class, as it is undefined then."""
    complete = len(_labels(pred, y).unique()) == pred.probs.shape[-1]
    return {
        "accuracy": accuracy(pred, y),
        "nlpd": nlpd(pred, y),
        "expected_nll": expected_nll(pred, y),
        "auc": auc(pred, y) if complete else math.nan,
        "brier": brier(pred, y),
        "ece": ece(pred, y),
    }


def regression(pred: Gaussian, y: Tensor) -> dict[str, float]:
    """The standard metrics of a regression by name."""
    return {"rmse": rmse(pred, y), "nlpd": nlpd(pred, y), "crps": crps(pred, y)}


def nlpd(pred: Categorical | Gaussian, y: Tensor) -> float:
    """Negative log predictive density, -mean log E[p(y)]: the members are averaged before the logarithm.

    It is infinite where the true class was given the probability 0. For a ``Gaussian``, p is the normal density
    with the total variance, which must be positive.
    """
    if isinstance(pred, Categorical):
        return -_at(pred.probs, _labels(pred, y)).log().mean().item()
    target, mean, variance = _targets(pred, y)
    return -Gaussian(mean, variance, torch.zeros_like(mean)).log_prob(target).mean().item()


def expected_nll(pred: Categorical, y: Tensor) -> float:
    """-mean E[log p(y)]: the logarithm before the mean over members, as in the authors' script; at least ``nlpd``."""
    labels = _labels(pred, y)
    return -_at(pred.expected_log_probs, labels).mean().item()


def unknown_nlpd(pred: Categorical) -> UnknownNLPD:
    """The paper's modified NLPD of inputs from unknown classes, -mean log(c / (c - 1) (1 - y_max)).

    y_max is the probability of the most probable of c classes. It is 0 where all classes are equally probable, and
    would be infinite for certainty; here 1 - y_max is at least ``CLIP``, and the result says how often it was raised to
    that. The paper's table takes y_max from the softmax of the mean output: ``unknown_nlpd(at_mean_output(pred))``.
    """
    if (c := pred.probs.shape[-1]) < 2:
        raise ValueError(f"pred must have at least two classes, got {c}; there is no other class to be unsure of")
    rest = doubt(_finite("pred.probs", pred.probs))
    losses = -(c / (c - 1) * rest.clamp(min=CLIP)).log()
    return UnknownNLPD(losses.mean().item(), int((rest < CLIP).sum()))


def at_mean_output(pred: Categorical) -> Categorical:
    """The prediction whose probabilities are the softmax of the mean output, as in the paper's CIFAR-10 table."""
    return Categorical.from_members([Members(_float64(pred.output_mean)[None])], 1)


def doubt(probs: Tensor) -> Tensor:
    """(n,) 1 - y_max as the sum of the other probabilities; in float32 the difference would be 0 below 3e-8."""
    return probs.sort(-1).values[..., :-1].sum(-1)


def accuracy(pred: Categorical, y: Tensor) -> float:
    """Share of inputs whose most probable class is y."""
    return _correct(pred, _labels(pred, y)).mean().item()


def brier(pred: Categorical, y: Tensor) -> float:
    """Brier score, mean sum_k (p_k - [y = k])^2, over all classes: in [0, 2], for two classes twice (p_1 - y)^2."""
    labels = _labels(pred, y)
    probs = _float64(pred.probs)
    return (probs - torch.nn.functional.one_hot(labels, probs.shape[-1])).square().sum(-1).mean().item()


def ece(pred: Categorical, y: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error, sum_b n_b / n |accuracy_b - confidence_b|.

    The B = ``n_bins`` bins ((b - 1) / B, b / B] have equal width; a confidence of exactly 1 is in the last, 0 in the
    first.
    """
    bins = calibration_bins(pred, y, n_bins)
    gaps = bins.size * (bins.accuracy - bins.confidence)
    return (gaps.nan_to_num().abs().sum() / bins.size.sum()).item()


def calibration_bins(pred: Categorical, y: Tensor, n_bins: int = 15) -> CalibrationBins:
    """How many predictions are in each of the bins of ``ece``, how sure they are, and how many are right."""
    if not is_count(n_bins):
        raise ValueError(f"n_bins must be an integer of at least 1, got {n_bins!r}; 15 is usual")
    labels, confidence = _labels(pred, y), pred.confidence().detach().cpu()
    edges = (torch.arange(1, n_bins, dtype=torch.float64) / n_bins).to(confidence)  # 0.3 is an edge in float32 too
    parts = torch.stack([torch.ones(len(labels)).double(), confidence.double(), _correct(pred, labels).double()])
    sums = torch.zeros(3, n_bins, dtype=torch.float64).index_add(1, torch.bucketize(confidence, edges), parts)
    return CalibrationBins(sums[0], sums[1] / sums[0], sums[2] / sums[0])


def auc(pred: Categorical, y: Tensor) -> float:
    """Area under the ROC curve: of class 1 for two classes, else the mean over classes, each against the rest."""
    labels, c = _labels(pred, y), pred.probs.shape[-1]
    missing = sorted(set(range(c)) - set(labels.tolist()))
    if missing or c < 2:
        raise ValueError(
            f"y must hold every one of two or more classes for an AUC, got none of class {missing or [1]}; use "
            "accuracy or nlpd"
        )
    probs = _float64(pred.probs)
    return fmean(_area(probs[:, k], labels == k) for k in (range(c) if c > 2 else [1]))


def _area(scores: Tensor, positive: Tensor) -> float:
    """The share of pairs of a positive and a negative in which the positive scores higher; a tie counts half."""
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts.double() - 1) / 2  # mean rank of each value
    n = int(positive.sum())
    return ((ranks[place[positive]].sum() / n - (n + 1) / 2) / (len(scores) - n)).item()


def rmse(pred: Gaussian, y: Tensor) -> float:
    """Root of the mean square error of the mean."""
    target, mean, _ = _targets(pred, y)
    return (target - mean).square().mean().sqrt().item()


def crps(pred: Gaussian, y: Tensor) -> float:
    """Continuous ranked probability score, mean integral (F(t) - [t >= y])^2 dt, of the normal distribution.

    In closed form sd (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)), z = (y - mean) / sd; |y - mean| for sd = 0.
    """
    target, mean, variance = _targets(pred, y)
    residual, std = target - mean, variance.sqrt()
    z = residual / std.clamp(min=torch.finfo(std.dtype).tiny)
    spread = std * (math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() - 1 / math.sqrt(math.pi))
    return (residual * torch.erf(z / math.sqrt(2)) + spread).mean().item()


def risk_coverage(pred: Categorical | Gaussian, y: Tensor, uncertainty: Tensor | None = None) -> RiskCoverage:
    """The error that is left when the most uncertain inputs are set aside, for every share of inputs kept.

    The loss is 0 or 1 for a ``Categorical``, the squared error (mean over targets) for a ``Gaussian``. Equally
    uncertain inputs count with their mean loss: what a random order gives on average. The area is
    AURC = mean_k risk(k / n) (Geifman and El-Yaniv, 2017), and the excess what a perfect order would spare
    (Geifman, Uziel and El-Yaniv, 2019).

    Args:
        pred: the prediction to judge.
        y: the true classes (n,), or the targets (n, m).
        uncertainty: (n,) uncertainty by which inputs are set aside, such as ``pred.entropy()``; by default 1 - y_max
            for a ``Categorical``, and the standard deviation for a ``Gaussian``.
    """
    if isinstance(pred, Categorical):
        losses = 1 - _correct(pred, _labels(pred, y))
        scores = doubt(_float64(pred.probs)) if uncertainty is None else uncertainty
    else:
        target, mean, variance = _targets(pred, y)
        losses = (target - mean).square().mean(-1)
        scores = variance.sqrt().mean(-1) if uncertainty is None else uncertainty
    scores, n = _scores("uncertainty", scores), len(losses)
    if len(scores) != n:
        raise ValueError(f"uncertainty must have one value for each of {n} predictions, got {len(scores)}")
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    tied = torch.zeros(len(size), dtype=torch.float64).index_add(0, group, losses) / size
    kept = torch.arange(1, n + 1, dtype=torch.float64)
    risk = tied.repeat_interleave(size).cumsum(0) / kept
    best = losses.sort().values.cumsum(0) / kept
    return RiskCoverage(kept / n, risk, risk.mean().item(), (risk - best).mean().item())


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """P(score out > score in) + P(equal) / 2, with out-of-distribution as positive class; 1 is perfect, 0.5 chance."""
    truth, scores = _in_and_out(scores_in, scores_out)
    return _area(scores, truth == 1)


def aupr(scores_in: Tensor, scores_out: Tensor, positive: Literal["out", "in"] = "out") -> float:
    """Average precision, sum_k (recall_k - recall_(k - 1)) precision_k; chance is the share of the positive class.

    Args:
        scores_in: (n,) scores of in-distribution inputs.
        scores_out: (m,) scores of out-of-distribution inputs; a higher score is more out-of-distribution.
        positive: which of the two is the positive class; for "in", low scores are taken as positive.
    """
    if positive not in ("out", "in"):
        raise ValueError(f"positive must be 'out' or 'in', got {positive!r}")
    truth, scores = _in_and_out(scores_in, scores_out)
    if positive == "in":
        truth, scores = 1 - truth, -scores
    with extra("sklearn"):
        from sklearn.metrics import average_precision_score
    return float(average_precision_score(truth.numpy(), scores.numpy()))


def fpr95(scores_in: Tensor, scores_out: Tensor) -> float:
    """Share of out-of-distribution inputs with a score <= t, where t = ``acceptance_threshold(scores_in, 0.95)``."""
    return _scores("scores_out", scores_out).le(acceptance_threshold(scores_in, 0.95)).double().mean().item()


def acceptance_threshold(scores_in: Tensor, accept: float = 0.95) -> float:
    """The smallest of the scores t such that at least the share ``accept`` of them is <= t, without interpolation."""
    if not is_number(accept) or not 0 < accept <= 1:
        raise ValueError(f"accept must be a share in (0, 1], got {accept!r}; 0.95 is usual")
    scores = _scores("scores_in", scores_in).sort().values
    shares = torch.arange(1, len(scores) + 1, dtype=torch.float64) / len(scores)
    return scores[int((shares < accept).sum())].item()


def _labels(pred: Predictive, y: Any) -> Tensor:
    """The classes as int64 on the CPU, after a check of both y and pred."""
    if not isinstance(pred, Categorical):
        raise TypeError(f"pred must be a Categorical, got {type(pred).__name__}; a Gaussian has rmse, crps and nlpd")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y must be a tensor of integer class indices, got {got}; use torch.as_tensor(y).long()")
    n, c = pred.probs.shape
    if y.shape != (n,) or n == 0:
        raise ValueError(
            f"y must have shape (n,) with n = {n} predictions, at least one; got {tuple(y.shape)}; one-hot labels "
            "become indices by y.argmax(-1)"
        )
    labels = y.detach().cpu().long()
    if (wrong := (labels < 0) | (labels >= c)).any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"y must be in 0..{c - 1}, the classes of pred; got {int(labels[row])} in row {row}; number the classes "
            "from 0, and leave unknown ones out"
        )
    _finite("pred.probs", pred.probs)
    return labels


def _targets(pred: Predictive, y: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The target, mean and total variance, (n, m) each, after a check of both y and pred."""
    if not isinstance(pred, Gaussian):
        raise TypeError(f"pred must be a Gaussian, got {type(pred).__name__}; a Categorical has accuracy and nlpd")
    if not isinstance(y, Tensor) or y.is_complex() or y.dtype == torch.bool:
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y must be a tensor of real numbers, got {got}; use torch.as_tensor(y)")
    n, m = pred.mean.shape
    fits = y.shape == (n, m) or (m == 1 and y.shape == (n,))
    if not fits or n == 0:
        raise ValueError(f"y must have the shape of pred.mean, {(n, m)}, with n at least 1; got {tuple(y.shape)}")
    target = _finite("y", y).reshape(n, m)
    return target, _finite("pred.mean", pred.mean), _finite("pred.variance()", pred.variance())


def _scores(name: str, scores: Any) -> Tensor:
    if not isinstance(scores, Tensor) or scores.ndim != 1 or not len(scores):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        kind = ValueError if isinstance(scores, Tensor) else TypeError
        raise kind(f"{name} must be a tensor of shape (n,) with n at least 1, got {got}")
    return _finite(name, scores)


def _in_and_out(scores_in: Tensor, scores_out: Tensor) -> tuple[Tensor, Tensor]:
    """The truth, in which 1 is out-of-distribution, and the scores of both kinds of inputs."""
    both = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    return torch.arange(2).repeat_interleave(torch.tensor([len(scores) for scores in both])), torch.cat(both)


def _finite(name: str, values: Tensor) -> Tensor:
    values = _float64(values)
    if not values.isfinite().all():
        row = int((~values.isfinite()).nonzero()[0, 0])
        raise ValueError(f"{name} must be finite, got NaN or infinity in row {row}; look at the input of that row")
    return values


def _float64(values: Tensor) -> Tensor:
    return values.detach().cpu().double()  # to the CPU first, since not every device has float64


def _at(values: Tensor, labels: Tensor) -> Tensor:
    return _float64(values).gather(1, labels[:, None])[:, 0]


def _correct(pred: Categorical, labels: Tensor) -> Tensor:
    return (pred.predict().cpu() == labels).double()
