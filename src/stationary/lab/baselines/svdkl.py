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
    at_least_float32,
    check_data,
    check_hidden,
    check_settings,
    cholesky,
    full_precision,
    relu_trunk,
)
from stationary.nn.running import evaluating
from stationary.predictive import Categorical
from stationary.training import Data
from stationary.training.data import is_pair

BOUND, MARGIN = 10.0, 0.95  # the grid covers (-10, 10), the features 0.95 of it
MIN_GRID = 8  # from here on every feature has two grid points on both sides
MEAN_STD = 1e-3  # of q's initial mean
MIN_RANGE = 1e-9  # of features that are all the same: each of them 0, perhaps


class GridVariational(nn.Module):
    """q(u_d) = N(mean_d, L_d L_d') at the grid points, one for each feature, not whitened; at first about the prior."""

    mean: nn.Parameter
    root: nn.Parameter

    def __init__(self, n_features: int, prior_root: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(MEAN_STD * torch.randn(n_features, len(prior_root)))
        self.root = nn.Parameter(prior_root.repeat(n_features, 1, 1))  # L_d is its lower triangle


class AdditiveGP(nn.Module):
    """A GP of one variable for each feature, all with one kernel, interpolated from a grid; the classes mix them.

    With q(u_d) = N(m_d, L_d L_d') and w the cubic convolution weights (Keys, 1981) of the four nearest grid points,

        E[f_d] = w' m_d,    Var[f_d] = |L_d' w|^2.

    In training, features are scaled to the grid by the range of the batch, all of them alike. In prediction, by the
    range that ``SVDKL.calibrate`` has kept, and they are clamped to it: an input that is far from the data looks like
    one at their edge. Without calibration, by the range of the batch that is predicted, as in the paper's time.

    Args:
        trunk: from inputs to features; may run under autocast, everything behind it is in float32 at least.
        method: the configuration.
        n_classes, n_data: of the training data.
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
        self.start = -BOUND - 2 * BOUND / (size - 2)  # one point more on each side
        self.spacing = -2 * self.start / (size - 1)
        self.kernel = RadialKernel(method.nu, math.log(2), math.log(2), constant_mean=True)  # GPyTorch: softplus(0)
        self.mixing = nn.Parameter(torch.randn(n_classes, n_features) / n_features)
        self.likelihood = Softmax(n_features, method.n_samples, method.n_test_samples)
        self.register_buffer("n_data", torch.tensor(float(n_data)))  # may differ between stacked members
        self.register_buffer("bounds", torch.tensor([math.inf, -math.inf]))  # until calibrated
        with torch.no_grad():
            self.variational = GridVariational(n_features, self.prior_root())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the features' functions, (n, features) each."""
        features = self.trunk(x)
        with full_precision(x):
            weights = self.weights(self.scaled(at_least_float32(features)).mT)  # (features, n, grid)
            mean = (weights @ self.variational.mean[..., None])[..., 0]
            variance = (weights @ self.variational.root.tril()).square().sum(-1)
            return mean.mT, variance.clamp(min=MIN_VARIANCE).mT

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """(n,) -E[log p(y | f)] + KL / n_data: their mean is -ELBO / n_data."""
        mean, variance = self(x)
        with full_precision(x):
            fit = self.likelihood.expected_log_prob(mean, variance, y, self.mixing)
            return self.divergence() / self.n_data - fit

    def predictive(self, x: Tensor, seed: int, keep_samples: bool) -> Categorical:
        mean, variance = self(x)
        return self.likelihood.predictive(mean, variance, seed, keep_samples, self.mixing)

    def scaled(self, features: Tensor) -> Tensor:
        """The features on (-0.95, 0.95) times the grid's bound."""
        low, high = features.amin((0, 1)), features.amax((0, 1))
        if not self.training:
            calibrated = self.bounds.isfinite()
            low, high = torch.where(calibrated, self.bounds, torch.stack([low, high]))
            features = features.clamp(low, high)
        return MARGIN * BOUND * (2 * (features - low) / (high - low).clamp(min=MIN_RANGE) - 1)

    def weights(self, x: Tensor) -> Tensor:
        """(..., grid), four of them not 0: u(s) of the distances s to the grid points, in units of their spacing.

        u(s) = 1 - 5/2 s^2 + 3/2 s^3 to s = 1, then 2 - 4 s + 5/2 s^2 - 1/2 s^3 to s = 2.
        """
        position = (x - self.start) / self.spacing
        first = position.detach().long().clamp(1, self.grid_size - 3) - 1  # clamped, lest NaN become an index
        nearest = first[..., None] + torch.arange(4, device=x.device)
        s = (position[..., None] - nearest).abs()
        near, far = 1 + s * s * (1.5 * s - 2.5), 2 + s * (s * (2.5 - 0.5 * s) - 4)
        values = torch.where(s < 1, near, far)
        return values.new_zeros(*x.shape, self.grid_size).scatter(-1, nearest, values)

    def prior_root(self) -> Tensor:
        """The factor of the prior's covariance at the grid points."""
        dtype, device = self.mixing.dtype, self.mixing.device
        grid = self.start + self.spacing * torch.arange(self.grid_size, dtype=dtype, device=device)
        covariance = self.kernel.variance * self.kernel.gram(grid[:, None], 0.0)
        return cholesky(covariance + self.jitter * torch.eye(self.grid_size, dtype=dtype, device=device))

    def divergence(self) -> Tensor:
        """KL(q(u) || p(u)), summed over the features."""
        factor, mean, root = self.prior_root(), self.variational.mean, self.variational.root.tril()
        centered = mean - self.kernel.mean
        columns = torch.cat([centered[..., None], root], -1).transpose(0, 1)  # (grid, features, 1 + grid)
        whitened = torch.linalg.solve_triangular(factor, columns.flatten(1), upper=False)
        log_det = root.diagonal(dim1=-2, dim2=-1).square().log().sum()
        prior_log_det = 2 * len(mean) * factor.diagonal().log().sum()
        return 0.5 * (whitened.square().sum() - mean.numel() + prior_log_det - log_det)


@dataclass(frozen=True)
class SVDKL(SparseMethod):
    """A network of ReLU layers, a GP on a grid for each of its outputs, softmax of their mixtures.

    The last layer has a ReLU too, as the tutorial's network. Scaled to the grid, features are the same whatever their
    size; those of a linear layer grow without bounds at the paper's learning rate, and training goes astray in most
    folds of Covtype and some of Connect-4.

    In the paper's training the hyperparameters (``kernel``) have 0.01 of the learning rate, and only the trunk has
    weight decay. GPyTorch's tutorial also has a prior on the length-scale, flat from 0 to 1 and divided by the number
    of rows; it is left out here.

    Args:
        nu: smoothness of the kernel: 0.5, 1.5, 2.5 or ``math.inf`` (RBF).
        grid_size: grid points on (-10, 10), at least 8; the outermost lie a little beyond.
        hidden: widths of the layers; the last one is the number of features.
        n_samples: draws for the softmax in training.
        n_test_samples: and in prediction.
        jitter: added to the diagonal of the prior's covariance, 1e-3 as in GPyTorch: with neighbours at 0.6 of the
            initial length-scale, the RBF's smallest eigenvalue is 1e-5.
        seed: of the draws in prediction.
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
            raise ValueError(f"grid_size must be at least {MIN_GRID}, for cubic interpolation, got {self.grid_size!r}")

    def build(self, x: Tensor, n_classes: int) -> AdditiveGP:
        """A fresh module for these training inputs, (n, d), on their device."""
        check_data(x, n_classes)
        trunk = nn.Sequential(*relu_trunk(x.shape[1], self.hidden), nn.ReLU())
        return AdditiveGP(trunk, self, n_classes, len(x)).to(x)

    def calibrate(self, model: AdditiveGP, x: Tensor, batch_size: int = 500) -> None:
        """Keep the range of the features, for predictions: its mean over random batches of the training inputs x.

        Not the range over all of x: that is wider than what the functions were trained with, the more so the more rows.
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
        """With the training data, the range of the features is kept for predictions (``calibrate``)."""
        network: Any = only_network(networks, self)
        if data is not None:
            if not is_pair(data):
                raise ValueError("data must be two tensors (x, y) for SVDKL, got an iterable; join its batches")
            self.calibrate(network, data[0])
        return SparsePosterior(self, (network,))
