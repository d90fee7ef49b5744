"""Weights that keep the variance: the second moment of every activation, and the layer that reads it."""

import math
from functools import singledispatch

import numpy as np
import torch
from torch import Tensor, nn

from stationary import activations as act
from stationary import spectral
from stationary.checks import check_finite
from stationary.spectral import Number


def init_stationary_(
    linear: nn.Linear, activation: nn.Module, *, input_std: float = 1.0, bias_std: float = 0.0
) -> nn.Linear:
    """Initialise, in place, the linear layer that reads ``activation`` so that its outputs have unit variance.

    Where the activation sees N(0, input_std^2), the weights get the variance
    (1 - bias_std^2) / (fan_in E[sigma^2]) and the bias gets bias_std^2. So a stack of linear layers and activations
    initialised like this has N(0, 1) before every activation. (``nn.init.kaiming_normal_`` does this for ReLU.)

    Deep stacks: each Matérn layer with a length-scale below its input std multiplies gradients by more than one;
    use a length-scale of about 2 input_std beyond two layers.

    Args:
        linear: the layer to initialise; its generator is torch's global one, as in ``nn.init``.
        activation: a module of this library, ``nn.ReLU``, ``nn.LeakyReLU``, ``nn.Identity`` for the first layer, or
            any element-wise module.
        input_std: standard deviation of what the activation sees.
        bias_std: standard deviation of the bias, in [0, 1).
    """
    check_finite("input_std", input_std)
    if not 0 <= bias_std < 1:
        raise ValueError(f"bias_std must be in [0, 1), since the output variance is 1; got {bias_std!r}")
    moment = second_moment(activation, input_std)
    with torch.no_grad():
        linear.weight.normal_(0, math.sqrt((1 - bias_std**2) / (linear.in_features * moment)))
        if linear.bias is not None:
            linear.bias.normal_(0, bias_std) if bias_std else linear.bias.zero_()
    return linear


@singledispatch
def second_moment(activation: nn.Module, std: float = 1.0) -> float:
    """E[sigma(x)^2] for x ~ N(0, std^2): in closed form where there is one, else by quadrature."""
    x = torch.linspace(-9 * std, 9 * std, 2**16 + 1, dtype=torch.float64)
    with torch.no_grad():
        y = activation.double()(x) if not list(activation.parameters()) else activation(x)
    density = torch.exp(-0.5 * (x / std) ** 2) / (math.sqrt(2 * math.pi) * std)
    return float(torch.trapezoid(y.square() * density, x))


@second_moment.register
def _(activation: act.Matern, std: float = 1.0) -> float:
    nu, lengthscale, variance = (_number(a) for a in (activation.nu, activation.lengthscale, activation.variance))
    if math.isinf(nu):
        return second_moment(act.RBF(lengthscale, variance), std)
    if activation.dim > 1:
        return second_moment.dispatch(nn.Module)(activation, std)
    rate = _number(spectral.rate(nu, lengthscale))
    mean = nu / rate if activation.centered else 0.0
    # E[sigma^2] = A^2 s^(2p) / sqrt(2 pi) e^(-mu^2 / 2 s^2) h_2p(2 lambda s - mu / s)
    n, t = 2 * nu - 1, 2 * rate * std - mean / std
    log_factor = 2 * _number(spectral.log_amplitude(nu, lengthscale)) + n * math.log(std) - 0.5 * (mean / std) ** 2
    return variance * math.exp(log_factor + log_half_line_integral(n, t)) / math.sqrt(2 * math.pi)


@second_moment.register
def _(activation: act.RBF, std: float = 1.0) -> float:
    lengthscale, variance = _number(activation.lengthscale), activation.variance
    return variance * math.sqrt(2 / math.pi) / math.hypot(lengthscale, 2 * std)


@second_moment.register
def _(activation: act.Erf, std: float = 1.0) -> float:
    return 2 / math.pi * math.asin(2 * std**2 / (1 + 2 * std**2))


@second_moment.register
def _(activation: act.Step, std: float = 1.0) -> float:
    return 0.5


@second_moment.register
def _(activation: nn.Identity, std: float = 1.0) -> float:
    return std**2


@second_moment.register
def _(activation: nn.ReLU, std: float = 1.0) -> float:
    return std**2 / 2


@second_moment.register
def _(activation: nn.LeakyReLU, std: float = 1.0) -> float:
    return (1 + activation.negative_slope**2) * std**2 / 2


@second_moment.register
def _(activation: act.Sine, std: float = 1.0) -> float:
    return -math.expm1(-2 * (activation.frequency * std) ** 2) / 2


@second_moment.register
def _(activation: act.Cosine, std: float = 1.0) -> float:
    return (1 + math.exp(-2 * (activation.frequency * std) ** 2)) / 2


@second_moment.register
def _(activation: act.SinCos, std: float = 1.0) -> float:
    return 1.0


def _number(a: Number) -> float:
    return a.item() if isinstance(a, Tensor) else float(a)


def log_half_line_integral(n: float, t: float) -> float:
    """log h_n(t), h_n(t) = integral over R > 0 of R^n e^(-R^2 / 2 - t R) dR, for n > -1 and any t.

    In u = log R the integrand is analytic and falls off fast on both sides, so the trapezoidal rule converges
    geometrically.
    """
    peak = 2 * (n + 1) / (t + math.sqrt(t * t + 4 * (n + 1)))  # of (n + 1) log R - R^2 / 2 - t R
    if t < 0:
        peak = (math.sqrt(t * t + 4 * (n + 1)) - t) / 2
    curvature = 2 * peak**2 + t * peak
    step = min(0.05, 0.25 / math.sqrt(curvature))
    u = np.arange(-1 - 40 / (n + 1) - math.sqrt(80 / (n + 1)), math.log(1 + 40 / peak), step)  # around log peak
    R = peak * np.exp(u)
    exponent = (n + 1) * u - 0.5 * (R**2 - peak**2) - t * (R - peak)
    value = step * np.exp(exponent).sum()
    return math.log(value) + (n + 1) * math.log(peak) - 0.5 * peak**2 - t * peak
