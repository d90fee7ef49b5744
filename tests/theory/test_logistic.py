"""The integrals against the sum over all masks, and against brute-force quadrature."""

import itertools
import math

import pytest
import torch

from stationary.theory import _coins, logistic


def values(d):
    """sigmoid(d), the entropy of that coin, and log 2 cosh(d / 2), each as one would type it."""
    p, q = torch.sigmoid(d), torch.sigmoid(-d)
    return p, torch.special.entr(p) + torch.special.entr(q), torch.logaddexp(d / 2, -d / 2)


@pytest.mark.parametrize("drop", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 40.0])
def test_dropout_against_every_mask(engine, drop, scale):
    hidden, n = 11, 6
    offset = scale * torch.randn(n, dtype=torch.float64)
    weights = scale * torch.randn(n, hidden, dtype=torch.float64)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=hidden)), dtype=torch.float64)
    chance = (masks * (1 - drop) + (1 - masks) * drop).prod(1)
    logits = offset[:, None] + weights @ masks.T / (1 - drop)
    result = logistic.of_dropout(offset, weights, drop, torch.zeros(n))
    for got, value in zip(result, values(logits), strict=True):
        torch.testing.assert_close(got, value @ chance, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("drop", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("variance", [0.0, 2.0])
@pytest.mark.parametrize("hidden", [1, 12, 50, pytest.param(400, marks=pytest.mark.slow)])
def test_a_lower_accuracy_is_kept(engine, drop, variance, hidden):
    """Against the accuracy of 1e-12, which the sum over all masks confirms above.

    Rows have units that are all light, all heavy, and light with a few heavy ones; no units at all; and means that are
    0, small and huge.
    """
    scale = torch.tensor([0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 30.0], dtype=torch.float64)[:, None, None]
    weights = (1 - drop) * scale * torch.randn(9, 8, hidden, dtype=torch.float64)
    weights[:, 4:, :2] += 3.0
    weights = weights.flatten(0, 1)
    offset = torch.tensor([0.0, 1.0, -10.0, 300.0], dtype=torch.float64).repeat(18) - weights.sum(-1)
    exact, *others = (
        logistic.of_dropout(offset, weights, drop, torch.full_like(offset, variance), accuracy)
        for accuracy in (1e-12, 1e-3, 1e-6, 1e-9)
    )
    for got, accuracy in zip(others, (1e-3, 1e-6, 1e-9), strict=True):
        for a, b in zip(got, exact, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=accuracy)


@pytest.mark.parametrize("drop", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize(("degree", "least"), [(6, 0.1), (8, 0.2), (12, 0.4)])  # less would be correct too, and slow
def test_polynomials_of_light_units_against_their_product(engine, drop, degree, least):
    a = torch.rand(5, 60, dtype=torch.float64) * 2 - 1
    heaviest = _coins.heaviest_light(drop, 60, 1e-6, degree)
    t = torch.linspace(0.01, 4.4, 50, dtype=torch.float64)
    sums = _coins.sums_of_powers(a, torch.ones(60, dtype=torch.float64), degree)
    even, odd = _coins.coefficients(t, drop, _coins.Scale(degree, heaviest))
    got = torch.exp(torch.complex(even @ sums[1::2], odd @ sums[::2]))
    product = (drop + (1 - drop) * torch.exp(1j * t[:, None, None] * heaviest * a)).prod(-1)
    error = torch.exp(-torch.pi * t)[:, None] * (got - product).abs()
    assert error.max() < 1e-6
    assert heaviest > least


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coins", [1, 50, 600])
def test_sums_of_powers_are_those_of_light_coins(engine, dtype, coins):
    weights, factors = torch.randn(70, coins).to(dtype), 0.4 * torch.randn(coins, dtype=torch.float64)
    x = weights.double() * factors
    light = x * (x.abs() <= 1)
    assert coins < 50 or not light.equal(x)
    expected = torch.stack([(light**j).sum(-1) for j in range(1, 9)])
    eps = torch.finfo(torch.float64).eps * (8 + coins) * light.abs().sum(-1)  # a rounding for each factor and summand
    assert ((_coins.sums_of_powers(weights, factors, 8) - expected).abs() <= eps).all()


def test_the_lowest_degree_that_takes_all_coins_is_chosen():
    most = [_coins.heaviest_light(0.2, 60, 1e-7, degree) for degree in _coins.DEGREES]
    assert most == sorted(most)
    for degree, heaviest in zip(_coins.DEGREES, most, strict=True):
        assert _coins.scale_for(heaviest, 0.2, 60, 1e-7) == (degree, heaviest)
    assert _coins.scale_for(2 * most[-1], 0.2, 60, 1e-7) == (12, most[-1])


def test_columns_may_have_factors():
    weights, factors, zero = torch.randn(20, 9), torch.randn(9), torch.zeros(20)
    product = logistic.of_dropout(zero, weights.double() * factors, 0.2, zero)
    for a, b in zip(logistic.of_dropout(zero, weights, 0.2, zero, factors=factors), product, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_dropout_with_a_gaussian_part_against_quadrature():
    drop, variance = 0.3, torch.tensor([0.0, 0.5, 9.0], dtype=torch.float64)
    weights, offset = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    chance = (masks * (1 - drop) + (1 - masks) * drop).prod(1)
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)  # the trapezoidal rule is exact for such functions
    density = torch.exp(-z.square() / 2) / torch.exp(-z.square() / 2).sum()
    logits = (offset[:, None] + weights @ masks.T / (1 - drop))[..., None] + variance.sqrt()[:, None, None] * z
    result = logistic.of_dropout(offset, weights, drop, variance)
    for got, value in zip(result, values(logits), strict=True):
        torch.testing.assert_close(got, value @ density @ chance, rtol=0, atol=1e-12)


def test_gaussian_against_quadrature():
    mean = torch.tensor([0.0, 0.3, -4.0, 30.0, -500.0, 2.0], dtype=torch.float64)
    variance = torch.tensor([1.0, 0.0, 9.0, 400.0, 4.0, 1e4], dtype=torch.float64)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / torch.exp(-z.square() / 2).sum()
    logits = mean[:, None] + variance.sqrt()[:, None] * z
    for accuracy, tolerance in ((1e-8, 1e-7), (1e-14, 1e-11)):
        result = logistic.of_gaussian(mean, variance, accuracy)
        for got, value in zip(result, values(logits), strict=True):
            torch.testing.assert_close(got, value @ density, rtol=1e-13, atol=tolerance)


@pytest.mark.parametrize("scale", [1e5, 1e9, 1e30])
def test_dropout_of_any_size_takes_few_nodes(engine, monkeypatch, scale):
    """The probability is that of a positive sum, but for masks whose sum is near 0: 1e-3 of the scale, all together."""
    reaches, own = [], logistic._nodes
    monkeypatch.setattr(logistic, "_nodes", lambda reach, *rest: (reaches.append(reach), own(reach, *rest))[1])
    hidden, n = 12, 5
    generator = torch.Generator().manual_seed(0)
    weights = scale * torch.randn(n, hidden, generator=generator, dtype=torch.float64)
    offset = scale * torch.randn(n, generator=generator, dtype=torch.float64)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=hidden)), dtype=torch.float64)
    chance = (masks * 0.8 + (1 - masks) * 0.2).prod(1)
    logits = offset[:, None] + weights @ masks.T / 0.8
    near = (logits.abs() < 0.05 * scale).double() @ chance
    result = logistic.of_dropout(offset, weights, 0.2, torch.zeros(n), 1e-6)
    assert max(reaches) < 1.1 * logistic.FARTHEST and near.max() < 0.1
    assert ((result.probability - torch.sigmoid(logits) @ chance).abs() < near + 1e-6).all()
    torch.testing.assert_close(result.log_cosh, logits.abs() @ chance / 2, rtol=1e-3, atol=0)


@pytest.mark.parametrize("above", [-1e-9, -1e-16, 0, 1e-16, 3e-16, 1e-9, 1e-7])
def test_a_unit_is_light_or_heavy_and_never_neither(engine, above):
    """Also where its size is that of the heaviest light one to the last digit, which float32 does not see."""
    heaviest = _coins.heaviest_light(0.2, 50, 1e-6 / logistic.SHARES, _coins.DEGREES[-1])
    weights = torch.full((4, 50), 0.1)
    weights[:, 0] = 1.0
    factors = torch.full((50,), 0.01, dtype=torch.float64)
    factors[0] = 0.8 * heaviest * (1 + above)
    zero = torch.zeros(4, dtype=torch.float64)
    result = logistic.of_dropout(zero, weights, 0.2, zero, 1e-6, factors=factors)
    expected = logistic.of_dropout(zero, weights.double() * factors, 0.2, zero, 1e-12)
    torch.testing.assert_close(result.probability, expected.probability, rtol=0, atol=2e-6)


@pytest.mark.parametrize("std", [1e4, 1e8, 1e100])
def test_gaussian_of_any_size(std):
    """To leading order in 1 / std: the normal distribution, and pi^2 / 3 of its density."""
    z = torch.linspace(-3, 3, 7, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    result = logistic.of_gaussian(std * z, torch.full_like(z, std**2))
    torch.testing.assert_close(result.probability, torch.special.ndtr(z), rtol=0, atol=2e-8)
    torch.testing.assert_close(result.entropy, math.pi**2 / 3 * density / std, rtol=1e-4, atol=0)
    size = 2 * density + z * (2 * torch.special.ndtr(z) - 1)
    torch.testing.assert_close(result.log_cosh / std, size / 2, rtol=1e-6, atol=0)


def test_rows_do_not_influence_each_other():
    """Rows share nodes chosen for the widest of them; the answers agree to the accuracy all the same."""
    weights = torch.randn(40, 9, dtype=torch.float64) * torch.logspace(-3, 2, 40, dtype=torch.float64)[:, None]
    offset, zero = torch.randn(40, dtype=torch.float64), torch.zeros(40)
    together = logistic.of_dropout(offset, weights, 0.2, zero)
    for i in range(0, 40, 7):
        alone = logistic.of_dropout(offset[i : i + 1], weights[i : i + 1], 0.2, zero[:1])
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[i : i + 1], b, rtol=1e-12, atol=1e-12)


def test_where_every_row_is_sure_or_nothing_is_known():
    """No row is left to integrate: certainty, and NaN for what is not a number."""
    offset = torch.tensor([200.0, -200.0, float("nan")], dtype=torch.float64)
    result = logistic.of_dropout(offset, torch.ones(3, 4, dtype=torch.float64), 0.2, torch.zeros(3))
    torch.testing.assert_close(result.probability[:2], torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert result.probability[2].isnan() and result.entropy[:2].tolist() == [0.0, 0.0]


def test_no_probability_is_beyond_0_and_1_by_rounding():
    mean = torch.linspace(-60, 60, 2001, dtype=torch.float64)
    for variance in (1e-6, 0.01, 1.0, 9.0):
        result = logistic.of_gaussian(mean, torch.full_like(mean, variance))
        assert result.probability.min() >= 0 and result.probability.max() <= 1 and result.entropy.min() >= 0
