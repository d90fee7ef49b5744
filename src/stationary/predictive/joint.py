"""The outputs at several inputs together: what a choice of several inputs at once needs to know."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stationary._checks import is_count
from stationary.predictive._base import Members, at_least_float32, square_root


@dataclass(frozen=True, eq=False)
class Joint:
    """The joint distribution of the outputs at n inputs: Gaussian, by its mean and covariance.

    For output k, f_k ~ N(mean_k, covariance_k), and its target at input i is f_k(x_i) plus noise of variance noise_ik,
    independent from input to input. What one output says about another is not in it. ``predict`` gives the same mean,
    and of the covariance the diagonal alone. Everything is differentiable in the inputs.

    Args:
        mean: (..., n, m) means of the m outputs; the dimensions in front are groups of inputs, of which each has a
            joint distribution of its own.
        covariance: (..., m, n, n) covariance of each output between the inputs; (..., 1, n, n) where all outputs have
            the same.
        noise: (..., n, m) variance of the noise; 0 where none is known, and for the outputs of a classifier.
    """

    mean: Tensor
    covariance: Tensor
    noise: Tensor

    @classmethod
    def of_rows(cls, mean: Tensor, features: Tensor, extra: Tensor, noise: Tensor, group_size: int | None) -> "Joint":
        """The joint whose covariances are A_k A_k^T + diag(extra_k).

        Args:
            mean: (n, m) means.
            features: (m, n, h) the factors A_k.
            extra: (n, m) variances that the inputs do not share.
            noise: (n, m) variances of the noise.
            group_size: number of consecutive rows in a group; None for all rows as one, without a dimension for it.
        """
        mean, extra, noise = (grouped(part, group_size) for part in (mean, extra, noise))
        features = features.mT.movedim(-1, 0)  # (n, m, h)
        factors = grouped(features, group_size).transpose(-3, -2)
        return cls(mean, factors @ factors.mT + torch.diag_embed(extra.mT), noise)

    @classmethod
    def from_members(cls, members: Iterable[Members], group_size: int | None = None) -> "Joint":
        """The mean and the covariance over the members of a posterior (ddof 0), with their own noise.

        The restored prior adds to the diagonal.
        """
        parts = list(members)
        outputs = at_least_float32(torch.cat([part.outputs for part in parts]))
        mean = outputs.mean(0)
        priors = [part.prior.expand_as(part.outputs) for part in parts if part.prior is not None]
        noises = [part.noise for part in parts if part.noise is not None]
        extra, noise = (torch.cat(each).mean(0) if each else torch.zeros_like(mean) for each in (priors, noises))
        features = (outputs - mean).permute(2, 1, 0) / len(outputs) ** 0.5
        return cls.of_rows(mean, features, extra, noise.clamp(min=0), group_size)

    def variance(self) -> Tensor:
        """(..., n, m) variance of the outputs, without noise: the diagonals of the covariances."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).mT.expand_as(self.mean)

    def sample(self, n_samples: int = 1, *, generator: torch.Generator | None = None, noise: bool = False) -> Tensor:
        """(n_samples, ..., n, m) outputs at all inputs together, by a square root of the covariance.

        Args:
            n_samples: number of draws.
            generator: source of randomness, on the device of the mean; by default PyTorch's own.
            noise: whether to draw noisy targets instead of the outputs.
        """
        *batch, n, m = self.mean.shape
        where: dict[str, Any] = {"generator": generator, "dtype": self.mean.dtype, "device": self.mean.device}
        root = square_root(self.covariance.reshape(-1, n, n)).view(self.covariance.shape)
        normal = torch.randn((n_samples, *batch, m, n), **where)
        drawn = (root @ normal.movedim(0, -1)).movedim(-1, 0)  # all samples in one product of matrices
        outputs = self.mean + drawn.mT
        return outputs + self.noise.sqrt() * torch.randn(outputs.shape, **where) if noise else outputs

    def given(self, y: Tensor) -> "Joint":
        """The joint of the other inputs, once the targets of the first k are known: exact for a Gaussian.

        With 1 for the first k inputs and 2 for the others, K = K_11 + diag(noise_1), it has the mean
        mean_2 + K_21 K^-1 (y - mean_1) and the covariance K_22 - K_21 K^-1 K_12.

        Args:
            y: (..., k, m) the targets of the first k inputs.
        """
        k, m = y.shape[-2:]
        if m != self.mean.shape[-1] or not 0 < k < self.mean.shape[-2]:
            n, outputs = self.mean.shape[-2:]
            raise ValueError(
                f"y must be targets (k, {outputs}) of the first k of {n} inputs, k from 1 to {n - 1}; got {(k, m)}"
            )
        covariance = self.covariance.expand(*self.covariance.shape[:-3], m, *self.covariance.shape[-2:])
        first = covariance[..., :k, :k] + torch.diag_embed(self.noise[..., :k, :].mT)
        root = square_root(first.reshape(-1, k, k)).view(first.shape)
        across = torch.linalg.solve_triangular(root, covariance[..., :k, k:], upper=False)
        off = torch.linalg.solve_triangular(root, (y - self.mean[..., :k, :]).mT[..., None], upper=False)
        mean = self.mean[..., k:, :] + (across.mT @ off)[..., 0].mT
        return Joint(mean, covariance[..., k:, k:] - across.mT @ across, self.noise[..., k:, :].expand_as(mean))

    def with_noise(self, variance: float | Tensor) -> "Joint":
        """The same outputs, whose targets have more noise: a variance, or one for each output."""
        return replace(self, noise=self.noise + variance)


def grouped(rows: Tensor, group_size: int | None) -> Tensor:
    """Rows (n, ...) as (n / group_size, group_size, ...), or as they are where all of them are one group."""
    if group_size is None:
        return rows
    if not is_count(group_size) or len(rows) % group_size:
        raise ValueError(
            f"group_size must be None or a positive integer that divides the number of inputs, {len(rows)}; got "
            f"{group_size!r}"
        )
    return rows.unflatten(0, (-1, group_size))
