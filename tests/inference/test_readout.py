"""What has to run again for each sample is found in any network, and nothing else runs again."""

import pytest
import torch
from dropout_networks import Residual
from torch import nn

import stationary as st
from stationary.inference._readout import Replay, find_readout
from stationary.nn.running import evaluating


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


def test_only_layers_that_can_read_the_dropout_are_watched():
    """A layer of the same width before the dropout runs without a hook; none is left, even if the pass fails."""
    seen = []

    class Spy(nn.Linear):
        def __call__(self, x):
            seen.append(len(self._forward_hooks))
            return super().__call__(x)

    model = nn.Sequential(Spy(8, 8), Spy(8, 8), nn.Dropout(0.3), Spy(8, 2)).eval()
    with torch.no_grad():
        readout = find_readout(model, torch.randn(5, 8), last_layer=False, restore_prior=None)
        assert readout is not None and readout.weight is model[3].weight and seen == [0, 0, 1]
        model.append(nn.Linear(3, 2))
        with pytest.raises(ValueError, match=r"a layer of it takes 3 columns and gets 2$"):
            find_readout(model, torch.randn(5, 8), last_layer=False, restore_prior=None)
    assert not any(module._forward_hooks for module in model.modules())


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
