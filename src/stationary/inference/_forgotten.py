"""What a user may have forgotten of the restored prior, said where it matters."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from stationary.inference.point import Point
from stationary.nn.restored_prior import Head, has_stale_prior, heads_of, lacks_prior
from stationary.predictive import PRIOR_MISSING, Gaussian, P


def warn_if_stale(heads: Sequence[tuple[Head, nn.Module]]) -> None:
    """Warn where a network was trained further after ``calibrate_prior``.

    Args:
        heads: heads, each with its network.
    """
    if sum(
        has_stale_prior(*each) for each in heads
    ):  # all of them are looked at, so that the others are not said later
        warnings.warn(
            "the restored prior is stale: the network was trained further after calibrate_prior; call "
            "stationary.calibrate_prior(model, x_train) again",
            UserWarning,
            stacklevel=4,  # where the user predicts
        )


def remembered(pred: P, posterior: Any) -> P:
    """The prediction, which knows whether a prior is missing; a warning where one is missing or stale.

    Of classes the prediction warns when somebody asks it for an epistemic measure. A Gaussian prediction is little but
    such a measure, and warns here, unless it is that of ``Point``, which has none.

    Args:
        pred: the prediction.
        posterior: the posterior that made it.
    """
    while hasattr(posterior, "base"):  # of one that is calibrated, or has the units of its targets
        posterior = posterior.base
    restore = getattr(getattr(posterior, "method", None), "restore_prior", False)
    if restore is False:  # as the user says, or there is no such thing
        return pred
    heads = [(head, network) for network in posterior.networks for head in heads_of(network)]
    warn_if_stale(heads)
    if restore or pred.prior_restored or not any(lacks_prior(head) for head, _ in heads):
        return pred
    if isinstance(pred, Gaussian) and not isinstance(posterior.method, Point):
        warnings.warn(PRIOR_MISSING, UserWarning, stacklevel=3)
    return replace(pred, prior_missing=True)
