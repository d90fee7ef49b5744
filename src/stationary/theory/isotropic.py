"""Stationary kernels of the distance between inputs of any dimension, as plain functions of tensors.

They are the kernels of networks of infinite width whose prior is the same everywhere: ``InfiniteWidth`` rests on them.
For kernels of other networks, and for GPyTorch, see ``stationary.gp``.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stationary._native import in_c


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
    return torch.addcmul(1 + a, a, a, value=1 / 3) * torch.exp(-a)


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
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {  # of the kernels, by the squared distance; given the distance r
    "matern12": lambda r: -torch.exp(-r) / (2 * r),
    "matern32": lambda r: -1.5 * torch.exp(-math.sqrt(3) * r),
    "matern52": lambda r: -5 / 6 * (1 + math.sqrt(5) * r) * torch.exp(-math.sqrt(5) * r),
    "matern72": lambda r: -7 / 30 * (3 + 3 * math.sqrt(7) * r + 7 * r.square()) * torch.exp(-math.sqrt(7) * r),
    "rbf": lambda r: -0.5 * torch.exp(-0.5 * r.square()),
}
IN_C = {"matern12": 0, "matern32": 1, "matern52": 2, "matern72": 3, "rbf": -2}  # how C knows them
NEAR, FAR = 1e-30, 1e8  # squared distances in between have a slope, and beyond, every kernel is 0 in float64
CACHED = 2**17  # values at a time on a CPU: with its intermediate results, what a core's cache holds


def gram(kernel: str, a: Tensor, b: Tensor) -> Tensor:
    """(n, m) values of the kernel of unit variance and length-scale between the rows of a (n, d) and of b (m, d).

    Squared distances come from one matrix product. Both inputs are taken about the mean of b first, so that little is
    lost where they lie close together but far from 0. It is differentiable, once, in a and b.

    Args:
        kernel: name of the kernel, a key of ``KERNELS``.
        a, b: the inputs, divided by their length-scale.
    """
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        values: Tensor = _Gram.apply(kernel, a, b)
        return values
    return _by_rows(partial(_values, kernel), a, b)


def _values(kernel: str, squares: Tensor) -> Tensor:
    """The values at squared distances, which may be overwritten."""
    if squares.dtype == torch.float64 and in_c("kernel", (squares.numel(), IN_C[kernel]), squares):
        return squares
    return KERNELS[kernel](_root(squares))


def _slopes(kernel: str, squares: Tensor) -> Tensor:
    """The slopes by squared distances, 0 where these are."""
    return SLOPES[kernel](_root(squares)).masked_fill_(squares <= NEAR, 0)


def _root(squares: Tensor) -> Tensor:
    return squares.clamp(NEAR, FAR).sqrt()


def _by_rows(function: Callable[[Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """(n, m) a function of squared distances between rows, on a CPU for so many rows at a time as its cache holds."""
    centre = b.mean(0)
    a, b = a - centre, b - centre
    if a.device.type != "cpu" or torch.compiler.is_compiling() or a.shape[0] * b.shape[0] <= CACHED:
        return function(_squares(a, b))
    values = a.new_empty(len(a), len(b))
    size = max(1, CACHED // max(1, len(b)), a.shape[1] // 4)  # of many columns the product counts, which wants rows
    for start in range(0, len(a), size):
        values[start : start + size] = function(_squares(a[start : start + size], b))
    return values


def _squares(a: Tensor, b: Tensor) -> Tensor:
    sums = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
    return torch.addmm(sums, a, b.mT, alpha=-2)


class _Gram(torch.autograd.Function):
    """``gram`` with the slope in closed form, two matrix products instead of a pass for each of its operations."""

    @staticmethod
    def forward(ctx: Any, kernel: str, a: Tensor, b: Tensor) -> Tensor:
        ctx.kernel = kernel
        ctx.save_for_backward(a, b)
        return _by_rows(partial(_values, kernel), a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        a, b = ctx.saved_tensors
        centre = b.mean(0)
        a, b = a - centre, b - centre
        slope = _by_rows(partial(_slopes, ctx.kernel), a, b).mul_(grad)
        to_a, to_b = a * slope.sum(1, keepdim=True) - slope @ b, b * slope.sum(0)[:, None] - slope.mT @ a
        return None, 2 * to_a, 2 * to_b
