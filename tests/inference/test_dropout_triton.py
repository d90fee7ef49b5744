"""Dropout on a GPU: the fused kernel has the same distribution as the plain version, and the closed form."""

import math

import pytest
import torch
from torch import nn

import stationary as st
from stationary.inference import exact_dropout, mc_dropout
from stationary.theory import logistic

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


@pytest.mark.parametrize("tolerance", [1e-6, 1e-12])
@pytest.mark.parametrize("drop", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("hidden", [1, 5, 50, 100, 256])
@pytest.mark.parametrize("restored", [True, False])
def test_exact_kernel_of_two_classes_against_every_digit(hidden, drop, restored, tolerance):
    """Against the plain version with 12 digits, of the same features in float64; rounding to float32 comes on top.

    Rows have light, heavy and no units; columns of huge logits are sure whatever the mask.
    """
    from stationary.inference._exact_dropout_triton import launch_two

    scale = torch.tensor([0.0, 0.01, 0.1, 0.5, 2.0, 20.0]).repeat(6)[:, None]
    features, weight = scale * torch.randn(36, hidden), (1 - drop) * torch.randn(2, hidden)
    for shift in (0.0, 3.0, 80.0):
        bias, prior = torch.tensor([0.3, shift]), 2 * torch.rand(36, 2) if restored else None
        wide, w, b = features.double(), weight.double(), bias.double()
        variance = torch.zeros(36) if prior is None else prior.double().sum(-1)
        expected = logistic.of_dropout((b[1] - b[0]).expand(36), wide * (w[1] - w[0]), drop, variance, 1e-12)
        spread = wide.square() @ w.square().T * drop / (1 - drop) + (0 if prior is None else prior)
        reference = st.Categorical.from_logistic(expected, wide @ w.T + b, spread)
        inputs = [t.cuda() for t in (features, weight, bias)]
        got = launch_two(*inputs, drop, prior=None if prior is None else prior.cuda(), tolerance=tolerance)
        names = ("probs", "expected_log_probs", "member_entropy", "output_variance")
        for name, values in zip(names, got, strict=True):
            wanted = getattr(reference, name)
            torch.testing.assert_close(values.cpu().double(), wanted, rtol=3e-7, atol=tolerance + 1e-7, msg=name)


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize(
    ("c", "hidden"), [(2, 50), (3, 17), (7, 64), (10, 50), (10, 256), (32, 128), (40, 5), (64, 100)]
)
def test_exact_dropout_is_the_same_in_one_kernel(c, hidden, calibrated, monkeypatch):
    """Against the plain version: the same nodes.

    Of more than 32 classes in float32: with fewer active units than classes the covariance is singular, and its root,
    in which the nodes are placed, depends on the rounding that it is raised by.
    """
    model, x = head(c, hidden, calibrated), 2 * torch.randn(37, 3, device="cuda")
    fused = st.predict(model, x)
    monkeypatch.setattr(exact_dropout, "has_kernel", lambda _: False)
    plain = st.predict(model, x) if c > 32 else st.predict(model.double(), x.double())
    assert fused.prior_restored == plain.prior_restored == calibrated
    for name, value in plain.tensors().items():
        scale = 1 + value.abs().max().item()
        torch.testing.assert_close(
            getattr(fused, name).double(),
            value.double(),
            rtol=1e-3,
            atol=1e-3 * scale if "log" in name else 3e-4,
            msg=name,
        )


def test_exact_kernels_without_features_and_with_nan():
    for c in (2, 10):
        model, x = head(c), torch.randn(6, 3, device="cuda")
        x[1] = 1e6  # no feature is left there: the last bias
        x[2] = float("nan")
        pred = st.predict(model, x)
        bias = model.output.bias.detach().softmax(-1)
        torch.testing.assert_close(pred.probs[1], bias, rtol=0, atol=1e-5)
        torch.testing.assert_close(pred.mutual_information()[1].item(), 0.0, rtol=0, atol=1e-5)
        assert pred.probs[2].isnan().all() and pred.member_entropy[2].isnan()
        assert pred.probs[[0, 1, 3, 4, 5]].isfinite().all()


def test_exact_dropout_on_the_gpu():
    for c in (2, 10):
        model, x = head(c), torch.randn(30, 3)
        on_gpu = st.predict(model, x.cuda(), st.ExactDropout()).to("cpu")
        on_cpu = st.predict(model.cpu(), x, st.ExactDropout())
        for name, value in on_cpu.tensors().items():
            torch.testing.assert_close(getattr(on_gpu, name), value, rtol=1e-3, atol=1e-3 if c > 2 else 1e-5)


def test_wide_and_double_heads_take_the_plain_route():
    for model in (head(2, hidden=512), head(40), head(2).double()):
        x = torch.randn(5, 3, device="cuda", dtype=model.output.weight.dtype)
        assert st.predict(model, x, st.MCDropout(10)).std().min() > 0
        assert st.predict(model, x).std().min() > 0
