"""The surrogates: models of BoTorch, fitted to the points and values that are known so far.

Inputs are in the unit cube and values are standardised. Kernels of networks see the inputs centred and with a mean
square of 1, over the coordinates for BoTorch's kernel, which divides by their number itself, and in all for ours, so
that a weight of standard deviation 1 means the same for both in any number of dimensions.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stationary._extras import extra
from stationary.activations import Matern, SinCos
from stationary.bo import SurrogateModel, centred, with_priors
from stationary.gp import kernel_of
from stationary.inference import InfiniteWidth
from stationary.training import Training, train

with extra("bo"):
    from botorch.exceptions.warnings import OptimizationWarning
    from botorch.models import SingleTaskGP
    from botorch.models.kernels.infinite_width_bnn import InfiniteWidthBNNKernel
    from botorch.models.model import Model
    from botorch.models.transforms.input import AffineInputTransform
    from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
    from botorch.optim.fit import fit_gpytorch_mll_scipy
    from gpytorch.constraints import GreaterThan
    from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from gpytorch.priors import LogNormalPrior
    from linear_operator.utils.errors import NanError, NotPSDError

NOISE = 1e-4  # of the variance of the values: the functions have none, and every surrogate knows it
HELD_OUT = 4  # one row in so many chooses the numbers of infinite width, and the others train its trunk


def relu_network() -> Kernel:
    """BoTorch's kernel of a ReLU network of depth 3, its default, with the same priors in terms of variances."""
    kernel = InfiniteWidthBNNKernel()
    kernel.register_prior("weight_var_prior", LogNormalPrior(0.0, 2.0), lambda module: module.weight_var)
    kernel.register_prior("bias_var_prior", LogNormalPrior(0.0, 2.0), lambda module: module.bias_var)
    return ScaleKernel(kernel)


def matern_network(depth: int) -> Kernel:
    """The kernel of a Matérn network, with priors."""
    return with_priors(kernel_of(Matern(2.5), depth=depth, normalize=True))


def one_length_scale(dims: int) -> Kernel:
    """BoTorch's Matérn kernel with its prior for this number of dimensions, but one length-scale for all of them."""
    prior = LogNormalPrior(math.sqrt(2) + math.log(dims) / 2, math.sqrt(3))
    constraint = GreaterThan(0.025, transform=None, initial_value=prior.mode)
    return MaternKernel(2.5, lengthscale_prior=prior, lengthscale_constraint=constraint)


KERNELS: dict[str, Callable[[int], Kernel]] = {
    "matern gp": lambda dims: get_covar_module_with_dim_scaled_prior(dims, use_rbf_kernel=False),
    "rbf gp": get_covar_module_with_dim_scaled_prior,
    "one length-scale": one_length_scale,
    "relu network": lambda dims: relu_network(),
    "matern network 1": lambda dims: matern_network(depth=1),
    "matern network 3": lambda dims: matern_network(depth=3),
    "sine-cosine": lambda dims: with_priors(kernel_of(SinCos())),
}
CENTRED = ("relu network", "matern network 1", "matern network 3", "sine-cosine")


class Process:
    """A Gaussian process whose hyperparameters are fitted anew at each step, by marginal likelihood and priors.

    L-BFGS starts from the hyperparameters of the step before or from the initial ones, whichever are likelier.

    Args:
        name: name of the kernel: a key of ``KERNELS``.
        fit_steps: largest number of steps of L-BFGS.
    """

    def __init__(self, name: str, fit_steps: int) -> None:
        self.name, self.fit_steps = name, fit_steps
        self.last: dict[str, Tensor] | None = None
        self.failures = 0  # fits that ended with an error, after which the hyperparameters are those of the start

    def state_dict(self) -> dict[str, Tensor]:
        """The hyperparameters from which the next step starts, and the number of failures."""
        return {"failures": torch.tensor(self.failures), **(self.last or {})}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from the state of another one."""
        self.failures = int(state["failures"])
        self.last = {name: value for name, value in state.items() if name != "failures"} or None

    def __call__(self, x: Tensor, y: Tensor) -> Model:
        """Fit to points (n, d) and values (n, 1)."""
        dims = x.shape[-1]
        model = SingleTaskGP(
            x,
            y,
            torch.full_like(y, NOISE),
            covar_module=KERNELS[self.name](dims).double(),
            outcome_transform=None,
            input_transform=self._seen(dims),
        )
        likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
        if self.last is not None:
            fresh, before = _state(model), _value(likelihood)
            _load(model, self.last)
            if not _value(likelihood) > before:
                _load(model, fresh)
        start = _state(model)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", OptimizationWarning)  # that the steps are used up
                fit_gpytorch_mll_scipy(likelihood, options={"maxiter": self.fit_steps})
        except (NanError, NotPSDError):
            self.failures += 1
            _load(model, start)
        self.last = _state(model)
        return likelihood.eval().model

    def _seen(self, dims: int) -> AffineInputTransform | None:
        """The inputs as the kernel sees them."""
        if self.name not in CENTRED:
            return None
        return centred(dims, square=dims if self.name == "relu network" else 1.0)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _load(model: nn.Module, state: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])


def _value(likelihood: Any) -> float:
    """The objective of the fit; minus infinity where the kernel's matrix has no Cholesky factor."""
    model = likelihood.model.train()
    try:
        with torch.no_grad():
            return float(likelihood(model(*model.train_inputs), model.train_targets))
    except (NanError, NotPSDError):
        return -math.inf


class Trunk:
    """``InfiniteWidth`` on a network of two layers of 50 tanh units, which is trained anew at each step.

    One row in ``HELD_OUT`` does not train the trunk, and chooses the length-scale and the variance; then the
    posterior is given these rows too.

    Args:
        seed: seed of the initial weights.
    """

    failures = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing: each step starts anew."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from the state of another one."""

    def __call__(self, x: Tensor, y: Tensor) -> Model:
        """Fit to points (n, d) and values (n, 1)."""
        chooses = torch.arange(len(x)) % HELD_OUT == HELD_OUT - 1
        rows, held = (x[~chooses], y[~chooses]), (x[chooses], y[chooses])
        training = Training(epochs=300, batch_size=None, learning_rate=0.01, loss="mse")
        [network] = train(lambda: _network(x.shape[-1]), rows, training, seeds=[self.seed])
        posterior = InfiniteWidth(noise=NOISE).posterior(network, rows, validation=held)
        return SurrogateModel(posterior.update(held))


class _Standardised(nn.Module):
    """From the unit cube to columns of mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(3) * (2 * x - 1)


def _network(dims: int) -> nn.Module:
    layers = (nn.Linear(dims, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    return nn.Sequential(_Standardised(), *layers).double()
