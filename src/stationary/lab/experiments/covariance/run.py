"""Activations, kernels by Monte Carlo and exactly, Gram matrices, and functions drawn from the prior."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary.activations import Matern, matern
from stationary.gp import kernel_of
from stationary.lab.experiments.covariance.config import WEIGHTS, Config
from stationary.lab.runs.store import Arrays
from stationary.theory.monte_carlo import monte_carlo_kernel, random_units


def run(config: Config, device: str = "cpu") -> Arrays:
    """Compute activations, covariance functions, Gram matrices and functions drawn from the prior."""
    x = inputs(config.n_points, config, device)
    results: Arrays = {"x": x[:, 0].cpu().numpy(), "nu": np.array(config.nus), "widths": np.array(config.widths)}
    results["activation"] = np.stack([matern(x[:, 0], nu, config.lengthscale).cpu().numpy() for nu in config.nus])
    for weights in WEIGHTS:
        for key, curves in covariances(x, weights, config).items():
            results[f"{weights}_{key}"] = curves
    x_gram = inputs(config.n_gram, config, device)
    results["gram"] = np.stack([gram(x_gram, nu, config) for nu in config.nus if math.isfinite(nu)])
    results["draws"] = prior_draws(x, config)
    return results


def inputs(n: int, config: Config, device: str) -> Tensor:
    return torch.linspace(-config.x_max, config.x_max, n, dtype=torch.float64)[:, None].to(device)


def covariances(x: Tensor, weights: str, config: Config) -> Arrays:
    """Compute kappa(x, 0) for each nu by Monte Carlo, its standard error, and exactly."""
    origin = torch.zeros_like(x[:1])
    prior: dict[str, Any] = {"weights": weights, "bias_std": config.bias_std, "normalize": True}
    curves: dict[str, list[Tensor]] = {"monte_carlo": [], "standard_error": [], "exact": []}
    for nu in config.nus:
        activation = Matern(nu, config.lengthscale)
        mean, error = monte_carlo_kernel(activation, x, origin, n_units=config.n_units, seed=config.seed, **prior)
        exact = kernel_of(activation, **prior).to(x)(x, origin).to_dense().detach()
        for key, values in zip(curves, (mean, error, exact), strict=True):
            curves[key].append(values[:, 0])
    return {key: torch.stack(values).cpu().numpy() for key, values in curves.items()}


def gram(x: Tensor, nu: float, config: Config) -> np.ndarray[Any, Any]:
    kernel = kernel_of(Matern(nu, config.lengthscale), weights="binary", bias_std=config.bias_std, normalize=True)
    matrix: Tensor = kernel.to(x)(x).to_dense().detach()
    return matrix.cpu().numpy()


def prior_draws(x: Tensor, config: Config) -> np.ndarray[Any, Any]:
    """Draw functions from random networks of each width, then the Gaussian process: (nu, width + 1, draw, x)."""
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
                draws.append(activation(x @ w + b).cpu() @ v)
        matrix = kernel_of(activation, weights="binary", bias_std=config.bias_std).to(x)(x).to_dense().detach().cpu()
        root = torch.linalg.cholesky(matrix + 1e-10 * torch.eye(len(x), dtype=x.dtype))
        noise = torch.randn(len(x), config.n_draws, generator=generator, dtype=x.dtype)
        draws += list((root @ noise).mT)
        rows.append(torch.stack(draws).view(len(config.widths) + 1, config.n_draws, len(x)))
    return torch.stack(rows).numpy()
