"""The scores of unknown inputs that the experiments of the paper report."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from stationary import ood
from stationary.inference import Posterior
from stationary.predictive import Categorical

Scores = dict[str, Callable[[Categorical], Tensor]]


def as_is(pred: Categorical) -> Categorical:
    """Return the prediction as one that lacks no prior: the paper's rows have none, on purpose."""
    return replace(pred, prior_missing=False) if pred.prior_missing else pred


def plain_energy(pred: Categorical) -> Tensor:
    """(n,) -log sum_k exp(z_k) of the mean outputs z, whatever their variance (Liu et al., 2020)."""
    return -pred.output_mean.logsumexp(-1)


SCORES: Scores = {
    **{name: ood.SCORES[name] for name in ("std", "entropy", "mutual_information", "max_probability")},
    "energy": plain_energy,  # as the stored results have it
}


def scored(posterior: Posterior) -> tuple[Posterior, Scores]:
    """Return the posterior to take scores from, and the scores.

    Those of infinite width are taken at temperature 1, and its energy counts outputs less where they are uncertain.
    """
    if isinstance(posterior, ood.Tempered):
        return posterior.untempered(), SCORES | {"energy": Categorical.energy}
    return posterior, SCORES
