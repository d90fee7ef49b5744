"""Initialisation: weights that keep the variance, and seeds that leave the global generators as they were."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from stationary._checks import check_finite
from stationary.activations import Matern, dual_of
from stationary.activations import activation as activation_by_name
from stationary.theory import spectral
from stationary.theory.duals import NoClosedForm
from stationary.theory.special import log_half_line_integral


def init_stationary_(
    linear: nn.Linear, activation: nn.Module | str, *, input_std: float = 1.0, bias_std: float = 0.0
) -> nn.Linear:
    """Initialise, in place, the linear layer that reads ``activation`` so that its outputs have unit variance.

    Where the activation sees N(0, input_std^2), the weights get the variance
    (1 - bias_std^2) / (fan_in E[sigma^2]) and the bias gets bias_std^2. So a stack of linear layers and activations
    initialised like this has N(0, 1) before every activation. (``nn.init.kaiming_normal_`` does this for ReLU.)

    In a deep stack, each Matérn layer whose length-scale is below the standard deviation of its inputs multiplies
    gradients by more than one; with more than two such layers, take a length-scale of about 2 input_std.

    Args:
        linear: the layer to initialise; its weights are drawn from torch's global generator, as in ``nn.init``.
        activation: the activation in front of the layer: a module of this library or its name, ``nn.ReLU``,
            ``nn.LeakyReLU``, ``nn.Identity`` for the first layer, or any element-wise module.
        input_std: standard deviation of the inputs of the activation.
        bias_std: standard deviation of the bias, in [0, 1).
    """
    check_finite("input_std", input_std)
    if not 0 <= bias_std < 1:
        raise ValueError(
            f"bias_std must be in [0, 1), since it is part of an output variance of 1; got {bias_std!r}: take 0"
        )
    activation = activation_by_name(activation) if isinstance(activation, str) else activation
    moment = second_moment(activation, input_std)
    with torch.no_grad():
        linear.weight.normal_(0, math.sqrt((1 - bias_std**2) / (linear.in_features * moment)))
        if linear.bias is not None:
            linear.bias.normal_(0, bias_std) if bias_std else linear.bias.zero_()
    return linear


def second_moment(activation: nn.Module, std: float = 1.0) -> float:
    """E[sigma(x)^2] for x ~ N(0, std^2), in closed form where there is one, otherwise by quadrature."""
    if isinstance(activation, Matern) and activation.centered and activation.dim == 1:
        return _of_centered_matern(activation, std)
    try:
        dual = dual_of(activation)
    except NoClosedForm:
        return _by_quadrature(activation, std)
    lengthscale = dual.lengthscale or 1.0
    k = torch.tensor((std / lengthscale) ** 2, dtype=torch.float64)
    return dual.value(k, k, k).item() / lengthscale


def _of_centered_matern(activation: Matern, std: float) -> float:
    """E[sigma^2] = A^2 s^(2p) / sqrt(2 pi) e^(-mu^2 / 2 s^2) h_2p(2 lambda s - mu / s), mu the centre nu / lambda."""
    nu, lengthscale = (spectral.number(a) for a in (activation.nu, activation.lengthscale))
    rate = float(spectral.rate(nu, lengthscale))
    n, mean = 2 * nu - 1, nu / rate
    log_factor = 2 * float(spectral.log_amplitude(nu, lengthscale)) + n * math.log(std) - 0.5 * (mean / std) ** 2
    log_integral = log_half_line_integral(n, 2 * rate * std - mean / std)
    return activation.variance * math.exp(log_factor + log_integral) / math.sqrt(2 * math.pi)


def _by_quadrature(activation: nn.Module, std: float) -> float:
    x = torch.linspace(-9 * std, 9 * std, 2**16 + 1, dtype=torch.float64)
    with torch.no_grad():
        y = activation(x.to(next(activation.parameters(), x))).to(x)
    density = torch.exp(-0.5 * (x / std) ** 2) / (math.sqrt(2 * math.pi) * std)
    return torch.trapezoid(y.square() * density, x).item()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators that a network may use on this device; afterwards they are as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every GPU
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
