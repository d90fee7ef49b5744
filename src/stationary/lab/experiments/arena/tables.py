"""Tables of classes: Diabetes, Adult, Connect-4 and Covtype, and rows that nobody was trained on.

For each seed a method is fitted to rows of all classes, to rows below the 80 % quantile of one column, and where there
are three classes or more to rows of all classes but one. The seed draws the rows, and chooses the column and the class.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from stationary.lab.data import uci
from stationary.lab.experiments.arena.config import GENERATED_TABLE, Config
from stationary.lab.experiments.arena.methods.base import Judged
from stationary.lab.experiments.arena.protocol_tables import MOST, SMALLEST, TESTED_CLASSES, UNKNOWN
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.training.data import Pair

TESTED = 0.2  # share of the rows of a table that may be tested
HELD = 0.1  # share of the training rows that chooses
FACTOR, REGION, CLASS = UNKNOWN


@dataclass(frozen=True)
class Rows:
    """The rows of one fit. Columns are as they are in the file.

    Args:
        x: (n, d) inputs to train on.
        y: (n,) their classes, from 0 on without a gap.
        held: (n,) whether a row is held out, by methods that must choose something.
        test: inputs and classes of known rows.
        unknown: inputs of unknown rows by their name.
        n_classes: number of the known classes.
    """

    x: Tensor
    y: Tensor
    held: Tensor
    test: Pair
    unknown: dict[str, Tensor]
    n_classes: int

    @property
    def train(self) -> Pair:
        return self.x[~self.held], self.y[~self.held]

    @property
    def validation(self) -> Pair:
        return self.x[self.held], self.y[self.held]


def missing(datasets: Sequence[str]) -> str | None:
    """Say why the event cannot run here, or None if it can; all tables but Covtype are bundled."""
    if "covtype" not in datasets or uci.find_covtype():
        return None
    folder = os.environ.get("STATIONARY_DATA") or "not given"
    repair = f"`stationary data covtype` downloads it, or {uci.COVTYPE_REPAIR}"
    return f"no {uci.COVTYPE_FILE} in STATIONARY_DATA, which is {folder}; {repair}"


@lru_cache(maxsize=1)
def _table(name: str) -> uci.Tabular:
    return generated() if name == GENERATED_TABLE else uci.load(name)


def generated(n: int = 300) -> uci.Tabular:
    """Return a small table: three clouds of points in four columns, one class each."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = 5 + 2 * torch.eye(4)[y] + torch.randn(n, 4, generator=generator)
    return uci.Tabular(x, y, torch.ones(4, dtype=torch.bool), tuple("abcd"), ("0", "1", "2"))


def tasks(dataset: str, seed: int) -> Iterator[Rows]:
    """Yield the rows of each fit: of all classes, without a region and, of three classes or more, without a class."""
    table = _table(dataset)
    order = torch.randperm(len(table.x), generator=torch.Generator().manual_seed(seed))
    n_test = int(TESTED * len(order))
    test, train = order[:n_test], order[n_test:]
    everything = torch.zeros(len(order), dtype=torch.bool)
    yield _rows(table, train, test, everything, FACTOR)
    column = table.x[:, int(table.numeric.nonzero()[seed % int(table.numeric.sum())])]
    border = column[train].quantile(0.8) if len(train) < 2**20 else column[train[: 2**20]].quantile(0.8)
    region = column > border if (column > border).any() else column >= border
    yield _rows(table, train, test, region, REGION)
    if len(table.class_names) > 2:
        yield _rows(table, train, test, table.y == seed % len(table.class_names), CLASS)


def _rows(table: uci.Tabular, train: Tensor, test: Tensor, unknown: Tensor, name: str) -> Rows:
    """Make the rows of a fit; ``unknown`` (n,) says which rows are, for ``FACTOR`` none: there all are multiplied."""
    train = train[~unknown[train]][:MOST]
    known, strange = test[~unknown[test]][:TESTED_CLASSES], test[unknown[test]][:TESTED_CLASSES]
    classes = table.y[train].unique()
    known = known[torch.isin(table.y[known], classes)]
    held = torch.arange(len(train)) < math.ceil(HELD * len(train))  # the rows are in random order
    far = 5 * table.x[known] if name == FACTOR else table.x[strange]
    y, tested = (torch.searchsorted(classes, table.y[rows]) for rows in (train, known))
    return Rows(table.x[train], y, held, (table.x[known], tested), {name: far}, len(classes))


def run(config: Config) -> Arrays:
    """Fit and judge a method on each of the fits of a seed; what a table has too few classes for is not there."""
    from stationary.lab.experiments.arena.methods.tabular import CLASSIFIERS
    from stationary.lab.experiments.arena.run import judged

    found = []
    for seed in inside.parts(config.seeds, "seed"):
        numbers: dict[str, float] = {}
        seconds, predicting, n = 0.0, 0.0, 0
        for rows in inside.parts(tasks(config.dataset, seed), "fit"):
            start = time.perf_counter()
            fitted = CLASSIFIERS[config.method](rows, seed)
            between = time.perf_counter()
            known, unknown = _clipped(fitted(rows.test[0])), {u: _clipped(fitted(x)) for u, x in rows.unknown.items()}
            seconds, predicting = seconds + between - start, predicting + time.perf_counter() - between
            n += len(rows.test[0]) + sum(map(len, rows.unknown.values()))
            of_fit = judged(known, rows.test[1], unknown)
            for name, said in unknown.items():
                numbers[f"confidence: {name}"] = said.probs.max(-1).values.mean().item()
            numbers |= {name: value for name, value in of_fit.items() if ": " in name or FACTOR in unknown}
            if FACTOR in unknown:
                numbers |= {"confidence": known.probs.max(-1).values.mean().item(), "training rows": float(len(rows.x))}
        found.append(numbers | {"seconds fit": seconds, "seconds a row": predicting / n})
    return {name: np.array([one[name] for one in found]) for name in found[0]}


def _clipped(said: Judged) -> Judged:
    probs = said.probs.double().clamp(min=SMALLEST)
    return Judged(probs / probs.sum(-1, keepdim=True), said.scores.double())
