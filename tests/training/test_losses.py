"""The loss that learns noise: against its definition, and on every way to train."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_problems import QUICK, assert_same, line, replay

import stationary as st
from stationary.training import beta_nll, train

NOISY = replace(QUICK, loss="beta_nll")


def noisy_line(dropout=0.3):
    return st.MeanAndNoise(st.MLP(1, 2, hidden=(12, 8), dropout=dropout)).double()


def fresh(layers):
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return nn.Sequential(*layers).double()


def numbers(n=7):
    generator = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, n, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(n, 2, generator=generator, dtype=torch.float64) * 3 + 0.05
    return mean.requires_grad_(), variance.requires_grad_(), y


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_its_gradient_is_that_of_the_likelihood_times_a_constant_weight(beta):
    mean, variance, y = numbers()
    plain = F.gaussian_nll_loss(mean, y, variance, reduction="none", eps=0.0)
    weight = torch.tensor(variance.tolist(), dtype=torch.float64) ** beta  # numbers, through which no gradient can go
    wanted = torch.autograd.grad((weight * plain).sum(), (mean, variance))
    loss = beta_nll(mean, y, variance, beta=beta)
    torch.testing.assert_close(loss, weight * plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), (mean, variance)), wanted, rtol=1e-12, atol=1e-12)


def test_the_ends_are_the_likelihood_and_half_the_squared_error():
    mean, variance, y = numbers()
    torch.testing.assert_close(
        beta_nll(mean, y, variance, beta=0.0), F.gaussian_nll_loss(mean, y, variance, reduction="none")
    )
    (of_mean,) = torch.autograd.grad(beta_nll(mean, y, variance, beta=1.0).sum(), mean, retain_graph=True)
    torch.testing.assert_close(of_mean, (mean - y).detach())


def test_hard_rows_are_not_given_up():
    """A function without noise that is slow to learn: the likelihood takes it for noise, as Seitzer et al. show."""
    x = torch.linspace(-3, 3, 200, dtype=torch.float64)[:, None]
    y = 2**0.5 * torch.sin(4 / 3 * torch.pi * x)
    layers = [nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2)]
    training = st.Training("beta_nll", epochs=300, batch_size=None, learning_rate=6e-3)
    errors = {}
    for beta in (0.0, 0.5):
        networks = train(lambda: st.MeanAndNoise(fresh(layers)), (x, y), replace(training, beta=beta), n_members=3)
        with torch.no_grad():
            errors[beta] = [(network(x)[0] - y).square().mean().item() for network in networks]
    assert sum(errors[0.5]) < 0.3 * sum(errors[0.0])


def test_a_member_in_lockstep_is_the_member_alone():
    data = line()
    together = train(noisy_line, data, NOISY, n_members=3)
    for k, network in enumerate(together):
        [alone] = train(noisy_line, data, replace(NOISY, seed=k))
        assert_same(network, alone)


def test_the_step_of_a_graph_is_the_step_of_the_plain_loop():
    """Without dropout both draw the same order."""
    data, build = [line(90), line(89)], lambda: noisy_line(dropout=0.0)
    networks, _ = replay([build] * 2, *map(list, zip(*data, strict=True)), NOISY)
    for k, network in enumerate(networks):
        [alone] = train(build, data[k], replace(NOISY, seed=k))
        assert_same(network, alone)


def test_validation_rows_are_judged_by_the_likelihood():
    reported = []
    x, y = line()
    progress = lambda epoch, loss, watched: reported.append(watched)
    [network] = train(noisy_line, (x, y), replace(NOISY, epochs=1), validation=(x, y), progress=progress)
    with torch.no_grad():
        mean, variance = network(x)
    assert reported == pytest.approx([F.gaussian_nll_loss(mean, y, variance).item()], rel=1e-9)


def test_rows_weigh_as_often_as_they_are_there():
    x, y = line(20)
    weight = torch.arange(1, 21) % 3
    whole = replace(NOISY, batch_size=None, epochs=20)
    build = lambda: noisy_line(dropout=0.0)
    [weighed] = train(build, (x, y), whole, sample_weight=weight.double())
    [repeated] = train(build, (x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0)), whole)
    assert_same(weighed, repeated)


def test_what_does_not_suit_it_is_refused():
    x, y = line()
    with pytest.raises(ValueError, match=r"return a pair, mean and noise variance.*wrap a network of 2 outputs"):
        train(lambda: st.MLP(1, 2, hidden=(8,)).double(), (x, y), NOISY)
    with pytest.raises(ValueError, match=r"return a tensor \(n, 1\), one column for each target"):
        train(lambda: st.MeanAndNoise(st.MLP(1, 4, hidden=(8,))).double(), (x, y), NOISY)
    with pytest.raises(ValueError, match="must have 2 m outputs, m means and m log variances; got 3"):
        train(lambda: st.MeanAndNoise(st.MLP(1, 3, hidden=(8,))).double(), (x, y), NOISY)
    with pytest.raises(ValueError, match=r"y must be real targets \(n, m\) for loss='beta_nll'"):
        train(noisy_line, (x, y[:, 0]), NOISY)
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\]; got 2"):
        st.Training("beta_nll", beta=2)
    with pytest.raises(ValueError, match="for predictions and loss='beta_nll', a pair"):
        train(noisy_line, (x, y), replace(NOISY, loss="mse"))
