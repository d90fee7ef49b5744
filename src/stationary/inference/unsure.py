"""What the labels of new rows say of a network that was trained too little."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from stationary.inference.base import Posterior
from stationary.inference.predict import predict
from stationary.predictive import Categorical
from stationary.training import Data
from stationary.training.data import labelled

MANY_SIGMAS = 4.0  # of errors on the rows by which an epoch was chosen, which flatters: well-trained networks reach 3
ENOUGH = 1000  # rows that say it


def warn_if_far_too_unsure(pred: Categorical, labels: Tensor, instead: str) -> None:
    """Warn where the probabilities expect more than twice the errors that are made on rows that nobody trained on.

    By the probabilities p of the predicted classes, sum (1 - p) errors are expected, with variance sum p (1 - p). The
    difference must be beyond chance.

    Args:
        pred: the prediction of the rows.
        labels: (n,) indices of their classes.
        instead: what to do, for the message; the warning is that of the line which calls the caller.
    """
    sure = pred.probs.max(-1).values.double().cpu()
    errors, expected = int((pred.predict().cpu() != labels.cpu()).sum()), float((1 - sure).sum())
    if expected > 2 * errors and expected - errors > MANY_SIGMAS * math.sqrt(float((sure * (1 - sure)).sum())):
        warnings.warn(
            f"the network is far too unsure: of {len(sure)} held-out rows it expects {expected:.0f} wrong and gets "
            f"{errors} wrong; {instead}",
            UserWarning,
            stacklevel=3,
        )


def first_rows(posterior: Posterior, data: Data) -> tuple[Categorical, Tensor]:
    """The predictions of the first rows, enough of them to tell, and their class indices.

    Args:
        posterior: the posterior of a classifier.
        data: a pair of tensors, or batches of (x, y), which are read from the beginning.
    """
    preds, labels = [], list[Any]()
    for x, y in labelled(data, ENOUGH, posterior.networks[0], "validation"):
        preds.append(predict(posterior, x, family=Categorical))
        labels.append(y)
        if sum(map(len, labels)) >= ENOUGH:
            break
    return Categorical.concatenate(preds), torch.cat(labels)
