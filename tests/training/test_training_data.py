"""Data that cannot be trained on are refused, and rows weigh what they should."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from training_problems import (
    FULL,
    QUICK,
    SAME,
    X,
    Y,
    assert_same,
    batchnorm,
    classes,
    differ,
    mlp,
)

from stationary.training import train
from stationary.training._cuda_graph import Replayed
from stationary.training._members import Trainees
from stationary.training._optimizer import optimizer_of
from stationary.training.data import checked


def test_integer_weights_are_repetitions():
    x, y = classes(30)
    times = torch.arange(30) % 3 + 1
    build = lambda: mlp(dropout=0.0)
    (weighted,) = train(build, (x, y), FULL, sample_weight=times.double())
    (repeated,) = train(build, (x.repeat_interleave(times, 0), y.repeat_interleave(times)), FULL)
    assert_same(weighted, repeated)
    assert differ(weighted, train(build, (x, y), FULL)[0])


@pytest.mark.parametrize("training", [FULL, QUICK], ids=["full-batch", "batches"])
def test_weight_zero_removes_the_row(training):
    x, y = classes(50)
    keep = torch.arange(50) % 5 > 0
    noise = x.clone()
    noise[~keep] = math.nan
    (weighted,) = train(batchnorm, (noise, y), training, sample_weight=keep.double())
    assert_same(weighted, train(batchnorm, (x[keep], y[keep]), training)[0])


BAD_DATA = {
    "x and y must have the same number of rows.*8 and 7": {"y": Y[:7]},
    "at least one; got 0 and 0": {"x": X[:0], "y": Y[:0]},
    r"y must be class indices.*float64: use y.long\(\)": {"y": Y.double()},
    r"y must be class indices.*\(8, 1\)": {"y": Y[:, None]},
    "y must be class indices from 0, got -1": {"y": Y - 1},
    r"build must make networks that return a tensor \(n, 9 or more\).*class.*\(2, 3\)": {"y": Y + 8 - Y.max()},
    r"y must be real targets.*\(8,\).*y\[:, None\]": {"y": X[:, 0], "loss": "mse"},
    r"y must be real targets.*int64.*y.float\(\)": {"y": Y[:, None], "loss": "mse"},
    r"networks that return a tensor \(n, 2\).*target.*\(2, 3\)": {"y": X[:, :2], "loss": "mse"},
    "x must be finite, got NaN or infinity in row 3": {"x": X.index_fill(0, torch.tensor([3]), math.nan)},
    "y must be finite.*row 5": {"y": X.index_fill(0, torch.tensor([5]), math.inf), "loss": "mse"},
    r"sample_weight must be.*\(8,\); got shape \(7,\)": {"sample_weight": torch.ones(7)},
    "sample_weight must be.*from -1 to 6": {"sample_weight": torch.arange(8.0) - 1},
    "sample_weight must be.*from 0 to 0": {"sample_weight": torch.zeros(8)},
    "validation y must be class indices": {"validation": (X, X)},
    "validation x must be finite": {"validation": (X / 0, Y)},
    "n_members must be a positive integer, got 0": {"n_members": 0},
    r"return outputs of shape \(n, c\).*got tuple": {"build": lambda: Pair()},
    "validation_fraction must leave rows to train on, got 0.9 of 2 rows": {
        "x": X[:2],
        "y": Y[:2],
        "patience": 1,
        "validation_fraction": 0.9,
    },
    "build must return a fresh network": {"build": lambda: SAME, "n_members": 2},
}


class Pair(nn.Linear):
    def __init__(self):
        super().__init__(3, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(("message", "change"), BAD_DATA.items(), ids=BAD_DATA)
def test_bad_data(message, change):
    configuration = {k: change[k] for k in ("loss", "patience", "validation_fraction") if k in change}
    arguments = {"build": mlp, "x": X, "y": Y} | {k: v for k, v in change.items() if k not in configuration}
    arguments["data"] = arguments.pop("x"), arguments.pop("y")
    with pytest.raises(ValueError, match=message):
        train(**arguments, training=replace(QUICK, **configuration))


def test_what_rows_of_weight_0_hold_is_never_seen():
    """The padding of a batch repeats the last row, which may be one of them."""
    x, y = classes()
    weight = torch.ones(90, dtype=torch.float64)
    weight[-1], x[-1] = 0.0, math.nan
    rows = checked(x, y, "cross_entropy", weight)
    steps = Replayed(Trainees([mlp()], [0], torch.device("cpu"), QUICK), rows, 16, capture=False)
    losses = steps.train(1, optimizer_of(QUICK, steps.members.parameters))
    assert math.isfinite(losses[0])
