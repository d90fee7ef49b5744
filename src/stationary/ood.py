"""Is this input like the training data? Scores of a prediction, and a detector that turns one into yes or no."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stationary.inference import Method, Posterior, predict
from stationary.metrics import acceptance_threshold, doubt
from stationary.nn.running import Batches, Inputs
from stationary.predictive import Categorical


def energy(pred: Categorical) -> Tensor:
    """(n,) -log sum_k exp(z_k) of the mean outputs z (Liu et al., 2020; temperature 1).

    Unlike the other scores it is not a function of the probabilities: it depends on the size of the outputs, which the
    cross-entropy loss determines only up to a constant for all classes of an input.
    """
    return -pred.output_mean.logsumexp(-1)


SCORES: dict[str, Callable[[Categorical], Tensor]] = {
    "std": Categorical.std,
    "entropy": Categorical.entropy,
    "mutual_information": Categorical.mutual_information,
    "max_probability": lambda pred: doubt(pred.probs),
    "energy": energy,
}
OF_SPREAD = {"std", "mutual_information"}  # these are 0 where there is a single member


def score(pred: Categorical, name: str) -> Tensor:
    """(n,) how far out of distribution each input looks; a higher score is farther.

    Dropout changes the outputs in proportion to the features, which are often smaller for unknown inputs. By itself,
    "std" may therefore rank unknown inputs below known ones (on digits it does, see ``tests/test_ood.py``), and with a
    local activation it vanishes far away, as "mutual_information" does. ``calibrate_prior`` works against both; the
    other scores depend less on it.

    Args:
        pred: the prediction to score.
        name: name of the score, a key of ``SCORES``: "std", the standard deviation of the outputs, mean over classes;
            "entropy", that of the mean probabilities; "mutual_information", entropy - expected entropy;
            "max_probability", 1 - the largest probability; "energy", -logsumexp of the mean outputs.
    """
    return _by_name(name)(pred)


def _by_name(name: str) -> Callable[[Categorical], Tensor]:
    if name not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}; got {name!r}")
    return SCORES[name]


class OODDetector:
    """A detector that accepts inputs which look like those it was fitted on.

    ``OODDetector(model).fit(x_in, accept=0.95).predict(x)`` is +1 for a known kind of input, -1 for an unknown one.

    Args:
        model: a trained classifier, or a posterior.
        score: name of the score, a key of ``SCORES``.
        method: how to predict with a network, as for ``predict``; by default ``ExactDropout()``.
        batch_size: number of inputs in a pass; by default all go in one.
    """

    threshold: float | None = None  # the largest score that is accepted, set by fit
    model: nn.Module | Posterior
    score: str
    batch_size: int | None
    method: Method | None

    def __init__(
        self,
        model: nn.Module | Posterior,
        score: str = "entropy",
        method: Method | None = None,
        *,
        batch_size: int | None = None,
    ) -> None:
        _by_name(score)
        self.model, self.score, self.method, self.batch_size = model, score, method, batch_size

    def fit(self, x_in: Inputs | Batches, accept: float = 0.95) -> "OODDetector":
        """Set the threshold to the smallest with which at least the share ``accept`` of x_in is accepted.

        Args:
            x_in: in-distribution inputs that the model was not trained on, since it is surer of its training inputs.
            accept: share of x_in to accept, in (0, 1].
        """
        pred = self._predict(x_in)
        scores = score(pred, self.score)
        rounding = 8 * torch.finfo(scores.dtype).eps * scores.abs().max()
        if (self.score in OF_SPREAD and not pred.output_variance.any()) or (scores - scores[0]).abs().max() <= rounding:
            raise ValueError(
                f"score {self.score!r} must differ between inputs, got the same for all {len(scores)} of x_in; take "
                "several inputs, and for 'std' and 'mutual_information' a method with several members (MCDropout, "
                "ExactDropout); a single one has only the scores 'entropy', 'max_probability' and 'energy'"
            )
        self.threshold = acceptance_threshold(scores, accept)
        return self

    def scores(self, x: Inputs | Batches) -> Tensor:
        """(n,) the scores; a higher score is farther out of distribution."""
        return score(self._predict(x), self.score)

    def predict(self, x: Inputs | Batches) -> Tensor:
        """(n,) +1 for a known kind of input, -1 for an unknown one, also where the score is NaN."""
        if self.threshold is None:
            raise ValueError(
                "the detector must be fitted before it predicts; call fit(x_in) with in-distribution inputs"
            )
        known = self.scores(x) <= self.threshold
        return torch.where(known, 1, -1)

    def _predict(self, x: Inputs | Batches) -> Categorical:
        return predict(self.model, x, self.method, batch_size=self.batch_size)
