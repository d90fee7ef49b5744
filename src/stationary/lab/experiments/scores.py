"""The scores of unknown inputs that the experiments of the paper report."""

from collections.abc import Callable

from torch import Tensor

from stationary import ood
from stationary.predictive import Categorical


def plain_energy(pred: Categorical) -> Tensor:
    """(n,) -log sum_k exp(z_k) of the mean outputs z, whatever their variance (Liu et al., 2020)."""
    return -pred.output_mean.logsumexp(-1)


SCORES: dict[str, Callable[[Categorical], Tensor]] = {
    **{name: ood.SCORES[name] for name in ("std", "entropy", "mutual_information", "max_probability")},
    "energy": plain_energy,  # as the stored results have it
}
