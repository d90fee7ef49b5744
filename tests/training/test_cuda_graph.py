"""A training step as one CUDA graph equals the plain loop; its parts are tested without a GPU too."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn
from training_problems import (
    QUICK,
    Sampled,
    assert_same,
    classes,
    convolutional,
    deep_dropout,
    differ,
    each,
    folds,
    learnable,
    mlp,
    replay,
)

from stationary.training import train
from stationary.training._cuda_graph import Replayed, _Aligned, can_be_replayed
from stationary.training._members import Trainees
from stationary.training._optimizer import optimizer_of
from stationary.training.data import Rows, checked


@pytest.mark.parametrize("build", [mlp, convolutional, learnable, Sampled])
def test_replayed_folds_equal_each_fold_alone(build):
    """Masks come in another order than in the plain loop, so alone is replayed too."""
    training, (x, y) = replace(QUICK, loss="own" if build is Sampled else "cross_entropy"), folds()
    together, losses = replay([build] * 3, x, y, training)
    for k in range(3):
        alone, loss = replay([build], x[k : k + 1], y[k : k + 1], replace(training, seed=k))
        assert_same(together[k], alone[0])
        assert [epoch[k] for epoch in losses] == pytest.approx([epoch[0] for epoch in loss])


def test_replayed_equals_the_plain_loop():
    """Without dropout both draw the same order."""
    training, (x, y) = replace(QUICK, optimizer="sgd", learning_rate=0.1), folds()
    build = lambda: mlp(dropout=0.0)
    together, _ = replay([build] * 3, x, y, training)
    for a, b in zip(together, each(build, x, y, training), strict=True):
        assert_same(a, b)


def test_masks_of_a_replay_are_fresh_in_every_step(monkeypatch):
    """Also where only some steps are drawn ahead."""
    monkeypatch.setattr("stationary.training._cuda_graph.DRAWN_BYTES", 2 * 16 * 8)
    seen = []
    parts = [checked(*classes(), "cross_entropy")]
    members = Trainees([mlp()], [0], torch.device("cpu"), QUICK)
    steps = Replayed(members, Rows.joined(parts), 16, capture=False)
    assert steps.ahead == 2
    optimizer, inner = optimizer_of(QUICK, members.parameters), steps._loss_and_slope

    def noted(i):
        seen.append(steps.draws[0][i].clone())
        return inner(i)

    steps._loss_and_slope = noted
    steps.train(1, optimizer)
    steps.train(2, optimizer)
    assert len(seen) == 12 and len({tuple(mask.flatten().tolist()) for mask in seen}) == 12
    assert torch.stack(seen).double().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / (12 * 16 * 8)) ** 0.5)


def test_a_dropout_that_is_called_twice_is_not_replayed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.dropout = nn.Linear(3, 8), nn.Linear(8, 3), nn.Dropout(0.5)

        def forward(self, x):
            return self.second(self.dropout(self.first(self.dropout(x))))

    members = Trainees([Twice(), Twice()], [0, 1], torch.device("cpu"), QUICK)
    assert not can_be_replayed(members, torch.zeros(4, 3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_in", [3, 8])
def test_aligned_products_are_the_same(n_in, bias):
    linear = nn.Linear(n_in, 9, bias=bias).double()
    aligned, x = _Aligned(linear, torch.float64), torch.randn(5, n_in, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(aligned(x), linear(x))
    inputs = [x, *linear.parameters()]
    for a, b in zip(*(torch.autograd.grad(f(x).square().sum(), inputs) for f in (aligned, linear)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("build", [mlp, deep_dropout, learnable, Sampled])
@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "nesterov": True, "milestones": (2, 4)}])
def test_folds_on_gpu(build, options):
    """Each step one CUDA graph: the same as without, and the same as each fold alone."""
    loss = "own" if build is Sampled else "cross_entropy"
    training = replace(QUICK, loss=loss, **options)
    x, y = ([part.cuda() for part in parts] for parts in folds())
    together = each(build, x, y, training)
    for k, member in enumerate(together):
        assert_same(member, train(build, (x[k], y[k]), replace(training, seed=k))[0], rtol=1e-8)
    assert differ(together[0], train(build, (x[0], y[0]), replace(training, seed=1))[0])


@pytest.mark.gpu
def test_graph_equals_plain_steps_on_gpu(monkeypatch):
    training = replace(QUICK, milestones=(2, 4), epochs=6)
    x, y = (part.cuda() for part in classes())
    build = lambda: mlp(dropout=0.0)
    (graph,) = train(build, (x, y), training)
    monkeypatch.setattr(import_module("stationary.training.train"), "can_be_replayed", lambda *_: False)
    (plain,) = train(build, (x, y), training)
    assert_same(graph, plain, rtol=1e-8)
