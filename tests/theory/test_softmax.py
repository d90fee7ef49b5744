"""The integrals against two classes, brute-force quadrature over three, and Monte Carlo over many."""

import math

import pytest
import torch

from stationary.theory import logistic, softmax

VARIANCES = [1e-6, 1e-3, 0.05, 0.3, 1.0, 4.0, 30.0, 56.0, 100.0, 400.0]


def values(z):
    """softmax(z), logsumexp(z) and the entropy of that softmax, each as one would type it."""
    p = torch.softmax(z, -1)
    return p, torch.logsumexp(z, -1), torch.special.entr(p).sum(-1)


@pytest.mark.parametrize("variance", [0.0, *VARIANCES, 1e8])
def test_two_classes(variance):
    difference = torch.tensor([0.0, 0.1, -1.0, 5.0, 20.0, -60.0, 1000.0], dtype=torch.float64)
    mean = torch.stack([3 - difference / 2, 3 + difference / 2], 1)
    v = torch.full_like(difference, variance)
    result = softmax.of_gaussian(mean, v)
    expected = logistic.of_gaussian(difference, 2 * v, accuracy=1e-10)
    tolerance = 1e-8 * max(1, math.sqrt(variance) / 20)
    torch.testing.assert_close(result.probabilities[:, 1], expected.probability, rtol=0, atol=tolerance)
    torch.testing.assert_close(result.entropy, expected.entropy, rtol=0, atol=tolerance)
    # logsumexp(z) = the mean of z + log 2 cosh(D / 2)
    torch.testing.assert_close(result.log_normalizer, 3 + expected.log_cosh, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("variance", "nodes"), [(1e-3, 31), (0.3, 41), (1.0, 51), (10.0, 81), (30.0, 121)])
def test_three_classes_against_quadrature(variance, nodes):
    mean = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [0.0, 7.0, -30.0]], dtype=torch.float64)
    e = torch.linspace(-7.5, 7.5, nodes, dtype=torch.float64)
    weight = torch.exp(-e.square() / 2) / torch.exp(-e.square() / 2).sum()
    noise, weight = torch.cartesian_prod(e, e, e), torch.cartesian_prod(weight, weight, weight).prod(-1)
    noise, weight = noise[weight > 1e-12 * weight.max()], weight[weight > 1e-12 * weight.max()]  # a ball
    result = softmax.of_gaussian(mean, torch.full((3,), variance, dtype=torch.float64))
    for i, m in enumerate(mean):
        for got, value in zip(result, values(m + math.sqrt(variance) * noise), strict=True):
            torch.testing.assert_close(got[i], weight @ value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("variance", [0.5, 9.0, 400.0])
@pytest.mark.parametrize(("classes", "samples"), [(10, 200_000), (150, 20_000)])
def test_many_classes_against_samples(classes, samples, variance):
    mean = 3 * torch.randn(classes, dtype=torch.float64)
    z = mean + math.sqrt(variance) * torch.randn(samples, classes, dtype=torch.float64)
    result = softmax.of_gaussian(mean[None], torch.tensor([variance]))
    for got, value in zip(result, values(z), strict=True):
        error = (got[0] - value.mean(0)).abs() / (value.std(0) / math.sqrt(samples))
        assert error.max() < 4.5


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_finer_nodes_change_nothing(classes, monkeypatch):
    scale = torch.tensor([0.0, 0.3, 1.0, 3.0, 10.0, 300.0], dtype=torch.float64)
    mean = scale[:, None] * torch.randn(len(scale), classes, dtype=torch.float64)
    for variance in VARIANCES:
        v = torch.full_like(scale, variance)
        result = softmax.of_gaussian(mean, v)
        with monkeypatch.context() as m:
            for name, value in (("SIDE", 16), ("FREQUENCIES", 256), ("NODES", 510), ("DIGITS", 45.0)):
                m.setattr(softmax, name, value)
            finer = softmax.of_gaussian(mean, v)
        for got, expected, tolerance in zip(result, finer, (1e-9, 2e-7, 1e-7), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


def test_without_variance_it_is_the_softmax():
    mean = torch.tensor([[0.0], [1.0], [10.0], [300.0]], dtype=torch.float64) * torch.randn(4, 7, dtype=torch.float64)
    for got, expected in zip(softmax.of_gaussian(mean, torch.zeros(4)), values(mean), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15)
    # and the integrals tend to it
    for got, expected in zip(softmax.of_gaussian(mean, torch.full((4,), 1e-12)), values(mean), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_equal_means_give_equal_probabilities(classes):
    v = torch.tensor([*VARIANCES, 1e8], dtype=torch.float64)
    result = softmax.of_gaussian(torch.full((len(v), classes), -5.0, dtype=torch.float64), v)
    torch.testing.assert_close(result.probabilities, torch.full_like(result.probabilities, 1 / classes))
    assert (result.entropy.diff() < 0).all() and abs(result.entropy[0] - math.log(classes)) < 1e-6


@pytest.mark.parametrize("classes", [2, 5, 1000])
def test_extreme_inputs(classes):
    mean = torch.zeros(7, classes, dtype=torch.float64)
    mean[1, 0], mean[2, 0], mean[3, :] = 1e300, -1e300, -1.7e308
    mean[4, 0], mean[4, 1], mean[5], mean[6, 1:] = 1.7e308, -1.7e308, torch.linspace(-1000, 1000, classes), -1000
    for variance in (0.0, 1e-300, 1e-9, 1.0, 400.0, 1e8, 1e30, 1e300):
        result = softmax.of_gaussian(mean, torch.full((7,), variance, dtype=torch.float64))
        assert all(x.isfinite().all() for x in result)
        assert (result.probabilities >= 0).all()
        torch.testing.assert_close(result.probabilities.sum(-1), torch.ones(7).double(), rtol=0, atol=1e-7)
        assert (result.entropy >= 0).all() and (result.entropy <= math.log(classes) + 1e-12).all()
        if variance >= 1e8:
            assert result.entropy.max() < 10 / math.sqrt(variance) * math.sqrt(math.log(classes)) + 1e-9


def test_rows_do_not_influence_each_other(monkeypatch):
    mean, v = 4 * torch.randn(50, 6, dtype=torch.float64), torch.logspace(-4, 8, 50, dtype=torch.float64)
    together = softmax.of_gaussian(mean, v)
    monkeypatch.setitem(softmax.BLOCK_SIZE, "cpu", 1)
    alone = softmax.of_gaussian(mean, v)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize(("dtype", "out"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)])
def test_low_precision_comes_in_and_at_least_float32_goes_out(dtype, out):
    mean, v = (3 * torch.randn(20, 5)).to(dtype), (10 * torch.rand(20)).to(dtype)
    result = softmax.of_gaussian(mean, v)
    for got, expected in zip(result, softmax.of_gaussian(mean.double(), v.double()), strict=True):
        assert got.dtype == out and expected.dtype == torch.float64
        torch.testing.assert_close(got, expected.to(out))


def test_no_rows_give_no_rows():
    assert [tuple(x.shape) for x in softmax.of_gaussian(torch.zeros(0, 4), torch.zeros(0))] == [(0, 4), (0,), (0,)]


def test_no_probability_is_above_one_by_rounding():
    mean = torch.zeros(200, 3, dtype=torch.float64)
    mean[:, 0] = torch.linspace(10, 60, 200)
    assert softmax.of_gaussian(mean, torch.linspace(0.01, 2, 200).double()).probabilities.max() <= 1
