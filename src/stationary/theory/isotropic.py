"""Stationary kernels of the distance between inputs of any dimension, as plain functions of tensors.

They are the kernels of networks of infinite width whose prior is the same everywhere: ``InfiniteWidth`` rests on them.
For kernels of other networks, and for GPyTorch, see ``stationary.gp``.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def matern12(r: Tensor) -> Tensor:
    """e^(-r), of the distance r in length-scales."""
    return torch.exp(-r)


def matern32(r: Tensor) -> Tensor:
    """(1 + a) e^(-a), a = sqrt(3) r."""
    a = math.sqrt(3) * r
    return (1 + a) * torch.exp(-a)


def matern52(r: Tensor) -> Tensor:
    """(1 + a + a^2 / 3) e^(-a), a = sqrt(5) r."""
    a = math.sqrt(5) * r
    return (1 + a + a.square() / 3) * torch.exp(-a)


def matern72(r: Tensor) -> Tensor:
    """(1 + a + 2 a^2 / 5 + a^3 / 15) e^(-a), a = sqrt(7) r."""
    a = math.sqrt(7) * r
    return (1 + a + 0.4 * a.square() + a.pow(3) / 15) * torch.exp(-a)


def rbf(r: Tensor) -> Tensor:
    """e^(-r^2 / 2)."""
    return torch.exp(-0.5 * r.square())


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "matern12": matern12,
    "matern32": matern32,
    "matern52": matern52,
    "matern72": matern72,
    "rbf": rbf,
}
NEAR, FAR = 1e-30, 1e8  # squared distances in between have a slope, and beyond, every kernel is 0 in float64


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(n, m) squared distances between the rows of a (n, d) and of b (m, d), by one matrix product.

    Both are taken about the mean of b first, so that little is lost where they lie close together but far from 0.
    """
    centre = b.mean(0)
    a, b = a - centre, b - centre
    sums = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
    return torch.addmm(sums, a, b.mT, alpha=-2).clamp(min=0)


def gram(kernel: str, a: Tensor, b: Tensor) -> Tensor:
    """(n, m) values of the kernel of unit variance and length-scale between the rows of a (n, d) and of b (m, d).

    It is differentiable in a and b.

    Args:
        kernel: name of the kernel, a key of ``KERNELS``.
        a, b: the inputs, divided by their length-scale.
    """
    return KERNELS[kernel](squared_distances(a, b).clamp(NEAR, FAR).sqrt())
