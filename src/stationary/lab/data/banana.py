"""Banana: the two-dimensional classification task of the paper's Fig. 1."""

import torch

from stationary.lab.data.files import read
from stationary.lab.data.split import Split


def load() -> Split:
    """Load the paper's 400 training points, 183 and 217 of the two classes, and the 4,900 other points for the test.

    The inputs are not standardised.
    """
    table = read("banana")
    x = torch.tensor(table[["x1", "x2"]].to_numpy(), dtype=torch.float32)
    y = torch.tensor(table["class"].to_numpy())
    train = torch.tensor((table["split"] == "train").to_numpy())
    return Split(x[train], y[train], x[~train], y[~train], ("x1", "x2"), ("0", "1"))
