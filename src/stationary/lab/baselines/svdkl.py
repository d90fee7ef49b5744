"""SV-DKL: stochastic variational deep kernel learning (Wilson et al., 2016), as in GPyTorch's tutorial."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stationary.inference.base import Networks, only_network
from stationary.lab.baselines.likelihoods import Softmax
from stationary.lab.baselines.sparse import (
    MIN_VARIANCE,
    RadialKernel,
    SparseMethod,
    SparsePosterior,
    check_data,
    check_hidden,
    check_settings,
    cholesky,
    full_precision,
    relu_trunk,
)
from stationary.nn.running import evaluating
from stationary.predictive import Categorical, at_least_float32
from stationary.training import Data
from stationary.training.data import is_pair

BOUND, MARGIN = 10.0, 0.95  # the grid covers (-10, 10), and the scaled features 0.95 of that
MIN_GRID = 8  # the least size at which every feature has two grid points on either side
MEAN_STD = 1e-3  # standard deviation of the initial mean of q
MIN_RANGE = 1e-9  # range to divide by where all features are the same, for example 0


class GridVariational(nn.Module):
    """For each feature d, the distribution q(u_d) = N(mean_d, L_d L_d') of its function at the grid points.

    It is not whitened, and starts near the prior.

    Args:
        n_features: number of features.
        prior_root: Cholesky factor of the prior's covariance at the grid points, with which every L_d starts.
    """

    mean: nn.Parameter
    root: nn.Parameter

    def __init__(self, n_features: int, prior_root: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(MEAN_STD * torch.randn(n_features, len(prior_root)))
        self.root = nn.Parameter(prior_root.repeat(n_features, 1, 1))  # L_d is its lower triangle


class AdditiveGP(nn.Module):
    """A GP of one variable for each feature, interpolated from a grid; the classes' outputs are mixtures of these GPs.

    All GPs share one kernel. With q(u_d) = N(m_d, L_d L_d') and w the cubic convolution weights (Keys, 1981) of the
    four nearest grid points,

        E[f_d] = w' m_d,    Var[f_d] = |L_d' w|^2.

    In training, all features are scaled to the grid by the range of the features in the batch. In prediction they are
    scaled by the range that ``SVDKL.calibrate`` has kept and clamped to it: an input far from the data looks like one
    at their edge. Without calibration they are scaled by the range of the batch that is predicted, as was
    done when the paper was written.

    Args:
        trunk: module that maps inputs to features. It may run under autocast; everything behind it is in float32 or
            float64.
        method: the settings.
        n_classes: number of classes.
        n_data: number of rows of the training data.
    """

    n_data: Tensor
    bounds: Tensor
    trunk: nn.Module
    grid_size: int
    jitter: float
    start: float
    spacing: float
    kernel: RadialKernel
    mixing: nn.Parameter
    likelihood: Softmax
    variational: GridVariational

    def __init__(self, trunk: nn.Module, method: "SVDKL", n_classes: int, n_data: int) -> None:
        super().__init__()
        n_features, size = method.hidden[-1], method.grid_size
        self.trunk, self.grid_size, self.jitter = trunk, size, method.jitter
        self.start = -BOUND - 2 * BOUND / (size - 2)  # the outermost points lie beyond (-10, 10)
        self.spacing = -2 * self.start / (size - 1)
        self.kernel = RadialKernel(
            method.nu, math.log(2), math.log(2), constant_mean=True
        )  # log 2 = softplus(0), as in GPyTorch
        self.mixing = nn.Parameter(torch.randn(n_classes, n_features) / n_features)
        self.likelihood = Softmax(n_features, method.n_samples, method.n_test_samples)
        self.register_buffer("n_data", torch.tensor(float(n_data)))  # a buffer, since stacked members may differ in it
        self.register_buffer("bounds", torch.tensor([math.inf, -math.inf]))  # infinite until they are calibrated
        with torch.no_grad():
            self.variational = GridVariational(n_features, self.prior_root())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the features' functions, (n, features) each."""
        features = self.trunk(x)
        with full_precision(x):
            weights = self.weights(self.scaled(at_least_float32(features)).mT)  # (features, n, grid)
            mean = (weights @ self.variational.mean[..., None])[..., 0]
            variance = (weights @ self.variational.root.tril()).square().sum(-1)
            return mean.mT, variance.clamp(min=MIN_VARIANCE).mT

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -E[log p(y | f)] + KL / n_data for each row, (n,), whose mean is -ELBO / n_data."""
        mean, variance = self(x)
        with full_precision(x):
            fit = self.likelihood.expected_log_prob(mean, variance, y, self.mixing)
            return self.divergence() / self.n_data - fit

    def predictive(self, x: Tensor, seed: int, keep_samples: bool) -> Categorical:
        mean, variance = self(x)
        return self.likelihood.predictive(mean, variance, seed, keep_samples, self.mixing)

    def scaled(self, features: Tensor) -> Tensor:
        """Return the features scaled to the grid, between -0.95 and 0.95 times its bound."""
        low, high = features.amin((0, 1)), features.amax((0, 1))
        if not self.training:
            calibrated = self.bounds.isfinite()
            low, high = torch.where(calibrated, self.bounds, torch.stack([low, high]))
            features = features.clamp(low, high)
        return MARGIN * BOUND * (2 * (features - low) / (high - low).clamp(min=MIN_RANGE) - 1)

    def weights(self, x: Tensor) -> Tensor:
        """Return the weights (..., grid) of the grid points for scaled features x, of which only four are not 0.

        They are u(s) of the distances s to the grid points, in units of their spacing: u(s) = 1 - 5/2 s^2 + 3/2 s^3 up
        to s = 1, then 2 - 4 s + 5/2 s^2 - 1/2 s^3 up to s = 2.
        """
        position = (x - self.start) / self.spacing
        first = position.detach().long().clamp(1, self.grid_size - 3) - 1  # clamped, so that NaN is no index
        nearest = first[..., None] + torch.arange(4, device=x.device)
        s = (position[..., None] - nearest).abs()
        near, far = 1 + s * s * (1.5 * s - 2.5), 2 + s * (s * (2.5 - 0.5 * s) - 4)
        values = torch.where(s < 1, near, far)
        return values.new_zeros(*x.shape, self.grid_size).scatter(-1, nearest, values)

    def prior_root(self) -> Tensor:
        """Return the Cholesky factor of the prior's covariance at the grid points."""
        dtype, device = self.mixing.dtype, self.mixing.device
        grid = self.start + self.spacing * torch.arange(self.grid_size, dtype=dtype, device=device)
        covariance = self.kernel.variance * self.kernel.gram(grid[:, None], 0.0)
        return cholesky(covariance + self.jitter * torch.eye(self.grid_size, dtype=dtype, device=device))

    def divergence(self) -> Tensor:
        """Return KL(q(u) || p(u)), summed over the features."""
        factor, mean, root = self.prior_root(), self.variational.mean, self.variational.root.tril()
        centered = mean - self.kernel.mean
        columns = torch.cat([centered[..., None], root], -1).transpose(0, 1)  # (grid, features, 1 + grid)
        whitened = torch.linalg.solve_triangular(factor, columns.flatten(1), upper=False)
        log_det = root.diagonal(dim1=-2, dim2=-1).square().log().sum()
        prior_log_det = 2 * len(mean) * factor.diagonal().log().sum()
        return 0.5 * (whitened.square().sum() - mean.numel() + prior_log_det - log_det)


@dataclass(frozen=True)
class SVDKL(SparseMethod):
    """A network of ReLU layers, a GP on a grid for each of its outputs, and the softmax of mixtures of these GPs.

    The last layer has a ReLU too, as that of the tutorial's network. With a linear last layer training fails in most
    folds of Covtype and some of Connect-4: nothing bounds the features at the paper's learning rate, since scaled to
    the grid they are the same whatever their size.

    In the paper's training the hyperparameters (``kernel``) have a hundredth of the learning rate, and only the trunk
    has weight decay. GPyTorch's tutorial also has a prior on the length-scale, flat from 0 to 1 and divided by the
    number of rows; it is left out here.

    Args:
        nu: smoothness of the kernel: 0.5, 1.5, 2.5 or ``math.inf`` (RBF).
        grid_size: number of grid points on (-10, 10), at least 8; the outermost lie a little beyond.
        hidden: widths of the network's layers; the last one is the number of features.
        n_samples: number of random draws for the softmax in training.
        n_test_samples: number of random draws for the softmax in prediction.
        jitter: number added to the diagonal of the prior's covariance. The default is GPyTorch's; the smallest
            eigenvalue of an RBF whose neighbours are at 0.6 of the initial length-scale is 1e-5.
        seed: seed of the random draws in prediction.
    """

    nu: float = 1.5
    grid_size: int = 50
    hidden: tuple[int, ...] = (1000, 1000, 500, 50)
    n_samples: int = 8
    n_test_samples: int = 16
    jitter: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        counts = {"grid_size": self.grid_size, "n_samples": self.n_samples, "n_test_samples": self.n_test_samples}
        check_settings(self.nu, counts, self.jitter)
        check_hidden(self.hidden)
        if self.grid_size < MIN_GRID:
            raise ValueError(
                f"grid_size must be at least {MIN_GRID}, for cubic interpolation, got {self.grid_size!r}; use 50"
            )

    def build(self, x: Tensor, n_classes: int) -> AdditiveGP:
        """Build a fresh module for training inputs x, (n, d), on their device."""
        check_data(x, n_classes)
        trunk = nn.Sequential(*relu_trunk(x.shape[1], self.hidden), nn.ReLU())
        return AdditiveGP(trunk, self, n_classes, len(x)).to(x)

    def calibrate(self, model: AdditiveGP, x: Tensor, batch_size: int = 500) -> None:
        """Keep the range of the features in the model, for predictions: its mean over random batches of x.

        The range over all of x would be wider than that of the batches the model was trained with, the more so the more
        rows there are.

        Args:
            model: the trained module, whose ``bounds`` are set.
            x: training inputs, (n, d).
            batch_size: number of rows in a batch, as in training.
        """
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed)).to(x.device)
        in_full_batches = len(x) - len(x) % batch_size or len(x)
        with evaluating(model):
            batches = order[:in_full_batches].split(batch_size)
            ranges = [torch.stack(model.trunk(x[rows]).aminmax()) for rows in batches]
            model.bounds.copy_(torch.stack(ranges).mean(0))

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> SparsePosterior:
        """Return the posterior; if the training data are given, ``calibrate`` first keeps the features' range."""
        network: Any = only_network(networks, self)
        if data is not None:
            if not is_pair(data):
                raise ValueError("data must be two tensors (x, y) for SVDKL, got an iterable; join its batches")
            self.calibrate(network, data[0])
        return SparsePosterior(self, (network,))
