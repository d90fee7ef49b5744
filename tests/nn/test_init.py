"""Second moments against adaptive quadrature, and layers that keep unit variance."""

import math

import oracles
import pytest
import torch
from torch import nn

import stationary as st
from stationary.nn.init import second_moment

ACTIVATIONS = [
    *(st.Matern(nu, lengthscale, 1.4) for nu in (0.3, 0.5, 0.8, 1.5, 2.2, 2.5, 10.0) for lengthscale in (0.5, 2.0)),
    *(st.Matern(nu, 0.7, centered=True) for nu in (0.5, 2.2, 2.5, 10.0)),
    st.Matern(2.5, dim=3),
    st.Matern(1.5, 0.5, learnable=True),
    st.Matern(math.inf, 0.5),
    st.RBF(0.6, 2.0),
    st.Erf(),
    st.Step(),
    nn.Identity(),
    st.ReLU(),
    st.LeakyReLU(0.2),
    st.Sine(1.3),
    st.Cosine(0.8),
    st.SinCos(),
    st.TriangleWave(1.5),
    st.PeriodicReLU(),
    nn.Tanh(),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("std", [0.5, 1.0, 3.0])
def test_second_moment(activation, std):
    def square(x):
        return activation(torch.tensor([x], dtype=torch.float64)).item() ** 2

    offset = -math.sqrt(activation.nu / 2) * activation.lengthscale if getattr(activation, "centered", False) else 0
    breaks = [offset + d for d in (0, 1e-6, 1e-3, 0.1, 1)]
    if isinstance(activation, (st.TriangleWave, st.PeriodicReLU)):
        quarter = math.pi / 2 / activation.frequency
        breaks = [quarter * k for k in range(-40, 41) if abs(quarter * k) < 12 * std]
    exact = oracles.gaussian_expectation(square, std=std, breaks=breaks)
    closed = getattr(activation, "dim", 1) == 1 and not isinstance(activation, (st.TriangleWave, st.PeriodicReLU))
    tolerance = 1e-3 if getattr(activation, "nu", 1) == 0.3 else 1e-7 if closed else 1e-6  # quad meets x^-0.4
    assert second_moment(activation, std) == pytest.approx(exact, rel=tolerance)


def test_the_parameters_of_an_activation_may_be_of_any_type():
    assert second_moment(nn.PReLU()) == pytest.approx((1 + 0.25**2) / 2, rel=1e-6)


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52", "rbf", "erf", "relu", "sincos", "siren"])
@pytest.mark.parametrize("bias_std", [0.0, 0.6])
def test_layers_keep_unit_variance(name, bias_std):
    """A stack of wide layers: every pre-activation has unit variance, within the spread of finite width."""
    width, layers = 2000, 3
    x = torch.randn(100, width)
    z = st.init_stationary_(nn.Linear(width, width), nn.Identity(), bias_std=bias_std)(x)
    activation = st.activation(name)
    for _ in range(layers):
        assert z.var(unbiased=False).item() == pytest.approx(1.0, abs=0.15)
        z = st.init_stationary_(nn.Linear(width, width), activation, bias_std=bias_std)(activation(z))
    # Fluctuations: of the moment over units (a few / sqrt(width)), amplified by at most 4 a layer.
    assert z.square().mean().item() == pytest.approx(1.0, abs=0.15)


def test_bias_is_optional_and_zero_by_default():
    assert st.init_stationary_(nn.Linear(5, 5, bias=False), st.Matern()).bias is None
    assert not st.init_stationary_(nn.Linear(5, 5), st.Matern()).bias.any()


@pytest.mark.parametrize("options", [{"bias_std": 1.0}, {"bias_std": -0.1}, {"input_std": 0.0}])
def test_bad_arguments(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{name} must be.*{value!r}"):
        st.init_stationary_(nn.Linear(2, 2), st.ReLU(), **options)


def test_an_activation_by_its_name():
    layers = [nn.Linear(30, 20) for _ in range(2)]
    for layer, activation in zip(layers, ("matern32", st.Matern(1.5)), strict=True):
        torch.manual_seed(0)
        st.init_stationary_(layer, activation)
    assert torch.equal(layers[0].weight, layers[1].weight)
