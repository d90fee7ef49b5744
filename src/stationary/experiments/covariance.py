"""Fig. 3 of the paper and its Gram matrices: the Matérn activations and the kernels of their random networks.

Monte Carlo with K = 10,000 hidden units beside the exact kernels, for binary weights (w = -1 or 1) and for unit
Gaussian weights. The paper does not state the length-scale and the bias of its Fig. 3; we take those of its Gram
matrices, lengthscale 0.5 and bias_std 1. Kernels are multiplied by sqrt(2 pi) bias_std, so that a flat bias would
give 1 at the peak. Beyond the paper: functions drawn from finite networks of growing width beside functions drawn
from the Gaussian process they tend to.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stationary import plots
from stationary.activations import Matern, matern
from stationary.gp import kernel_of
from stationary.monte_carlo import monte_carlo_kernel, random_units

VERSION = 2
TITLE = "Activations and covariance functions (Fig. 3)"
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Config:
    nus: tuple[float, ...] = (0.5, 1.5, 2.5, math.inf)
    lengthscale: float = 0.5
    bias_std: float = 1.0
    n_units: int = 10_000
    x_max: float = 3.0
    n_points: int = 601
    n_gram: int = 121
    widths: tuple[int, ...] = (10, 100, 1000)
    n_draws: int = 5
    seed: int = 0


def configs(scale: str = "paper") -> list[Config]:
    return [Config() if scale == "paper" else Config(n_units=1000, n_points=61, n_gram=21, widths=(10, 30))]


def run(config: Config) -> Arrays:
    x = torch.linspace(-config.x_max, config.x_max, config.n_points, dtype=torch.float64)[:, None]
    results: Arrays = {"x": x[:, 0].numpy(), "nu": np.array(config.nus), "widths": np.array(config.widths)}
    results["activation"] = np.stack([matern(x[:, 0], nu, config.lengthscale).numpy() for nu in config.nus])
    for weights in ("binary", "gaussian"):
        for key, curves in covariances(x, weights, config).items():
            results[f"{weights}_{key}"] = curves
    results["gram"] = np.stack([gram(nu, config) for nu in config.nus if math.isfinite(nu)])
    results["draws"] = prior_draws(x, config)
    return results


def covariances(x: Tensor, weights: str, config: Config) -> Arrays:
    """kappa(x, 0): by Monte Carlo, with its standard error, and exactly."""
    origin = torch.zeros(1, 1, dtype=x.dtype)
    prior: dict[str, Any] = {"weights": weights, "bias_std": config.bias_std, "normalize": True}
    curves: dict[str, list[Tensor]] = {"monte_carlo": [], "standard_error": [], "exact": []}
    for nu in config.nus:
        activation = Matern(nu, config.lengthscale)
        mean, error = monte_carlo_kernel(activation, x, origin, n_units=config.n_units, seed=config.seed, **prior)
        exact = kernel_of(activation, **prior).double()(x, origin).to_dense().detach()
        for key, values in zip(curves, (mean, error, exact), strict=True):
            curves[key].append(values[:, 0])
    return {key: torch.stack(values).numpy() for key, values in curves.items()}


def gram(nu: float, config: Config) -> np.ndarray[Any, Any]:
    x = torch.linspace(-config.x_max, config.x_max, config.n_gram, dtype=torch.float64)[:, None]
    kernel = kernel_of(Matern(nu, config.lengthscale), weights="binary", bias_std=config.bias_std, normalize=True)
    matrix: Tensor = kernel.double()(x).to_dense().detach()
    return matrix.numpy()


def prior_draws(x: Tensor, config: Config) -> np.ndarray[Any, Any]:
    """Functions drawn from random networks of each width, and from the Gaussian process: (nu, width + 1, draw, x)."""
    generator = torch.Generator().manual_seed(config.seed)
    rows = []
    for nu in config.nus:
        activation = Matern(nu, config.lengthscale)
        draws = []
        for width in config.widths:
            for draw in range(config.n_draws):
                seed = config.seed + 1 + draw
                w, b = random_units(x, width, "binary", "gaussian", 1.0, config.bias_std, seed)
                v = torch.randn(width, generator=generator, dtype=x.dtype) / math.sqrt(width)
                draws.append(activation(x @ w + b) @ v)
        matrix = kernel_of(activation, weights="binary", bias_std=config.bias_std).double()(x).to_dense().detach()
        root = torch.linalg.cholesky(matrix + 1e-10 * torch.eye(len(x), dtype=x.dtype))
        noise = torch.randn(len(x), config.n_draws, generator=generator, dtype=x.dtype)
        draws += list((root @ noise).mT)
        rows.append(torch.stack(draws).view(len(config.widths) + 1, config.n_draws, len(x)))
    return torch.stack(rows).numpy()


def draw(results: Arrays) -> dict[str, Figure]:
    return {"covariance": _curves(results), "gram": _gram(results), "prior_draws": _draws(results)}


def _curves(results: Arrays) -> Figure:
    """Left the activations; right Monte Carlo (solid), exact (dashed), Gaussian weights in light colours."""
    figure, (left, right) = plots.panels(1, 2, width=10, height=3.6, width_ratios=(2, 3))
    x, spacing = results["x"], 4.0
    for i, nu in enumerate(results["nu"]):
        color, label = plots.COLORS[i], plots.smoothness_label(nu)
        left.plot(x, results["activation"][i], color=color, label=label)
        shifted = np.where(abs(x) <= spacing / 2, x + spacing * i, np.nan)
        right.plot(shifted, results["gaussian_monte_carlo"][i], color=color, alpha=0.35)
        right.plot(shifted, results["gaussian_exact"][i], color=color, alpha=0.6, linestyle="--", linewidth=1)
        right.plot(shifted, results["binary_monte_carlo"][i], color=color)
        right.plot(shifted, results["binary_exact"][i], color="black", linestyle="--", linewidth=1)
    left.set(xlim=(-1.5, 2.5), xlabel="$x$", ylabel=r"$\sigma(x)$", title="Activation function")
    left.legend(title=r"$\nu$", frameon=False)
    right.set(title="Covariance function for $x' = 0$", xlabel="$x$, one peak for each activation (shifted)")
    right.set_xticks([spacing * i + d for i in range(len(results["nu"])) for d in (-1, 0, 1)])
    right.set_xticklabels(["−1", "0", "1"] * len(results["nu"]))
    right.set(xlim=(-2.2, spacing * (len(results["nu"]) - 1) + 2.2), ylim=(0, 1.35), yticks=(0, 0.5, 1))
    plots.line_legend(
        right,
        {
            "Monte Carlo, binary weights": {"color": "0.3"},
            "exact": {"color": "black", "linestyle": "--", "linewidth": 1},
            "Monte Carlo, Gaussian weights (light)": {"color": "0.3", "alpha": 0.35},
        },
    )
    return figure


def _gram(results: Arrays) -> Figure:
    """The exact Gram matrices of the appendix: the decay of the envelope is seen along the diagonal."""
    nus, extent = [nu for nu in results["nu"] if math.isfinite(nu)], results["x"][[0, -1]]
    figure, axes = plots.panels(1, len(nus), width=8.5, height=3.1)
    for ax, nu, matrix in zip(axes, nus, results["gram"], strict=True):
        image = ax.imshow(matrix, cmap="gray_r", vmin=0, vmax=1, extent=(*extent, *extent[::-1]))
        ax.set(title=rf"$\nu = {plots.smoothness_label(nu)}$", xlabel="$x'$", xticks=(-2, 0, 2), yticks=(-2, 0, 2))
    axes[0].set_ylabel("$x$")
    figure.colorbar(image, ax=axes, label=r"$\kappa(x, x')$", shrink=0.85)
    return figure


def _draws(results: Arrays) -> Figure:
    """Rows: activations; columns: networks of growing width, and the Gaussian process they tend to."""
    widths = [f"{w} units" for w in results["widths"]] + ["Gaussian process"]
    figure, axes = plots.panels(len(results["nu"]), len(widths), width=10, height=6.5, sharey=True)
    for i, nu in enumerate(results["nu"]):
        for j, title in enumerate(widths):
            ax = axes[i, j]
            ax.plot(results["x"], results["draws"][i, j].T, color=plots.COLORS[i], alpha=0.8, linewidth=0.9)
            ax.set(xticks=(-2, 0, 2), yticks=(-2, 0, 2), ylim=(-2.2, 2.2))
            if i == 0:
                ax.set_title(title)
        axes[i, 0].set_ylabel(rf"$\nu$ = {plots.smoothness_label(nu)}")
    return figure
