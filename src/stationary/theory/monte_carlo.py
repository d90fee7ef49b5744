"""The kernel of any activation by sampling hidden units: the oracle that needs no formula."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stationary._checks import check_finite

WEIGHTS = ("gaussian", "binary", "sphere", "one")
BIASES = ("gaussian", "uniform")


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error, entry by entry."""

    mean: Tensor
    standard_error: Tensor


def monte_carlo_kernel(
    activation: Callable[[Tensor], Tensor],
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    n_units: int = 10_000,
    weights: str = "gaussian",
    bias: str = "gaussian",
    weight_std: float = 1.0,
    bias_std: float = 1.0,
    normalize: bool = False,
    seed: int = 0,
) -> Estimate:
    """The mean over random hidden units of sigma(w'x + b) sigma(w'x' + b), and its standard error (eq. 3 of the paper).

    Args:
        activation: any element-wise function.
        x1, x2: inputs (n, d) and (m, d), tensors or arrays; x2 defaults to x1.
        n_units: number of hidden units; the error falls like 1 / sqrt(n_units).
        weights: distribution of the weights before they are multiplied by weight_std: "gaussian", "binary" (signs),
            "sphere" (uniform on the unit sphere) or "one" (all ones).
        bias: distribution of the bias: "gaussian", or "uniform" on [-sqrt(3) bias_std, sqrt(3) bias_std].
        weight_std: factor on the weights, the standard deviation of Gaussian ones.
        bias_std: standard deviation of the bias.
        normalize: whether to multiply the kernel by sqrt(2 pi) bias_std, or by the width of a uniform bias.
        seed: seed of the random units.
    """
    x1 = torch.as_tensor(x1)
    x2 = x1 if x2 is None else torch.as_tensor(x2)
    check_choice("weights", weights, WEIGHTS)
    check_choice("bias", bias, BIASES)
    check_finite("weight_std", weight_std)
    check_finite("bias_std", bias_std)
    if not isinstance(n_units, int) or n_units < 2:
        raise ValueError(f"n_units must be an integer of at least 2, for a standard error; got {n_units!r}")
    if x1.dim() != 2 or x2.dim() != 2 or x1.shape[1] != x2.shape[1]:
        raise ValueError(f"x1 and x2 must be (n, d) and (m, d), got {tuple(x1.shape)} and {tuple(x2.shape)}")
    if not x1.is_floating_point() or x1.dtype != x2.dtype:
        raise ValueError(f"x1 and x2 must hold real numbers of one type, got {x1.dtype} and {x2.dtype}; use x.double()")
    w, b = random_units(x1, n_units, weights, bias, weight_std, bias_std, seed)
    first = activation(x1 @ w + b)
    second = activation(x2 @ w + b)
    mean = first @ second.mT / n_units
    variance = (first.square() @ second.square().mT / n_units - mean.square()).clamp(min=0)
    width = 2 * math.sqrt(3) if bias == "uniform" else math.sqrt(2 * math.pi)
    factor = width * bias_std if normalize else 1.0
    return Estimate(factor * mean, factor * torch.sqrt(variance / (n_units - 1)))


def random_units(
    like: Tensor, n_units: int, weights: str, bias: str, weight_std: float, bias_std: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Weights (d, n_units) and biases (n_units,) of random hidden units, in the dtype and on the device of ``like``."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(like.shape[1], n_units, generator=generator, dtype=torch.float64)
    if weights == "binary":
        w = w.sign()
    elif weights == "sphere":
        w = w / w.norm(dim=0)
    elif weights == "one":
        w = torch.ones_like(w)
    if bias == "uniform":
        b = math.sqrt(3) * (2 * torch.rand(n_units, generator=generator, dtype=torch.float64) - 1)
    else:
        b = torch.randn(n_units, generator=generator, dtype=torch.float64)
    return (weight_std * w).to(like), (bias_std * b).to(like)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
