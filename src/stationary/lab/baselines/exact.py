"""Gaussian processes without inducing points: exact regression, and variational classification (VGP).

Both have the mean 0 and, as covariance, a copy of any GPyTorch kernel times a trained variance; they compute in
float64. They are used like the other methods:
``fit(ExactGP(), ExactGP().builder(kernel, (x, y)), (x, y), gp_training(300))`` gives a posterior that
``stationary.predict`` takes.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary._extras import extra
from stationary.inference.base import Method, Networks, only_network
from stationary.nn.running import Inputs, evaluating
from stationary.predictive import Categorical, Gaussian, P
from stationary.training import Build, Data, Training
from stationary.training.data import Pair

with extra("gp"):
    import gpytorch
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.kernels import Kernel, ScaleKernel

NODES = 64  # number of nodes of the Gauss-Hermite rule over the latent function


def gp_training(steps: int, learning_rate: float = 0.05) -> Training:
    """Return the training of a Gaussian process: Adam on all its parameters, with its own loss over all rows at once.

    Args:
        steps: number of steps.
        learning_rate: learning rate of Adam.
    """
    return Training(loss="own", epochs=steps, batch_size=None, learning_rate=learning_rate)


class _ExactModel(gpytorch.models.ExactGP):
    def __init__(self, kernel: Kernel, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.kernel = ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (n,) equal numbers: the negative log marginal likelihood of all rows, divided by their number."""
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self)
        return -objective(self(x.double()), y.double().reshape(-1)).expand(len(x))


class _VariationalModel(gpytorch.models.ApproximateGP):
    """A variational process with an inducing point fixed at each training point, so that nothing is sparse."""

    def __init__(self, kernel: Kernel, x: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(
            len(x), mean_init_std=0.0
        )  # the start is not random
        super().__init__(
            gpytorch.variational.VariationalStrategy(self, x, distribution, learn_inducing_locations=False)
        )
        self.kernel = ScaleKernel(kernel)
        self.likelihood = gpytorch.likelihoods.BernoulliLikelihood()

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (n,) equal numbers: the negative evidence lower bound of all rows, divided by their number."""
        objective = gpytorch.mlls.VariationalELBO(self.likelihood, self, num_data=len(x))
        return -objective(self(x.double()), y.double()).expand(len(x))


@dataclass(frozen=True)
class ExactGP(Method):
    """Exact GP regression, whose kernel, variance and noise maximise the marginal likelihood."""

    def builder(self, kernel: Kernel, data: Pair) -> Build:
        """Return the function that ``fit`` calls to build the process.

        Args:
            kernel: kernel of the function, which is copied; a trained variance multiplies it.
            data: training inputs x, (n, d), and targets y, (n,) or (n, 1).
        """
        x, y = data[0].double(), data[1].double().reshape(-1)
        return lambda: _ExactModel(deepcopy(kernel), x, y).to(x)

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "ExactGPPosterior":
        return ExactGPPosterior(self, (only_network(networks, self),))


@dataclass(frozen=True)
class ExactGPPosterior:
    method: ExactGP
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        """Predict mean and variance of the function; the noise is the aleatoric part."""
        _check_family(family, Gaussian, keep_samples)
        model: Any = self.networks[0]
        with evaluating(model), gpytorch.settings.debug(False):  # GPyTorch's checks would warn at training inputs
            latent = model(_float64(x))
        noise = model.likelihood.noise.detach().expand(len(latent.mean), 1)
        return Gaussian(latent.mean[:, None], latent.variance[:, None], noise)  # type: ignore[return-value]


@dataclass(frozen=True)
class VGP(Method):
    """Variational GP classification with two classes, whose probability is the probit of the function.

    The posterior of the function at the training points is a Gaussian with any covariance. Its parameters and those of
    the kernel are trained together, by the evidence lower bound.
    """

    def builder(self, kernel: Kernel, data: Pair) -> Build:
        """Return the function that ``fit`` calls to build the process.

        Args:
            kernel: kernel of the function, which is copied; a trained variance multiplies it.
            data: training inputs x, (n, d), and classes y, (n,), which are 0 or 1.
        """
        x, y = data[0].double(), data[1]
        if y.ndim != 1 or not set(y.unique().tolist()) <= {0, 1}:
            raise ValueError(
                f"y must be (n,) with the classes 0 and 1, got the shape {tuple(y.shape)} and the values "
                f"{y.unique().tolist()}; number the two classes 0 and 1"
            )
        return lambda: _VariationalModel(deepcopy(kernel), x).to(x)

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "VGPPosterior":
        return VGPPosterior(self, (only_network(networks, self),))


@dataclass(frozen=True)
class VGPPosterior:
    method: VGP
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        _check_family(family, Categorical, keep_samples)
        model: Any = self.networks[0]
        with evaluating(model):
            latent = model(_float64(x))
        return probit(latent.mean, latent.variance)  # type: ignore[return-value]


def gauss_hermite(n: int) -> tuple[Tensor, Tensor]:
    """Return n nodes and weights, float64, of the rule sum_k weights_k g(nodes_k) for E[g(z)], z ~ N(0, 1)."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(n))
    return nodes, weights / weights.sum()


def probit(mean: Tensor, variance: Tensor) -> Categorical:
    """Return the prediction of two classes, where class 1 has the probability Phi(f) and f ~ N(mean, variance).

    Its mean is E[Phi(f)] = Phi(mean / sqrt(1 + variance)); the other expectations over f are computed by Gauss-Hermite
    quadrature. The outputs of the two classes are 0 and f.

    Args:
        mean: mean of f, (n,).
        variance: variance of f, (n,).
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


def _check_family(family: type[Any], expected: type[Any], keep_samples: bool) -> None:
    if family is not expected or keep_samples:
        raise ValueError(
            f"this Gaussian process predicts a {expected.__name__} without samples, got family={family.__name__}, "
            f"keep_samples={keep_samples}; use family={expected.__name__}"
        )


def _float64(x: Inputs) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor for a Gaussian process, got a {type(x).__name__}; use torch.as_tensor(x)")
    return x.double()
