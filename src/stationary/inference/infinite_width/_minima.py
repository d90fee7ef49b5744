"""Minima of a loss and its slope by PyTorch: from afar, and from close by where few rows have shown the curvature.

A loss is that of logarithms theta (p,) of the numbers, a mean over rows. Where it is not defined, it is very large.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from stationary.predictive import normal_nodes

Array: TypeAlias = NDArray[np.float64]
Loss: TypeAlias = Callable[[Tensor], Tensor]
Limits: TypeAlias = Sequence[tuple[float, float]]

EVALUATIONS = 80  # of the loss and its slope, at most
TOLERANCE = 1e-5  # of the loss, relative; of its slope
REFINE = 40  # steps, at most, from where few rows have led
NEAR = 0.002  # slope of the loss where they end, in units in which its curvature is about 1: each leaves 2e-6
MANY = 150  # numbers whose curvature takes longer than it saves
STEP = 1e-3  # of the logarithms, for the curvature
FLAT = 3e-3  # smallest curvature that is believed
VAGUE = 2.0  # largest standard deviation of the logarithm of a number


class End(NamedTuple):
    """Where a search has ended, the loss there, and the number of evaluations."""

    at: Array
    loss: float
    evaluations: int


def minimum(loss: Loss, theta: Array, limits: Limits, like: Tensor) -> End:
    """The end of L-BFGS from one start.

    Args:
        loss: the loss.
        theta: (p,) where to start.
        limits: the smallest and the largest value of each number.
        like: a tensor of the dtype and on the device of the loss.
    """
    options = {"maxfun": EVALUATIONS, "ftol": TOLERANCE, "gtol": TOLERANCE}
    function = partial(_value_and_slope, loss, like=like)
    end = minimize(function, theta, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return End(end.x, float(end.fun), end.nfev)


def refined(loss: Loss, few: Loss, theta: Array, limits: Limits, like: Tensor) -> End:
    """The minimum of a loss near that of few rows, in half of the evaluations that L-BFGS takes from there, or less.

    In z, where theta moves by C z and C C^T is the inverse curvature of few rows, the loss has a curvature of about 1,
    so that quasi-Newton steps begin as if they knew it. Beyond a limit the loss is that at the limit.

    Args:
        loss: the loss.
        few: that of few rows.
        theta: (p,) the minimum of ``few``.
        limits, like: as for ``minimum``.
    """
    if len(theta) > MANY:
        return minimum(loss, theta, limits, like)
    start = _value_and_slope(few, theta, like)[1]
    ahead = [_value_and_slope(few, theta + step, like)[1] for step in STEP * np.eye(len(theta))]
    curvature, axes = np.linalg.eigh(_symmetric((np.stack(ahead) - start) / STEP))
    to_theta, (low, high) = axes / np.sqrt(curvature.clip(FLAT)), np.array(limits).T

    def in_z(z: Array) -> tuple[float, Array]:
        free = theta + to_theta @ z
        at = free.clip(low, high)
        value, slope = _value_and_slope(loss, at, like)
        return value, np.where(at == free, slope, 0.0) @ to_theta

    options = {"maxiter": REFINE, "gtol": NEAR}
    end = minimize(in_z, np.zeros_like(theta), jac=True, method="BFGS", options=options)
    return End((theta + to_theta @ end.x).clip(low, high), float(end.fun), end.nfev)


def around(loss: Loss, theta: Array, limits: Limits, like: Tensor, n: int) -> Array:
    """(n, p) points around the minimum theta (p,): of the normal distribution whose precision is the curvature."""
    slope = lambda at: _value_and_slope(loss, at, like)[1]  # noqa: E731
    steps = STEP * np.eye(len(theta))
    curvature = np.stack([slope(theta + step) - slope(theta - step) for step in steps]) / (2 * STEP)
    precision, axes = np.linalg.eigh(_symmetric(curvature))
    scatter = normal_nodes(n, len(theta)).numpy() / np.sqrt(precision.clip(VAGUE**-2))
    return (theta + scatter @ axes.T).clip(*np.array(limits).T)


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _value_and_slope(loss: Loss, theta: Array, like: Tensor) -> tuple[float, Array]:
    at = torch.tensor(theta, device=like.device, dtype=like.dtype, requires_grad=True)
    try:
        with torch.enable_grad():
            value = loss(at)
            value.backward()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return 1e10, np.zeros_like(theta)
    slope: Any = at.grad
    if slope is None or not value.isfinite() or not slope.isfinite().all():
        return 1e10, np.zeros_like(theta)
    return value.item(), slope.cpu().numpy()
