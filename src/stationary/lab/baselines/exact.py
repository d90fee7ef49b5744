"""Gaussian processes without approximation by inducing points: regression, and variational classification (VGP).

Both fit a copy of any GPyTorch kernel, times a learnt variance, with a zero mean and Adam, and give a posterior that
``stationary.predict`` takes: ``predict(ExactGP().fit(kernel, (x, y)), x_test, family=Gaussian)``.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary._extras import extra
from stationary.inference.base import Data, Inputs
from stationary.predictive import Categorical, Gaussian, P

with extra("gp"):
    import gpytorch
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.kernels import Kernel, ScaleKernel

NODES = 64  # of the Gauss-Hermite rule over the latent function


class _ExactModel(gpytorch.models.ExactGP):
    def __init__(self, kernel: Kernel, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.kernel = ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))


class _VariationalModel(gpytorch.models.ApproximateGP):
    """One inducing point at each training point, where it stays: nothing is sparse."""

    def __init__(self, kernel: Kernel, x: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(x), mean_init_std=0.0)  # not random
        super().__init__(
            gpytorch.variational.VariationalStrategy(self, x, distribution, learn_inducing_locations=False)
        )
        self.kernel = ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))


@dataclass(frozen=True)
class ExactGP:
    """GP regression; kernel, variance and noise by marginal likelihood.

    Args:
        steps: of Adam.
        learning_rate: of Adam.
    """

    steps: int = 300
    learning_rate: float = 0.05

    def fit(self, kernel: Kernel, data: Data) -> "ExactGPPosterior":
        """Condition on x (n, d) and y (n,) or (n, 1), in float64."""
        x, y = data[0].double(), data[1].double().reshape(-1)
        model = _ExactModel(deepcopy(kernel), x, y).to(x).train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        _maximize(model, lambda: objective(model(x), y), self.steps, self.learning_rate)
        return ExactGPPosterior(self, model.eval())


@dataclass(frozen=True)
class ExactGPPosterior:
    method: ExactGP
    model: Any

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        """Mean and variance of the function; the noise is the aleatoric part."""
        _check_family(family, Gaussian, keep_samples)
        assert isinstance(x, Tensor)
        with torch.no_grad(), gpytorch.settings.debug(False):  # which would warn at training inputs
            latent = self.model(x.double())
        noise = self.model.likelihood.noise.detach().expand(len(x), 1)
        return Gaussian(latent.mean[:, None], latent.variance[:, None], noise)  # type: ignore[return-value]


@dataclass(frozen=True)
class VGP:
    """Binary GP classification: a full-rank Gaussian over the function at the training points, Bernoulli with probit.

    Args:
        steps: of Adam, over kernel and variational parameters together.
        learning_rate: of Adam.
    """

    steps: int = 1000
    learning_rate: float = 0.05

    def fit(self, kernel: Kernel, data: Data) -> "VGPPosterior":
        """Maximise the evidence lower bound for x (n, d) and classes 0 and 1, in float64."""
        x, y = data[0].double(), data[1]
        if y.ndim != 1 or not set(y.unique().tolist()) <= {0, 1}:
            raise ValueError(
                f"y must be (n,) with the classes 0 and 1, got shape {tuple(y.shape)}, {y.unique().tolist()}"
            )
        model = _VariationalModel(deepcopy(kernel), x).to(x).train()
        likelihood = gpytorch.likelihoods.BernoulliLikelihood().to(x)
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
        _maximize(model, lambda: objective(model(x), y.double()), self.steps, self.learning_rate)
        return VGPPosterior(self, model.eval())


@dataclass(frozen=True)
class VGPPosterior:
    method: VGP
    model: Any

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        _check_family(family, Categorical, keep_samples)
        assert isinstance(x, Tensor)
        with torch.no_grad():
            latent = self.model(x.double())
        return probit(latent.mean, latent.variance)  # type: ignore[return-value]


def gauss_hermite(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights, float64, of the rule sum_k weights_k g(nodes_k) for E[g(z)], z ~ N(0, 1)."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(n))
    return nodes, weights / weights.sum()


def probit(mean: Tensor, variance: Tensor) -> Categorical:
    """Two classes whose probability is Phi(f), f ~ N(mean, variance): the members are the values of f.

    E[Phi(f)] = Phi(mean / sqrt(1 + variance)); the other expectations by Gauss-Hermite quadrature. The outputs are
    (0, f), the latent function of class 1.
    """
    nodes, weights = (a.to(mean) for a in gauss_hermite(NODES))
    f = mean[:, None] + variance.sqrt()[:, None] * nodes
    log_p = torch.stack([torch.special.log_ndtr(-f), torch.special.log_ndtr(f)], -1)  # (n, nodes, 2)
    p1 = torch.special.ndtr(mean / (1 + variance).sqrt())
    zero = torch.zeros_like(mean)
    return Categorical(
        probs=torch.stack([1 - p1, p1], -1),
        expected_log_probs=(log_p * weights[:, None]).sum(1),
        member_entropy=-((log_p.exp() * log_p).sum(-1) * weights).sum(1),
        output_mean=torch.stack([zero, mean], -1),
        output_variance=torch.stack([zero, variance], -1),
    )


def _maximize(model: torch.nn.Module, objective: Callable[[], Tensor], steps: int, learning_rate: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss = -objective()
        if not loss.isfinite():
            raise RuntimeError(
                f"the objective is no longer finite in step {step}; try a learning_rate below {learning_rate}"
            )
        loss.backward()
        optimizer.step()


def _check_family(family: type[Any], expected: type[Any], keep_samples: bool) -> None:
    if family is not expected or keep_samples:
        raise ValueError(
            f"this Gaussian process predicts a {expected.__name__} without samples, got family={family.__name__}, "
            f"keep_samples={keep_samples}; use family={expected.__name__}"
        )
