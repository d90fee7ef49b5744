"""Triton kernels of the periodic activations: read x (and the gradient), write the result, nothing else.

The phase is counted in half turns, s = frequency x / pi + shift, and n is the whole number next to it. Every periodic
activation is (-1)^n times a function of w = s - n, which is between -1/2 and 1/2: a sine sin(pi w), a triangle wave w,
and the sum of two triangle waves a quarter period apart, with its phase from between them, w cut at -1/4 and 1/4.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from stationary.activations._launch import Elementwise

if TYPE_CHECKING:
    from stationary.activations._periodic import PeriodicTwin

SINE, TRIANGLE, TWO_TRIANGLES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # as in _periodic
MAGIC = tl.constexpr(12582912.0)  # 1.5 2^23: added, it rounds to a whole number, whose last bit is the sum's
FARTHEST = tl.constexpr(4194304.0)  # half turns, 2^22: beyond, float32 numbers are a radian apart or more
# sin(pi w) / w as a polynomial in w^2 for |w| <= 1/2, best in the Chebyshev sense; its error is below 1e-8
S0, S1, S2 = tl.constexpr(3.1415926400772034), tl.constexpr(-5.167710076668315), tl.constexpr(2.5500773865289118)
S3, S4 = tl.constexpr(-0.5982904112834275), tl.constexpr(0.07765591227597480)


def launch(twin: "PeriodicTwin", x: Tensor, *grad: Tensor) -> Tensor:
    """sigma(x), or grad sigma'(x), laid out in memory like x."""
    kind = twin.kind
    rate = twin.frequency / math.pi
    high = float(np.float32(rate))  # the rate as the sum of two numbers of 32 bits
    shift = 2 * (twin.shift if kind == SINE.value else 0.125 if kind == TWO_TRIANGLES.value else 0.0)
    if grad:
        shift += 0.5 * (kind == SINE.value)
        height = twin.steepness * (2 if kind == TWO_TRIANGLES.value else 1)
        return backward((x, *grad), (high, rate - high, shift, height), (kind,))
    height = twin.height * (0.5 if kind == TRIANGLE.value else 1)
    return forward((x,), (high, rate - high, shift, height), (kind,))


@triton.jit
def _fraction(x, high, low, shift):
    """w, and the sign (-1)^n in the highest of 32 bits.

    A fused multiply-add rounds once, so that the whole number in the product costs no digits.
    """
    s = high * x
    sum_ = (s + shift) + MAGIC
    w = tl.fma(low, x, tl.fma(high, x, shift - (sum_ - MAGIC)))
    w = tl.where(tl.abs(s) < FARTHEST, w, 0.0 * x)  # there the phase means nothing; infinity and NaN become NaN
    return w, sum_.to(tl.int32, bitcast=True) << 31


@triton.jit
def _signed(y, sign):
    return (y.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _sine(w):
    v = w * w
    return w * tl.fma(tl.fma(tl.fma(tl.fma(v, S4, S3), v, S2), v, S1), v, S0)


def _forward(x_ptr, y_ptr, size, high, low, shift, height, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    y, sign = _fraction(tl.load(x_ptr + at, mask=inside).to(tl.float32), high, low, shift)
    if KIND == SINE:
        y = _sine(y)
    elif KIND == TRIANGLE:
        y = tl.where(y > 0.5, 1 - y, tl.where(y < -0.5, -1 - y, y))  # n may be the second nearest whole number
    else:
        y = tl.where(y > 0.25, 0.25, tl.where(y < -0.25, -0.25, y))  # clamp would drop NaN
    tl.store(y_ptr + at, (height * _signed(y, sign)).to(y_ptr.dtype.element_ty), mask=inside)


def _backward(x_ptr, grad_ptr, out_ptr, size, high, low, shift, height, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    grad = tl.load(grad_ptr + at, mask=inside).to(tl.float32)
    y, sign = _fraction(tl.load(x_ptr + at, mask=inside).to(tl.float32), high, low, shift)
    if KIND == SINE:
        y = _sine(y)
    elif KIND == TRIANGLE:  # a corner has the mean of its slopes
        y = tl.where(tl.abs(y) < 0.5, 1.0, tl.where(tl.abs(y) == 0.5, 0.0, -1.0))
    else:
        y = tl.where(tl.abs(y) < 0.25, 1.0, tl.where(tl.abs(y) == 0.25, 0.5, 0.0))
    tl.store(out_ptr + at, (grad * height * _signed(y, sign)).to(out_ptr.dtype.element_ty), mask=inside)


HALF = 2048, 2  # the fastest of 20 choices on an H200: in half precision, arithmetic counts as much as memory
forward = Elementwise(_forward, ["x_ptr", "y_ptr"], HALF)
backward = Elementwise(_backward, ["x_ptr", "grad_ptr", "out_ptr"], HALF)
