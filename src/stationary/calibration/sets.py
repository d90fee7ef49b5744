"""Split conformal prediction: sets of classes, and intervals, that hold the truth with a probability that is chosen.

A score s(x, y) says how badly y fits the prediction for x. Of n rows that nothing was trained or chosen on, let q be
the k-th smallest score, k = ceil((n + 1) coverage). For a new row of the same distribution P(s(x, y) <= q) is at least
the coverage, and at most 1 / (n + 1) more where scores differ, whatever the model: all y with s(x, y) <= q are the set
(Vovk, Gammerman and Shafer, 2005). Given the calibration rows the coverage is Beta(k, n + 1 - k) distributed.

Scores of classes, with p_(1) >= p_(2) >= ... the probabilities, and r the rank of y:
    lac    1 - p_y (Sadinle, Lei and Wasserman, 2019): the smallest sets on average.
    aps    p_(1) + ... + p_(r) (Romano, Sesia and Candes, 2020): larger where the model is unsure.
    raps   the same + penalty max(0, r - free) (Angelopoulos et al., 2021): fewer improbable classes.
With ``randomized=True``, aps and raps take a random share of the last summand, and coverage is exact. The share is
drawn from the outputs of the row, so that it is the same in every call, alone or among others.

Scores of real values, with the predicted mean, standard deviation and quantiles:
    std       |y - mean| / std: the interval grows where the model does not know, away from the data.
    absolute  |y - mean|: as wide everywhere.
    quantile  max(lower - y, y - upper), of the model's own interval (Romano, Patterson and Candes, 2019).
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stationary._checks import is_number
from stationary.calibration._rows import predicted
from stationary.inference import Method, Posterior, predict
from stationary.nn.running import Batches, Inputs
from stationary.predictive import Categorical, Gaussian, Interval, Predictive
from stationary.training import Data
from stationary.training.data import marks_of, refuse_known

OF_CLASSES, OF_VALUES = ("lac", "aps", "raps"), ("std", "absolute", "quantile")


@dataclass(frozen=True)
class Conformal:
    """A posterior with a threshold that ``conformal`` has found.

    Args:
        posterior: the posterior that predicts.
        family: kind of its predictions.
        coverage: share of the rows that hold the truth.
        score: name of the score.
        threshold: q, for classes () or one for each of c classes (c,), for real values (m,).
        penalty, free: of "raps": how much each class counts beyond the first ``free``.
        randomized: whether "aps" and "raps" are randomized.
        seed: seed of the random shares.
    """

    posterior: Posterior
    family: type[Predictive]
    coverage: float
    score: str
    threshold: Tensor
    penalty: float
    free: int
    randomized: bool
    seed: int

    def predict_set(self, x: Inputs | Batches, *, batch_size: int | None = None) -> Tensor:
        """(n, c) whether each class is in the set; a set may be empty, where no class fits."""
        self._needs(Categorical, "predict_set", "predict_interval")
        pred = predict(self.posterior, x, family=Categorical, batch_size=batch_size)
        return self._scores(pred) <= self.threshold.to(pred.probs.device)

    def predict_interval(self, x: Inputs | Batches, *, batch_size: int | None = None) -> Interval:
        """(n, m) the lower and the upper end of the interval of each target."""
        self._needs(Gaussian, "predict_interval", "predict_set")
        pred = predict(self.posterior, x, family=Gaussian, batch_size=batch_size)
        q = self.threshold.to(pred.mean)
        if self.score == "quantile":
            lower, upper = pred.interval(self.coverage)
            return Interval(lower - q, upper + q)
        reach = q * pred.std() if self.score == "std" else q.expand_as(pred.mean)
        return Interval(pred.mean - reach, pred.mean + reach)

    def _needs(self, family: type[Predictive], name: str, other: str) -> None:
        if self.family is not family:
            raise ValueError(f"{name} needs a {family.__name__} prediction, got {self.family.__name__}; use {other}")

    def _scores(self, pred: Categorical) -> Tensor:
        """(n, c) the score of every class."""
        probs = pred.probs
        if self.score == "lac":
            return 1 - probs
        ordered, classes = probs.sort(stable=True, dim=-1, descending=True)
        scores = ordered.cumsum(-1).clamp(max=1)
        scores[:, -1] = 1  # whatever rounding says
        if self.randomized:
            marks = marks_of({"outputs": pred.output_mean, "seed": torch.full((len(probs), 1), self.seed)})
            scores = scores - (marks[:, None].double() / 2**63).to(probs) * ordered
        if self.score == "raps":
            ranks = torch.arange(1, probs.shape[-1] + 1).to(probs)
            scores = scores + self.penalty * (ranks - self.free).clamp(min=0)
        return torch.empty_like(scores).scatter_(-1, classes, scores)


def conformal(
    model: nn.Module | Posterior,
    data: Data,
    coverage: float = 0.9,
    score: str | None = None,
    method: Method | None = None,
    *,
    per_class: bool = False,
    penalty: float = 0.01,
    free: int = 1,
    randomized: bool = False,
    seed: int = 0,
    family: type[Predictive] | None = None,
    batch_size: int | None = None,
) -> Conformal:
    """Sets of classes, or intervals, that hold the truth of a new row with probability ``coverage`` at least.

    The rows must be new: where some of them have chosen numbers of the posterior, or its temperature, it is an error.

    Args:
        model: a posterior of any method, or a trained network.
        data: a pair (x, y) of tensors, or batches of such, from the distribution of the rows to come.
        coverage: share of the new rows whose truth is in their set or interval, in (0, 1).
        score: "lac", "aps" or "raps" for classes, by default "lac"; "std", "absolute" or "quantile" for real values,
            by default "std".
        method: how to predict with a network, as for ``predict``.
        per_class: whether the coverage holds for the rows of each class, not only on average over classes.
        penalty, free: of "raps": what each class costs beyond the most probable ``free`` ones.
        randomized: whether "aps" and "raps" are randomized, so that the coverage is not larger than asked for.
        seed: seed of these random shares.
        family: kind of the prediction, as for ``predict``.
        batch_size: number of inputs in a pass; by default all of a pair go in one.
    """
    rows_needed(coverage, "coverage")  # which checks it
    rows = predicted(model, data, method, family, batch_size)
    pred, y = rows.pred, rows.y
    kinds = OF_CLASSES if isinstance(pred, Categorical) else OF_VALUES if isinstance(pred, Gaussian) else ()
    if not kinds:
        raise ValueError(f"the prediction must be a Categorical or a Gaussian, got {type(pred).__name__}")
    score = kinds[0] if score is None else score
    if score not in kinds:
        raise ValueError(f"score must be one of {', '.join(kinds)} for a {type(pred).__name__}; got {score!r}")
    used = getattr(rows.posterior, "validation_rows", None)
    refuse_known(rows.marks, used, "data", "the coverage would be too small")
    made = Conformal(rows.posterior, type(pred), coverage, score, torch.empty(0), penalty, free, randomized, seed)
    if isinstance(pred, Gaussian):
        if per_class:
            raise ValueError("per_class must be False for real values, which have no classes; got True")
        return replace(made, threshold=_quantile(_of_values(pred, y, score, coverage), coverage, "data"))
    pred.log_prob(y)  # which checks y
    scores = made._scores(pred).gather(-1, y.long()[:, None])
    if not per_class:
        return replace(made, threshold=_quantile(scores, coverage, "data")[0])
    each = [_quantile(scores[y == k], coverage, f"data of class {k}") for k in range(pred.probs.shape[-1])]
    return replace(made, threshold=torch.cat(each))


def _of_values(pred: Gaussian, y: Tensor, score: str, coverage: float) -> Tensor:
    """(n, m) the score of every target."""
    y = y.reshape(pred.mean.shape).to(pred.mean)
    if score == "quantile":
        lower, upper = pred.interval(coverage)
        return torch.maximum(lower - y, y - upper)
    errors = (y - pred.mean).abs()
    if score == "absolute":
        return errors
    if not pred.std().gt(0).all():
        raise ValueError(
            "score 'std' needs a positive standard deviation everywhere, got 0 in some rows; calibrate the posterior "
            "first (stationary.calibrate, with other rows), or use score='absolute'"
        )
    return errors / pred.std()


def _quantile(scores: Tensor, coverage: float, name: str) -> Tensor:
    """(m,) of scores (n, m) the k-th smallest, k = ceil((n + 1) coverage)."""
    n = len(scores)
    k = math.ceil((n + 1) * coverage - 1e-9)
    if k > n:
        least = rows_needed(coverage, "coverage")
        raise ValueError(
            f"{name} must have at least {least} rows for a coverage of {coverage}; got {n}: take more rows, or ask for "
            "less coverage"
        )
    return scores.sort(0).values[k - 1]


def rows_needed(share: float, name: str) -> int:
    """The least number n of rows that can promise a share of new ones: that with ceil((n + 1) share) <= n.

    Args:
        share: the share, in (0, 1); any other is an error.
        name: name of the share in the error.
    """
    if getattr(share, "ndim", 0):  # a tensor or an array of targets
        raise TypeError(
            f"{name} must be a number in (0, 1), got {type(share).__name__}; targets go beside their inputs, as a pair "
            "(x, y)"
        )
    if not is_number(share) or not 0 < share < 1:
        raise ValueError(f"{name} must be in (0, 1), got {share!r}; 0.9 is for 90 % of new rows")
    return math.ceil(share / (1 - share) - 1e-9)
