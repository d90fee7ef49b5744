"""A prediction of real values."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from stationary.predictive._base import Members, Moments, Predictive, Sums, at_least_float32


class Interval(NamedTuple):
    """(n, m) each: the ends of an interval for each target."""

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False, repr=False)
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

    def variance(self) -> Tensor:
        """(n, m) total variance: epistemic + aleatoric."""
        return self.epistemic_variance + self.aleatoric_variance

    def std(self) -> Tensor:
        """(n, m) square root of the total variance."""
        return self.variance().sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """(n, m) log density at targets y, (n, m) or for one target (n,); the total variance must be positive."""
        y, variance = self._like_mean(y), self.variance()
        if not variance.gt(0).all():
            row = int((~variance.gt(0)).any(-1).nonzero()[0])
            raise ValueError(
                f"the variance must be positive for a density, got {variance[row].min().item():g} in row {row}; add "
                "the noise of the target with pred.with_noise(variance)"
            )
        return -0.5 * ((y - self.mean).square() / variance + variance.log() + math.log(2 * math.pi))

    def cdf(self, y: Tensor) -> Tensor:
        """(n, m) probability of a target of at most y, (n, m) or for one target (n,)."""
        return torch.special.ndtr((self._like_mean(y) - self.mean) / self.std())

    def quantile(self, q: float | Tensor) -> Tensor:
        """The value that a target exceeds with probability 1 - q.

        Args:
            q: a number in (0, 1), for a result (n, m), or several (k,), for a result (k, n, m).
        """
        levels = torch.as_tensor(q, dtype=self.mean.dtype, device=self.mean.device)
        if not (levels.gt(0) & levels.lt(1)).all() or levels.ndim > 1:
            raise ValueError(f"q must be in (0, 1), a number or several in a tensor (k,); got {q!r}")
        return self.mean + torch.special.ndtri(levels)[..., None, None] * self.std()

    def interval(self, coverage: float = 0.9) -> Interval:
        """The interval around the mean that holds a target with probability ``coverage``, in (0, 1)."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be in (0, 1), got {coverage!r}; 0.9 is an interval that holds 90 %")
        reach = math.sqrt(2) * torch.erfinv(torch.tensor(coverage, dtype=torch.float64)).item() * self.std()
        return Interval(self.mean - reach, self.mean + reach)

    def sample(self, n_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(n_samples, n, m) targets drawn from the normal distribution with the total variance."""
        shape = (n_samples, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.std() * noise

    def distribution(self) -> Normal:
        """The prediction as a ``torch.distributions.Normal`` of shape (n, m), with the total variance."""
        return Normal(self.mean, self.std())

    def columns(self) -> dict[str, Tensor]:
        """(n,) each, by name: mean, total, epistemic and aleatoric standard deviation, numbered for several targets."""
        parts = {
            "mean": self.mean,
            "std": self.std(),
            "epistemic_std": self.epistemic_variance.sqrt(),
            "aleatoric_std": self.aleatoric_variance.sqrt(),
        }
        m = self.mean.shape[1]
        return {f"{name}_{j}" if m > 1 else name: values[:, j] for j in range(m) for name, values in parts.items()}

    def _like_mean(self, y: Tensor) -> Tensor:
        """Targets (n, m), after a check of their shape."""
        n, m = self.mean.shape
        y = torch.as_tensor(y, device=self.mean.device)
        if y.shape != (n, m) and not (m == 1 and y.shape == (n,)):
            raise ValueError(f"y must have the shape of the mean, {(n, m)}; got {tuple(y.shape)}")
        return y.reshape(n, m).to(self.mean.dtype)

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
        noise = noises.mean()[0].clamp(min=0)  # a network's noise may be less than what its masks add to it
        return cls(means.mean(), means.variance(), noise, kept, prior_restored=restored)

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor, *, prior_restored: bool = False) -> "Gaussian":
        """The prediction of outputs with this mean (n, m) and covariance (n, m, m)."""
        mean, covariance = at_least_float32(mean), at_least_float32(covariance)
        variance = covariance.diagonal(dim1=-2, dim2=-1).clone()
        return cls(mean, variance, torch.zeros_like(mean), prior_restored=prior_restored)
