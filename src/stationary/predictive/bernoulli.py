"""A prediction of several labels at once, each of which holds or does not."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, distributions

from stationary.predictive._base import Predictive
from stationary.theory import logistic


@dataclass(frozen=True, eq=False, repr=False)
class Bernoulli(Predictive):
    """The probability of each of c labels for each of n inputs; any number of labels may hold at the same time.

    Sums over labels treat them as independent.

    Args:
        probs: (n, c) mean over the posterior of the sigmoid of each output.
        label_entropy: (n, c) mean over the posterior of the entropy of each label.
        output_mean: (n, c) mean of the outputs before the sigmoid.
        output_variance: (n, c) variance of these outputs.
        information: (n,) mutual information of the posterior itself, where a temperature has made its probabilities
            bolder or more timid; None where they are its own.
    """

    kind: ClassVar[str] = "bernoulli"

    probs: Tensor
    label_entropy: Tensor
    output_mean: Tensor
    output_variance: Tensor
    information: Tensor | None = None

    def entropy(self) -> Tensor:
        """(n,) entropy of the mean probabilities, the sum over labels, in nats: the total uncertainty."""
        return (torch.special.entr(self.probs) + torch.special.entr(1 - self.probs)).sum(-1)

    def expected_entropy(self) -> Tensor:
        """(n,) mean over the posterior of the entropy, the sum over labels (aleatoric)."""
        return self.label_entropy.sum(-1)

    def mutual_information(self) -> Tensor:
        """(n,) entropy - expected entropy, the sum over labels (epistemic)."""
        self._warn_of_missing_prior()
        return self._information()

    def _information(self) -> Tensor:
        if self.information is not None:
            return self.information
        return (self.entropy() - self.expected_entropy()).clamp(min=0)

    def std(self) -> Tensor:
        """(n,) standard deviation of the outputs, averaged over labels."""
        self._warn_of_missing_prior()
        return self.output_variance.sqrt().mean(-1)

    def predict(self) -> Tensor:
        """(n, c) whether each label holds: its probability is at least 1/2."""
        return self.probs >= 0.5

    def log_prob(self, y: Tensor) -> Tensor:
        """(n,) log probability of the labels y (n, c), zeros and ones; -inf where one was held to be impossible."""
        y = torch.as_tensor(y, device=self.probs.device)
        if y.shape != self.probs.shape or not ((y == 0) | (y == 1)).all():
            raise ValueError(f"y must be zeros and ones {tuple(self.probs.shape)}; got {tuple(y.shape)} {y.dtype}")
        return torch.where(y.bool(), self.probs, 1 - self.probs).log().sum(-1)

    def sample(self, n_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(n_samples, n, c) labels drawn from the probabilities, False or True."""
        drawn = torch.rand((n_samples, *self.probs.shape), generator=generator, device=self.probs.device)
        return drawn < self.probs

    def distribution(self) -> distributions.Bernoulli:
        """The prediction as a ``torch.distributions.Bernoulli`` of shape (n, c)."""
        return distributions.Bernoulli(probs=self.probs)

    def columns(self) -> dict[str, Tensor]:
        """(n,) each, by name: the probability of each label, entropy and mutual information."""
        probs = {f"p_{k}": values for k, values in enumerate(self.probs.unbind(-1))}
        return {**probs, "entropy": self.entropy(), "mutual_information": self._information()}

    @classmethod
    def from_gaussian(cls, mean: Tensor, variance: Tensor) -> "Bernoulli":
        """The prediction of Gaussian outputs with this mean (n, c) and variance (n, c), by integrals (``logistic``)."""
        expected = logistic.of_gaussian(mean.flatten(), variance.flatten())
        probs, entropy = (values.view_as(mean).to(mean.dtype) for values in (expected.probability, expected.entropy))
        return cls(probs, entropy, mean, variance)
