"""What a prediction is: for every input a distribution, over classes or over real values.

Both kinds are accumulated over the members of a posterior, a few at a time: memory is O(n c) whatever their number.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from stationary import logistic
from stationary.files import write_atomically

P = TypeVar("P", bound="Predictive")

NODES = 64  # points for a Gaussian in the space of outputs: half the error of 100 random samples for ten classes
CHUNK = 2**18  # outputs at work at a time: about a core's cache


class Members(NamedTuple):
    """Some members of a posterior at n inputs.

    Args:
        outputs: (s, n, c), what the s networks put out.
        prior: (1 or s, n, c), the variance of the restored prior, where it is on.
        noise: (s, n, c), a regression member's own noise variance.
    """

    outputs: Tensor
    prior: Tensor | None = None
    noise: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Predictive:
    """What the two kinds share: their fields are tensors whose first dimension is the input's."""

    kind: ClassVar[str]

    @classmethod
    def from_members(cls: type[P], members: Iterable[Members], n_members: int, *, keep_samples: bool = False) -> P:
        """Accumulate the members of a posterior, of which there are n_members in all."""
        raise NotImplementedError

    @classmethod
    def from_moments(cls: type[P], mean: Tensor, covariance: Tensor) -> P:
        """For outputs with this mean (n, c) and covariance (n, c, c)."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are there, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def to(self: P, device: str | torch.device) -> P:
        """The same prediction on another device."""
        return replace(self, **{name: value.to(device) for name, value in self.tensors().items()})

    @classmethod
    def cat(cls: type[P], parts: list[P]) -> P:
        """Predictions for consecutive batches as one."""
        if len(parts) == 1:
            return parts[0]
        tensors = [part.tensors() for part in parts]
        return cls(**{n: torch.cat([t[n] for t in tensors], dim=1 if n == "samples" else 0) for n in tensors[0]})

    def save(self, path: str | Path) -> Path:
        """Write to a NumPy archive (.npz), whole or not at all."""
        arrays: dict[str, Any] = {name: value.cpu().numpy() for name, value in self.tensors().items()}
        path = Path(path)
        return write_atomically(path, lambda file: np.savez(file, allow_pickle=False, kind=self.kind, **arrays))

    @classmethod
    def load(cls: type[P], path: str | Path) -> P:
        """Read what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        if (kind := str(arrays.pop("kind", "nothing known"))) != cls.kind:
            raise ValueError(f"{path} must hold a {cls.kind} prediction, it holds {kind}; load it with that class")
        return cls(**{name: torch.from_numpy(value) for name, value in arrays.items()})


@dataclass(frozen=True, eq=False)
class Categorical(Predictive):
    """A distribution over c classes for each of n inputs, with what is left of the members that voted for it.

    Args:
        probs: (n, c), the mean over members of their softmax.
        expected_log_probs: (n, c), the mean over members of their log-softmax.
        member_entropy: (n,), the mean over members of their entropy.
        output_mean: (n, c), the mean over members of their outputs before the softmax.
        output_variance: (n, c), the variance of these (population, ddof 0).
        samples: (s, n, c), the members' outputs, if asked for with ``keep_samples``.
    """

    kind: ClassVar[str] = "categorical"

    probs: Tensor
    expected_log_probs: Tensor
    member_entropy: Tensor
    output_mean: Tensor
    output_variance: Tensor
    samples: Tensor | None = None

    def entropy(self) -> Tensor:
        """(n,) entropy of the mean, in nats: the total uncertainty, at most log c."""
        return torch.special.entr(self.probs).sum(-1)

    def expected_entropy(self) -> Tensor:
        """(n,) mean over members of their entropy: the uncertainty they agree on (aleatoric)."""
        return self.member_entropy

    def mutual_information(self) -> Tensor:
        """(n,) entropy - expected entropy: how much the members disagree (epistemic)."""
        return (self.entropy() - self.member_entropy).clamp(min=0)

    def std(self) -> Tensor:
        """(n,) standard deviation of the outputs over members, mean over classes: the paper's measure on CIFAR-10."""
        return self.output_variance.sqrt().mean(-1)

    def bernoulli_std(self) -> Tensor:
        """(n,) sqrt(p (1 - p)) of two classes: the paper's measure on Banana."""
        if self.probs.shape[-1] != 2:
            raise ValueError(f"bernoulli_std is for two classes, got {self.probs.shape[-1]}; use entropy() instead")
        return self.probs.prod(-1).sqrt()

    def confidence(self) -> Tensor:
        """(n,) probability of the most probable class."""
        return self.probs.amax(-1)

    def predict(self) -> Tensor:
        """(n,) the most probable class."""
        return self.probs.argmax(-1)

    @classmethod
    def from_members(cls, members: Iterable[Members], n_members: int, *, keep_samples: bool = False) -> "Categorical":
        """Accumulate the members; each sees the restored prior through its own normal points, shared by all inputs."""
        outputs_moments, sums, samples, seen = _Moments(), _Sums(), [], 0
        for outputs, prior, _ in members:
            z = _at_least_float32(outputs).mT  # (s, c, n): operations over classes run along whole vectors
            spread = torch.zeros_like(z[:1]) if prior is None else _at_least_float32(prior).mT
            outputs_moments.add(z, spread)
            per_member = 1 if prior is None else math.ceil(NODES / n_members)
            for k in range(per_member):
                if prior is not None:
                    nodes = normal_nodes(n_members * per_member, z.shape[1])[k * n_members + seen :][: len(z), :, None]
                    noisy = z + spread.sqrt() * nodes.to(z)
                else:
                    noisy = z
                log_p = noisy.log_softmax(1)
                p = log_p.exp()
                entropy = -(p * log_p.clamp(min=torch.finfo(p.dtype).min)).sum(1)
                sums.add(p, log_p, entropy)
                if keep_samples:
                    samples.append(noisy.mT)
            seen += len(z)
        probs, log_probs, entropy = sums.mean()
        return cls(
            probs.mT.contiguous(),
            log_probs.mT.contiguous(),
            entropy,
            outputs_moments.mean().mT.contiguous(),
            outputs_moments.variance().mT.contiguous(),
            torch.cat(samples) if keep_samples else None,
        )

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> "Categorical":
        """For Gaussian outputs: two classes by the integrals of ``logistic``, more by quasi-Monte Carlo points."""
        mean, covariance = _at_least_float32(mean), _at_least_float32(covariance)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        if mean.shape[-1] == 2:
            difference = variance.sum(-1) - 2 * covariance[:, 0, 1]
            expected = logistic.of_gaussian(mean[:, 1] - mean[:, 0], difference.clamp(min=0))
            return cls.from_logistic(expected, mean, variance)
        n, c = mean.shape
        rows = _square_root(covariance).permute(2, 1, 0).reshape(c, c * n)
        nodes = normal_nodes(NODES, c).to(mean)
        chunks = (
            Members(((some @ rows).view(-1, c, n) + mean.mT).mT) for some in nodes.split(max(1, CHUNK // mean.numel()))
        )
        result = cls.from_members(chunks, NODES)
        return replace(result, output_mean=mean, output_variance=variance)

    @classmethod
    def from_logistic(
        cls, expected: logistic.LogisticExpectations, output_mean: Tensor, output_variance: Tensor
    ) -> "Categorical":
        """For two classes whose logit difference has the given expectations."""
        half = (output_mean[:, 1] - output_mean[:, 0]).double() / 2
        probs = torch.stack([1 - expected.probability, expected.probability], -1)
        log_probs = torch.stack([-half, half], -1) - expected.log_cosh[:, None]
        probs, log_probs, entropy = (a.to(output_mean.dtype) for a in (probs, log_probs, expected.entropy))
        return cls(probs, log_probs, entropy, output_mean, output_variance)


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
        means, noises, samples = _Moments(), _Sums(), []
        for outputs, prior, noise in members:
            z = _at_least_float32(outputs)
            means.add(z, torch.zeros_like(z[:1]) if prior is None else prior)
            noises.add(torch.zeros_like(z) if noise is None else _at_least_float32(noise))
            if keep_samples:
                samples.append(z)
        kept = torch.cat(samples) if keep_samples else None
        return cls(means.mean(), means.variance(), noises.mean()[0], kept)

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> "Gaussian":
        """For outputs whose mean (n, m) and covariance (n, m, m) are known."""
        mean, covariance = _at_least_float32(mean), _at_least_float32(covariance)
        return cls(mean, covariance.diagonal(dim1=-2, dim2=-1).clone(), torch.zeros_like(mean))


class _Sums:
    """Running sums over the first dimension."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []
        self.count = 0

    def add(self, *tensors: Tensor) -> None:
        new = [tensor.sum(0) for tensor in tensors]
        self.sums = [a + b for a, b in zip(self.sums, new, strict=True)] if self.sums else new
        self.count += len(tensors[0])

    def mean(self) -> list[Tensor]:
        return [total / self.count for total in self.sums]


class _Moments:
    """Running mean and variance over the first dimension, about the first member so that nothing cancels."""

    def __init__(self) -> None:
        self.sums, self.first = _Sums(), torch.empty(0)

    def add(self, z: Tensor, extra_variance: Tensor) -> None:
        if not self.sums.count:
            self.first = z[0].clone()
        deviation = z - self.first
        self.sums.add(deviation, deviation.square() + extra_variance)

    def mean(self) -> Tensor:
        return self.first + self.sums.mean()[0]

    def variance(self) -> Tensor:
        mean, square = self.sums.mean()
        return (square - mean.square()).clamp(min=0)


@lru_cache(maxsize=16)
def normal_nodes(n: int, dim: int) -> Tensor:
    """(n, dim) points of the standard normal distribution: scrambled Sobol points and their mirror images, whitened."""
    with torch.inference_mode(False):  # they are kept, and may meet gradients later
        half = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(math.ceil(n / 2), dtype=torch.float64)
        points = torch.special.ndtri(half.clamp(1e-9, 1 - 1e-9))
        points = points / points.square().mean(0).sqrt()
        return torch.stack([points, -points], 1).flatten(0, 1)[:n]


def _square_root(covariance: Tensor) -> Tensor:
    """A factor of a matrix that may be singular, or by rounding a little less than that.

    Cholesky's, with a diagonal that is raised by a few units of rounding; where that fails (products in TF32 round much
    more) by eigenvalues, the negative ones as 0.
    """
    scale = covariance.diagonal(dim1=-2, dim2=-1).amax(-1)
    eps = 10 * covariance.shape[-1] * torch.finfo(covariance.dtype).eps
    jitter = (eps * scale).clamp(min=torch.finfo(covariance.dtype).tiny)
    raised = covariance + jitter[:, None, None] * torch.eye(covariance.shape[-1]).to(covariance)
    factor, info = torch.linalg.cholesky_ex(raised)
    failed = info > 0
    if failed.any():
        values, vectors = torch.linalg.eigh(covariance[failed])
        factor[failed] = vectors * values.clamp(min=0).sqrt()[:, None]
    return factor


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
