"""Minima of a loss, from afar and from close by."""

import numpy as np
import pytest
import torch

from stationary.inference.infinite_width import _minima
from stationary.inference.infinite_width._minima import minimum, refined

LIKE = torch.zeros(1, dtype=torch.float64)
SIZE = 12
LIMITS = [(-7.0, 7.0)] * SIZE


def valley(seed, spread=0.0, lowest=0.02):
    """A loss whose curvature has the eigenvalues lowest to 1, with terms of a higher degree, and where it is least."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))[0]
    noise = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scales = torch.logspace(np.log10(lowest), 0, SIZE, dtype=torch.float64).sqrt()
    own = (torch.eye(SIZE).double() + spread * noise) @ (scales[:, None] * axes)
    centre = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64) / 2

    def loss(theta):
        x = own @ (theta - centre)
        return (x.square() / 2 + 0.05 * x**4).sum()

    return loss, centre.numpy()


@pytest.mark.parametrize("seed", range(5))
def test_what_few_rows_have_shown_saves_evaluations(seed):
    """The curvature of few rows is 10 % off here; what is left of the loss is what ``NEAR`` stands for."""
    few, start = valley(seed)
    loss, centre = valley(seed + 100, spread=0.03)
    near, far = refined(loss, few, start, LIMITS, LIKE), minimum(loss, start, LIMITS, LIKE)
    assert near.loss <= SIZE * _minima.NEAR**2 and near.loss == float(loss(torch.as_tensor(near.at)))
    assert near.evaluations <= 0.6 * far.evaluations
    np.testing.assert_allclose(far.at, centre, atol=0.05)


def test_beyond_a_limit_nothing_is_found():
    few, start = valley(0)
    loss, centre = valley(100)
    limits = [(-7.0, float(centre[0]) - 0.3), *LIMITS[1:]]
    start[0] = min(start[0], limits[0][1])
    near, far = refined(loss, few, start, limits, LIKE), minimum(loss, start, limits, LIKE)
    assert near.at[0] <= limits[0][1]
    assert near.loss == pytest.approx(far.loss, abs=1e-3)


def test_of_many_numbers_no_curvature_is_asked_for(monkeypatch):
    monkeypatch.setattr(_minima, "MANY", SIZE - 1)
    loss, start = valley(100)[0], valley(0)[1]

    def few(_):
        raise AssertionError

    assert refined(loss, few, start, LIMITS, LIKE).at.tolist() == minimum(loss, start, LIMITS, LIKE).at.tolist()


def test_where_the_loss_is_not_defined_the_search_turns_back():
    few, start = valley(0)
    loss, _ = valley(100)

    def broken(theta):
        if theta[0] > start[0] + 0.1:
            raise torch.linalg.LinAlgError("not positive")
        return loss(theta)

    end = refined(broken, few, start, LIMITS, LIKE)
    assert end.loss < float(loss(torch.as_tensor(start))) and end.at[0] <= start[0] + 0.1
