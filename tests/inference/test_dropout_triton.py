"""Dropout on a GPU: the fused kernel has the same distribution as the plain version, and the closed form."""

import math

import pytest
import torch
from torch import nn

import stationary as st
from stationary.inference import mc_dropout

pytestmark = pytest.mark.gpu


def head(c, hidden=50, calibrated=False):
    head = st.StationaryHead(3, c, hidden=hidden, activation="matern32", dropout=0.3)
    nn.init.normal_(head.output.weight, std=1.0)
    if calibrated:
        st.calibrate_prior(head, torch.randn(200, 3))
    return head.cuda()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize(("c", "hidden"), [(2, 50), (3, 17), (7, 64), (10, 100), (32, 128), (2, 5)])
def test_kernel_against_closed_form_and_plain_version(c, hidden, calibrated, shared, monkeypatch):
    n_samples = 20_000
    model, x = head(c, hidden, calibrated), 3 * torch.randn(37, 3, device="cuda")
    fused = st.predict(model, x, st.MCDropout(n_samples, shared))
    monkeypatch.setattr(mc_dropout, "has_kernel", lambda _: False)
    plain = st.predict(model, x, st.MCDropout(n_samples, shared))
    mean, covariance = st.ExactDropout().posterior(model).moments(x)
    variance = covariance.diagonal(dim1=1, dim2=2)
    error = (variance / n_samples).sqrt()
    assert ((fused.output_mean - mean).abs() < 5 * error + 1e-5).all()
    torch.testing.assert_close(fused.output_variance, variance, rtol=0.1, atol=1e-5)
    tolerance = 6 * math.sqrt(2) * 0.5 / math.sqrt(n_samples)
    torch.testing.assert_close(fused.probs, plain.probs, rtol=0, atol=tolerance)
    torch.testing.assert_close(fused.member_entropy, plain.member_entropy, rtol=0, atol=2 * tolerance)
    spread = 6 * math.sqrt(2 * variance.max().item() / n_samples)
    torch.testing.assert_close(fused.expected_log_probs, plain.expected_log_probs, rtol=0, atol=2 * spread + 1e-4)


@pytest.mark.parametrize("n_samples", [2, 100, 128, 129, 1000])
def test_kernel_counts_every_sample_once(n_samples):
    """Equal features and weights make every number known: probabilities sum to one, the mean of 1 is 1."""
    model, x = head(4), torch.randn(9, 3, device="cuda")
    pred = st.predict(model, x, st.MCDropout(n_samples))
    torch.testing.assert_close(pred.probs.sum(-1), torch.ones(9, device="cuda"))
    nn.init.zeros_(model.output.weight)
    pred = st.predict(model, x, st.MCDropout(n_samples))
    torch.testing.assert_close(pred.output_mean, model.output.bias.detach().expand(9, 4))
    torch.testing.assert_close(pred.probs, model.output.bias.detach().softmax(-1).expand(9, 4))
    torch.testing.assert_close(pred.member_entropy, pred.entropy())
    assert pred.output_variance.abs().max() == 0


def test_seeds_and_shared_masks():
    model, x = head(2), torch.randn(1, 3, device="cuda").expand(20, 3)
    first, again, other = (st.predict(model, x, st.MCDropout(50, seed=s)) for s in (0, 0, 1))
    assert torch.equal(first.probs, again.probs) and not torch.equal(first.probs, other.probs)
    assert (first.probs[0] - first.probs).abs().max() < 1e-6  # the same masks for every input
    own = st.predict(model, x, st.MCDropout(50, shared_masks=False))
    assert (own.probs[0] - own.probs).abs().max() > 1e-3


def test_exact_dropout_on_the_gpu():
    model, x = head(2), torch.randn(30, 3)
    on_gpu = st.predict(model, x.cuda(), st.ExactDropout()).to("cpu")
    on_cpu = st.predict(model.cpu(), x, st.ExactDropout())
    for name, value in on_cpu.tensors().items():
        torch.testing.assert_close(getattr(on_gpu, name), value, rtol=1e-4, atol=1e-5)


def test_wide_and_double_heads_take_the_plain_route():
    for model in (head(2, hidden=512), head(40), head(2).double()):
        x = torch.randn(5, 3, device="cuda", dtype=model.output.weight.dtype)
        assert st.predict(model, x, st.MCDropout(10)).std().min() > 0
