"""Dropout in closed form: against every mask, and against samples."""

import pytest
import torch
from dropout_networks import Residual, enumerated, small_head

import stationary as st


def test_exact_moments_against_every_mask():
    head, x = small_head(4), torch.randn(6, 3, dtype=torch.float64)
    with torch.no_grad():
        outputs, chance = enumerated(head, x, 0.3)
        mean = (chance[:, None, None] * outputs).sum(0)
        deviation = outputs - mean
        covariance = torch.einsum("s,snc,snd->ncd", chance, deviation, deviation)
    got_mean, got_covariance = st.ExactDropout().posterior(head).moments(x)
    torch.testing.assert_close(got_mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got_covariance, covariance, rtol=1e-10, atol=1e-12)
    pred = st.predict(head, x, st.ExactDropout(), family=st.Gaussian)
    torch.testing.assert_close(pred.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pred.variance(), covariance.diagonal(dim1=1, dim2=2), rtol=1e-10, atol=1e-12)


def test_two_classes_are_exact():
    head, x = small_head(2), torch.randn(6, 3, dtype=torch.float64)
    with torch.no_grad():
        outputs, chance = enumerated(head, x, 0.3)
        probs = torch.einsum("s,snc->nc", chance, outputs.softmax(-1))
        log_probs = torch.einsum("s,snc->nc", chance, outputs.log_softmax(-1))
        entropy = chance @ torch.special.entr(outputs.softmax(-1)).sum(-1)
    information = torch.special.entr(probs).sum(-1) - entropy
    assert information.min() > 1e-4
    for tolerance in (1e-6, 1e-12):
        pred = st.predict(head, x, st.ExactDropout(tolerance=tolerance))
        torch.testing.assert_close(pred.probs, probs, rtol=0, atol=tolerance)
        torch.testing.assert_close(pred.expected_log_probs, log_probs, rtol=0, atol=tolerance)
        torch.testing.assert_close(pred.expected_entropy(), entropy, rtol=0, atol=tolerance)
        slope = (probs[:, 0] / probs[:, 1]).log().abs().max().item()  # of the entropy, by the probability
        torch.testing.assert_close(pred.mutual_information(), information, rtol=0, atol=(1 + slope) * tolerance)


@pytest.mark.parametrize("tolerance", [0, -1e-6, 1e-13, 0.1, float("nan")])
def test_a_tolerance_that_cannot_be_met_is_an_error(tolerance):
    with pytest.raises(ValueError, match="tolerance must be from 1e-12"):
        st.ExactDropout(tolerance=tolerance)


def test_approximate_two_classes_are_near():
    head, x = small_head(2, hidden=50), torch.randn(50, 3, dtype=torch.float64)
    exact, near = (st.predict(head, x, st.ExactDropout(approximate=a)) for a in (False, True))
    difference = (exact.probs - near.probs).abs()
    assert 0 < difference.max() < 0.05 and difference.mean() < 5e-3


def test_ten_classes_by_moments_beat_100_samples():
    head, x = small_head(10, hidden=50), torch.randn(60, 3, dtype=torch.float64)
    reference = st.predict(head, x, st.MCDropout(50_000, seed=1))
    error = (st.predict(head, x, st.ExactDropout()).probs - reference.probs).abs().mean()
    errors = [(st.predict(head, x, st.MCDropout(100, seed=s)).probs - reference.probs).abs().mean() for s in range(5)]
    assert error < min(errors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "family"), [(2, st.Categorical), (3, st.Categorical), (2, st.Gaussian)])
def test_networks_in_half_precision_predict_in_float32(dtype, outputs, family):
    """Features of 1000 have squares beyond float16; weights of 1e-3 have squares that it rounds to 0 or nearly so."""
    head, x = st.StationaryHead(3, outputs, activation="relu"), torch.randn(40, 3)
    with torch.no_grad():
        head.hidden.weight.mul_(1000)
        head.output.weight.mul_(1e-3)
    head.to(dtype).float()  # what half precision knows of the weights
    exact = st.predict(head, x.to(dtype).float(), family=family).tensors()
    half = st.predict(head.to(dtype), x.to(dtype), family=family).tensors()
    for name, values in half.items():
        assert values.dtype == torch.float32
        torch.testing.assert_close(values, exact[name], rtol=0.05, atol=0.02)


def test_many_classes_need_no_covariance(monkeypatch):
    """Beyond 64 classes the points live in the space of hidden units; both routes are the same Gaussian."""
    for module in ("stationary.predictive.categorical", "stationary.inference.exact_dropout"):
        monkeypatch.setattr(f"{module}.NODES", 8192)  # so that the points' own error is small
    head, x = small_head(70, hidden=12), torch.randn(8, 3, dtype=torch.float64)
    pred = st.predict(head, x, st.ExactDropout())
    through_covariance = st.Categorical.from_moments(*st.ExactDropout().posterior(head).moments(x))
    assert (pred.probs - through_covariance.probs).abs().max() < 0.005
    torch.testing.assert_close(pred.output_variance, through_covariance.output_variance)
    torch.testing.assert_close(pred.output_mean, through_covariance.output_mean)


def test_compiled_models_are_seen_through():
    model, x = small_head(2), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        st.predict(torch.compile(model), x, st.ExactDropout()).probs, st.predict(model, x, st.ExactDropout()).probs
    )


def test_exact_dropout_refuses_dropout_elsewhere():
    with pytest.raises(ValueError, match="only active dropout to be before its last linear layer; use MCDropout"):
        st.predict(Residual(), torch.randn(5, 4), st.ExactDropout())
    with pytest.raises(ValueError, match="keep_samples must be False for ExactDropout"):
        st.predict(small_head(2), torch.randn(5, 3).double(), st.ExactDropout(), keep_samples=True)
