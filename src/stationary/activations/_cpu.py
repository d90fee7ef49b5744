"""The Matérn activation in as few passes over memory as possible: one by C on the CPU, one by Triton on CUDA.

sigma(x) = A x^p e^(-rate x) for x > 0, p = nu - 1/2. For p = 0, 1, ..., 8 the power is a multiplication;
for any other p it is taken in log space around the centre of mass, u = rate x / nu, where the exponent is small:
sigma = 2^(p log2 u - nu log2(e) (u - 1) + log2 sigma(nu / rate)). For nu = inf, sigma(x) = A e^(-(rate x)^2).
"""

import math
from array import array
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stationary._extras import has_triton
from stationary._native import launch
from stationary.activations._recompute import bound_of, compute_dtype

LOG2_E = math.log2(math.e)
MAX_POWER = 8  # beyond, rounding errors of repeated multiplication would show in float32
GENERAL, BUMP = -1, -2  # in place of the power: any other nu, and nu = inf
SMALL, LARGE = 1e-30, 1e30  # of u, for slopes and for values: within, no float32 intermediate overflows


@dataclass(frozen=True, kw_only=True)
class MaternTwin:
    """Values and slopes of ``matern`` for fixed parameters.

    Args:
        nu, rate, log_amplitude: sigma(x) = exp(log_amplitude) x^(nu - 1/2) exp(-rate x);
            for nu = inf it is exp(log_amplitude - (rate x)^2).
        offset: number added to x before anything else, which centres the activation.
        floor: the x whose slope every smaller x gets.
    """

    nu: float
    rate: float
    log_amplitude: float
    offset: float
    floor: float

    @cached_property
    def power(self) -> int:
        """p = nu - 1/2 where that is a small integer, else GENERAL or BUMP."""
        if math.isinf(self.nu):
            return BUMP
        p = self.nu - 0.5
        return int(p) if p in range(MAX_POWER + 1) else GENERAL

    @cached_property
    def scale(self) -> float:
        """u = scale x; u = 1 is the peak where p is a small integer, the centre of mass for any other finite nu."""
        if self.power == BUMP:
            return self.rate
        return self.rate / (self.power if self.power > 0 else self.nu)

    @cached_property
    def log_peak(self) -> float:
        """log sigma at u = 1."""
        if self.power == BUMP:
            return self.log_amplitude - 1
        return self.log_amplitude - (self.nu - 0.5) * math.log(self.scale) - self.rate / self.scale

    @cached_property
    def constant(self) -> float:
        """What multiplies (u e^-u)^p, for p = 0 e^(-rate x), for nu = inf e^(-u^2); any other nu has no use for it."""
        if self.power in (0, BUMP):
            return math.exp(self.log_amplitude)
        return math.exp(self.log_peak + self.power) if self.power > 0 else math.nan

    @cached_property
    def lowest(self) -> float:
        """The u whose slope every smaller u gets."""
        return max(self.floor * self.scale, SMALL)

    @cached_property
    def kernel_arguments(self) -> tuple[float, ...]:
        """What the Triton kernels take, in their order."""
        exponent = self.nu - 0.5, self.nu * LOG2_E, self.log_peak * LOG2_E
        return self.offset, self.scale, *exponent, self.constant, self.rate, self.lowest

    @cached_property
    def native_arguments(self) -> "array[float]":
        """What the C function takes, in its order."""
        log2_slope = (self.log_peak + math.log(self.scale)) * LOG2_E
        return array("d", (*self.kernel_arguments, log2_slope))

    def value(self, x: Tensor) -> Tensor:
        """sigma(x), in float32 for half precision."""
        wide = x.to(compute_dtype(x))
        whole = self._native(wide)
        return _bounded(self._value(wide) if whole is None else whole, x)

    def slope(self, x: Tensor) -> Tensor:
        """sigma'(x) = sigma(x) (p / x - rate), with x floored; in float32 for half precision."""
        wide = x.to(compute_dtype(x))
        whole = self._native(wide, torch.ones_like(wide))
        return _bounded(self._slope(wide) if whole is None else whole, x)

    def _value(self, x: Tensor) -> Tensor:
        x = x + self.offset if self.offset else x
        if self.power == 0:
            y = x.clamp(min=0).mul_(-self.rate * LOG2_E).exp2_().mul_(self.constant)
            return y.mul_(torch.gt(x, 0, out=torch.empty_like(x)))
        if self.power > 0:
            base, _, _ = self._power_base(x)
            return _power(base, self.power).mul_(self.constant)
        if self.power == BUMP:
            return self._bump_argument(x).square_().mul_(-LOG2_E).exp2_().mul_(self.constant)
        u = (x * self.scale).clamp_(torch.finfo(x.dtype).tiny, LARGE)  # log2 of less is slow, or -inf
        y = u.log2().mul_(self.nu - 0.5).sub_(u.sub_(1), alpha=self.nu * LOG2_E).add_(self.log_peak * LOG2_E).exp2_()
        return y.mul_(torch.gt(x, 0, out=u))

    def _slope(self, x: Tensor) -> Tensor:
        if self.power == 0:
            return self._value(x).mul_(-self.rate)
        x = x + self.offset if self.offset else x
        if self.power > 0:
            base, decay, u = self._power_base(x)
            slope = decay.mul_(u.sub_(1)).mul_(-self.rate * self.constant)
            return slope.mul_(_power(base, self.power - 1) if self.power > 1 else torch.gt(x, 0, out=base))
        if self.power == BUMP:
            return self._value(x).mul_(self._bump_argument(x)).mul_(-2 * self.rate)
        p = self.nu - 0.5
        u = (x * self.scale).clamp_(self.lowest, LARGE)
        log_scale = self.log_peak + math.log(self.scale)  # as a factor of u it might overflow where the slope is 0
        slope = u.log2().mul_(p - 1).sub_(u - 1, alpha=self.nu * LOG2_E).add_(log_scale * LOG2_E).exp2_()
        slope.mul_(u.mul_(-self.nu).add_(p))
        return slope.mul_(torch.gt(x, 0, out=u))

    def _power_base(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u e^-u, whose power p is sigma up to a constant, with its factors e^-u and u."""
        u = (x * self.scale).clamp_(0, LARGE)
        decay = (u * -LOG2_E).exp2_()
        return u * decay, decay, u

    def _bump_argument(self, x: Tensor) -> Tensor:
        return (x * self.scale).clamp_(-math.sqrt(LARGE), math.sqrt(LARGE))

    def on_device(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        """sigma(x), or grad sigma'(x), by C for float32 on the CPU, by Triton for that and half on CUDA."""
        if x.is_cpu:
            return self._native(x, *grad)
        if not x.is_cuda or x.dtype == torch.float64 or not has_triton():
            return None
        from stationary.activations import _triton

        return _triton.launch(self, x, *grad)

    def _native(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        return launch("matern", self.power, self.native_arguments, x, *grad)


def _bounded(y: Tensor, x: Tensor) -> Tensor:
    """The new tensor y, of values or slopes at x, with no entry beyond ``bound_of(x)``."""
    return y if math.isinf(end := bound_of(x)) else y.clamp_(-end, end)


def _power(base: Tensor, exponent: int) -> Tensor:
    """base^exponent by squaring, which is far cheaper than pow; it overwrites base."""
    if exponent <= 3:
        return base.pow_(exponent)  # torch multiplies here
    if exponent % 2:
        return _power(base.square(), exponent // 2).mul_(base)
    return _power(base.square_(), exponent // 2)
