"""Dropout masks have PyTorch's shapes and moments."""

import math

import pytest
import torch
from torch import nn

from stationary.nn.masks import apply_mask, keep_mask, mask_shape


@pytest.mark.parametrize("drop", [1e-4, 0.05, 0.2, 0.5, 0.97])
def test_keep_mask_has_the_right_probability(drop):
    n = 1_000_003
    keep = keep_mask((n,), drop, torch.Generator().manual_seed(0))
    assert keep.shape == (n,) and set(keep.unique().tolist()) == {0.0, 1.0}
    assert abs(keep.double().mean() - (1 - drop)) < 5 * math.sqrt(drop * (1 - drop) / n) + 2**-17
    neighbours = (keep[1:] == keep[:-1]).double().mean()
    same = drop**2 + (1 - drop) ** 2
    assert abs(neighbours - same) < 6 * math.sqrt(same * (1 - same) / n) + 1e-4


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Dropout(0.3), (5, 4)),
        (nn.Dropout1d(0.3), (5, 4, 1)),
        (nn.Dropout2d(0.3), (5, 4, 1, 1)),
        (nn.Dropout3d(0.3), (5, 4, 1, 1, 1)),
        (nn.AlphaDropout(0.3), (5, 4)),
    ],
)
def test_masks_have_the_shape_and_the_moments_of_pytorch(module, shape):
    x = torch.randn(5, 4, *(3 for _ in shape[2:]), dtype=torch.float64)
    assert mask_shape(module, x, shared=False) == shape
    assert mask_shape(module, x, shared=True) == (1, *shape[1:])
    generator = torch.Generator().manual_seed(0)
    ours = torch.stack([apply_mask(module, x, keep_mask(shape, module.p, generator)) for _ in range(4000)])
    theirs = torch.stack([module.train()(x) for _ in range(4000)])
    scale = theirs.std(0) / math.sqrt(4000)
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 6 * 2**0.5 * scale + 1e-12).all()
    torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0.1, atol=1e-12)
