"""From Gaussian outputs to predictions of classes, or of several labels at once."""

from typing import Any

import torch
from torch import Tensor

from stationary.predictive import Bernoulli, Categorical


def of_classes(mean: Tensor, variance: Tensor, offset: Tensor) -> Any:
    """The prediction of classes (variance (n, 1)) or of labels (n, c), from outputs without their prior mean."""
    if variance.shape[1] == 1 and mean.shape[1] > 1:
        return Categorical.from_isotropic(offset + mean, variance[:, 0])
    return Bernoulli.from_gaussian(offset + mean, variance)


def classes_nlpd(mean: Tensor, variance: Tensor, offset: Tensor, temperature: float, y: Tensor) -> float:
    """The negative log probability of the targets, a mean over rows."""
    probs = of_classes(mean, temperature * variance, offset).probs
    tiny = torch.finfo(probs.dtype).tiny
    if y.ndim == 1:
        return float(-probs.gather(1, y[:, None]).clamp(min=tiny).log().mean())
    return float(-torch.where(y.bool(), probs, 1 - probs).clamp(min=tiny).log().sum(1).mean())
