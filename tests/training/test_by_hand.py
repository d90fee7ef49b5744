"""What is written by hand for small networks on the CPU equals what PyTorch computes."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

import stationary as st
from stationary.training._adam import LightAdam
from stationary.training._by_hand import ByHand
from stationary.training._epochs import _gradients
from stationary.training._members import Trainees

N, D = 40, 3
TARGETS = {"cross_entropy": torch.arange(N) % 4, "mse": torch.linspace(-1, 1, 4 * N, dtype=torch.float64).view(N, 4)}
KINDS = [st.Matern(0.5), st.Matern(2.2), st.Matern(centered=True), st.RBF()]


def members(loss="mse", hidden=(8,), activation="matern52", training=None, dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = st.MLP(D, 4, hidden=hidden, activation=activation, **options).to(dtype)
    result = Trainees([model], [0], torch.device("cpu"), training or st.Training(loss), stacked=False)
    result.set_mode(training=True)
    return result


def gradients(trainees):
    return [parameter.grad for parameter in trainees.parameters.values()]


@pytest.mark.parametrize("hidden", [(8,), (7, 6, 5)])
@pytest.mark.parametrize("loss", TARGETS)
@pytest.mark.parametrize("activation", KINDS, ids=str)
def test_the_gradients_are_those_of_autograd(activation, loss, hidden):
    """The same masks, drawn from the same seed, and weights of all sizes."""
    x, weight = torch.randn(N, D, dtype=torch.float64), torch.rand(N, dtype=torch.float64)
    by_hand, by_autograd = (members(loss, hidden, activation, dropout=0.3) for _ in range(2))
    assert ByHand.suits(by_hand)
    found = ByHand(by_hand).gradients(x, TARGETS[loss], weight)
    expected = _gradients(by_autograd, x, TARGETS[loss], weight)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(by_hand), gradients(by_autograd))
    assert all(gradient.abs().max() > 1e-6 for gradient in gradients(by_hand))


def test_only_what_it_knows_is_done_by_hand():
    """A hook, another activation, another loss, a frozen layer, no dropout: autograd."""

    class Own(st.MLP):
        def forward(self, x):
            return 2 * super().forward(x)

    assert ByHand.suits(members())
    for other in (
        members(activation=st.Matern(learnable=True)),
        members(activation="sine"),
        members(hidden=(4, 4), trunk_activation="leaky_relu"),
        members(dropout=0.0),
        members(training=replace(st.Training(), label_smoothing=0.1)),
        members(training=replace(st.Training(), precision="bfloat16")),
        Trainees([Own(D, 4, hidden=(8,))], [0], torch.device("cpu"), st.Training(), stacked=False),
        Trainees([nn.Linear(D, 4)], [0], torch.device("cpu"), st.Training(), stacked=False),
    ):
        assert not ByHand.suits(other)
    hooked, frozen = members(), members()
    hooked.models[0].head.register_forward_hook(lambda *_: None)
    frozen.models[0].head.hidden.requires_grad_(False)
    assert not ByHand.suits(hooked) and not ByHand.suits(frozen)


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_steps_of_adam_are_those_of_pytorch(decoupled):
    """Two groups, a parameter without a gradient, a rate that changes, and a state that moves from one to the other."""
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in ((3, 4), (5,), (2,))]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    ours, theirs = ([value.clone().requires_grad_() for value in start] for _ in range(2))

    def groups(parameters):
        return [
            {"params": parameters[:1], "lr": 0.1, "weight_decay": 0.2},
            {"params": parameters[1:], "weight_decay": 0.0},
        ]

    light, plain = LightAdam(groups(ours), 0.01, decoupled=decoupled), kind(groups(theirs), 0.01, fused=True)
    for step in range(6):
        for parameters in (ours, theirs):
            torch.manual_seed(step)
            for parameter in parameters[: 2 + step % 2]:
                parameter.grad = torch.randn_like(parameter)
        light.step()
        plain.step()
        for optimizer in (light, plain):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] *= 0.5
        if step == 3:
            light.load_state_dict(deepcopy(plain.state_dict()))
    assert all(map(torch.equal, ours, theirs))
    assert all(parameter.grad is None for parameter in ours)
