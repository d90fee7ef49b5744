"""The data of a run: a pool whose first rows are labelled, and test rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stationary._extras import extra
from stationary.lab.data import grey_images, uci_regression
from stationary.lab.experiments.active.config import IMAGES, UCI, Config

with extra("experiments"):
    from sklearn.datasets import load_diabetes, load_digits


class Problem(NamedTuple):
    """A pool in random order, the first rows of which are labelled at first, and test rows.

    Args:
        x, y: inputs (n, d) and targets of the pool, float64: class indices (n,), or real values (n, 1) in units of the
            standard deviation of those that are labelled at first.
        x_test, y_test: the same of the test rows.
        n_classes: number of classes, or None for real values.
        scale: that standard deviation; 1 for classes.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    n_classes: int | None
    scale: float

    @property
    def n_outputs(self) -> int:
        return self.n_classes or 1


def missing(configs: Sequence[Config]) -> str | None:
    """Say why these configurations cannot run here and what to do about it; None if they can run."""
    names = {config.dataset for config in configs}
    try:
        if "fashion-mnist" in names:
            for file in grey_images.FILES["fashion-mnist", "test"]:
                grey_images.find(file)
        if names & set(UCI):
            uci_regression.find()
    except FileNotFoundError as problem:
        return f"{problem}; digits and diabetes need no files: --scale demo"
    return None


def load(config: Config, seed: int) -> Problem:
    """Load the data of one seed, in the same order for every method."""
    x, y, pool, test = _table(config, seed)
    pool = pool[: config.n_pool]
    if len(pool) < config.labels:
        raise ValueError(
            f"labels must be at most the {len(pool)} rows of the pool of {config.dataset}; got {config.labels}"
        )
    if config.dataset in IMAGES:
        return Problem(x[pool], y[pool], x[test], y[test], 10, 1.0)
    std, mean = torch.std_mean(x[pool], 0)
    x = (x - mean) / torch.where(std > 0, std, 1.0)  # inputs of the pool are known, its targets are not
    scale, shift = torch.std_mean(y[pool[: config.start]])
    y = (y - shift) / scale
    return Problem(x[pool], y[pool], x[test], y[test], None, float(scale))


def _table(config: Config, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, targets, the rows of the pool in random order, and the test rows."""
    generator = torch.Generator().manual_seed(seed)
    if config.dataset in UCI:
        table = uci_regression.load(config.dataset)
        splits = table.splits["standard"]
        if seed >= len(splits):
            raise ValueError(f"seeds must be below {len(splits)}, the number of splits of {config.dataset}; got {seed}")
        train, test = splits[seed]
        return table.x, table.y, train[torch.randperm(len(train), generator=generator)], test
    if config.dataset == "fashion-mnist":  # its 10,000 test images are enough for a pool and for testing
        images = grey_images.load("fashion-mnist", "test")
        assert images.y is not None
        x, y = images.x.flatten(1).double() / 255, images.y
    elif config.dataset == "digits":
        x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
        x, y = x / 16, y.long()
    else:
        x, y = (torch.from_numpy(part) for part in load_diabetes(return_X_y=True))
        y = y[:, None]
    order = torch.randperm(len(x), generator=generator)
    n_test = min(config.n_test, len(x) // 4)
    return x, y, order[n_test:], order[:n_test]
