"""Activations without a formula, as series that are right to all the accuracy there is."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Callback = Callable[[Tensor], Tensor]

FLAT = 1200.0  # rate x from which a Laguerre series is taken as 0: 600 terms reach no further


@dataclass(frozen=True)
class CausalFactor:
    """The causal activation as a Laguerre series, to all the accuracy there is; a table is made of it to train with.

    sigma(x) = x^power e^(-rate x) sum_n c_n n! Gamma(power + 1) / Gamma(n + power + 1) L_n^(power)(2 rate x) for x > 0,
    else 0; power = tail - 1/2.
    """

    series: Tensor
    rate: float
    power: float

    def smooth(self, x: Tensor) -> Tensor:
        """sigma(x) / x^power, which has a Taylor series at 0, for x >= 0; float64."""
        y = (2 * self.rate * x).clamp(max=2 * FLAT)
        start = (y / 2).clamp(max=FLAT / 2)  # e^(-y/2) underflows where a late term is still of size 1
        previous, current = torch.zeros_like(y), torch.exp(-start)
        total = self.series[0] * current
        for n, c in enumerate(self.series[1:].tolist()):
            step = ((2 * n + 1 + self.power - y) * current - n * previous) / (n + 1 + self.power)
            previous, current = current, step
            total = total + c * current
        return torch.where(y < 2 * FLAT, total * torch.exp(start - y / 2), 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        inside = torch.where(x > 0, x, 1.0)
        return torch.where(x > 0, inside**self.power * self.smooth(inside), 0.0)


@dataclass(frozen=True)
class EvenFactor:
    """The zero-phase activation, even, as a Legendre series on each piece between the edges; 0 beyond the last."""

    edges: Tensor
    series: Tensor

    def smooth(self, x: Tensor) -> Tensor:
        """sigma(x) for x >= 0, with the slope from the right at 0."""
        piece = torch.searchsorted(self.edges, x.detach(), right=True).clamp(1, len(self.edges) - 1) - 1
        left, right = self.edges[piece], self.edges[piece + 1]
        t = (2 * x - left - right) / (right - left)
        series = self.series[piece]
        previous, current = torch.ones_like(t), t
        total = series[..., 0] + series[..., 1] * t
        for n in range(1, self.series.shape[-1] - 1):
            previous, current = current, ((2 * n + 1) * t * current - n * previous) / (n + 1)
            total = total + series[..., n + 1] * current
        return torch.where(x < self.edges[-1], total, 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        return self.smooth(x.abs())
