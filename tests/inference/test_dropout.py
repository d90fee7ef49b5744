"""MC dropout and its closed form: against each other, against every mask, and against the naive loop."""

import itertools
import math

import pytest
import torch
from torch import nn

import stationary as st
from stationary.inference._readout import Replay, find_readout
from stationary.nn.masks import apply_mask, keep_mask, mask_shape
from stationary.nn.running import evaluating


def enumerated(head, x, drop):
    """Outputs under every mask of the head's hidden units, and the masks' probabilities."""
    phi = head.features(x)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=phi.shape[1])), dtype=x.dtype)
    outputs = head.output(phi * masks[:, None] / (1 - drop))
    return outputs, (masks * (1 - drop) + (1 - masks) * drop).prod(1)


def small_head(c, drop=0.3, hidden=9):
    head = st.StationaryHead(3, c, hidden=hidden, activation="matern32", dropout=drop).double()
    nn.init.normal_(head.output.weight, std=2.0)
    return head


class Residual(nn.Module):
    """Dropout in a residual branch, an in-place sum, a module used twice, and BatchNorm: what a replay must survive."""

    def __init__(self, dropout=None):
        super().__init__()
        self.stem, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.branch, self.dropout = nn.Linear(6, 6), dropout or nn.Dropout(0.4)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = self.relu(self.norm(self.stem(x)))
        b = self.branch(h)
        b += h
        return self.out(self.relu(self.dropout(b)) + h)


# Masks


@pytest.mark.parametrize("drop", [1e-4, 0.05, 0.2, 0.5, 0.97])
def test_keep_mask_has_the_right_probability(drop):
    n = 1_000_003
    keep = keep_mask((n,), drop, torch.Generator().manual_seed(0))
    assert keep.shape == (n,) and set(keep.unique().tolist()) == {0.0, 1.0}
    assert abs(keep.double().mean() - (1 - drop)) < 5 * math.sqrt(drop * (1 - drop) / n) + 2**-17
    neighbours = (keep[1:] == keep[:-1]).double().mean()
    same = drop**2 + (1 - drop) ** 2
    assert abs(neighbours - same) < 6 * math.sqrt(same * (1 - same) / n) + 1e-4


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Dropout(0.3), (5, 4)),
        (nn.Dropout1d(0.3), (5, 4, 1)),
        (nn.Dropout2d(0.3), (5, 4, 1, 1)),
        (nn.Dropout3d(0.3), (5, 4, 1, 1, 1)),
        (nn.AlphaDropout(0.3), (5, 4)),
    ],
)
def test_masks_have_the_shape_and_the_moments_of_pytorch(module, shape):
    x = torch.randn(5, 4, *(3 for _ in shape[2:]), dtype=torch.float64)
    assert mask_shape(module, x, shared=False) == shape
    assert mask_shape(module, x, shared=True) == (1, *shape[1:])
    generator = torch.Generator().manual_seed(0)
    ours = torch.stack([apply_mask(module, x, keep_mask(shape, module.p, generator)) for _ in range(4000)])
    theirs = torch.stack([module.train()(x) for _ in range(4000)])
    scale = theirs.std(0) / math.sqrt(4000)
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 6 * 2**0.5 * scale + 1e-12).all()
    torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0.1, atol=1e-12)


# Closed form


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
    torch.testing.assert_close(pred.variance, covariance.diagonal(dim1=1, dim2=2), rtol=1e-10, atol=1e-12)


def test_two_classes_are_exact():
    head, x = small_head(2), torch.randn(6, 3, dtype=torch.float64)
    with torch.no_grad():
        outputs, chance = enumerated(head, x, 0.3)
        probs = torch.einsum("s,snc->nc", chance, outputs.softmax(-1))
        log_probs = torch.einsum("s,snc->nc", chance, outputs.log_softmax(-1))
        entropy = chance @ torch.special.entr(outputs.softmax(-1)).sum(-1)
    pred = st.predict(head, x, st.ExactDropout())
    torch.testing.assert_close(pred.probs, probs, rtol=0, atol=1e-10)
    torch.testing.assert_close(pred.expected_log_probs, log_probs, rtol=0, atol=1e-10)
    torch.testing.assert_close(pred.expected_entropy(), entropy, rtol=0, atol=1e-10)
    assert pred.mutual_information().min() > 1e-4


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


# Monte Carlo


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


# Any network


def naive(model, x, n_samples):
    """What everybody does: the whole network once for each sample, dropout layers in training mode."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.train()
    with torch.no_grad():
        outputs = torch.stack([model(x) for _ in range(n_samples)])
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
    n_samples = 3000
    model, x = NETWORKS[name]().double(), torch.randn(5, 4, dtype=torch.float64)
    reference = naive(model, x, n_samples)
    pred = st.predict(model, x, st.MCDropout(n_samples, shared_masks=shared))
    error = reference.std(0) * math.sqrt(2 / n_samples)
    assert ((pred.output_mean - reference.mean(0)).abs() < 5 * error + 1e-12).all()
    torch.testing.assert_close(pred.output_variance.sqrt(), reference.std(0), rtol=0.15, atol=1e-12)


def test_the_trunk_runs_once():
    class Counting(nn.Linear):
        runs = 0

        def forward(self, x):
            Counting.runs += 1
            return super().forward(x)

    for tail in ([nn.Dropout(0.3), nn.Linear(8, 2)], [nn.Dropout(0.3), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]):
        Counting.runs = 0
        model = nn.Sequential(nn.Sequential(Counting(4, 8), nn.ReLU()), *tail)
        pred = st.predict(model, torch.randn(5, 4), st.MCDropout(50))
        assert pred.std().min() > 0
        assert Counting.runs <= 2  # once to find the dropout; once more where it is not before the last layer


def test_replay_leaves_no_trace():
    model, x = Residual(), torch.randn(5, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    st.predict(model, x, st.MCDropout(10))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ or module._forward_hooks for module in model.modules())


def test_replay_keeps_what_others_patched():
    model, x = Residual(), torch.randn(5, 4)
    patched = model.stem.forward
    model.stem.forward = lambda x: 2 * patched(x)
    ours = model.stem.forward
    st.predict(model, x, st.MCDropout(3))
    assert model.stem.forward is ours


def test_replay_equals_a_full_run():
    """The same masks through a replayed and a fresh network: the in-place sum must not pile up."""
    model, x = Residual().double().eval(), torch.randn(5, 4, dtype=torch.float64)
    masks = [torch.rand(5, 6) > 0.4 for _ in range(4)]
    with torch.no_grad():
        replay = Replay(model, x, None)
        for mask in masks:
            fresh = Replay(model, x, None).sample(lambda *_: mask)
            torch.testing.assert_close(replay.sample(lambda *_: mask).outputs, fresh.outputs, rtol=0, atol=0)


def test_last_layer_only():
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 2)
    )
    x = torch.randn(5, 4)
    alone = nn.Sequential(*(nn.Identity() if i == 1 else layer for i, layer in enumerate(model)))
    for method in (st.MCDropout(20, last_layer=True), st.ExactDropout(last_layer=True)):
        torch.testing.assert_close(st.predict(model, x, method).probs, st.predict(alone, x, method).probs)
    with evaluating(model):
        assert find_readout(model, x, last_layer=False, restore_prior=None) is None
    with pytest.raises(ValueError, match=r"last_layer=True needs an nn.Dropout .* the last dropout is 'dropout'"):
        st.predict(Residual(), x, st.MCDropout(5, last_layer=True))


def test_in_place_change_of_the_output_is_noticed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))

        def forward(self, x):
            return self.body(x).mul_(10)

    model, x = Scaled(), torch.randn(5, 4)
    with evaluating(model):
        assert find_readout(model, x, last_layer=False, restore_prior=None) is None
    pred = st.predict(model, x, st.MCDropout(500))
    torch.testing.assert_close(pred.output_variance, 100 * st.predict(model.body, x, st.MCDropout(500)).output_variance)


def test_compiled_models_are_seen_through():
    model, x = small_head(2), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        st.predict(torch.compile(model), x, st.ExactDropout()).probs, st.predict(model, x, st.ExactDropout()).probs
    )


# No uncertainty without dropout


@pytest.mark.parametrize("method", [st.MCDropout(10), st.ExactDropout()])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(4, 2), "Linear has none"),
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 2)), "Sequential has none"),
        (st.MLP(4, 2, hidden=(8,), dropout=0.0), "MLP has none"),
    ],
)
def test_no_active_dropout_is_an_error(method, model, message):
    with pytest.raises(ValueError, match=f"{message}; without it there is no uncertainty"):
        st.predict(model, torch.randn(5, 4), method)


def test_dropout_that_is_not_called_is_an_error():
    class Forgotten(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = nn.Linear(4, 2), nn.Dropout(0.2)

        def forward(self, x):
            return self.linear(x)

    with pytest.raises(ValueError, match="has dropout at dropout, but a pass does not go through it"):
        st.predict(Forgotten(), torch.randn(5, 4), st.MCDropout(10))


def test_exact_dropout_refuses_dropout_elsewhere():
    with pytest.raises(ValueError, match="only active dropout to be before its last linear layer; use MCDropout"):
        st.predict(Residual(), torch.randn(5, 4), st.ExactDropout())
    with pytest.raises(ValueError, match="keep_samples must be False for ExactDropout"):
        st.predict(small_head(2), torch.randn(5, 3).double(), st.ExactDropout(), keep_samples=True)


def test_one_sample_is_an_error():
    with pytest.raises(ValueError, match="n_samples must be at least 2, got 1; use Point"):
        st.MCDropout(1)
