"""The periodic activations, by a reduction of the phase that keeps its accuracy at every float32 number.

The phase of frequency x in turns, t = frequency x / (2 pi) + shift, less its nearest whole number, is taken in float64:
in float32 the product alone is off by 5e-4 at frequency x = 10^4.
"""

import math
from array import array
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stationary._extras import has_triton
from stationary._native import launch
from stationary.activations._recompute import compute_dtype

SINE, TRIANGLE, TWO_TRIANGLES = range(3)  # as in _native.c


@dataclass(frozen=True, kw_only=True)
class PeriodicTwin:
    """Values and slopes of a periodic activation of float32 or half precision.

    Args:
        kind: SINE for height sin(2 pi t); TRIANGLE for height a(t), where a is the triangle wave with slope 1 at 0 and
            peaks of 1/4; TWO_TRIANGLES for height (a(t) + a(t + 1/4)).
        frequency: factor on x, in radians per unit.
        height: factor on the result.
        shift: number of turns added to the phase of a sine.
    """

    kind: int
    frequency: float
    height: float
    shift: float = 0.0

    @cached_property
    def turns(self) -> float:
        """Turns per unit of x."""
        return self.frequency / (2 * math.pi)

    @cached_property
    def steepness(self) -> float:
        """Factor on the slope: the derivative of the phase, in turns for the triangles."""
        return self.height * (self.frequency if self.kind == SINE else self.turns)

    @cached_property
    def native_arguments(self) -> "array[float]":
        """What the C function takes."""
        return array("d", (self.turns, self.shift, self.height, self.steepness))

    def value(self, x: Tensor) -> Tensor:
        """sigma(x), in float32."""
        x = x.to(compute_dtype(x))
        if (whole := self._native(x)) is not None:
            return whole
        if self.kind == SINE:
            return self._turn(x, self.shift).mul_(2 * math.pi).to(x.dtype).sin_().mul_(self.height)
        y = _folded(self._turn(x, 0.0))
        if self.kind == TWO_TRIANGLES:
            y.add_(_folded(self._turn(x, 0.25)))
        return y.mul_(self.height).to(x.dtype)

    def slope(self, x: Tensor) -> Tensor:
        """sigma'(x), 0 at the kinks of a triangle wave; in float32."""
        x = x.to(compute_dtype(x))
        if (whole := self._native(x, torch.ones_like(x))) is not None:
            return whole
        if self.kind == SINE:
            return self._turn(x, self.shift).mul_(2 * math.pi).to(x.dtype).cos_().mul_(self.steepness)
        y = _direction(self._turn(x, 0.0))
        if self.kind == TWO_TRIANGLES:
            y.add_(_direction(self._turn(x, 0.25)))
        return y.mul_(self.steepness).to(x.dtype)

    def on_device(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        """sigma(x), or grad sigma'(x), by one kernel: C for float32 on the CPU, Triton on CUDA."""
        if x.is_cuda and has_triton():
            from stationary.activations import _periodic_triton

            return _periodic_triton.launch(self, x, *grad)
        return self._native(x, *grad)

    def _native(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        return launch("periodic", self.kind, self.native_arguments, x, *grad)

    def _turn(self, x: Tensor, shift: float) -> Tensor:
        """The phase in turns less its nearest whole number, in float64."""
        turn = x.double().mul_(self.turns).add_(shift)
        return turn.sub_(turn.round())


def _folded(turn: Tensor) -> Tensor:
    """The triangle wave a(t) of |t| <= 1/2."""
    reach = turn.abs()
    return torch.minimum(reach, 0.5 - reach).copysign_(turn)


def _direction(turn: Tensor) -> Tensor:
    """The slope of the triangle wave a(t) of |t| <= 1/2; it overwrites turn."""
    return turn.abs_().sub_(0.25).sign_().neg_()
