"""Fig. 3 of the paper: the Matérn activations, and the covariance functions of their random networks.

Monte Carlo with K = 10,000 hidden units beside the exact integral over the prior of weight and bias, for binary
weights (w = -1 or 1) and for unit Gaussian weights, x' = 0. The paper does not state the length-scale and the bias of
its figure; we take those of its Gram matrices, lengthscale 0.5 and bias_std 1. Kernels are multiplied by
sqrt(2 pi) bias_std, so that a flat bias would give 1 at the peak.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stationary import plots
from stationary.activations import matern

VERSION = 1
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
    seed: int = 0


def configs(scale: str = "paper") -> list[Config]:
    return [Config() if scale == "paper" else Config(n_units=1000, n_points=61)]


def run(config: Config) -> Arrays:
    x = torch.linspace(-config.x_max, config.x_max, config.n_points, dtype=torch.float64)
    results: Arrays = {"x": x.numpy(), "nu": np.array(config.nus), "lengthscale": np.array(config.lengthscale)}
    results["activation"] = np.stack([matern(x, nu, config.lengthscale).numpy() for nu in config.nus])
    for weights in ("binary", "gaussian"):
        sampled = [monte_carlo(x, nu, weights, config) for nu in config.nus]
        results[f"{weights}_monte_carlo"] = np.stack([mean.numpy() for mean, _ in sampled])
        results[f"{weights}_standard_error"] = np.stack([error.numpy() for _, error in sampled])
        results[f"{weights}_exact"] = np.stack([quadrature(x, nu, weights, config).numpy() for nu in config.nus])
    return results


def monte_carlo(x: Tensor, nu: float, weights: str, config: Config) -> tuple[Tensor, Tensor]:
    """The mean over K random hidden units of sigma(w x + b) sigma(b), and its standard error (eq. 3 of the paper)."""
    generator = torch.Generator().manual_seed(config.seed)
    w = torch.randn(config.n_units, generator=generator, dtype=x.dtype)
    b = config.bias_std * torch.randn(config.n_units, generator=generator, dtype=x.dtype)
    if weights == "binary":
        w = w.sign()
    products = matern(x[:, None] * w + b, nu, config.lengthscale) * matern(b, nu, config.lengthscale)
    scale = math.sqrt(2 * math.pi) * config.bias_std
    return scale * products.mean(1), scale * products.std(1) / math.sqrt(config.n_units)


def quadrature(x: Tensor, nu: float, weights: str, config: Config) -> Tensor:
    """The same expectation as an integral over b, and over w when Gaussian (eq. 2 of the paper)."""
    if weights == "binary":
        return (_over_bias(x, nu, config) + _over_bias(-x, nu, config)) / 2
    w, weight = _gauss_legendre(torch.zeros(()), torch.tensor(9.0), panels=6)  # sign by sign: nu = 1/2 has a kink at 0
    density = torch.exp(-0.5 * w**2) / math.sqrt(2 * math.pi) * weight
    products = x[:, None] * w
    return ((_over_bias(products, nu, config) + _over_bias(-products, nu, config)) * density).sum(-1)


def _over_bias(s: Tensor, nu: float, config: Config) -> Tensor:
    """sqrt(2 pi) bias_std times the integral of N(b; 0, bias_std^2) sigma(s + b) sigma(b) db."""
    end = 9 * config.bias_std
    start = torch.clamp(-s, min=0.0) if nu < math.inf else torch.full_like(s, -end)  # sigma(x <= 0) = 0
    start = start.clamp(max=end)
    b, weight = _gauss_legendre(start, torch.full_like(s, end), panels=12)
    product = matern(s[..., None] + b, nu, config.lengthscale) * matern(b, nu, config.lengthscale)
    return (torch.exp(-0.5 * (b / config.bias_std) ** 2) * product * weight).sum(-1)


def _gauss_legendre(start: Tensor, end: Tensor, panels: int, order: int = 12) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a composite Gauss-Legendre rule on [start, end], in a new last dimension."""
    node, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(order))
    width = (end - start)[..., None, None] / panels
    edges = start[..., None, None] + torch.arange(panels, dtype=torch.float64)[:, None] * width
    return (edges + width * (node + 1) / 2).flatten(-2), (weight * width / 2).expand_as(edges + node).flatten(-2)


def draw(results: Arrays) -> Figure:
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
