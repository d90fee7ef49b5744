"""What a fit says of itself where it ended too early."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stationary._extras import extra

with extra("sklearn"):
    from sklearn.exceptions import ConvergenceWarning

TOLERANCE = 1e-4  # smallest fall of the loss in an epoch that counts, the default of scikit-learn's networks
SIGMAS = 3.0  # standard errors beyond which a fall is no chance


def warn_unless_converged(losses: Sequence[float], n_iter: int, max_iter: int, patience: int, what: str) -> None:
    """Warn where max_iter ended the training while its loss still fell.

    A training of more epochs than patience has converged if the mean loss of the last ones is not lower than that of as
    many before them, by more than their scatter and scikit-learn's tolerance.

    Args:
        losses: loss of each epoch; empty where nothing was trained.
        n_iter: number of epochs; where it is less than max_iter, the training stopped by itself.
        max_iter: largest number of epochs.
        patience: number of epochs to compare.
        what: name of the loss, for the message.
    """
    if losses and n_iter == max_iter and _falls(np.asarray(losses[-max_iter:]), patience):
        warnings.warn(
            f"max_iter={max_iter} ended the training before it converged: {what} still fell; raise max_iter, or "
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
