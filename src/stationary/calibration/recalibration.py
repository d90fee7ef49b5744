"""Recalibration: one number that makes probabilities, or one a target that makes standard deviations, fit new rows.

Of classes, with probabilities p and those pi that the model has far from its data,

    p'_c = pi_c (p_c / pi_c)^b / sum_k pi_k (p_k / pi_k)^b,

where b = 1 / temperature minimises the NLPD, which is convex in b. With the same pi for all classes the most probable
class stays the most probable one. Far away p = pi, and so is p'. There is no bias of classes: it would stay where
nothing is known. Class frequencies belong into the prior mean (``InfiniteWidth(prior_mean="frequencies")``).

Of real values the total variance is multiplied by the mean of (y - mean)^2 / variance, which minimises the NLPD. This
is what a Gaussian process says whose prior variance and noise are both so much larger: its mean is the same. Where no
noise is known, a constant one is added instead, the best by NLPD.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from stationary.calibration._rows import predicted
from stationary.inference import Method, Posterior
from stationary.inference.base import joint_of
from stationary.inference.unsure import warn_if_far_too_unsure
from stationary.nn.running import Inputs
from stationary.predictive import Bernoulli, Categorical, Gaussian, Joint, P, Predictive
from stationary.training import Data

REACH = 5.0  # largest logarithm of a temperature, and its negative the smallest


@dataclass(frozen=True)
class CalibratedPosterior:
    """A posterior that ``calibrate`` has corrected.

    Args:
        base: the posterior that it corrects.
        family: kind of its predictions.
        temperature: of classes or labels; below 1 probabilities become bolder, above 1 more timid. 1 for real values.
        factor: (m,) factors on the total variance of real values; None for classes and labels.
        noise: (m,) noise variances that are added; None where the posterior has its own.
        validation_rows: numbers by which rows are known again that chose something of it, in ``calibrate`` or before.
    """

    base: Posterior
    family: type[Predictive]
    temperature: float = 1.0
    factor: Tensor | None = None
    noise: Tensor | None = None
    validation_rows: Tensor | None = None

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The networks of the posterior that it corrects."""
        return self.base.networks

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        """The corrected prediction of one batch. Members and what is computed from them are as they were."""
        if family is not self.family:
            raise ValueError(
                f"family must be {self.family.__name__}, which this posterior was calibrated for; got {family.__name__}"
            )
        return self._corrected(self.base.predict(x, family, keep_samples=keep_samples))

    def untempered(self) -> Posterior:
        """The posterior that it corrects, whose scores of unknown inputs are those at temperature 1."""
        untempered = getattr(self.base, "untempered", None)
        return self.base if untempered is None else untempered()

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The joint distribution of the outputs at all rows of x, corrected for real values as ``predict`` corrects it.

        Args:
            x: one batch of inputs.
            group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes
                all rows together.
        """
        joint = joint_of(self.base, x, group_size=group_size)
        if self.noise is not None:
            return joint.with_noise(self.noise.to(joint.mean))
        if self.factor is None:
            return joint
        factor = self.factor.to(joint.mean)
        return replace(joint, covariance=factor[:, None, None] * joint.covariance, noise=factor * joint.noise)

    def _corrected(self, pred: Any) -> Any:
        if isinstance(pred, Gaussian):
            if self.noise is not None:
                return pred.with_noise(self.noise.to(pred.mean))
            factor = torch.as_tensor(self.factor).to(pred.mean)
            return replace(
                pred,
                epistemic_variance=factor * pred.epistemic_variance,
                aleatoric_variance=factor * pred.aleatoric_variance,
            )
        logits = _tempered(pred, _log_prior(self.base), 1 / self.temperature)
        probs = logits.sigmoid() if isinstance(pred, Bernoulli) else logits.exp()
        return replace(pred, probs=probs.to(pred.probs), information=pred.mutual_information())


def calibrate(
    model: nn.Module | Posterior,
    data: Data,
    method: Method | None = None,
    *,
    family: type[Predictive] | None = None,
    batch_size: int | None = None,
) -> CalibratedPosterior:
    """A posterior whose probabilities, or standard deviations, fit these rows; classes that it predicts stay.

    Args:
        model: a posterior of any method, or a trained network.
        data: a pair (x, y) of tensors, or batches of such, which nothing was trained on.
        method: how to predict with a network, as for ``predict``.
        family: kind of the prediction, as for ``predict``.
        batch_size: number of inputs in a pass; by default all of a pair go in one.
    """
    rows = predicted(model, data, method, family, batch_size)
    pred, y = rows.pred, rows.y
    before = getattr(rows.posterior, "validation_rows", None)
    used = rows.marks if before is None else torch.cat([before.cpu(), rows.marks])
    made = CalibratedPosterior(rows.posterior, type(pred), validation_rows=used)
    if isinstance(pred, Gaussian):
        factor, noise = _spread(pred, y)
        return replace(made, factor=factor, noise=noise)
    temperature = _temperature(pred, _log_prior(rows.posterior), y)  # which checks y
    if isinstance(pred, Categorical) and not hasattr(rows.posterior, "untempered"):  # whose numbers fitted new rows
        warn_if_far_too_unsure(
            pred, y, "its temperature corrects that near the data; a network that was trained too little needs training"
        )
    return replace(made, temperature=temperature)


def _log_prior(posterior: Posterior) -> Tensor:
    """(1, c) the logits of the prediction far from all data, () 0 where they are the same for all classes."""
    while isinstance(posterior, CalibratedPosterior):
        posterior = posterior.base
    prior = getattr(posterior, "prior", None)
    return torch.zeros(()) if prior is None else _logits(prior())


def _logits(pred: Categorical | Bernoulli) -> Tensor:
    """(n, c) the logarithms of the probabilities, of labels their log odds."""
    p, tiny = pred.probs.double(), torch.finfo(torch.float64).tiny
    logs = p.clamp(min=tiny).log()
    return logs - (1 - p).clamp(min=tiny).log() if isinstance(pred, Bernoulli) else logs


def _tempered(pred: Categorical | Bernoulli, prior: Tensor, b: float) -> Tensor:
    """(n, c) the logits of the corrected probabilities; those of classes are normalised."""
    logits = _logits(pred)
    far = prior.to(logits)
    logits = far + b * (logits - far)
    return logits if isinstance(pred, Bernoulli) else logits.log_softmax(-1)


def _temperature(pred: Categorical | Bernoulli, prior: Tensor, y: Tensor) -> float:
    """The temperature of the least NLPD."""
    pred.log_prob(y)  # which checks y

    def nlpd(log_b: float) -> float:
        logits = _tempered(pred, prior, math.exp(log_b))
        if isinstance(pred, Bernoulli):
            return F.binary_cross_entropy_with_logits(logits, y.to(logits)).item()
        return F.nll_loss(logits, y.long()).item()

    end = minimize_scalar(nlpd, bounds=(-REACH, REACH), method="bounded", options={"xatol": 1e-6})
    return math.exp(-end.x)


def _spread(pred: Gaussian, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The factors on the variance, or where no noise is known the noise, of the least NLPD."""
    mean, variance = pred.mean.double(), pred.variance().double()
    errors = (y.reshape(mean.shape).double() - mean).square()
    if pred.aleatoric_variance.any():
        return (errors / variance).mean(0), None
    noises = []
    for error, known in zip(errors.mT, variance.mT, strict=True):
        most = math.log(max(float(error.max()), 1e-300))

        def nlpd(log_noise: float, error: Tensor = error, known: Tensor = known) -> float:
            total = known + math.exp(log_noise)
            return float((error / total + total.log()).mean())

        end = minimize_scalar(nlpd, bounds=(most - 30, most), method="bounded", options={"xatol": 1e-6})
        noises.append(math.exp(end.x))
    return None, torch.tensor(noises, dtype=torch.float64)
