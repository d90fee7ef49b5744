"""The paper's UCI benchmarks: Diabetes, Adult and Connect-4."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary.data.files import read
from stationary.data.split import Split
from stationary.extras import extra

with extra("experiments"):
    import pandas as pd
    from sklearn.model_selection import KFold, StratifiedKFold

NAMES = ("diabetes", "adult", "connect-4", "connect-4-onehot")


@dataclass(frozen=True)
class Table:
    """A whole data set, encoded but not yet standardised.

    Args:
        x: (n, d); numeric columns as they are, the others as one column for each value.
        y: (n,) class indices.
        numeric: (d,), which columns are to be standardised.
        feature_names, class_names: d, and one for each class.
    """

    x: Tensor
    y: Tensor
    numeric: Tensor
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]

    def folds(self, n_folds: int = 10, *, seed: int = 0, stratified: bool = False) -> Iterator[Split]:
        """Every row is tested once; standardised on each fold's training part."""
        kind = StratifiedKFold if stratified else KFold
        for train, test in kind(n_folds, shuffle=True, random_state=seed).split(self.x, self.y):
            yield self.split(train, test)

    def split(self, train: Any, test: Any) -> Split:
        """The given rows to train and to test on."""
        parts = self.x[train], self.y[train], self.x[test], self.y[test]
        return Split(*parts, self.feature_names, self.class_names).standardized(self.numeric)


def load(name: str) -> Table:
    """A benchmark by name.

    Adult comes without the 3,620 rows that lack a value. In "connect-4" the squares are numbers, o, b, x as -1, 0, 1,
    as the paper's code probably had them; in "connect-4-onehot" each has three columns.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    table = read(name.removesuffix("-onehot"))
    table = table[(table != "?").all(axis=1)].reset_index(drop=True)
    classes = pd.Categorical(table.pop("class"))
    if name == "connect-4":
        table = table.replace({"o": "-1", "b": "0", "x": "1"}).astype(float)
    encoded = pd.get_dummies(table, dtype=float)  # numeric columns first
    numeric = torch.tensor([name in table.columns for name in encoded.columns])
    x = torch.tensor(encoded.to_numpy(np.float32))
    y = torch.from_numpy(classes.codes.astype(np.int64))
    return Table(x, y, numeric, tuple(encoded.columns), tuple(classes.categories))
