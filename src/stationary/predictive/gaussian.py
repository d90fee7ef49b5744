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
        mean: (n, m) mean over members of their means.
        epistemic_variance: (n, m) variance of the members' means, and of the restored prior.
        aleatoric_variance: (n, m) mean over members of their noise variance; 0 where no noise is known.
        samples: (s, n, m) means of the members, where ``keep_samples=True`` asked for them.
    """

    kind: ClassVar[str] = "gaussian"

    mean: Tensor
    epistemic_variance: Tensor
    aleatoric_variance: Tensor
    samples: Tensor | None = None

    @property
    def variance(self) -> Tensor:
        """(n, m) total variance: epistemic + aleatoric."""
        return self.epistemic_variance + self.aleatoric_variance

    def std(self) -> Tensor:
        """(n, m) square root of the total variance."""
        return self.variance.sqrt()

    def with_noise(self, variance: float | Tensor) -> "Gaussian":
        """The prediction of a noisy target.

        Args:
            variance: variance of the noise, a number or one for each target, which is added to the aleatoric variance.
        """
        if not torch.as_tensor(variance).ge(0).all():
            raise ValueError(
                f"variance must be at least 0, got {variance!r}; pass the square of the standard deviation"
            )
        return replace(self, aleatoric_variance=self.aleatoric_variance + variance)

    @classmethod
    def from_members(cls, members: Iterable[Members], n_members: int, *, keep_samples: bool = False) -> "Gaussian":
        """The prediction of the members; their own noise and the restored prior add to its variance in closed form."""
        means, noises, samples, restored = Moments(), Sums(), [], False
        for outputs, prior, noise in members:
            z = at_least_float32(outputs)
            means.add(z, torch.zeros_like(z[:1]) if prior is None else prior)
            noises.add(torch.zeros_like(z) if noise is None else at_least_float32(noise))
            restored |= prior is not None
            if keep_samples:
                samples.append(z)
        kept = torch.cat(samples) if keep_samples else None
        return cls(means.mean(), means.variance(), noises.mean()[0], kept, prior_restored=restored)

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor, *, prior_restored: bool = False) -> "Gaussian":
        """The prediction of outputs with this mean (n, m) and covariance (n, m, m)."""
        mean, covariance = at_least_float32(mean), at_least_float32(covariance)
        variance = covariance.diagonal(dim1=-2, dim2=-1).clone()
        return cls(mean, variance, torch.zeros_like(mean), prior_restored=prior_restored)
