"""A prediction of classes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, distributions

from stationary._native import in_c
from stationary._pieces import PIECE
from stationary.predictive._base import (
    CHUNK,
    NODES,
    Members,
    Moments,
    Predictive,
    Sums,
    at_least_float32,
    normal_nodes,
    rounding,
    square_root,
)
from stationary.theory import logistic, softmax

WIDE = 64  # more classes have a root that does not fit into the cache of a core
SMALL = 1e-9  # below it, the error of an integral is no longer small beside a probability


class Top(NamedTuple):
    """The most probable classes of each input, the most probable first.

    Attributes:
        classes: (n, k) the classes.
        probs: (n, k) their probabilities.
    """

    classes: Tensor
    probs: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Categorical(Predictive):
    """A distribution over c classes for each of n inputs, and statistics of the members that it averages.

    Args:
        probs: (n, c) mean over members of their softmax.
        expected_log_probs: (n, c) mean over members of their log-softmax.
        member_entropy: (n,) mean over members of their entropy.
        output_mean: (n, c) mean over members of their outputs before the softmax.
        output_variance: (n, c) variance of these outputs over members (the population variance, ddof 0).
        samples: (s, n, c) outputs of the members, where ``keep_samples=True`` asked for them.
        information: (n,) mutual information of the posterior itself, where a temperature has made its probabilities
            bolder or more timid; None where they are its own.
    """

    kind: ClassVar[str] = "categorical"

    probs: Tensor
    expected_log_probs: Tensor
    member_entropy: Tensor
    output_mean: Tensor
    output_variance: Tensor
    samples: Tensor | None = None
    information: Tensor | None = None

    def __post_init__(self) -> None:
        if self.probs.shape[-1] < 2:
            raise ValueError(
                "a Categorical needs at least two classes, got a network with one output; for regression pass "
                "family=stationary.Gaussian, and give a two-class network two outputs, such as nn.Linear(d, 2)"
            )

    def entropy(self) -> Tensor:
        """(n,) entropy of the mean probabilities, in nats: the total uncertainty, at most log c."""
        return torch.special.entr(self.probs).sum(-1)

    def expected_entropy(self) -> Tensor:
        """(n,) mean over members of their entropy: the uncertainty that they agree on (aleatoric)."""
        return self.member_entropy

    def mutual_information(self) -> Tensor:
        """(n,) entropy - expected entropy: the uncertainty from members that disagree (epistemic)."""
        self._warn_of_missing_prior()
        return self._information()

    def _information(self) -> Tensor:
        if self.information is not None:
            return self.information
        return (self.entropy() - self.member_entropy).clamp(min=0)

    def std(self) -> Tensor:
        """(n,) standard deviation of the outputs over members, averaged over classes: the paper's CIFAR-10 measure."""
        self._warn_of_missing_prior()
        return self.output_variance.sqrt().mean(-1)

    def energy(self) -> Tensor:
        """(n,) -log sum_k exp(z_k) of the mean outputs z, each divided by sqrt(1 + pi / 8 variance).

        It is the energy score (Liu et al., 2020) of outputs that count less where they are uncertain; without variance
        it is the plain score. Unlike the other measures it is not a function of the probabilities: it depends on the
        size of the outputs, which the cross-entropy loss determines only up to a constant for all classes of an input.
        """
        return -(self.output_mean * (1 + math.pi / 8 * self.output_variance).rsqrt()).logsumexp(-1)

    def bernoulli_std(self) -> Tensor:
        """(n,) sqrt(p (1 - p)) for two classes: the paper's measure on Banana."""
        if self.probs.shape[-1] != 2:
            raise ValueError(f"bernoulli_std needs two classes, got {self.probs.shape[-1]}; use entropy() instead")
        return self.probs.prod(-1).sqrt()

    def confidence(self) -> Tensor:
        """(n,) probability of the most probable class."""
        return self.probs.amax(-1)

    def predict(self) -> Tensor:
        """(n,) the most probable class."""
        return self.probs.argmax(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """(n,) log probability of the classes y (n,); -inf where one was held to be impossible."""
        n, c = self.probs.shape
        y = torch.as_tensor(y, device=self.probs.device)
        if y.shape != (n,) or y.is_floating_point():
            raise ValueError(f"y must be class indices ({n},), one for each input; got {tuple(y.shape)} {y.dtype}")
        if n and not 0 <= int(y.min()) <= int(y.max()) < c:
            raise ValueError(f"y must be class indices 0 to {c - 1}; got {int(y.min())} to {int(y.max())}")
        return self.probs.gather(-1, y.long()[:, None])[:, 0].log()

    def sample(self, n_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(n_samples, n) classes drawn from the probabilities."""
        return torch.multinomial(self.probs, n_samples, replacement=True, generator=generator).mT

    def top(self, k: int) -> Top:
        """The k most probable classes of each input, and their probabilities, the most probable first."""
        if not 1 <= k <= self.probs.shape[-1]:
            raise ValueError(f"k must be from 1 to the number of classes, {self.probs.shape[-1]}; got {k}")
        probs, classes = self.probs.topk(k)
        return Top(classes, probs)

    def distribution(self) -> distributions.Categorical:
        """The prediction as a ``torch.distributions.Categorical`` over n inputs."""
        return distributions.Categorical(probs=self.probs)

    def columns(self) -> dict[str, Tensor]:
        """(n,) each, by name: the most probable class, the probability of each, entropy and mutual information."""
        probs = {f"p_{k}": values for k, values in enumerate(self.probs.unbind(-1))}
        doubts = {"entropy": self.entropy(), "mutual_information": self._information()}
        return {"predicted": self.predict(), **probs, **doubts}

    @classmethod
    def from_members(cls, members: Iterable[Members], n_members: int, *, keep_samples: bool = False) -> "Categorical":
        """The prediction of the members; each samples the restored prior at normal points, the same for all inputs."""
        outputs_moments, sums, samples, seen, restored = Moments(), Sums(), [], 0, False
        for outputs, prior, _ in members:
            z = at_least_float32(outputs).mT  # (s, c, n): operations over classes run along whole vectors
            spread = torch.zeros_like(z[:1]) if prior is None else at_least_float32(prior).mT
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
            restored |= prior is not None
        probs, log_probs, entropy = sums.mean()
        return cls(
            probs.mT.contiguous(),
            log_probs.mT.contiguous(),
            entropy,
            outputs_moments.mean().mT.contiguous(),
            outputs_moments.variance().mT.contiguous(),
            torch.cat(samples) if keep_samples else None,
            prior_restored=restored,
        )

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor, *, prior_restored: bool = False) -> "Categorical":
        """The prediction of Gaussian outputs: two classes by integrals (``logistic``), more by quasi-Monte Carlo."""
        mean, covariance = at_least_float32(mean), at_least_float32(covariance)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        if mean.shape[-1] == 2:
            difference = variance.sum(-1) - 2 * covariance[:, 0, 1]
            expected = logistic.of_gaussian(mean[:, 1] - mean[:, 0], difference.clamp(min=0))
            return cls.from_logistic(expected, mean, variance, prior_restored=prior_restored)
        probs, log_normalizer, entropy = (part / NODES for part in _softmax_sums(mean, covariance))
        log_probs = mean - log_normalizer[:, None]  # the nodes are mirrored, so that the mean of z is the mean
        return cls(probs.mT.contiguous(), log_probs, entropy, mean, variance, prior_restored=prior_restored)

    @classmethod
    def from_isotropic(cls, mean: Tensor, variance: Tensor) -> "Categorical":
        """The prediction of independent Gaussian outputs with mean (n, c) and one variance for all classes (n,)."""
        spread = variance[:, None].expand_as(mean)
        if mean.shape[-1] == 2 and not mean.is_cuda:  # where it would wait for the GPU
            return cls.from_logistic(logistic.of_gaussian(mean[:, 1] - mean[:, 0], 2 * variance), mean, spread)
        expected = softmax.of_gaussian(mean, variance)
        log_probs = mean - expected.log_normalizer[:, None]
        return cls(_above_zero(expected.probabilities, log_probs), log_probs, expected.entropy, mean, spread)

    @classmethod
    def from_logistic(
        cls,
        expected: logistic.LogisticExpectations,
        output_mean: Tensor,
        output_variance: Tensor,
        *,
        prior_restored: bool = False,
    ) -> "Categorical":
        """The prediction of two classes, from expectations over the difference of their logits."""
        half = (output_mean[:, 1] - output_mean[:, 0]).double() / 2
        probs = torch.stack([1 - expected.probability, expected.probability], -1)
        log_probs = torch.stack([-half, half], -1) - expected.log_cosh[:, None]
        probs, log_probs, entropy = (a.to(output_mean.dtype) for a in (probs, log_probs, expected.entropy))
        probs = _above_zero(probs, log_probs)
        return cls(probs, log_probs, entropy, output_mean, output_variance, prior_restored=prior_restored)


def _softmax_sums(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over the nodes of Gaussian outputs: of the softmax (c, n), of log normalizers and of entropies (n,)."""
    n, c = mean.shape
    nodes, centre = normal_nodes(NODES, c), mean.mT.contiguous()
    if c <= WIDE and mean.is_cpu and (sums := _sums_in_c(centre, covariance)):
        return sums
    rows = square_root(covariance).permute(2, 1, 0).reshape(c, c * n)
    probs, log_normalizer, entropy = torch.zeros_like(centre), mean.new_zeros(n), mean.new_zeros(n)
    for some in nodes.to(mean).split(max(1, (CHUNK if mean.is_cuda else PIECE) // mean.numel())):
        z = (some @ rows).view(-1, c, n).add_(centre)  # (s, c, n): operations over classes run along whole vectors
        top = z.amax(1, keepdim=True)
        below = z.sub_(top)
        p = below.exp()
        total = p.sum(1, keepdim=True)
        p /= total
        probs += p.sum(0)
        log_total = total.log_()
        log_normalizer += (top + log_total).sum((0, 1))
        entropy += (log_total[:, 0] - below.mul_(p).sum(1)).sum(0)
    return probs, log_normalizer, entropy


def _sums_in_c(centre: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The sums in one pass, in float64; None without C, or where a covariance is not quite one.

    Args:
        centre: (c, n) means.
        covariance: (n, c, c) covariances.
    """
    (c, n), given, spread = centre.shape, centre.double(), covariance.permute(1, 2, 0).contiguous().double()
    probs, parts, nodes = torch.empty_like(given), given.new_empty(3, n), _halves(c)
    numbers = n, len(nodes), c, rounding(covariance)
    if not in_c("softmax_of_gaussian", numbers, given, spread, nodes, probs, parts) or not (parts[1] > 0).all():
        return None
    top, total, below = parts
    log_total = total.log()  # of a product over the nodes of at most c each, far from overflow
    return probs.to(centre), (top + log_total).to(centre), (log_total - below).to(centre)


@lru_cache(maxsize=16)
def _halves(c: int) -> Tensor:
    """(NODES / 2, c) the nodes without their mirror images, which are every second one."""
    with torch.inference_mode(False):
        return normal_nodes(NODES, c)[::2].contiguous()


def _above_zero(probs: Tensor, log_probs: Tensor) -> Tensor:
    """Probabilities E[p], the small ones at least e^E[log p], which they never are below by Jensen's inequality.

    Integrals give such a small one as 0 or as a rounding error, and one 0 makes the NLPD infinite. None is below the
    smallest normal number of the dtype.
    """
    floor = log_probs.exp().clamp(min=torch.finfo(probs.dtype).tiny)
    return torch.where(probs < SMALL, torch.maximum(probs, floor), probs)
