"""What is predicted for rows that nothing was trained on, with their targets."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stationary.inference import Method, Posterior, predict
from stationary.inference.predict import as_posterior, family_of
from stationary.predictive import Gaussian, Predictive
from stationary.training import Data
from stationary.training.data import labelled, marks_of


@dataclass(frozen=True)
class Predicted:
    """Rows to calibrate with.

    Args:
        posterior: the posterior that predicted them.
        pred: the predictions.
        y: the targets, on their device.
        marks: (n,) numbers by which the rows are known again.
    """

    posterior: Posterior
    pred: Any
    y: Tensor
    marks: Tensor


def predicted(
    model: nn.Module | Posterior,
    data: Data,
    method: Method | None,
    family: type[Predictive] | None,
    batch_size: int | None,
) -> Predicted:
    """The predictions of all rows of the data; arguments are those of ``predict``."""
    posterior = as_posterior(model, method)
    kind: type[Any] = family or family_of(posterior)
    preds, targets, marks = [], [], []
    for x, y in labelled(data, batch_size, posterior.networks[0], "data"):
        preds.append(predict(posterior, x, family=kind))
        targets.append(y)
        marks.append(marks_of(x))
    pred = kind.concatenate(preds)
    device = next(iter(pred.tensors().values())).device
    y = torch.cat(targets).to(device)
    if isinstance(pred, Gaussian):
        pred.cdf(y)  # which checks y
    return Predicted(posterior, pred, y, torch.cat(marks))
