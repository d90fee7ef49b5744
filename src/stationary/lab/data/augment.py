"""Images shifted, mirrored and varied at random, and which of them are held out."""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


def augmented(images: Tensor, generator: torch.Generator, shift: int = 4) -> Tensor:
    """Shift each image by up to ``shift`` pixels, with black beyond its edges, and mirror every second one on average.

    The result has its channels last in memory.

    Args:
        images: square images, (n, channels, size, size).
        generator: generator of the random numbers, on the device of the images.
        shift: largest shift, in pixels, in each direction.
    """
    n, device = len(images), images.device
    shifts = torch.randint(0, 2 * shift + 1, (2, n, 1), generator=generator, device=device)
    mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
    at = torch.arange(images.shape[-1], device=device)
    rows, columns = shifts[0] + at, shifts[1] + torch.where(mirrored, at.flip(0), at)  # (n, size) each
    each = torch.arange(n, device=device)[:, None, None]
    return F.pad(images, (shift,) * 4)[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def varied(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn each image a little, change its colours, and hide a square of it, each as strongly as is drawn for it.

    It is turned by up to 15 degrees, with black beyond its edges. Saturation, contrast and brightness are multiplied by
    factors of 0.6 to 1.4. The square has a quarter of the side of the image, a centre anywhere in it, and becomes grey.

    Args:
        images: square images of pixels from 0 to 255, (n, channels, size, size).
        generator: generator of the random numbers, on the device of the images.
    """
    n, size, device = len(images), images.shape[-1], images.device
    drawn = 2 * torch.rand(6, n, generator=generator, device=device) - 1
    angle, zero = drawn[0] * math.pi / 12, torch.zeros(n, device=device)
    turn = torch.stack([angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero], 1).view(n, 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    x = F.grid_sample(images.float(), grid, align_corners=False)
    for factor, dims in zip(1 + 0.4 * drawn[1:4], ((1,), (1, 2, 3), ()), strict=True):
        middle = x.mean(dims, keepdim=True) if dims else 0.0
        x = middle + factor[:, None, None, None] * (x - middle)
    at = torch.linspace(-1, 1, size, device=device)
    rows, columns = ((centre[:, None] - at).abs() <= 0.25 for centre in drawn[4:])
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 127.5, x.clamp(0, 255))


def is_held_out(y: Tensor) -> Tensor:
    """Say of each image, by the classes (n,) of all in their order, whether it is among the last tenth of its class."""
    held = torch.zeros_like(y, dtype=torch.bool)
    for label in y.unique():
        rows = (y == label).nonzero()[:, 0]
        held[rows[len(rows) - len(rows) // 10 :]] = True
    return held


class Recipe(Protocol):
    """What batches need to know of a training: the size of one, the number of epochs, and the seed."""

    @property
    def batch_size(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    @property
    def seed(self) -> int: ...


class AugmentedBatches:
    """Batches of training images, in another order and augmented anew in each epoch.

    All batches are full; images that are left over are not used in that epoch.

    Args:
        x: images, (n, channels, height, width), uint8, on the device that trains.
        y: their classes, (n,), on the same device.
        recipe: the recipe of the training.
        shown: function of some images and a generator that gives what the network sees of them.
    """

    def __init__(
        self, x: Tensor, y: Tensor, recipe: Recipe, shown: Callable[[Tensor, torch.Generator], Tensor]
    ) -> None:
        self.x, self.y, self.recipe, self.shown, self.epoch = x, y, recipe, shown, 0
        if len(self) < 1:
            raise ValueError(
                f"batch_size must be at most the {len(x)} training images; got {recipe.batch_size}; lower it"
            )

    def __len__(self) -> int:
        return len(self.x) // self.recipe.batch_size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        size, device = self.recipe.batch_size, self.x.device
        generator = torch.Generator(device).manual_seed(self.recipe.seed * self.recipe.epochs + self.epoch)
        order = torch.randperm(len(self.x), generator=generator, device=device)
        for rows in order[: len(self) * size].split(size):
            yield self.shown(self.x[rows], generator), self.y[rows]
