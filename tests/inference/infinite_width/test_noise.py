"""Noise that depends on the input: against dense Gaussian processes and definitions, and by simulation."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.gaussian_process.kernels import Matern
from torch import nn

import stationary as st
from stationary.inference.infinite_width import _noise, _values
from stationary.inference.infinite_width._basis import Basis, Passes
from stationary.inference.infinite_width._noise import Residuals
from stationary.inference.infinite_width._sums import alone

SEEDS = range(5)


def function(x):
    return torch.sin(2 * x)


def noise_std(x):
    return 0.1 + 0.4 * torch.sigmoid(6 * x)


def simulated(n, seed, gap=(0.0, 0.0)):
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(2 * n, 1, generator=generator, dtype=torch.float64) - 2
    x = x[(x[:, 0] <= gap[0]) | (x[:, 0] >= gap[1])][:n]
    return x, function(x) + noise_std(x) * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def posterior(x, y, noise="input", **settings):
    return st.InfiniteWidth(noise=noise, **settings).posterior(nn.Linear(x.shape[1], 1).double(), (x, y))


def dense(x, y, at, lengthscale, variance, noise):
    """The mean and variance of an exact Gaussian process with the noise of each row, by NumPy."""
    kernel = Matern(lengthscale, nu=2.5)
    solve = lambda b: np.linalg.solve(variance * kernel(x) + np.diag(noise), b)
    across = variance * kernel(at, x)
    return across @ solve(y), variance - np.einsum("ij,ji->i", across, solve(across.T))


# The parts


def small(n=25):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return u, y, torch.rand(n, 2, generator=generator, dtype=torch.float64) + 0.1


def test_rows_with_noise_of_their_own_are_an_exact_process_and_each_is_left_out():
    u, y, noise = small()
    basis, variance = Basis.of("matern52", torch.tensor(1.3, dtype=torch.float64), u), torch.tensor([1.5, 0.7]).double()
    passes, weight = Passes(basis, u.__getitem__, len(u), 2**30), torch.ones(len(u)).double()
    values = _values.solve(passes, y, weight, variance, noise, alone)
    found = _noise.residuals(passes, (u, y, weight), values, variance, noise, known=True)
    for k in range(2):
        numbers = 1.3, float(variance[k])
        mean, _ = dense(u.numpy(), y[:, k].numpy(), u.numpy(), *numbers, noise[:, k].numpy())
        np.testing.assert_allclose((basis(u) @ values.mean)[:, k], mean, rtol=1e-6, atol=1e-8)
        for i in range(0, len(u), 6):
            rest = np.arange(len(u)) != i
            mean, spread = dense(u[rest].numpy(), y[rest, k].numpy(), u[[i]].numpy(), *numbers, noise[rest, k].numpy())
            np.testing.assert_allclose(found.error[i, k], y[i, k] - mean[0], rtol=1e-6)
            np.testing.assert_allclose(found.variance[i, k], spread[0], rtol=1e-6)


def test_the_evidence_of_rows_with_noise_of_their_own():
    u, y, noise = small()
    similarity, variance = torch.as_tensor(Matern(1.3, nu=2.5)(u.numpy())), torch.tensor([1.5, 0.7]).double()
    wanted = sum(
        stats.multivariate_normal(cov=float(variance[k]) * similarity.numpy() + np.diag(noise[:, k])).logpdf(y[:, k])
        for k in range(2)
    )
    found = _values.log_evidence(similarity, y, torch.ones(len(u)).double(), variance, noise)
    assert found.item() == pytest.approx(wanted, rel=1e-10)


def test_the_logarithm_of_a_chi_square_variable():
    assert pytest.approx(special.digamma(0.5) + math.log(2), rel=1e-12) == _noise.LOG_MEAN
    assert pytest.approx(special.polygamma(1, 0.5), rel=1e-12) == _noise.LOG_VARIANCE


def test_the_noise_has_the_least_loss_and_its_expected_curvature():
    u, y, v = small()
    weight, level, t2 = torch.rand(len(u)).double() + 0.5, torch.tensor([0.5, 2.0]).double(), torch.tensor([1.0, 2.0])
    basis, t2 = Basis.of("matern52", torch.tensor(1.3, dtype=torch.float64), u[:10]), t2.double()
    psi = basis(u)

    def loss(weights, squares):
        n = level * torch.exp(psi @ weights - t2 / 2)
        rows = weight[:, None] / 2 * ((n + v).log() + squares / (n + v))
        return rows.sum() + (weights.square() / (2 * t2)).sum()

    noise = _noise.fitted(basis, psi, Residuals(y, v, weight), level, t2)
    slope = torch.func.grad(loss)(noise.mean, y.square())
    start = torch.func.grad(loss)(torch.zeros_like(noise.mean), y.square())
    assert slope.abs().max() < 1e-4 * start.abs().max()
    expected = level * torch.exp(psi @ noise.mean - t2 / 2) + v  # of the squares; the curvature is linear in them
    curvature = torch.func.hessian(loss)(noise.mean, expected.detach())
    for k in range(2):
        precision = noise.root[k] @ noise.root[k].mT
        torch.testing.assert_close(curvature[:, k, :, k], precision, rtol=1e-6, atol=1e-8)
    log_mean, log_variance = psi @ noise.mean - t2 / 2, torch.stack(
        [(psi @ torch.cholesky_inverse(root) * psi).sum(-1) for root in noise.root], -1
    ) + t2 * (1 - psi.square().sum(-1, keepdim=True)).clamp(min=0)
    torch.testing.assert_close(noise(u), level * (log_mean + log_variance / 2).exp(), rtol=1e-8, atol=0)


# The whole, by simulation


@pytest.mark.parametrize("seed", SEEDS)
def test_total_aleatoric_and_epistemic_are_each_right(seed):
    """With n rows in a half, its noise variance is known up to sqrt(2 / n) of itself; four times that is allowed."""
    x, y = simulated(300, seed)
    new, new_y = simulated(4000, 100 + seed)
    fitted = posterior(x, y)
    pred, constant = st.predict(fitted, new), st.predict(posterior(x, y, None), new)
    _, epistemic = dense(  # of a process that knows the noise
        x.numpy() / fitted.geometry.scale.item() * 1.0,
        y[:, 0].numpy(),
        new.numpy() / fitted.geometry.scale.item(),
        fitted.numbers.lengthscale.item(),
        fitted.numbers.variance.item(),
        noise_std(x)[:, 0].square().numpy(),
    )
    for half in (new[:, 0] < 0, new[:, 0] > 0):
        allowed = math.exp(4 * math.sqrt(2 / 150))
        truth = noise_std(new)[half].square().mean()
        assert 1 / allowed < pred.aleatoric_variance[half].mean() / truth < allowed
        assert 1 / allowed < pred.epistemic_variance[half].mean() / epistemic[half.numpy()].mean() < allowed
        interval, wide = pred.interval(0.9), constant.interval(0.9)
        inside = lambda ends, half=half: ((new_y > ends.lower) & (new_y < ends.upper))[half].double().mean()
        assert 0.83 < inside(interval) < 0.96
        assert not 0.83 < inside(wide) < 0.96  # one noise for all is too wide in one half, too narrow in the other
    torch.testing.assert_close(pred.variance(), pred.aleatoric_variance + pred.epistemic_variance)
