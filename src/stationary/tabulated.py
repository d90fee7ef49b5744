"""Activations without a formula: a series to all its accuracy, and a table of it to train with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stationary.activations import SLOPE_FLOOR
from stationary.fused import elementwise

Callback = Callable[[Tensor], Tensor]

FLAT = 1200.0  # rate x from which a Laguerre series is taken as 0: 600 terms reach no further
TABLE_ERROR = 1e-9  # of the interpolation, root mean square, relative to the activation
MAX_NODES = 2**15


@dataclass(frozen=True)
class CausalFactor:
    """The causal activation as a Laguerre series, to all the accuracy there is; ``TabulatedActivation`` is made of it.

    sigma(x) = x^power e^(-rate x) sum_n c_n n! Gamma(power + 1) / Gamma(n + power + 1) L_n^(power)(2 rate x) for x > 0,
    else 0; power = tail - 1/2.
    """

    series: Tensor
    rate: float
    power: float

    def smooth(self, x: Tensor) -> Tensor:
        """sigma(x) / x^power, which has a Taylor series at 0, for x >= 0; float64."""
        y = (2 * self.rate * x).clamp(max=2 * FLAT)
        start = (y / 2).clamp(max=FLAT / 2)  # e^(-y/2) underflows where a late term is still of size 1
        previous, current = torch.zeros_like(y), torch.exp(-start)
        total = self.series[0] * current
        for n, c in enumerate(self.series[1:].tolist()):
            step = ((2 * n + 1 + self.power - y) * current - n * previous) / (n + 1 + self.power)
            previous, current = current, step
            total = total + c * current
        return torch.where(y < 2 * FLAT, total * torch.exp(start - y / 2), 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        inside = torch.where(x > 0, x, 1.0)
        return torch.where(x > 0, inside**self.power * self.smooth(inside), 0.0)


@dataclass(frozen=True)
class EvenFactor:
    """The zero-phase activation, even, as a Legendre series on each piece between the edges; 0 beyond the last."""

    edges: Tensor
    series: Tensor

    def smooth(self, x: Tensor) -> Tensor:
        """sigma(x) for x >= 0, with the slope from the right at 0."""
        piece = torch.searchsorted(self.edges, x.detach(), right=True).clamp(1, len(self.edges) - 1) - 1
        left, right = self.edges[piece], self.edges[piece + 1]
        t = (2 * x - left - right) / (right - left)
        series = self.series[piece]
        previous, current = torch.ones_like(t), t
        total = series[..., 0] + series[..., 1] * t
        for n in range(1, self.series.shape[-1] - 1):
            previous, current = current, ((2 * n + 1) * t * current - n * previous) / (n + 1)
            total = total + series[..., n + 1] * current
        return torch.where(x < self.edges[-1], total, 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        return self.smooth(x.abs())


class TabulatedActivation(nn.Module):
    """An activation by cubic interpolation in a table: continuous with its slope, 0 beyond the end, any float dtype.

    The table describes x > 0. A causal activation is 0 at x <= 0, so its jump or kink at 0 stays exact, and where it
    starts like a broken power of x (a tail other than 1/2, 3/2, ...) the table holds the smooth factor of that power;
    gradients then take the slope, infinite at 0+ for a tail below 3/2, at 0.001 / rate or beyond. An even one is a
    function of |x|.

    ``activation_from_kernel`` makes it.

    Attributes:
        factor: what was tabulated, to all its accuracy, for float64 tensors.
        factorization_error: the largest gap between the autocorrelation of ``factor`` and the kernel over a grid of
            lags, relative to kernel(0).
        autocorrelation_error: the same for this module, interpolation included.
    """

    table: Tensor
    factor: CausalFactor | EvenFactor
    reach: float
    even: bool
    factorization_error: float
    autocorrelation_error: float
    power: float
    floor: float
    slope: float
    step: float

    def __init__(self, factor: CausalFactor | EvenFactor, reach: float) -> None:
        super().__init__()
        self.factor, self.reach = factor, reach
        self.even = isinstance(factor, EvenFactor)
        self.factorization_error = self.autocorrelation_error = math.nan
        self.power, self.floor, self.slope = 0.0, 0.0, 0.0
        smooth: Callback = factor.smooth
        if isinstance(factor, CausalFactor):
            whole = max(math.floor(factor.power), 0)
            self.power = factor.power - whole
            smooth = _times_power(factor.smooth, whole)
            if self.power and factor.power < 1:
                self.floor = SLOPE_FLOOR / factor.rate
                self.slope = _with_slope(factor, torch.tensor([self.floor], dtype=torch.float64))[1].item()
        self.register_buffer("table", _table(smooth, reach, self.power))
        self.step = reach / (len(self.table) - 1)

    def forward(self, x: Tensor) -> Tensor:
        return elementwise(self._interpolate, x)

    def _interpolate(self, x: Tensor) -> Tensor:
        distance = x.abs() if self.even else x
        outside = distance >= self.reach if self.even else (distance >= self.reach) | (distance <= 0)
        inner = torch.where(outside, self.reach / 2, distance)
        steep = inner < self.floor
        if self.floor:
            inner = torch.where(steep, inner.detach(), inner)
        u = inner / self.step
        cell = u.detach().nan_to_num(0.0).clamp(0, len(self.table) - 2).long()
        t = u - cell
        table = self.table.to(x.dtype)
        (y0, d0), (y1, d1) = table[cell].unbind(-1), table[cell + 1].unbind(-1)
        rise = y1 - y0
        y = y0 + t * (d0 + t * (3 * rise - 2 * d0 - d1 + t * (d0 + d1 - 2 * rise)))
        if self.power:
            y = y * inner**self.power
        y = torch.where(outside, 0.0, y)
        return y + torch.where(steep, self.slope * (x - x.detach()), 0.0) if self.floor else y

    def _apply(self, fn: Any, recurse: bool = True) -> "TabulatedActivation":
        """Move the table with the module, but keep its float64 when the module is cast: half would lose the shape."""
        probes = [torch.empty(0, dtype=dtype, device=self.table.device) for dtype in (torch.float32, torch.float16)]
        device = fn(probes[0]).device
        if device.type == "mps":  # which has no float64
            self.table = self.table.float()
        elif any(fn(probe).dtype != probe.dtype for probe in probes):
            self.table = self.table.to(device)
            return self
        super()._apply(fn, recurse)
        return self

    def extra_repr(self) -> str:
        phase = "zero" if self.even else "causal"
        return f"phase={phase!r}, nodes={len(self.table)}, autocorrelation_error={self.autocorrelation_error:.1e}"


def _times_power(function: Callback, power: int) -> Callback:
    return lambda x: x**power * function(x)


def _with_slope(function: Callback, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), slope


def _table(smooth: Callback, reach: float, power: float) -> Tensor:
    """Values, and slopes per step, at as many nodes as the interpolation needs."""
    nodes = 257
    while True:
        x = torch.linspace(0, reach, nodes, dtype=torch.float64)
        value, slope = _with_slope(smooth, x)
        slope = slope * reach / (nodes - 1)
        value[-1] = slope[-1] = 0.0  # so that it ends without a jump
        rise = 3 * (value[1] - value[0]).abs()
        slope[0] = slope[0].clamp(-rise, rise)  # a cusp, whose slope is infinite, stays monotone
        middle = (x[1:] + x[:-1]) / 2
        exact, weight = smooth(middle), middle**power
        between = (value[1:] + value[:-1]) / 2 + (slope[:-1] - slope[1:]) / 8
        error = ((between - exact) * weight).norm() / (exact * weight).norm()
        if error < TABLE_ERROR or nodes > MAX_NODES:
            return torch.stack([value, slope], dim=-1)
        nodes = 2 * nodes - 1
