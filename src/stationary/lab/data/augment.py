"""Images shifted and mirrored at random, and which of them are held out."""

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


def is_held_out(y: Tensor) -> Tensor:
    """Say of each image, by the classes (n,) of all in their order, whether it is among the last tenth of its class."""
    held = torch.zeros_like(y, dtype=torch.bool)
    for label in y.unique():
        rows = (y == label).nonzero()[:, 0]
        held[rows[len(rows) - len(rows) // 10 :]] = True
    return held
