"""From Gaussian outputs to mixtures of them, and to predictions of classes or of several labels at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stationary.predictive import Bernoulli, Categorical


def mixed(moments: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The mean and the variance of a mixture of parts that weigh the same, each given by its mean and variance."""
    means, variances = (torch.stack(parts) for parts in zip(*moments, strict=True))
    return means.mean(0), variances.mean(0) + means.var(0, correction=0)


def of_classes(mean: Tensor, variance: Tensor, offset: Tensor) -> Any:
    """The prediction of classes (variance (n, 1)) or of labels (n, c), from outputs without their prior mean."""
    if variance.shape[1] == 1 and mean.shape[1] > 1:
        return Categorical.from_isotropic(offset + mean, variance[:, 0])
    return Bernoulli.from_gaussian(offset + mean, variance)


def probs_of(mean: Tensor, variance: Tensor, offset: Tensor, temperature: float, like: Tensor) -> Tensor:
    """(n, c) the probabilities alone, at a temperature, in the type of another tensor."""
    probs: Tensor = of_classes(mean, temperature * variance, offset).probs
    return at_least_tiny(probs.to(like))


def at_least_tiny(probs: Tensor) -> Tensor:
    """The probabilities, none of which is 0 by rounding, which would make the NLPD infinite."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny)


def classes_nlpd(mean: Tensor, variance: Tensor, offset: Tensor, temperature: float, y: Tensor) -> float:
    """The negative log probability of the targets, a mean over rows."""
    probs = of_classes(mean, temperature * variance, offset).probs
    if y.ndim == 1:
        return float(-at_least_tiny(probs.gather(1, y[:, None])).log().mean())
    return float(-at_least_tiny(torch.where(y.bool(), probs, 1 - probs)).log().sum(1).mean())
