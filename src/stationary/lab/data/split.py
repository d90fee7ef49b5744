"""A data set in two parts, standardised by what the first part knows."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Training and test data of one task.

    Args:
        x_train, x_test: (n, d), floating point.
        y_train, y_test: (n,) class indices, or (n, m) real targets.
        feature_names: d names.
        class_names: one for each class; empty for regression.
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

    def standardized(self, columns: slice | Tensor = slice(None)) -> "Split":
        """Each column, or each of the given ones, with mean 0 and variance 1 on the training part.

        A column that is constant there is only shifted.
        """
        mean, std = self.x_train.new_zeros(self.n_features), self.x_train.new_ones(self.n_features)
        mean[columns] = self.x_train[:, columns].mean(0)
        std[columns] = self.x_train[:, columns].std(0, correction=0)
        std[std == 0] = 1.0
        return replace(self, x_train=(self.x_train - mean) / std, x_test=(self.x_test - mean) / std)

    def to(self, device: str | torch.device) -> "Split":
        """The same data on another device."""
        names = ("x_train", "y_train", "x_test", "y_test")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})
