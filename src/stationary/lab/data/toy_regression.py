"""The one-dimensional regression task of the paper's Fig. 2."""

import torch
from torch import Tensor

from stationary.lab.data.split import Split


def function(x: Tensor) -> Tensor:
    """Compute the function without noise, f(x) = (x - 1/2)^3 / 4 + x^2 / 2 - x + 1/5."""
    return (x - 0.5) ** 3 / 4 + x**2 / 2 - x + 0.2


def load(
    *, n: int = 100, cluster_std: float = 0.07, noise_std: float = 0.02, extent: float = 3.0, seed: int = 0
) -> Split:
    """Generate two clusters of training points around -1 and 1, with noise; the test data are f itself on a grid.

    Args:
        n: number of points in each cluster.
        cluster_std: standard deviation of the inputs of a cluster.
        noise_std: standard deviation of the noise of the training targets.
        extent: half the width of the grid, which goes from -extent to extent.
        seed: seed of the points and the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([-1.0, 1.0]).repeat_interleave(n)[:, None]
    x = centres + cluster_std * torch.randn(2 * n, 1, generator=generator)
    y = function(x) + noise_std * torch.randn(2 * n, 1, generator=generator)
    grid = torch.linspace(-extent, extent, 601)[:, None]
    return Split(x, y, grid, function(grid), ("x",))
