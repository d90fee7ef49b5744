"""The network of the paper's radar experiment: convolutions over arrival times, and a small network beside them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary.nn.heads import StationaryHead

PULSES = 250  # places for intervals between pulses in a sample
SCALARS = 2  # carrier frequency and pulse width
WIDTHS = (24, 48, 128)  # channels of the three stages
BESIDE = 20  # features of the two scalars; 128 + 20 = 148 features in all, as in the paper


class RadarCNN(nn.Module):
    """The network 148-120-c: 148 features, a layer of 120 units, and an output for each of c emitters.

    The features come from convolutions with skip connections over the intervals between pulses, and from two layers
    over the carrier frequency and the pulse width. A sample has 25 to 250 pulses. Its intervals come with a mask that
    is 1 where there is an interval. Behind every convolution the features of all other places are set to 0, and the
    mean and the maximum at the end are taken over the places that have an interval.

    Args:
        n_classes: number of emitters, which are the classes.
        activation: activation of the hidden layer behind the features, by name or as a module.
        hidden: number of units of that layer.
        dropout: probability with which dropout sets one of these units to 0.
    """

    stem: nn.Conv1d
    blocks: nn.ModuleList
    norm: nn.GroupNorm
    beside: nn.Sequential
    head: StationaryHead

    def __init__(
        self, n_classes: int, *, activation: str | nn.Module = "matern52", hidden: int = 120, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, WIDTHS[0], 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(
            [Block(WIDTHS[0], WIDTHS[0]), Block(WIDTHS[0], WIDTHS[1], 2), Block(WIDTHS[1], WIDTHS[2] // 2, 2)]
        )
        self.norm = nn.GroupNorm(4, WIDTHS[2] // 2)  # without it, large features make local activations 0
        self.beside = nn.Sequential(nn.Linear(SCALARS, BESIDE), nn.ReLU(), nn.Linear(BESIDE, BESIDE), nn.ReLU())
        self.head = StationaryHead(WIDTHS[2] + BESIDE, n_classes, hidden=hidden, activation=activation, dropout=dropout)

    def features(self, x: Tensor) -> Tensor:
        """Return the features (n, 148) of inputs (n, 502), which ``Pulses.inputs`` makes."""
        if x.shape[1:] != (SCALARS + 2 * PULSES,):
            raise ValueError(
                f"x must be of shape (n, {SCALARS + 2 * PULSES}), got {tuple(x.shape)}; Pulses.inputs() makes it"
            )
        scalars, intervals, mask = x.split([SCALARS, PULSES, PULSES], 1)
        y, mask = self.stem(torch.stack([intervals * mask, mask], 1)), _halved(mask[:, None])
        y = y * mask
        for block in self.blocks:
            y, mask = block(y, mask)
        y = F.relu(self.norm(y)) * mask
        mean = y.sum(2) / mask.sum(2).clamp(min=1)
        largest = y.amax(2)
        return torch.cat([mean, largest, self.beside(scalars)], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Block(nn.Module):
    """A residual block: two convolutions, whose output is added to the block's input.

    Args:
        n_in: number of channels of the input.
        n_out: number of channels of the output.
        stride: stride of the first convolution; 2 keeps every other place.
    """

    norms: nn.ModuleList
    first: nn.Conv1d
    second: nn.Conv1d
    skip: nn.Module

    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.norms = nn.ModuleList([nn.GroupNorm(4, n_in), nn.GroupNorm(4, n_out)])
        self.first = nn.Conv1d(n_in, n_out, 3, stride=stride, padding=1)
        self.second = nn.Conv1d(n_out, n_out, 3, padding=1)
        self.skip = nn.Identity() if n_in == n_out else nn.Conv1d(n_in, n_out, 1, stride=stride)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        after = mask if self.stride == 1 else _halved(mask)
        y = self.first(F.relu(self.norms[0](x)) * mask)
        y = self.second(F.relu(self.norms[1](y * after)) * after)
        return (self.skip(x) + y) * after, after


def _halved(mask: Tensor) -> Tensor:
    """Return the mask of every other place: those that a convolution of stride 2 keeps."""
    return mask[..., ::2]
