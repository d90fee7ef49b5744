"""A calibrated head goes through every way of copying and saving a network, and predicts the same afterwards."""

import copy
import io
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

import stationary as st

METHODS = [st.MCDropout(20), st.ExactDropout(), st.Point()]


def build():
    return st.MLP(3, 4, hidden=(20, 15), activation=st.Matern(nu=1.5, learnable=True), dropout=0.3)


def by_safetensors(model, path):
    safetensors.torch.save_file(model.state_dict(), path)
    loaded = build()
    loaded.load_state_dict(safetensors.torch.load_file(path))
    return loaded


def by_safetensors_model(model, path):
    safetensors.torch.save_model(model, path)
    loaded = build()
    assert safetensors.torch.load_model(loaded, path) == (set(), [])
    return loaded


def by_weights_only(model, path):
    torch.save(model.state_dict(), path)
    loaded = build()
    loaded.load_state_dict(torch.load(path, weights_only=True))
    return loaded


def by_assignment(model, path):
    """The way of large models: nothing is allocated before the weights are there."""
    torch.save(model.state_dict(), path)
    with torch.device("meta"):
        loaded = build()
    loaded.load_state_dict(torch.load(path, weights_only=True, mmap=True), assign=True)
    return loaded


def by_pickle(model, path):
    torch.save(model, path)
    return torch.load(path, weights_only=False)


WAYS = {
    "safetensors": by_safetensors,
    "safetensors, the model": by_safetensors_model,
    "torch.save, weights only": by_weights_only,
    "to a model on the meta device": by_assignment,
    "torch.save, all of it": by_pickle,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "to_empty": lambda model, _: by_state(model, build().to_empty(device="cpu")),
}


def by_state(model, loaded):
    loaded.load_state_dict(model.state_dict())
    return loaded


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(50, 3)


@pytest.mark.parametrize("calibrated", [False, True], ids=["as trained", "calibrated"])
@pytest.mark.parametrize("way", WAYS)
def test_it_comes_back(data, tmp_path, way, calibrated):
    model = build()
    nn.init.normal_(model.head.output.weight)
    if calibrated:
        st.calibrate_prior(model, data)
    st.predict(model, data, st.MCDropout(5))  # leaves nothing behind that could not be saved
    loaded = WAYS[way](model, tmp_path / "model")
    assert loaded.head.restored_prior.known == calibrated
    for method in METHODS:
        for x in (data, 10 * data):
            assert torch.equal(st.predict(loaded, x, method).probs, st.predict(model, x, method).probs)
    with torch.no_grad():
        loaded.head.output.weight.add_(1)
        if calibrated:
            loaded.head.restored_prior.variance.add_(1)
    assert not torch.equal(loaded.head.output.weight, model.head.output.weight)  # a copy, not a view
    assert not calibrated or not torch.equal(loaded.head.restored_prior.variance, model.head.restored_prior.variance)


def test_a_network_that_is_not_calibrated_replaces_one_that_is(data):
    model = st.calibrate_prior(build(), data)
    fresh = build()
    model.load_state_dict(fresh.state_dict())
    assert not model.head.restored_prior.known
    assert torch.equal(st.predict(model, data).probs, st.predict(fresh, data).probs)


def test_a_prediction_is_saved_without_pickle(data, tmp_path):
    pred = st.predict(build(), data, st.MCDropout(5))
    assert torch.equal(st.Categorical.load(pred.save(tmp_path / "pred.npz")).probs, pred.probs)


def test_half_precision_and_back(data):
    model = st.calibrate_prior(build(), data)
    expected = st.predict(model, 10 * data, st.ExactDropout()).probs
    half = copy.deepcopy(model).bfloat16()
    assert half.head.restored_prior.variance.dtype == torch.bfloat16
    assert (st.predict(half, (10 * data).bfloat16(), st.ExactDropout()).probs - expected).abs().max() < 0.05


def test_an_exported_program(data):
    """torch.export keeps the exact predictor, its buffers included, for any batch size."""
    model = st.calibrate_prior(build(), data)
    batch = torch.export.Dim("batch")
    program = torch.export.export(st.exact_predictor(model), (data,), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    mean, std = torch.export.load(file).module()(10 * data[:7])
    expected = st.predict(model, 10 * data[:7], st.ExactDropout(), family=st.Gaussian)
    torch.testing.assert_close(mean, expected.mean)
    torch.testing.assert_close(std, expected.std())
