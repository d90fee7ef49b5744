"""Kernels of the distance, in C and in PyTorch, against their formulas and SciPy's Bessel functions."""

import math

import numpy as np
import pytest
import scipy.special
import torch

from stationary.theory import isotropic

NUS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5, "matern72": 3.5}


@pytest.mark.parametrize("kernel", list(isotropic.KERNELS))
@pytest.mark.parametrize("rows", [1, 7, 1000], ids="{} rows".format)
def test_values_are_those_of_the_formula(engine, kernel, rows):
    generator = torch.Generator().manual_seed(rows)
    a = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    b = 4 * torch.randn(300, 3, dtype=torch.float64, generator=generator)
    distance = np.linalg.norm(a.numpy()[:, None] - b.numpy(), axis=-1)
    if kernel == "rbf":
        expected = np.exp(-(distance**2) / 2)
    else:
        nu = NUS[kernel]
        at = math.sqrt(2 * nu) * distance
        expected = 2 ** (1 - nu) / math.gamma(nu) * at**nu * scipy.special.kv(nu, at)
    np.testing.assert_allclose(isotropic.gram(kernel, a, b).numpy(), expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("kernel", list(isotropic.KERNELS))
def test_at_no_distance_far_away_and_at_no_number(engine, kernel):
    a = torch.tensor([[1.0], [1e9], [math.nan]], dtype=torch.float64)
    values = isotropic.gram(kernel, a, torch.ones(2, 1, dtype=torch.float64))
    assert (values[0] - 1).abs().max() < 1e-14 and (values[1] == 0).all() and values[2].isnan().all()


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: lambda a: torch.func.jvp(f, (a,), (a,))[1]])
@pytest.mark.parametrize("rows", [5, 50_000], ids=["few rows", "more than a cache holds"])
def test_transformations_see_the_formula(transform, rows):
    a = torch.randn(2, rows, 3, dtype=torch.float64)
    b = torch.randn(6, 3, dtype=torch.float64)
    one = lambda x: isotropic.gram("matern32", x.reshape(-1, 3), b)
    distance = lambda x: math.sqrt(3) * (x.reshape(-1, 1, 3) - b).square().sum(-1).sqrt()
    typed = lambda x: (1 + distance(x)) * (-distance(x)).exp()
    torch.testing.assert_close(transform(one)(a), transform(typed)(a), rtol=1e-9, atol=1e-12)
