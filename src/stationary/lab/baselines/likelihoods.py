"""The likelihoods of the sparse baselines: the probability of a class given the latent Gaussian processes.

Each likelihood has two methods, which take the mean and the variance of the latent functions, (n, k) each:

- ``expected_log_prob(mean, variance, y)`` returns E[log p(y | f)] for f ~ N(mean, variance), (n,), for training;
- ``predictive(mean, variance, ...)`` returns the prediction, a ``Categorical``.

Training runs inside ``vmap`` and CUDA graphs, so no control flow in it depends on the values of a tensor.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from stationary.lab.baselines.exact import gauss_hermite, probit
from stationary.nn.masks import Noise
from stationary.predictive import CHUNK, Categorical, Members

KEPT = 1e-6  # distance that RobustMax keeps probabilities from 0 and 1
NODES = 20  # number of nodes of the Gauss-Hermite rules, as in GPflow


class GaussHermite(nn.Module):
    """The rule of ``gauss_hermite``, with its nodes and weights as buffers that follow the device of the module.

    Args:
        n: number of nodes.
    """

    nodes: Tensor
    weights: Tensor

    def __init__(self, n: int = NODES) -> None:
        super().__init__()
        nodes, weights = gauss_hermite(n)
        self.register_buffer("nodes", nodes, persistent=False)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the nodes (..., n) of the rule for the distributions N(mean, variance)."""
        return mean[..., None] + variance.sqrt()[..., None] * self.nodes


class Bernoulli(nn.Module):
    """Two classes and one latent function, p(y = 1 | f) = Phi(f)."""

    n_latents = 1
    rule: GaussHermite

    def __init__(self) -> None:
        super().__init__()
        self.rule = GaussHermite()

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        f = self.rule(mean[:, 0], variance[:, 0])
        sign = 2 * y.to(f) - 1
        return log_ndtr(sign[:, None] * f) @ self.rule.weights

    def predictive(self, mean: Tensor, variance: Tensor, seed: int, keep_samples: bool) -> Categorical:
        _refuse_samples(keep_samples)
        return probit(mean[:, 0], variance[:, 0])


class Softmax(nn.Module):
    """p(y | f) = softmax(f)_y, or softmax(W f)_y with mixing weights W; expectations by Monte Carlo.

    Args:
        n_latents: number of latent functions.
        n_samples: number of random draws of f for each row in training.
        n_test_samples: number of random draws of f for each row in prediction.
    """

    n_latents: int
    n_test_samples: int
    noise: Noise

    def __init__(self, n_latents: int, n_samples: int, n_test_samples: int) -> None:
        super().__init__()
        self.n_latents, self.n_test_samples = n_latents, n_test_samples
        self.noise = Noise(n_samples)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, mixing: Tensor | None = None) -> Tensor:
        outputs = _mixed(mean + variance.sqrt() * self.noise(mean), mixing)  # (s, n, c)
        chosen = outputs.gather(-1, y[None, :, None].expand(len(outputs), -1, 1))[..., 0]
        return (chosen - outputs.logsumexp(-1)).mean(0)

    def predictive(
        self, mean: Tensor, variance: Tensor, seed: int, keep_samples: bool, mixing: Tensor | None = None
    ) -> Categorical:
        """Return the prediction, whose members are draws of f from a generator with this seed."""
        generator = torch.Generator(mean.device).manual_seed(seed)
        chunk, std = max(1, CHUNK // mean.numel()), variance.sqrt()

        def members() -> Iterator[Members]:
            for start in range(0, self.n_test_samples, chunk):
                shape = (min(chunk, self.n_test_samples - start), *mean.shape)
                noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
                yield Members(_mixed(mean + std * noise, mixing))

        result = Categorical.from_members(members(), self.n_test_samples, keep_samples=keep_samples)
        moments = _mixed(mean, mixing), _mixed(variance, None if mixing is None else mixing.square())
        return replace(result, output_mean=moments[0], output_variance=moments[1])


class RobustMax(nn.Module):
    """p(y | f) = 1 - epsilon if f_y is the largest, else epsilon / (c - 1).

    With P_y the probability that f_y is the largest, E[log p(y | f)] = P_y log(1 - epsilon) + (1 - P_y) log(epsilon /
    (c - 1)), and the prediction is P_y (1 - epsilon) + (1 - P_y) epsilon / (c - 1). In the prediction P is divided by
    its sum over the classes, which is 1 but for the error of the quadrature. Predictions are in float64: a small P is
    added to epsilon / (c - 1), and in float32 all P below 1e-9 would give the same sum, though they rank the inputs,
    which AUC measures.

    As in GPflow, each Phi in P is kept between 1e-6 and 1 - 1e-6, so that a class that one other hides entirely still
    competes with the rest, in training and in the ranking.

    Args:
        n_classes: number c of classes, and of latent functions.
        epsilon: probability that a label is not that of the largest function.
    """

    right: float
    wrong: float
    rule: GaussHermite

    def __init__(self, n_classes: int, epsilon: float) -> None:
        super().__init__()
        self.n_latents = n_classes
        self.right, self.wrong = 1 - epsilon, epsilon / (n_classes - 1)
        self.rule = GaussHermite()

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return self._expected_log(self.largest(mean, variance, y))

    def predictive(self, mean: Tensor, variance: Tensor, seed: int, keep_samples: bool) -> Categorical:
        _refuse_samples(keep_samples)
        mean, variance = mean.double(), variance.double()
        classes = torch.arange(self.n_latents, device=mean.device)[:, None].expand(-1, len(mean))
        largest = self.largest(mean.expand(self.n_latents, -1, -1), variance.expand(self.n_latents, -1, -1), classes).T
        largest = largest / largest.sum(-1, keepdim=True)
        given_f = torch.full((self.n_latents,), self.wrong).to(mean)
        given_f[0] = self.right  # whichever class is the largest, the entropy is the same
        return Categorical(
            probs=self.wrong + (self.right - self.wrong) * largest,
            expected_log_probs=self._expected_log(largest),
            member_entropy=torch.special.entr(given_f).sum().expand(len(mean)).clone(),
            output_mean=mean,
            output_variance=variance,
        )

    def largest(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Return the probability that f_y is the largest, P_y = E[prod_(j != y) Phi((f_y - mean_j) / std_j)].

        The quadrature over f_y is right to 1e-4 where std_y is at most twice the others', and to 2e-3 where it is at
        most three times the others'.

        Args:
            mean: means of the latent functions, (..., c).
            variance: their variances, (..., c).
            y: class indices, (...), the shape of the result.
        """
        own = y[..., None] == torch.arange(self.n_latents, device=mean.device)
        f = self.rule((mean * own).sum(-1), (variance * own).sum(-1))
        z = (f[..., None] - mean[..., None, :]) / variance.sqrt()[..., None, :]  # (..., nodes, c)
        # A sum of logarithms instead of a product: the gradient of prod() makes a GPU wait for the CPU.
        phi = KEPT + (1 - 2 * KEPT) * torch.erfc(-z / math.sqrt(2)) / 2
        logs = phi.log().masked_fill(own[..., None, :], 0.0)
        return logs.sum(-1).exp() @ self.rule.weights.to(logs)

    def _expected_log(self, largest: Tensor) -> Tensor:
        return largest * math.log(self.right) + (1 - largest) * math.log(self.wrong)


def log_ndtr(x: Tensor) -> Tensor:
    """Compute log Phi(x), as ``torch.special.log_ndtr`` does, which ``vmap`` would run member by member."""
    below, above = (
        torch.where(x < 0, x, 0.0),
        torch.where(x < 0, 0.0, x),
    )  # clamp's slope at 0 depends on the version of PyTorch
    scaled = torch.special.erfcx(-below / math.sqrt(2))  # 2 Phi(x) e^(x^2 / 2), which does not underflow
    return torch.where(
        x < 0, torch.log(scaled / 2) - below.square() / 2, torch.log1p(-torch.erfc(above / math.sqrt(2)) / 2)
    )


def _mixed(f: Tensor, mixing: Tensor | None) -> Tensor:
    return f if mixing is None else f @ mixing.mT


def _refuse_samples(keep_samples: bool) -> None:
    if keep_samples:
        raise ValueError("this Gaussian process predicts in closed form, got keep_samples=True; leave it out")
