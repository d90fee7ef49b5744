"""Periodic activations whose phase is accurate however large it is, in one Triton kernel on CUDA.

The phase is counted in revolutions, t = frequency x / (2 pi) + shift, of which only r = t - round(t) matters. With
the triangle w = r for |r| <= 1/4, else sign(r) / 2 - r, every periodic activation is one function of w:

    sine       amplitude sin(2 pi w): sin, cos (a quarter later), sin + cos (an eighth later, amplitude sqrt(2))
    triangle   amplitude w
    trapezoid  amplitude clamp(w, -1/8, 1/8): the sum of two triangles a quarter apart
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stationary._extras import has_triton
from stationary.activations._recompute import compute_dtype

SINE, TRIANGLE, TRAPEZOID = 0, 1, 2
QUARTER, EIGHTH = 0.25, 0.125


@dataclass(frozen=True, kw_only=True)
class PeriodicTwin:
    """Values and slopes of a periodic activation of numbers of 32 or 16 bits.

    Args:
        shape: SINE, TRIANGLE or TRAPEZOID.
        frequency: radians for each unit of x.
        amplitude: factor on the function of w.
        shift: revolutions added to the phase.
    """

    shape: int
    frequency: float
    amplitude: float
    shift: float = 0.0

    @cached_property
    def rate(self) -> float:
        """Revolutions for each unit of x."""
        return self.frequency / (2 * math.pi)

    @cached_property
    def kernel_arguments(self) -> tuple[float, ...]:
        """What the Triton kernels take, in their order; the rate is the sum of two numbers of 32 bits."""
        high = float(np.float32(self.rate))
        return high, self.rate - high, self.shift, self.amplitude, self.amplitude * self.steepness

    @property
    def steepness(self) -> float:
        """Slope of the activation at w = 0, for an amplitude of 1."""
        return self.frequency if self.shape == SINE else self.rate

    def value(self, x: Tensor) -> Tensor:
        """sigma(x), in float32 for half precision."""
        r = self._revolutions(x)
        if self.shape == SINE:
            return r.mul_(2 * math.pi).to(compute_dtype(x)).sin_().mul_(self.amplitude)
        w = _triangle(r)
        if self.shape == TRAPEZOID:
            w.clamp_(-EIGHTH, EIGHTH)
        return w.mul_(self.amplitude).to(compute_dtype(x))

    def slope(self, x: Tensor) -> Tensor:
        """sigma'(x), in float32 for half precision; the mean of both slopes at a corner."""
        r = self._revolutions(x)
        scale = self.amplitude * self.steepness
        if self.shape == SINE:
            return r.mul_(2 * math.pi).to(compute_dtype(x)).cos_().mul_(scale)
        slope = torch.sign(QUARTER - r.abs())
        if self.shape == TRAPEZOID:
            slope.mul_(torch.heaviside(EIGHTH - _triangle(r).abs_(), r.new_tensor(0.5)))
        return slope.mul_(scale).to(compute_dtype(x))

    def _revolutions(self, x: Tensor) -> Tensor:
        """r, from -1/2 to 1/2, in float64."""
        t = x.double().mul_(self.rate)
        t.sub_(t.round())
        return t.add_(self.shift).sub_(t.round()) if self.shift else t

    def on_device(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        """sigma(x), or grad sigma'(x), by Triton on CUDA."""
        if not x.is_cuda or not has_triton():
            return None
        from stationary.activations import _periodic_triton

        return _periodic_triton.launch(self, x, *grad)


def _triangle(r: Tensor) -> Tensor:
    """w, for r from -1/2 to 1/2."""
    return torch.where(r.abs() > QUARTER, torch.sign(r) / 2 - r, r)
