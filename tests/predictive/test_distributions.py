"""A prediction is a distribution: densities, quantiles, samples, rows and tables, beside scipy and PyTorch."""

import sys
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import stationary as st


def gaussian(n=5, m=2):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n, m, generator=generator, dtype=torch.float64)
    epistemic, aleatoric = (torch.rand(n, m, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2))
    return st.Gaussian(mean, epistemic, aleatoric, torch.randn(7, n, m, generator=generator))


def categorical(n=5, c=3):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n, c, generator=generator, dtype=torch.float64)
    return st.Categorical.from_isotropic(mean, torch.rand(n, generator=generator, dtype=torch.float64))


def bernoulli(n=5, c=3):
    generator = torch.Generator().manual_seed(0)
    return st.Bernoulli.from_gaussian(*torch.rand(2, n, c, generator=generator, dtype=torch.float64))


KINDS = {"gaussian": gaussian, "categorical": categorical, "bernoulli": bernoulli}


# One rule


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_what_is_stored_is_an_attribute_and_what_is_computed_a_method(make):
    pred = make()
    names = {each.name for each in fields(pred)}
    for name in dir(type(pred)):
        if not name.startswith("_") and name not in {*names, "kind"}:
            assert callable(getattr(pred, name)), name
    assert all(isinstance(getattr(pred, name), torch.Tensor | type(None) | bool) for name in names)


# Real values


def test_a_gaussian_is_a_normal_distribution():
    pred, y = gaussian(), torch.linspace(-2, 2, 10, dtype=torch.float64).view(5, 2)
    normal = stats.norm(pred.mean.numpy(), (pred.epistemic_variance + pred.aleatoric_variance).sqrt().numpy())
    np.testing.assert_allclose(pred.log_prob(y), normal.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(pred.cdf(y), normal.cdf(y), rtol=1e-12)
    for q in (0.001, 0.3, 0.5, 0.99):
        np.testing.assert_allclose(pred.quantile(q), normal.ppf(q), rtol=1e-9, atol=1e-12)
    both = pred.quantile(torch.tensor([0.05, 0.95]))
    assert both.shape == (2, 5, 2)
    lower, upper = pred.interval(0.9)
    torch.testing.assert_close(torch.stack([lower, upper]), both, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pred.cdf(upper) - pred.cdf(lower), 0.9, rtol=1e-10)
    theirs = pred.distribution()
    torch.testing.assert_close(theirs.log_prob(y), pred.log_prob(y))
    assert theirs.batch_shape == (5, 2)


def test_extreme_quantiles_of_a_prediction_in_float32():
    pred = st.Gaussian(*(part.float() for part in gaussian().tensors().values()))
    highest, lowest = pred.quantile(1 - 1e-9), pred.quantile(1e-9)
    torch.testing.assert_close(highest - pred.mean, stats.norm.ppf(1 - 1e-9) * pred.std())
    torch.testing.assert_close(pred.mean - lowest, highest - pred.mean)


def test_one_target_may_be_a_vector():
    pred = gaussian(m=1)
    y = torch.arange(5.0)
    assert pred.log_prob(y).equal(pred.log_prob(y[:, None])) and pred.cdf(y).shape == (5, 1)
    with pytest.raises(ValueError, match=r"y must have the shape of the mean, \(5, 1\); got \(4,\)"):
        pred.log_prob(y[:4])


def test_densities_need_a_variance():
    pred = st.Gaussian(torch.zeros(3, 1), torch.tensor([[1.0], [0.0], [1.0]]), torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"variance must be positive .* got 0 in row 1; .*with_noise"):
        pred.log_prob(torch.zeros(3))
    assert pred.with_noise(0.1).log_prob(torch.zeros(3)).isfinite().all()


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 90])
def test_coverage_is_a_share(coverage):
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got"):
        gaussian().interval(coverage)
    with pytest.raises(ValueError, match=r"q must be in \(0, 1\)"):
        gaussian().quantile(coverage)


# Classes and labels


def test_a_categorical_is_a_distribution_over_classes():
    pred, y = categorical(), torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(pred.log_prob(y), pred.probs[torch.arange(5), y].log())
    torch.testing.assert_close(pred.distribution().log_prob(y), pred.log_prob(y))
    classes, probs = pred.top(2)
    order = pred.probs.argsort(-1, descending=True)
    assert classes.equal(order[:, :2]) and probs.equal(pred.probs.gather(1, order[:, :2]))
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"k must be from 1 to the number of classes, 3; got {k}"):
            pred.top(k)
    with pytest.raises(ValueError, match="y must be class indices 0 to 2; got 0 to 3"):
        pred.log_prob(torch.tensor([0, 3, 0, 0, 0]))
    with pytest.raises(ValueError, match=r"y must be class indices \(5,\).*got \(5,\) torch.float32"):
        pred.log_prob(torch.zeros(5))


def test_what_is_impossible_has_the_logarithm_minus_infinity():
    sure = replace(categorical(1, 2), probs=torch.tensor([[1.0, 0.0]]))
    assert sure.log_prob(torch.tensor([1])).item() == -np.inf


def test_labels_are_independent():
    pred, y = bernoulli(), torch.tensor([[0, 1, 1]]).expand(5, 3)
    torch.testing.assert_close(pred.log_prob(y), pred.distribution().log_prob(y.double()).sum(-1))
    with pytest.raises(ValueError, match="y must be zeros and ones"):
        pred.log_prob(2 * y)


# Samples


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_samples_have_the_distribution(make):
    """Means of 40,000 draws, within five of their standard errors; the same from the same seed."""
    pred, draws = make(), 40_000
    samples = pred.sample(draws, generator=torch.Generator().manual_seed(1))
    assert samples.equal(pred.sample(draws, generator=torch.Generator().manual_seed(1)))
    if isinstance(pred, st.Gaussian):
        assert samples.shape == (draws, 5, 2)
        mean, std, found = pred.mean, pred.std(), samples
        torch.testing.assert_close(samples.std(0), std, rtol=5 / (2 * draws) ** 0.5, atol=0)
    else:
        mean, std = pred.probs, (pred.probs * (1 - pred.probs)).sqrt()
        found = torch.nn.functional.one_hot(samples, 3) if isinstance(pred, st.Categorical) else samples
    assert ((found.double().mean(0) - mean).abs() < 5 * std / draws**0.5).all()
    assert pred.sample().shape[0] == 1


# Rows


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_rows(make):
    pred = make()
    mask = torch.tensor([True, False, True, False, False])
    for rows, expected in {
        "one": (2, [2]),
        "last": (-1, [4]),
        "slice": (slice(1, 4), [1, 2, 3]),
        "list": ([3, 0], [3, 0]),
        "mask": (mask, [0, 2]),
        "array": (np.array([4, 4]), [4, 4]),
        "nothing": ([], []),
        "number of NumPy": (np.int64(3), [3]),
        "number in a tensor": (torch.tensor(-2), [3]),
    }.values():
        some = pred[rows]
        assert type(some) is type(pred) and len(some) == len(expected)
        for name, values in pred.tensors().items():
            wanted = values[:, expected] if name == "samples" else values[expected]
            assert getattr(some, name).equal(wanted), name
    assert [len(row) for row in pred] == [1] * 5
    with pytest.raises(IndexError, match=r"rows must be in \[-5, 5\), got 5"):
        pred[5]
    again = type(pred).concatenate([pred[:2], pred[2:]])
    assert all(again.tensors()[name].equal(values) for name, values in pred.tensors().items())
    with pytest.raises(ValueError, match="parts must have at least one prediction, got none"):
        type(pred).concatenate([])


# For people


def test_it_prints_what_a_person_wants_to_see():
    text = repr(categorical(2000)).splitlines()
    assert text[0] == "Categorical of 2000 inputs" and text[1].split()[:2] == ["predicted", "p_0"]
    assert len(text) == 6 and text[-1] == "..." and len({len(line) for line in text[1:5]}) == 1
    assert repr(gaussian(m=1)).splitlines()[1].split() == ["mean", "std", "epistemic_std", "aleatoric_std"]
    assert "tensor" not in repr(bernoulli())
    many = repr(categorical(4, 1000)).splitlines()[1].split()
    assert many == ["predicted", "p_0", "p_1", "p_2", "...", "p_998", "p_999", "entropy", "mutual_information"]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_table_of_pandas(make, monkeypatch):
    pred = make()
    table = pred.to_pandas()
    assert isinstance(table, pd.DataFrame) and len(table) == 5
    if isinstance(pred, st.Gaussian):
        assert list(table)[:5] == ["mean_0", "std_0", "epistemic_std_0", "aleatoric_std_0", "mean_1"]
        np.testing.assert_array_equal(table["std_1"], pred.std()[:, 1])
    else:
        np.testing.assert_array_equal(table[["p_0", "p_1", "p_2"]], pred.probs)
        np.testing.assert_array_equal(table["entropy"], pred.entropy())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_pandas needs pandas"):
        pred.to_pandas()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("variance", [1e-6, 0.3, 4.0])
def test_a_small_probability_is_never_zero(variance, classes, dtype):
    """E[p_k] is between e^E[log p_k] and E[e^(z_k - z_j)] = e^(mean_k - mean_j + variance); integrals err by 1e-8."""
    margin = torch.tensor([20.0, 30.0, 40.0, 60.0, 80.0], dtype=dtype)
    for top in (0, 1):
        mean = torch.zeros(5, classes, dtype=dtype)
        mean[:, top] = margin
        pred = st.Categorical.from_isotropic(mean, torch.full_like(margin, variance))
        p = pred.probs[:, 1 - top]
        assert (p >= (-margin).exp() * (1 - 1e-3)).all()
        assert (p <= (-margin + variance).exp() * (1 + 1e-3) + 1e-8).all()
        assert torch.isfinite(pred.log_prob(torch.full((5,), 1 - top))).all()
    far = st.Categorical.from_isotropic(torch.tensor([[1000.0, *[0.0] * (classes - 1)]], dtype=dtype), torch.ones(1))
    assert (far.probs > 0).all() and far.probs[0, 0] == 1
