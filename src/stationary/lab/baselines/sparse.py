"""Sparse variational Gaussian processes, on inputs or on a network's features.

Unlike GPyTorch's, many of these can be trained at once: they are plain modules whose control flow does not depend on
data, so that ``torch.func.vmap`` runs stacked ones and a CUDA graph records them. A Cholesky factorization that fails
raises no error but makes the loss NaN. The first part of a parameter's name says what it belongs to: ``trunk``,
``kernel`` (the hyperparameters) or ``variational``.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary._checks import check_finite, is_count
from stationary.inference.base import Method, Networks, only_network
from stationary.nn.running import Inputs, evaluating
from stationary.predictive import Categorical, P, at_least_float32
from stationary.training import Build, Data
from stationary.training.data import Pair

NUS = (0.5, 1.5, 2.5, math.inf)
MIN_SQUARE = 1e-14  # least squared scaled distance; its root changes kernels by less than float32 rounds
MIN_VARIANCE = 1e-8  # least variance of a latent function
KMEANS_ROWS, KMEANS_STEPS = 5000, 15


class RadialKernel(nn.Module):
    """A variance times a correlation of |(x - z) / lengthscale|: the Matérn with nu = 1/2, 3/2 or 5/2, or the RBF.

    Args:
        nu: smoothness: 0.5, 1.5 or 2.5, or ``math.inf`` for the RBF.
        lengthscale: initial length-scale, which is the softplus of a parameter.
        variance: initial variance, which is the softplus of a parameter.
        n_lengthscales: number of length-scales: 1, or one for each column of x.
        constant_mean: whether the process has a mean, the parameter ``mean``, which is trained as well.
    """

    mean: Tensor
    raw_lengthscale: nn.Parameter
    raw_variance: nn.Parameter

    def __init__(
        self,
        nu: float,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        *,
        n_lengthscales: int = 1,
        constant_mean: bool = False,
    ) -> None:
        super().__init__()
        self.nu = nu
        self.register_parameter("mean", nn.Parameter(torch.zeros(())) if constant_mean else None)
        raw = _inverse_softplus(lengthscale)
        self.raw_lengthscale = nn.Parameter(raw if n_lengthscales == 1 else raw.repeat(n_lengthscales))
        self.raw_variance = nn.Parameter(_inverse_softplus(variance))

    @property
    def lengthscale(self) -> Tensor:
        return F.softplus(self.raw_lengthscale)

    @property
    def variance(self) -> Tensor:
        return F.softplus(self.raw_variance)

    def correlation(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the correlations (n, m) between the rows of x, (n, d), and those of z, (m, d)."""
        square = squared_distances(x / self.lengthscale, z / self.lengthscale)
        if math.isinf(self.nu):
            return torch.exp(-0.5 * square)
        s = math.sqrt(2 * self.nu) * square.clamp(min=MIN_SQUARE).sqrt()
        if self.nu == 0.5:
            return torch.exp(-s)
        return (1 + s if self.nu == 1.5 else 1 + s * (1 + s / 3)) * torch.exp(-s)

    def gram(self, z: Tensor, jitter: float) -> Tensor:
        """Return the correlations (m, m) of z with itself; the diagonal is 1 + jitter, free of rounding errors."""
        diagonal = torch.eye(len(z), dtype=torch.bool, device=z.device)
        return self.correlation(z, z).masked_fill(diagonal, 1 + jitter)


class Inducing(nn.Module):
    """Inducing points, and for each of c latent functions its q = N(mean_j, L_j L_j') there, which starts as N(0, I).

    Args:
        points: the initial inducing points, (m, d).
        n_latents: number c of latent functions.
    """

    points: nn.Parameter
    mean: nn.Parameter
    factor: nn.Parameter

    def __init__(self, points: Tensor, n_latents: int) -> None:
        super().__init__()
        m = len(points)
        self.points = nn.Parameter(points.clone())
        self.mean = nn.Parameter(points.new_zeros(m, n_latents))
        # L_j' is the upper triangle of factor_j. Stored like this, all L_j' A are one matrix product without a copy.
        self.factor = nn.Parameter(torch.eye(m).to(points).repeat(n_latents, 1, 1))


class SparseGP(nn.Module):
    """c latent functions with one kernel and one set of inducing points Z, on the features of a trunk.

    With q(v_j) = N(m_j, L_j L_j'), C = chol(R_zz + jitter I) and A = C^-1 R_zx, where R are the correlations,

        E[f_j] = sqrt(variance) A' m_j,    Var[f_j] = variance (1 - |A|^2 + |L_j' A|^2),

    which is the textbook's formula with L = sqrt(variance) C. The jitter is relative to the variance, as rounding is.
    These v_j are whitened: a priori they are N(0, I). The values of the function at the inducing points are
    u_j = sqrt(variance) C v_j. Parameters of v and of u describe the same distributions; they differ in where training
    starts and which way it goes.

    Args:
        trunk: module that maps inputs to features. It may run under autocast; everything behind it is in float32 or
            float64.
        kernel: kernel of the features.
        points: initial inducing points, (m, d).
        likelihood: one of the likelihoods of ``stationary.lab.baselines.likelihoods``.
        n_data: number of rows of the training data.
        jitter: number added to the diagonal of the inducing points' correlations.
        whitened: whether mean and factor in ``variational`` are those of v; if False they are those of u.
    """

    n_data: Tensor
    trunk: nn.Module
    kernel: RadialKernel
    likelihood: Any
    jitter: float
    whitened: bool
    variational: Inducing

    def __init__(
        self,
        trunk: nn.Module,
        kernel: RadialKernel,
        points: Tensor,
        likelihood: Any,
        n_data: int,
        jitter: float,
        *,
        whitened: bool = True,
    ) -> None:
        super().__init__()
        self.trunk, self.kernel, self.likelihood, self.jitter = trunk, kernel, likelihood, jitter
        self.whitened = whitened
        self.variational = Inducing(points, likelihood.n_latents)
        self.register_buffer("n_data", torch.tensor(float(n_data)))  # a buffer, since stacked members may differ in it

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the latent functions, (n, c) each."""
        return self.latent(x)[:2]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -E[log p(y | f)] + KL / n_data for each row, (n,), whose mean is -ELBO / n_data."""
        mean, variance, divergence = self.latent(x)
        with full_precision(x):
            return divergence / self.n_data - self.likelihood.expected_log_prob(mean, variance, y)

    def predictive(self, x: Tensor, seed: int, keep_samples: bool) -> Categorical:
        return self.likelihood.predictive(*self(x), seed, keep_samples)

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and variance of the latent functions, (n, c) each, and their sum of KL(q || prior)."""
        features = self.trunk(x)
        with full_precision(x):
            a, mean, factor = self._whiten(at_least_float32(features))
            variance = self.kernel.variance
            projected = _RoundedProduct.apply(factor.flatten(0, 1), a).unflatten(0, factor.shape[:2])  # (c, m, n)
            spread = (1 - a.square().sum(0)).clamp(min=0) + projected.square().sum(1)
            log_det = factor.diagonal(dim1=-2, dim2=-1).square().log().sum()
            divergence = 0.5 * (mean.square().sum() + factor.square().sum() - log_det - mean.numel())
            return variance.sqrt() * (a.mT @ mean), (variance * spread).clamp(min=MIN_VARIANCE).mT, divergence

    def _whiten(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A, (m, n), and the means, (m, c), and factors L_j', (c, m, m), of q(v)."""
        points, mean, factor = self.variational.points, self.variational.mean, self.variational.factor.triu()
        gram, cross = self.kernel.gram(points, self.jitter), self.kernel.correlation(points, features)
        if self.whitened:
            return _Whitened.apply(gram, cross)[0], mean, factor
        columns = torch.cat([cross, mean, factor.flatten(0, 1).mT], dim=1)  # the L_j side by side
        parts = _Whitened.apply(gram, columns)[0].split([cross.shape[1], mean.shape[1], factor[..., 0].numel()], dim=1)
        std = self.kernel.variance.sqrt()
        return parts[0], parts[1] / std, parts[2].mT.unflatten(0, factor.shape[:2]) / std


class SparseMethod(Method, Protocol):
    """A Gaussian process with inducing points as a method: ``fit(method, method.builder(data), data, training)``.

    The training must have the loss "own", with which the module's own loss is minimised: the negative evidence lower
    bound.
    """

    def build(self, x: Tensor, n_classes: int) -> nn.Module:
        """Build a fresh module for training inputs x, (n, d), on their device."""
        raise NotImplementedError

    def builder(self, data: Pair) -> Build:
        """Return the function that ``fit`` calls to build a module for the training data (x, y)."""
        x, y = data
        return partial(self.build, x, max(2, int(y.max()) + 1))

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "SparsePosterior":
        return SparsePosterior(self, (only_network(networks, self),))


@dataclass(frozen=True)
class SparsePosterior:
    method: Any
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        if family is not Categorical:
            raise ValueError(
                f"this Gaussian process predicts a Categorical, got family={family.__name__}; use family=Categorical"
            )
        model: Any = self.networks[0]
        with evaluating(model):
            return model.predictive(x, getattr(self.method, "seed", 0), keep_samples)


# Numbers


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """Return the squared distances (n, m), at least 0, by a matrix product about the mean of z, where less cancels."""
    center = z.detach().mean(0)
    x, z = x - center, z - center
    return (x.square().sum(1)[:, None] + z.square().sum(1) - 2 * x @ z.mT).clamp(min=0)


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower Cholesky factor; where there is none it is NaN, and so is the loss, but nothing is raised."""
    factor, failed = torch.linalg.cholesky_ex(matrix, check_errors=False)
    return factor.masked_fill((failed > 0)[..., None, None], math.nan)


class _Whitened(torch.autograd.Function):
    """Computes C^-1 B, where C C' = R, and as second result C^-1; forward and backward by matrix products.

    Autograd would solve triangular systems, which GPUs do slowly: with this, a step of SVGP's linear algebra takes 1.4
    instead of 2.2 ms on an H200. With A = C^-1 B, and G the lower half of dA A' with its diagonal halved, the gradients
    are dB = C^-T dA and dR = -C^-T (G + G') C^-1 / 2.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gram: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.solve_triangular(cholesky(gram), eye, upper=False)
        return inverse @ cross, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        a, inverse = ctx.saved_tensors
        half = (grad @ a.mT).tril()
        half = half - 0.5 * torch.diag_embed(half.diagonal(dim1=-2, dim2=-1))
        return -0.5 * inverse.mT @ (half + half.mT) @ inverse, inverse.mT @ grad


class _RoundedProduct(torch.autograd.Function):
    """A matrix product that rounds its factors to TF32 on a GPU: 11 bits suffice for a variance, 2.5 times faster."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        with _tf32(a):
            return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        with _tf32(a):
            return grad @ b.mT, a.mT @ grad


@contextmanager
def _tf32(x: Tensor) -> Iterator[None]:
    """Let matrix products in float32 use TF32 inside, if x is on a GPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if x.is_cuda else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def full_precision(x: Tensor) -> torch.autocast:
    """Switch autocast off inside: in bfloat16, kernels and Cholesky factors would be noise."""
    return torch.autocast(x.device.type, enabled=False)


def _inverse_softplus(value: float) -> Tensor:
    return torch.tensor(value + math.log(-math.expm1(-value)))


# Building


def relu_trunk(in_features: int, hidden: Sequence[int]) -> nn.Sequential:
    """Build linear layers with ReLU between them; the features are the outputs of the last one, without a ReLU."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise((in_features, *hidden)):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def some_rows(x: Tensor, n: int = KMEANS_ROWS) -> Tensor:
    """Choose at most n random rows, by torch's global generator."""
    return x[torch.randperm(len(x))[:n].to(x.device)]


def kmeans(x: Tensor, n: int, steps: int = KMEANS_STEPS) -> Tensor:
    """Return n centres of the rows of x, (n, d), by Lloyd's algorithm from random rows.

    If x has fewer rows, all of them are centres at the start. The centre of an empty cluster stays where it is.
    """
    centers = some_rows(x, n)
    for _ in range(steps):
        member = F.one_hot(squared_distances(x, centers).argmin(1), len(centers)).to(x)
        count = member.sum(0)[:, None]
        centers = torch.where(count > 0, member.mT @ x / count.clamp(min=1), centers)
    return centers


def typical_distance(x: Tensor) -> float:
    """Return the mean distance between two of the first 1000 rows; 1 if they are all the same.

    As a length-scale it makes correlations that are neither 0 nor 1, whatever the dimension and the units of the rows:
    at that distance the correlation is 0.37 for nu = 1/2, 0.48 for 3/2, 0.52 for 5/2 and 0.61 for the RBF.
    """
    return float(torch.pdist(x[:1000]).mean()) or 1.0 if len(x) > 1 else 1.0


# Checks of what users pass in


def check_settings(nu: float, counts: dict[str, int], jitter: float, lengthscale: float | None = None) -> None:
    if nu not in NUS:
        raise ValueError(f"nu must be 0.5, 1.5, 2.5 or math.inf (the RBF), got {nu!r}; ExactGP and VGP take any kernel")
    for name, value in counts.items():
        if not is_count(value):
            raise ValueError(f"{name} must be a positive integer, got {value!r}; leave it out for the default")
    check_finite("jitter", jitter, "1e-4 keeps float32 factorizations from failing")
    if lengthscale is not None:
        check_finite("lengthscale", lengthscale, "None takes the mean distance between rows")


def check_hidden(hidden: tuple[int, ...]) -> None:
    if not isinstance(hidden, tuple) or not hidden or not all(isinstance(n, int) and n > 0 for n in hidden):
        raise ValueError(
            f"hidden must be a tuple of positive widths, the last that of the features, got {hidden!r}; use (50,)"
        )


def check_data(x: Tensor, n_classes: int) -> None:
    if x.ndim != 2 or len(x) == 0 or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"x must be (n, d) in float32 or float64, with at least one row; got {tuple(x.shape)} {x.dtype}: flatten "
            "inputs, use x.float()"
        )
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2, got {n_classes!r}; y needs two classes to tell apart")
