"""Batches of an iterable train as tensors do."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_problems import FULL, QUICK, X, Y, assert_same, classes, line, loader, mlp

import stationary as st
from stationary.training import train


def test_batch_losses_are_weighted_means():
    """Training a constant on weighted data: the weighted mean, whatever the scale of the weights."""
    x, y = line()
    weight = torch.rand(50, dtype=torch.float64)

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x):
            return self.value.expand(len(x), 1)

    training = st.Training("mse", epochs=200, batch_size=None, optimizer="sgd", learning_rate=0.1, momentum=0.0)
    for scale in (1.0, 1e-6, 1e6):
        (model,) = train(Constant, (x, y), training, sample_weight=scale * weight)
        assert model.value.item() == pytest.approx(((weight @ y) / weight.sum()).item())


@pytest.mark.parametrize("n_members", [1, 2])
def test_batches_train_as_tensors_do(n_members):
    """One batch of all rows: the order does not matter."""
    x, y = classes()
    training, build = replace(FULL, epochs=5), lambda: mlp(dropout=0.0)
    for a, b in zip(
        train(build, loader(x, y, 90), training, n_members=n_members),
        train(build, (x, y), training, n_members=n_members),
        strict=True,
    ):
        assert_same(a, b)


def test_batches_by_hand():
    """Each batch is a step, in the order of the iterable; a mapping is a network's keyword arguments."""

    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3).double()

        def forward(self, values, scale):
            return self.linear(values * scale)

    x, y = classes()
    batches = [({"values": x[i::3], "scale": torch.full((30, 1), 2.0, dtype=torch.float64)}, y[i::3]) for i in range(3)]
    training = replace(FULL, epochs=2, learning_rate=0.1)
    (model,) = train(Keywords, batches, training)
    torch.manual_seed(0)
    by_hand = Keywords()
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.1, momentum=0.9)
    for inputs, labels in [*batches, *batches]:
        optimizer.zero_grad()
        F.cross_entropy(by_hand(**inputs), labels).backward()
        optimizer.step()
    assert_same(model, by_hand)


def test_validation_may_be_batches_too():
    seen = {}
    for name, validation in (("tensors", classes(40)), ("batches", loader(*classes(40)))):
        reports = seen[name] = []
        training = replace(QUICK, patience=2, epochs=10)
        train(mlp, loader(*classes()), training, validation=validation, progress=lambda *r: reports.append(r))
    assert [r[2] for r in seen["tensors"]] == pytest.approx([r[2] for r in seen["batches"]])


BAD_BATCHES = {
    "batch or the generator is used up|the iterable gave none": {"data": ((x, y) for x, y in [classes()])},
    r"data must give batches \(x, y\), got inputs without targets": {"data": [X]},
    "validation must be given for patience=1": {"data": [(X, Y)], "patience": 1},
    "sample_weight must be None where data are an iterable": {"data": [(X, Y)], "sample_weight": torch.ones(8)},
    r"must have a length for schedule='one_cycle'.*got map": {"data": map(tuple, [(X, Y)]), "schedule": "one_cycle"},
    r"build must make networks that return a tensor \(n, 9 or more\)": {"data": [(X, Y + 8 - Y.max())]},
}


@pytest.mark.parametrize(("message", "change"), BAD_BATCHES.items(), ids=BAD_BATCHES)
def test_bad_batches(message, change):
    configuration = {k: change[k] for k in ("patience", "schedule") if k in change}
    arguments = {k: v for k, v in change.items() if k not in configuration}
    with pytest.raises(ValueError, match=message):
        train(mlp, training=replace(QUICK, **configuration), **arguments)
