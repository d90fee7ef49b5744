"""The Matérn activation in as few passes over memory as possible: in place on the CPU, one Triton kernel on CUDA.

sigma(x) = A x^p e^(-rate x) for x > 0, p = nu - 1/2. For p = 0, 1, ..., 8 the power is a multiplication;
for any other p it is taken in log space around the centre of mass, u = rate x / nu, where the exponent is small:
sigma = 2^(p log2 u - nu log2(e) (u - 1) + log2 sigma(nu / rate)). For nu = inf, sigma(x) = A e^(-(rate x)^2).
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from stationary._extras import has_triton

LOG2_E = math.log2(math.e)
MAX_POWER = 8  # beyond, rounding errors of repeated multiplication would show in float32
GENERAL, BUMP = -1, -2  # in place of the power: any other nu, and nu = inf
SMALL, LARGE = 1e-30, 1e30  # of u, for slopes and for values: within, no float32 intermediate overflows


@dataclass(frozen=True)
class MaternTwin:
    """Values and slopes of ``matern`` for fixed parameters.

    Args:
        nu, rate, log_amplitude: sigma(x) = exp(log_amplitude) x^(nu - 1/2) exp(-rate x);
            for nu = inf it is exp(log_amplitude - (rate x)^2).
        offset: added to x first (the centred activation).
        floor: below it the slope is that at the floor.
    """

    nu: float
    rate: float
    log_amplitude: float
    offset: float
    floor: float

    @cached_property
    def power(self) -> int:
        """P where it is a small integer, else GENERAL or BUMP."""
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
        """log sigma at u = 1, for finite nu."""
        if self.power == BUMP:
            return self.log_amplitude - 1
        return self.log_amplitude - (self.nu - 0.5) * math.log(self.scale) - self.rate / self.scale

    @cached_property
    def constant(self) -> float:
        """What multiplies (u e^-u)^p, for p = 0 e^(-rate x), for nu = inf e^(-u^2)."""
        return math.exp(self.log_peak + self.power) if self.power > 0 else math.exp(self.log_amplitude)

    @cached_property
    def lowest(self) -> float:
        """The u below which the slope is constant."""
        return max(self.floor * self.scale, SMALL)

    @cached_property
    def kernel_arguments(self) -> tuple[float, ...]:
        """What the Triton kernels take, in their order."""
        exponent = self.nu - 0.5, self.nu * LOG2_E, self.log_peak * LOG2_E
        return self.offset, self.scale, *exponent, self.constant, self.rate, self.lowest

    def value(self, x: Tensor) -> Tensor:
        """sigma(x), for x in float32 or float64."""
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

    def slope(self, x: Tensor) -> Tensor:
        """sigma'(x) = sigma(x) (p / x - rate), with x floored, for x in float32 or float64."""
        if self.power == 0:
            return self.value(x).mul_(-self.rate)
        x = x + self.offset if self.offset else x
        if self.power > 0:
            base, decay, u = self._power_base(x)
            slope = decay.mul_(u.sub_(1)).mul_(-self.rate * self.constant)
            return slope.mul_(_power(base, self.power - 1) if self.power > 1 else torch.gt(x, 0, out=base))
        if self.power == BUMP:
            return self.value(x).mul_(self._bump_argument(x)).mul_(-2 * self.rate)
        p = self.nu - 0.5
        u = (x * self.scale).clamp_(self.lowest, LARGE)
        slope = u.log2().mul_(p - 1).sub_(u - 1, alpha=self.nu * LOG2_E).add_(self.log_peak * LOG2_E).exp2_()
        slope.mul_(u.mul_(-self.nu * self.scale).add_(p * self.scale))
        return slope.mul_(torch.gt(x, 0, out=u))

    def _power_base(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u e^-u, whose power p is sigma up to a constant, with its factors e^-u and u."""
        u = (x * self.scale).clamp_(0, LARGE)
        decay = (u * -LOG2_E).exp2_()
        return u * decay, decay, u

    def _bump_argument(self, x: Tensor) -> Tensor:
        return (x * self.scale).clamp_(-math.sqrt(LARGE), math.sqrt(LARGE))

    def on_device(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        """sigma(x), or grad sigma'(x), by Triton for what it covers: CUDA, float32 and half precision."""
        if not x.is_cuda or x.dtype == torch.float64 or not has_triton():
            return None
        from stationary.activations import _triton

        return _triton.launch(self, x, *grad)


def _power(base: Tensor, exponent: int) -> Tensor:
    """base^exponent by squaring, which is far cheaper than pow; it overwrites base."""
    if exponent <= 3:
        return base.pow_(exponent)  # torch multiplies here
    if exponent % 2:
        return _power(base.square(), exponent // 2).mul_(base)
    return _power(base.square_(), exponent // 2)


# The same as operators, which survive compile and export as they are.


_twin = lru_cache(maxsize=256)(MaternTwin)  # its constants are then computed once


@custom_op("stationary::matern", mutates_args=())
def matern_op(x: Tensor, nu: float, rate: float, log_amplitude: float, offset: float, floor: float) -> Tensor:
    """sigma(x), with the parameters of ``MaternTwin``."""
    return _run(_twin(nu, rate, log_amplitude, offset, floor), x)


@custom_op("stationary::matern_backward", mutates_args=())
def matern_backward_op(
    grad: Tensor, x: Tensor, nu: float, rate: float, log_amplitude: float, offset: float, floor: float
) -> Tensor:
    """grad sigma'(x)."""
    return _run(_twin(nu, rate, log_amplitude, offset, floor), x, grad)


def _run(twin: MaternTwin, x: Tensor, *grad: Tensor) -> Tensor:
    on_device = twin.on_device(x, *grad)
    if on_device is not None:
        return on_device
    compute = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.empty_like(x).copy_(twin.slope(compute).mul_(*grad) if grad else twin.value(compute))


@matern_op.register_fake
def _(x: Tensor, *parameters: float) -> Tensor:
    return torch.empty_like(x)


@matern_backward_op.register_fake
def _(grad: Tensor, x: Tensor, *parameters: float) -> Tensor:
    return torch.empty_like(x)


def _keep_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.parameters = inputs
    ctx.save_for_backward(x)


def _matern_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        grad_x = grad * _differentiable_slope(x, _twin(*ctx.parameters))
    else:
        grad_x = matern_backward_op(grad, x, *ctx.parameters)
    return grad_x, *(None for _ in ctx.parameters)


matern_op.register_autograd(_matern_gradient, setup_context=_keep_input)


def _differentiable_slope(x: Tensor, twin: MaternTwin) -> Tensor:
    """sigma'(x) in plain operations, for derivatives of higher order."""
    shifted = x.to(torch.promote_types(x.dtype, torch.float32)) + twin.offset
    if twin.power == BUMP:
        u = (shifted * twin.rate).clamp(-math.sqrt(LARGE), math.sqrt(LARGE))
        return (-2 * twin.rate * twin.constant * u * torch.exp(-u * u)).to(x.dtype)
    p, positive = twin.nu - 0.5, ~(shifted <= 0)
    z = torch.where(positive, shifted, 1.0).clamp(twin.lowest / twin.scale, LARGE / twin.scale)
    slope = torch.exp(twin.log_amplitude + (p - 1) * torch.log(z) - twin.rate * z) * (p - twin.rate * z)
    return torch.where(positive, slope, 0.0).to(x.dtype)
