"""A data set that is split into training and test data."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Training and test data of one task.

    Args:
        x_train: training inputs, (n, d), floating point.
        y_train: training targets: class indices (n,), or real numbers (n, m).
        x_test: test inputs, as ``x_train``.
        y_test: test targets, as ``y_train``.
        feature_names: the d names of the columns of the inputs.
        class_names: the names of the classes, in the order of their indices; empty for regression.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        return self.x_train, self.y_train

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        return self.x_test, self.y_test

    @property
    def n_features(self) -> int:
        return self.x_train.shape[1]

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    def to(self, device: str | torch.device) -> "Split":
        """Return the same data on another device."""
        names = ("x_train", "y_train", "x_test", "y_test")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})
