"""Activations without a formula: a table to train with, and the way from any stationary kernel to one."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stationary.activations._recompute import elementwise
from stationary.activations.functional import SLOPE_FLOOR
from stationary.theory.factorization import factorise
from stationary.theory.factors import Callback, CausalFactor, EvenFactor

TABLE_ERROR = 1e-9  # of the interpolation, root mean square, relative to the activation
MAX_NODES = 2**15


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


def activation_from_kernel(
    kernel: Callback | None = None,
    *,
    spectral_density: Callback | None = None,
    tail: float | None = None,
    phase: Literal["causal", "zero"] = "causal",
) -> TabulatedActivation:
    """The activation whose autocorrelation, the integral of sigma(u) sigma(u + r) du, is any given stationary kernel.

    A one-hidden-layer network with it is, in the limit of many units with random biases, a Gaussian process with
    that kernel. The result is a module like any other activation; it states its measured ``autocorrelation_error``.
    For Matérn kernels, their products with a cosine and their sums the factorisation is exact to 1e-12 of kernel(0)
    from a density, 1e-10 from a kernel; the table adds 1e-9.

    Examples:
        >>> activation = activation_from_kernel(lambda r: torch.exp(-r.abs()) * torch.cos(4 * r), tail=0.5)

    Args:
        kernel: from lags, a float64 tensor, to the kernel; even. Its value at 0 is the variance.
        spectral_density: S(omega), the integral of kernel(r) e^(-i omega r) dr, in its place: more accurate, since the
            transform of a kernel knows S only to the rounding of its largest value.
        tail: nu0 in S ~ omega^-(2 nu0 + 1), as large omega; the nu of a Matérn, the smallest one of a sum. Left out, it
            is estimated, at the cost of a few digits.
        phase: "causal" for 0 at x <= 0, which needs such a tail; "zero" for an even function, which every kernel with
            a spectral density has. The latter is unbounded at 0 for a tail of 1/2 or less, and where S is not
            smooth, as that of the rational quadratic at 0, it decays slowly: the table ends it at 1000 lengths or so,
            which leaves an error of 1e-7 there and of 1e-3 for a band-limited kernel.

    Raises:
        ValueError: if the kernel has no spectral density (periodic, linear, constant) or has not decayed, or no causal
            factor (RBF, rational quadratic, spectral mixture, band-limited), each with what to do instead.
    """
    factorised = factorise(kernel, spectral_density, tail, phase)
    activation = TabulatedActivation(factorised.factor, factorised.reach)
    errors = factorised.errors(factorised.factor, activation)
    activation.factorization_error, activation.autocorrelation_error = errors
    if not activation.autocorrelation_error < 1e-2:
        raise ValueError(
            f"{factorised.spectrum.name} could not be factorised: the autocorrelation of the {phase} activation is off "
            f"by {activation.autocorrelation_error:.1e} kernel(0); check tail, or use the other phase"
        )
    return activation
