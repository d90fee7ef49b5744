"""What a fit says of itself: that it ended too early, or that its network is far too unsure."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stationary._extras import extra
from stationary.predictive import Categorical

with extra("sklearn"):
    from sklearn.exceptions import ConvergenceWarning

TOLERANCE = 1e-4  # smallest fall of the loss in an epoch that counts, the default of scikit-learn's networks
SIGMAS = 3.0  # standard errors beyond which a fall is no chance
MANY_SIGMAS = 4.0  # of errors on the rows by which an epoch was chosen, which flatters: well-trained networks reach 3


def warn_unless_converged(
    losses: Sequence[float], n_iter: int, max_iter: int, patience: int, *, early_stopping: bool
) -> None:
    """Warn where max_iter ended the training before it converged.

    With early stopping the training has converged if it stopped by itself. Without, there must be more epochs than
    patience, and the mean loss of the last ones must not be lower than that of as many before them, by more than their
    scatter and scikit-learn's tolerance.

    Args:
        losses: training loss of each epoch; empty where nothing was trained.
        n_iter: number of epochs.
        max_iter: largest number of epochs.
        patience: number of epochs to compare, or after which training stops.
        early_stopping: whether training stops by itself.
    """
    if not losses or n_iter < max_iter:
        return
    if early_stopping or _falls(np.asarray(losses[-max_iter:]), patience):
        what = "the loss of the held-out rows" if early_stopping else "the training loss"
        warnings.warn(
            f"max_iter={max_iter} ended the training before it converged: {what} may still fall; raise max_iter, or "
            "learning_rate_init",
            ConvergenceWarning,
            stacklevel=4,
        )


def _falls(losses: NDArray[np.float64], patience: int) -> bool:
    if len(losses) <= patience:  # too few to tell, for scikit-learn too
        return True
    k = min(patience, len(losses) // 2)
    before, last = losses[-2 * k : -k], losses[-k:]
    chance = SIGMAS * math.sqrt((before.var() + last.var()) / k)
    return bool(before.mean() - last.mean() > max(chance, TOLERANCE * k))


def warn_if_far_too_unsure(pred: Categorical, labels: NDArray[np.int64]) -> None:
    """Warn where the probabilities expect more than twice the errors that are made on held-out rows.

    By the probabilities p of the predicted classes, sum (1 - p) errors are expected, with variance sum p (1 - p). The
    difference must be beyond chance.

    Args:
        pred: the prediction of held-out rows.
        labels: (n,) indices of their classes.
    """
    sure = pred.probs.max(-1).values.double().cpu().numpy()
    errors, expected = int((pred.predict().cpu().numpy() != labels).sum()), float((1 - sure).sum())
    if expected > 2 * errors and expected - errors > MANY_SIGMAS * math.sqrt(float((sure * (1 - sure)).sum())):
        warnings.warn(
            f"the network is far too unsure: of {len(sure)} held-out rows it expects {expected:.0f} wrong and gets "
            f"{errors} wrong; train it longer (max_iter, learning_rate_init), lower alpha or dropout, or correct its "
            "probabilities with stationary.calibrate",
            UserWarning,
            stacklevel=3,
        )
