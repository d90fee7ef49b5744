"""The network as it is: one member, no dropout."""

from dataclasses import dataclass

from torch import nn

from stationary.inference.base import Build, Data, Inputs, evaluating, run
from stationary.predictive import P
from stationary.training import Training, train


@dataclass(frozen=True)
class Point:
    """One deterministic pass; with a calibrated head its outputs have the variance of the restored prior.

    Args:
        restore_prior: add the missing prior variance; by default where ``calibrate_prior`` was called.
    """

    restore_prior: bool | None = None

    def fit(self, build: Build, data: Data, training: Training) -> "PointPosterior":
        return self.posterior(train(build, *data, training)[0])

    def posterior(self, model: nn.Module) -> "PointPosterior":
        return PointPosterior(self, model)


@dataclass(frozen=True)
class PointPosterior:
    method: Point
    model: nn.Module

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        with evaluating(self.model):
            members = run(self.model, x, self.method.restore_prior)
        return family.from_members([members], 1, keep_samples=keep_samples)
