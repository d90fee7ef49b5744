"""Regression away from the data: nine tables of the UCI repository, with standard, gap and tail splits."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from stationary.lab.data import uci_regression
from stationary.lab.experiments.arena.config import GENERATED_VALUES, Config
from stationary.lab.experiments.arena.protocol_tables import KINDS, MOST, SMALLEST, TESTED_VALUES
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays

QUANTILE = 1.6448536269514722  # of the standard normal distribution at 0.95
HELD = 0.1  # share of the training rows that chooses


@dataclass(frozen=True)
class Values:
    """A table for regression, standardised by its training rows, in float64.

    Args:
        x: (n, d) inputs to train on.
        y: (n,) their targets.
        held: (n,) whether a row is held out, by methods that must choose something.
        test_x: (m, d) inputs to test on.
        test_y: (m,) their targets, in the same units as y.
        scale: standard deviation of the training targets in the units of the file.
    """

    x: Tensor
    y: Tensor
    held: Tensor
    test_x: Tensor
    test_y: Tensor
    scale: float

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        return self.x[~self.held], self.y[~self.held]

    @property
    def validation(self) -> tuple[Tensor, Tensor]:
        return self.x[self.held], self.y[self.held]


@dataclass(frozen=True)
class Normal:
    """A prediction for each row.

    Args:
        mean, variance: (n,) mean and variance of the target of each row, noise included.
    """

    mean: Tensor
    variance: Tensor


def missing() -> str | None:
    """Say why the event cannot run here, or None if it can."""
    try:
        uci_regression.find()
    except FileNotFoundError as problem:
        return str(problem)
    return None


def split(x: Tensor, y: Tensor, rows: uci_regression.Rows, seed: int) -> Values:
    """Return one split of a table x (n, d), y (n,); the seed draws which rows are kept and which are held out."""
    generator = torch.Generator().manual_seed(seed)
    train = rows.train[torch.randperm(len(rows.train), generator=generator)][:MOST]
    test = rows.test[torch.randperm(len(rows.test), generator=generator)][:TESTED_VALUES]
    centre, spread = x[train].mean(0), x[train].std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    mean, scale = y[train].mean(), y[train].std(correction=0)
    held = torch.arange(len(train)) < math.ceil(HELD * len(train))  # the rows are in random order
    inputs, targets = (x - centre) / spread, (y - mean) / scale
    return Values(inputs[train], targets[train], held, inputs[test], targets[test], float(scale))


@lru_cache(maxsize=1)
def _table(name: str) -> uci_regression.Regression:
    return uci_regression.load(name)


def tasks(dataset: str, k: int) -> Iterator[tuple[str, Values | None]]:
    """Yield the k-th split of each kind; None where a table has fewer columns to split by."""
    table = generated(k) if dataset == GENERATED_VALUES else _table(dataset)
    for kind in KINDS:
        splits = table.splits[kind]
        yield kind, split(table.x, table.y[:, 0], splits[k], k) if k < len(splits) else None


def generated(seed: int, n: int = 120) -> uci_regression.Regression:
    """Return a small table: a smooth function of two of its three columns, with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = (2 * x[:, :1]).sin() + x[:, 1:2] + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    order = x[:, 0].argsort()
    rows = torch.arange(n)
    gap = uci_regression.Rows(torch.cat([order[: n // 3], order[2 * n // 3 :]]), order[n // 3 : 2 * n // 3])
    standard = uci_regression.Rows(rows[n // 10 :], rows[: n // 10])
    splits = {"standard": (standard,), "gap": (gap,), "tail": (uci_regression.tail(x[:, 0]),)}
    return uci_regression.Regression(x, y, {kind: splits[kind] * (seed + 1) for kind in splits})


def judged(said: Normal, y: Tensor) -> dict[str, float]:
    """Return the metrics by name, in units of the standard deviation of the training targets."""
    std = said.variance.clamp(min=SMALLEST).sqrt()
    errors = y - said.mean
    density = -0.5 * (errors / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
    return {
        "log-likelihood": density.mean().item(),
        "RMSE": errors.square().mean().sqrt().item(),
        "coverage": (errors.abs() <= QUANTILE * std).double().mean().item(),
        "width": 2 * QUANTILE * std.mean().item(),
    }


def run(config: Config) -> Arrays:
    """Fit and judge a method on each kind of split; what a table has no split for is NaN."""
    from stationary.lab.experiments.arena.methods.regressors import REGRESSORS

    found = []
    for seed in inside.parts(config.seeds, "seed"):
        numbers: dict[str, float] = {}
        seconds, rows, predicting = 0.0, 0, 0.0
        for kind, task in inside.parts(tasks(config.dataset, seed), "split"):
            if task is None:
                numbers |= {f"{name}: {kind}": math.nan for name in ("log-likelihood", "RMSE", "coverage", "width")}
                numbers |= {f"scale: {kind}": math.nan, f"training rows: {kind}": math.nan}
                continue
            start = time.perf_counter()
            fitted = REGRESSORS[config.method](task, seed)
            between = time.perf_counter()
            said = fitted(task.test_x)
            seconds, predicting = seconds + between - start, predicting + time.perf_counter() - between
            rows += len(task.test_x)
            numbers |= {f"{name}: {kind}": value for name, value in judged(said, task.test_y).items()}
            numbers |= {f"scale: {kind}": task.scale, f"training rows: {kind}": float(len(task.x))}
        found.append(numbers | {"seconds fit": seconds, "seconds a row": predicting / rows})
    return {name: np.array([one[name] for one in found]) for name in found[0]}
