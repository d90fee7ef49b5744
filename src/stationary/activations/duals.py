"""Which dual belongs to which activation: from a module to the kernel of its network with Gaussian weights."""

import math
from functools import singledispatch

from torch import nn

from stationary.activations import modules
from stationary.theory import duals
from stationary.theory.duals import Dual, NoClosedForm
from stationary.theory.spectral import number


@singledispatch
def dual_of(activation: nn.Module) -> Dual:
    """The dual of an activation module with Gaussian weights and bias."""
    raise NoClosedForm(f"the kernel of {activation!r} with Gaussian weights")


@dual_of.register
def _(activation: modules.Step) -> Dual:
    return Dual(duals.step, None, why_no_derivative="its slope is 0 and a jump")


@dual_of.register
def _(activation: nn.ReLU) -> Dual:
    return Dual(duals.relu, duals.step)


@dual_of.register
def _(activation: nn.LeakyReLU) -> Dual:
    return duals.leaky_relu(activation.negative_slope)


@dual_of.register
def _(activation: modules.Erf) -> Dual:
    return Dual(duals.erf, duals.erf_derivative)


@dual_of.register
def _(activation: modules.Sine) -> Dual:
    return duals.sinusoid_dual(activation.frequency, 1.0, 0.0)


@dual_of.register
def _(activation: modules.Cosine) -> Dual:
    return duals.sinusoid_dual(activation.frequency, 0.0, 1.0)


@dual_of.register
def _(activation: modules.SinCos) -> Dual:
    return duals.sinusoid_dual(activation.frequency, 1.0, 1.0)


@dual_of.register
def _(activation: modules.RBF) -> Dual:
    return duals.rbf(number(activation.lengthscale), activation.variance)


@dual_of.register
def _(activation: modules.Matern) -> Dual:
    nu, lengthscale = number(activation.nu), number(activation.lengthscale)
    if math.isinf(nu):
        return duals.rbf(lengthscale, activation.variance)
    if activation.centered or activation.dim > 1:
        raise NoClosedForm(f"the kernel of {activation!r} with Gaussian weights and a Gaussian bias")
    return duals.matern(nu, lengthscale, activation.variance)
