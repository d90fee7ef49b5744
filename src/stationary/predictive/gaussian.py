"""A prediction of real values."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from stationary.predictive._base import Members, Moments, Predictive, Sums, at_least_float32


@dataclass(frozen=True, eq=False)
class Gaussian(Predictive):
    """A mean and two variances for each of n inputs and m targets: the first two moments of the members' mixture.

    Args:
        mean: (n, m), the mean over members.
        epistemic_variance: (n, m), the variance between the members' means.
        aleatoric_variance: (n, m), the mean over members of their noise variance; 0 where no noise is known.
        samples: (s, n, m), the members' means, if asked for with ``keep_samples``.
    """

    kind: ClassVar[str] = "gaussian"

    mean: Tensor
    epistemic_variance: Tensor
    aleatoric_variance: Tensor
    samples: Tensor | None = None

    @property
    def variance(self) -> Tensor:
        """(n, m), the total: epistemic + aleatoric."""
        return self.epistemic_variance + self.aleatoric_variance

    def std(self) -> Tensor:
        """(n, m), the square root of the total variance."""
        return self.variance.sqrt()

    def with_noise(self, variance: float | Tensor) -> "Gaussian":
        """The prediction of a noisy target: ``variance`` (a number, or one for each target) is added as aleatoric."""
        if not torch.as_tensor(variance).ge(0).all():
            raise ValueError(f"variance must be at least 0, got {variance!r}")
        return replace(self, aleatoric_variance=self.aleatoric_variance + variance)

    @classmethod
    def from_members(cls, members: Iterable[Members], n_members: int, *, keep_samples: bool = False) -> "Gaussian":
        """Accumulate the members; their own noise and the restored prior add to the variance in closed form."""
        means, noises, samples, prior = Moments(), Sums(), [], None
        for outputs, prior, noise in members:
            z = at_least_float32(outputs)
            means.add(z, torch.zeros_like(z[:1]) if prior is None else prior)
            noises.add(torch.zeros_like(z) if noise is None else at_least_float32(noise))
            if keep_samples:
                samples.append(z)
        kept = torch.cat(samples) if keep_samples else None
        return cls(means.mean(), means.variance(), noises.mean()[0], kept, prior_restored=prior is not None)

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor, *, prior_restored: bool = False) -> "Gaussian":
        """For outputs whose mean (n, m) and covariance (n, m, m) are known."""
        mean, covariance = at_least_float32(mean), at_least_float32(covariance)
        variance = covariance.diagonal(dim1=-2, dim2=-1).clone()
        return cls(mean, variance, torch.zeros_like(mean), prior_restored=prior_restored)
