"""How probable targets are, given outputs: loss, slope and curvature of a softmax and of sigmoids."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Likelihood(Protocol):
    """Loss, slope and curvature in the outputs z (n, c) of rows with targets y; weights are left to the caller."""

    def loss(self, z: Tensor, y: Tensor) -> Tensor: ...

    def slope(self, z: Tensor, y: Tensor) -> Tensor: ...

    def curved(self, z: Tensor, direction: Tensor) -> Tensor:
        """(n, c) the curvature times the direction (n, c)."""

    def bound(self, z: Tensor) -> Tensor:
        """(n, 1) or (n, c): the curvature of each output, or a bound on it for all."""


class Softmax:
    """One class of several."""

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y, reduction="none")

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        p = z.softmax(-1)
        p[torch.arange(len(y), device=y.device), y] -= 1
        return p

    def curved(self, z: Tensor, direction: Tensor) -> Tensor:
        p = z.softmax(-1)
        pd = p * direction
        return pd - p * pd.sum(-1, keepdim=True)

    def bound(self, z: Tensor) -> Tensor:
        return 1 - z.softmax(-1).square().sum(-1, keepdim=True)


class Sigmoid:
    """Labels that may hold at the same time."""

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, y.to(z), reduction="none").sum(-1)

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        return z.sigmoid() - y

    def curved(self, z: Tensor, direction: Tensor) -> Tensor:
        return self.bound(z) * direction

    def bound(self, z: Tensor) -> Tensor:
        return z.sigmoid() * (-z).sigmoid()
