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

SEEDS = range(3)


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
    log_mean, log_variance = (
        psi @ noise.mean - t2 / 2,
        torch.stack([(psi @ torch.cholesky_inverse(root) * psi).sum(-1) for root in noise.root], -1)
        + t2 * (1 - psi.square().sum(-1, keepdim=True)).clamp(min=0),
    )
    torch.testing.assert_close(noise(u), level * (log_mean + log_variance / 2).exp(), rtol=1e-8, atol=0)


# The whole, by simulation


@pytest.mark.parametrize("seed", SEEDS)
def test_total_aleatoric_and_epistemic_are_each_right(seed):
    """With n rows in a half, its noise variance is known up to sqrt(2 / n) of itself; four times that is allowed."""
    x, y = simulated(300, seed)
    new, new_y = simulated(4000, 100 + seed)
    fitted = posterior(x, y)
    pred, constant = st.predict(fitted, new), st.predict(posterior(x, y, None), new)
    lengthscale = (fitted.numbers.lengthscale * fitted.geometry.scale).item()
    known = noise_std(x)[:, 0].square().numpy()
    _, epistemic = dense(x.numpy(), y[:, 0].numpy(), new.numpy(), lengthscale, fitted.numbers.variance.item(), known)
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


@pytest.mark.parametrize("seed", SEEDS)
def test_in_a_gap_the_function_is_unknown_and_the_noise_is_that_beside_it(seed):
    """About 44 rows are left of it, whose log variance is known up to sqrt(2 / 44); four times that is allowed."""
    pred = st.predict(posterior(*simulated(200, seed, gap=(-1.3, -0.5))), torch.tensor([[-1.7], [-0.9]]).double())
    beside, inside = pred.epistemic_variance[:, 0]
    assert inside > 9 * beside
    beside, inside = pred.aleatoric_variance[:, 0]
    assert abs(math.log(inside / beside)) < 4 * math.sqrt(2 / 44)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_the_noise_is_the_same_everywhere_it_comes_out_so(seed):
    """Two halves of 100 rows differ in the log of their variance by sqrt(4 / 100); four times that is allowed."""
    x, y = simulated(200, seed)
    fitted = posterior(x, function(x) + 0.3 * (y - function(x)) / noise_std(x))
    noise = st.predict(fitted, x).aleatoric_variance
    assert noise.max() / noise.min() < math.exp(
        4 * math.sqrt(4 / 100)
    )  # in the other tests the truth is a factor of 25
    assert noise.mean().item() == pytest.approx(0.09, rel=4 * math.sqrt(2 / 200))


def test_far_away_the_noise_is_that_of_a_fit_with_constant_noise():
    x, y = simulated(100, 0)
    far = torch.tensor([[1e3], [-1e3]]).double()
    varying, constant = st.predict(posterior(x, y), far), st.predict(posterior(x, y, None), far)
    torch.testing.assert_close(varying.aleatoric_variance, constant.aleatoric_variance)
    prior = posterior(x, y).prior()
    torch.testing.assert_close(prior.aleatoric_variance.expand(2, 1), varying.aleatoric_variance)


def test_each_target_has_its_own_noise():
    x, y = simulated(200, 0)
    both = torch.cat([y, function(x) + (y - function(x)) / noise_std(x) * noise_std(-x)], 1)
    left, right = st.predict(posterior(x, both), torch.tensor([[-1.5], [1.5]]).double()).aleatoric_variance
    assert left[0] < left[1] / 4 and right[1] < right[0] / 4  # the truth is a factor of 25


def test_rows_of_weight_two_count_as_two():
    x, y = simulated(60, 1)
    times = 1 + torch.arange(60) % 2
    linear = nn.Linear(1, 1).double()
    weighed = st.InfiniteWidth(noise="input").posterior(linear, (x, y), sample_weight=times.double())
    repeated = posterior(x.repeat_interleave(times, 0), y.repeat_interleave(times, 0))
    plain = posterior(x, y)
    noises = [st.predict(p, x).aleatoric_variance for p in (weighed, repeated, plain)]
    torch.testing.assert_close(noises[0], noises[1], rtol=0.02, atol=0)
    assert (noises[0] / noises[2] - 1).abs().max() > 0.1


def test_it_goes_to_a_file_and_learns_more(tmp_path):
    x, y = simulated(120, 0)
    fitted, linear = posterior(x, y), nn.Linear(1, 1).double()
    fitted.save(tmp_path / "noise.safetensors")
    again = st.InfiniteWidth.load(tmp_path / "noise.safetensors", linear)
    for name, tensor in st.predict(fitted, x).tensors().items():
        torch.testing.assert_close(st.predict(again, x).tensors()[name], tensor)
    assert again.method.noise == "input"
    more = st.predict(again.update(simulated(120, 1)), x)
    torch.testing.assert_close(more.aleatoric_variance, st.predict(fitted, x).aleatoric_variance)
    assert more.epistemic_variance.mean() < 0.8 * st.predict(fitted, x).epistemic_variance.mean()


def test_on_a_trunk_the_validation_rows_show_the_noise():
    """The trunk knows its own targets by heart: it gives them as a feature, without any noise."""
    x, y = simulated(200, 0)
    new, new_y = simulated(200, 1)
    trunk = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    nn.init.eye_(trunk[0].weight)
    nn.init.zeros_(trunk[0].bias)
    data, held = (torch.cat([x, y], 1), y), (torch.cat([new, function(new)], 1), new_y)
    fitted = st.InfiniteWidth(noise="input").posterior(trunk, data, validation=held)
    noise = st.predict(fitted, held[0]).aleatoric_variance
    low, high = (noise[half].mean().sqrt() for half in (new[:, 0] < -0.5, new[:, 0] > 0.5))
    assert high > 2 * low and high > 0.25


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="noise must be a positive number, 'input' or None; got 'inputs'"):
        st.InfiniteWidth(noise="inputs")
    with pytest.raises(ValueError, match="noise must be a number or None where distributed=True, got 'input'"):
        st.InfiniteWidth(noise="input", distributed=True)
