"""Predictions of whole networks as CUDA graphs: when a graph may be used again, and that it changes no number."""

import gc
import weakref

import pytest
import torch
from torch import nn

import stationary as st
from stationary.inference import _replay
from stationary.inference._replay import state_of

METHODS = [st.MCDropout(100), st.MCDropout(100, shared_masks=False), st.ExactDropout()]


def network(device="cpu", classes=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return st.MLP(4, classes, hidden=(20, 10), activation="matern32", dropout=0.2).to(device).eval()


class Custom(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def replace_weight(model):
    model.head.output.weight = nn.Parameter(model.head.output.weight.detach().clone())


def replace_data(model):
    model.head.output.weight.data = model.head.output.weight.detach().clone()


def replace_layer(model):
    model.head.activation = st.Matern(2.5)


def change_dropout(model):
    model.head.dropout.p = 0.4


def calibrate(model):
    st.calibrate_prior(model, torch.randn(50, 4, device=next(model.parameters()).device))


CHANGES = [replace_weight, replace_data, replace_layer, change_dropout, calibrate, nn.Module.double]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_the_network_is_seen(change):
    model = network()
    state, held = state_of(model)
    assert state is not None and state_of(model)[0] == state
    change(model)
    assert state_of(model)[0] != state, "this change needs a new graph"
    assert held  # alive until here, so that nothing new was given the memory of something old


def test_new_values_in_the_same_tensors_need_no_new_graph():
    model = network()
    state, held = state_of(model)
    with torch.no_grad():
        model.head.output.weight.mul_(2)
    model.load_state_dict(network().state_dict())
    assert state_of(model)[0] == state and held


@pytest.mark.parametrize("which", ["custom", "hook", "pre-hook", "patched", "attention"])
def test_what_cannot_be_told_is_left_alone(which):
    model = network()
    if which == "custom":
        model = Custom(model)
    elif which == "hook":
        model.head.register_forward_hook(lambda *_: None)
    elif which == "pre-hook":
        model.head.register_forward_pre_hook(lambda *_: None)
    elif which == "patched":
        model.head.forward = model.head.forward
    else:
        model = nn.Sequential(nn.MultiheadAttention(4, 2))
    assert state_of(model) == (None, [])


def test_a_prediction_leaves_no_network_behind():
    model = network()
    st.predict(model, torch.randn(5, 4))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_graph_predicts_the_same(method, classes, monkeypatch):
    """For inputs it was not captured with, and after every kind of change."""
    model = network("cuda", classes)

    def compare():
        inputs = [torch.randn(7, 4, device="cuda") for _ in range(5)]
        replayed = [st.predict(model, x, method) for x in inputs]
        with monkeypatch.context() as patch:
            patch.setattr(_replay, "state_of", lambda network: (None, []))
            eager = [st.predict(model, x, method) for x in inputs]
        for a, b in zip(replayed, eager, strict=True):
            assert a.prior_restored == b.prior_restored
            for name, value in a.tensors().items():
                torch.testing.assert_close(value, b.tensors()[name], rtol=1e-6, atol=1e-6)

    compare()
    [known] = _replay._graphs[model].values()
    assert any(known.replayed.graphs.values())
    with torch.no_grad():
        model.head.output.weight.mul_(2)
    compare()
    for change in (replace_weight, replace_data, replace_layer, change_dropout, calibrate):
        change(model)
        compare()
    model.train()
    compare()
    assert model.training


@pytest.mark.gpu
def test_the_graphs_of_a_network_go_with_it():
    model, x = network("cuda"), torch.randn(7, 4, device="cuda")
    for _ in range(4):
        st.predict(model, x)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
