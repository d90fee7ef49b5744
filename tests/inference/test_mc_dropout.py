"""MC dropout: against every mask, and against the naive loop."""

import math

import pytest
import torch
from dropout_networks import Residual, enumerated, small_head
from torch import nn

import stationary as st


@pytest.mark.parametrize("shared", [True, False])
def test_samples_agree_with_every_mask(shared):
    """Mean and variance of the outputs within 5 standard errors of the closed form."""
    n_samples = 20_000
    head, x = small_head(3), torch.randn(7, 3, dtype=torch.float64)
    exact = st.predict(head, x, st.ExactDropout())
    sampled = st.predict(head, x, st.MCDropout(n_samples, shared_masks=shared))
    error = (exact.output_variance / n_samples).sqrt()
    assert ((sampled.output_mean - exact.output_mean).abs() < 5 * error).all()
    torch.testing.assert_close(sampled.output_variance, exact.output_variance, rtol=0.1, atol=1e-9)
    with torch.no_grad():
        outputs, chance = enumerated(head, x, 0.3)
        probs = torch.einsum("s,snc->nc", chance, outputs.softmax(-1))
    assert ((sampled.probs - probs).abs() < 5 * 0.5 / math.sqrt(n_samples)).all()


def test_shared_masks_are_functions_and_own_masks_are_not():
    head, x = small_head(2), torch.randn(1, 3, dtype=torch.float64).expand(4, 3)  # four times the same input
    shared = st.predict(head, x, st.MCDropout(50), keep_samples=True).samples
    own = st.predict(head, x, st.MCDropout(50, shared_masks=False), keep_samples=True).samples
    torch.testing.assert_close(shared[:, 0], shared[:, 3])
    assert (own[:, 0] - own[:, 3]).abs().max() > 1e-3


@pytest.mark.parametrize("shared", [True, False])
def test_seed_and_chunks(shared, monkeypatch):
    head, x = small_head(3), torch.randn(7, 3, dtype=torch.float64)
    state = torch.get_rng_state()
    first, again, other = (st.predict(head, x, st.MCDropout(64, shared, seed=s)) for s in (0, 0, 1))
    assert torch.equal(first.probs, again.probs) and not torch.equal(first.probs, other.probs)
    assert torch.equal(state, torch.get_rng_state())
    monkeypatch.setattr("stationary.inference.mc_dropout.CHUNK", 1)
    one_by_one = st.predict(head, x, st.MCDropout(20_000, shared, seed=2))
    together = st.predict(head, x, st.ExactDropout())
    assert (one_by_one.output_mean - together.output_mean).abs().max() < 0.1


def test_batches_of_inputs_see_the_same_functions():
    head, x = small_head(3), torch.randn(20, 3, dtype=torch.float64)
    whole, parts = (st.predict(head, x, st.MCDropout(30), batch_size=size, keep_samples=True) for size in (None, 6))
    torch.testing.assert_close(whole.probs, parts.probs)
    torch.testing.assert_close(whole.samples, parts.samples)


def naive(model, x, n_samples):
    """What everybody does: the whole network for each sample, dropout layers in training mode.

    All at once: each row of a batch has units dropped of its own.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.train()
    with torch.no_grad():
        outputs = model(x.repeat(n_samples, 1)).unflatten(0, (n_samples, len(x)))
    model.eval()
    return outputs


NETWORKS = {
    "residual": lambda: Residual(),
    "alpha": lambda: Residual(nn.AlphaDropout(0.3)),
    "two dropouts": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3)
    ),
    "dropout on the input": lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3), nn.Tanh()),
    "softmax behind": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3), nn.LogSoftmax(-1)),
    "channels": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 6, 1), nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(24, 3)
    ),
    "last layer": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 3, bias=False)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shared", [True, False])
def test_any_network_against_the_naive_loop(name, shared):
    n_samples = 600
    model, x = NETWORKS[name]().double(), torch.randn(5, 4, dtype=torch.float64)
    reference = naive(model, x, n_samples)
    pred = st.predict(model, x, st.MCDropout(n_samples, shared_masks=shared))
    error = reference.std(0) * math.sqrt(2 / n_samples)
    assert ((pred.output_mean - reference.mean(0)).abs() < 5 * error + 1e-12).all()
    ratio = 5 / math.sqrt(n_samples)  # the spread of an estimated deviation is 1 / sqrt(2 n) of it, and there are two
    torch.testing.assert_close(pred.output_variance.sqrt(), reference.std(0), rtol=ratio, atol=1e-12)


def test_one_sample_is_an_error():
    with pytest.raises(ValueError, match="n_samples must be at least 2, got 1; use Point"):
        st.MCDropout(1)
