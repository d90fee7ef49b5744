"""Triton kernels of the Matérn activation: read x (and the gradient), write the result, nothing else."""

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from stationary.activations._launch import Elementwise
from stationary.activations._recompute import bound_of

if TYPE_CHECKING:
    from stationary.activations._cpu import MaternTwin

BUMP = tl.constexpr(-2)  # as in _cpu
TINY, LARGE = tl.constexpr(1.1754943508222875e-38), tl.constexpr(1e30)
LOG2_E = tl.constexpr(1.4426950408889634)


def launch(twin: "MaternTwin", x: Tensor, *grad: Tensor) -> Tensor:
    """sigma(x), or grad sigma'(x), laid out in memory like x."""
    kernel = backward if grad else forward
    return kernel((x, *grad), twin.kernel_arguments, (twin.power, x.element_size() == 2, bound_of(x)))


@triton.jit
def _log2(u, HALF: tl.constexpr):
    """Half precision does not see the error of the hardware's logarithm, and is bound by arithmetic without it."""
    return libdevice.fast_log2f(u) if HALF else tl.log2(u)


def _forward(
    x_ptr, y_ptr, size, offset, scale, p, decay, log2_peak, constant, rate, lowest,
    POWER: tl.constexpr, HALF: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32) + offset
    u = x * scale
    u = tl.where(u > LARGE, LARGE, tl.where(u < -LARGE, -LARGE, u))  # clamp would drop NaN
    if POWER == 0:
        y = constant * tl.exp2(-LOG2_E * rate / scale * u)
    elif POWER > 0:
        base = u * tl.exp2(-LOG2_E * u)
        y = constant * base
        for _ in tl.static_range(POWER - 1):
            y *= base
    elif POWER == BUMP:
        y = constant * tl.exp2(-LOG2_E * u * u)
    else:
        u = tl.where(u < TINY, TINY, u)
        y = tl.exp2(p * _log2(u, HALF) - decay * (u - 1) + log2_peak)
    if POWER != BUMP:
        y = tl.where(x <= 0, 0.0, y)
    y = tl.where(y > BOUND, BOUND, y)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


def _backward(
    x_ptr, grad_ptr, out_ptr, size, offset, scale, p, decay, log2_peak, constant, rate, lowest,
    POWER: tl.constexpr, HALF: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32) + offset
    grad = tl.load(grad_ptr + at, mask=inside).to(tl.float32)
    u = x * scale
    u = tl.where(u > LARGE, LARGE, tl.where(u < -LARGE, -LARGE, u))
    if POWER == 0:
        slope = -rate * constant * tl.exp2(-LOG2_E * rate / scale * u)
    elif POWER > 0:
        fall = tl.exp2(-LOG2_E * u)
        slope = rate * constant * fall * (1 - u)
        for _ in tl.static_range(POWER - 1):
            slope *= u * fall
    elif POWER == BUMP:
        slope = u * tl.exp2(-LOG2_E * u * u) * (-2 * rate * constant)  # first what is 0 where u is huge
    else:
        u = tl.where(u < lowest, lowest, u)
        slope = tl.exp2((p - 1) * _log2(u, HALF) - decay * (u - 1) + log2_peak) * scale * (p - decay / LOG2_E * u)
    if POWER != BUMP:
        slope = tl.where(x <= 0, 0.0, slope)
    slope = tl.where(slope > BOUND, BOUND, tl.where(slope < -BOUND, -BOUND, slope))
    tl.store(out_ptr + at, (grad * slope).to(out_ptr.dtype.element_ty), mask=inside)


forward = Elementwise(_forward, ["x_ptr", "y_ptr"])
backward = Elementwise(_backward, ["x_ptr", "grad_ptr", "out_ptr"])
