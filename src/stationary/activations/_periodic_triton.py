"""Triton kernels of the periodic activations: read x (and the gradient), write the result, nothing else."""

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from stationary.activations._launch import Elementwise

if TYPE_CHECKING:
    from stationary.activations._periodic import PeriodicTwin

SINE, TRAPEZOID = tl.constexpr(0), tl.constexpr(2)  # as in _periodic
FARTHEST = tl.constexpr(1e30)  # revolutions beyond which the phase means nothing, and x counts as 0
# sin(2 pi w) / w as a polynomial in w^2 for |w| <= 1/4, best in the Chebyshev sense; its error is below 1e-8
S0, S1, S2 = tl.constexpr(6.283185280154407), tl.constexpr(-41.34168061334652), tl.constexpr(81.60247636892518)
S3, S4 = tl.constexpr(-76.58117264427872), tl.constexpr(39.7598270853191)


def launch(twin: "PeriodicTwin", x: Tensor, *grad: Tensor) -> Tensor:
    """sigma(x), or grad sigma'(x), laid out in memory like x."""
    kernel = backward if grad else forward
    return kernel((x, *grad), twin.kernel_arguments, (twin.shape,))


@triton.jit
def _revolutions(x, high, low, shift):
    """The phase less its nearest integer. A fused multiply-add rounds once, so that the integer part costs nothing."""
    t = high * x
    x = tl.where(tl.abs(t) > FARTHEST, 0.0 * x, x)  # NaN stays NaN, and infinity becomes NaN
    r = tl.fma(low, x, tl.fma(high, x, -libdevice.rint(high * x)))
    r += shift
    return r - libdevice.rint(r)


@triton.jit
def _triangle(r):
    return tl.where(tl.abs(r) > 0.25, tl.where(r > 0, 0.5, -0.5) - r, r)


@triton.jit
def _sine(w):
    v = w * w
    return w * tl.fma(tl.fma(tl.fma(tl.fma(v, S4, S3), v, S2), v, S1), v, S0)


def _forward(
    x_ptr, y_ptr, size, high, low, shift, amplitude, steepness, SHAPE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    w = _triangle(_revolutions(tl.load(x_ptr + at, mask=inside).to(tl.float32), high, low, shift))
    if SHAPE == SINE:
        w = _sine(w)
    elif SHAPE == TRAPEZOID:
        w = tl.where(w > 0.125, 0.125, tl.where(w < -0.125, -0.125, w))  # clamp would drop NaN
    tl.store(y_ptr + at, (amplitude * w).to(y_ptr.dtype.element_ty), mask=inside)


def _backward(
    x_ptr, grad_ptr, out_ptr, size, high, low, shift, amplitude, steepness, SHAPE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=inside).to(tl.float32)
    if SHAPE == SINE:
        slope = _sine(_triangle(_revolutions(x, high, low, shift + 0.25)))
    else:
        r = _revolutions(x, high, low, shift)
        reach = tl.abs(r)
        slope = tl.where(reach < 0.25, 1.0, tl.where(reach == 0.25, 0.0, -1.0))
        if SHAPE == TRAPEZOID:
            reach = tl.abs(_triangle(r))
            slope *= tl.where(reach < 0.125, 1.0, tl.where(reach == 0.125, 0.5, 0.0))
    tl.store(out_ptr + at, (grad * steepness * slope).to(out_ptr.dtype.element_ty), mask=inside)


forward = Elementwise(_forward, ["x_ptr", "y_ptr"])
backward = Elementwise(_backward, ["x_ptr", "grad_ptr", "out_ptr"])
