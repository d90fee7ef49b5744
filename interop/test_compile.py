"""Compiled networks, and networks with compiled parts, predict what the plain network predicts."""

import copy

import pytest
import torch
from torch import nn

import stationary as st

METHODS = {"mc": st.MCDropout(20), "exact": st.ExactDropout(), "point": st.Point()}


def compiled(model):
    return torch.compile(model, backend="eager")  # what decides is the tracing, not the code it makes


def in_place(model, part):
    model.get_submodule(part).compile(backend="eager")
    return model


def within(model, part):
    model.set_submodule(part, compiled(model.get_submodule(part)))
    return model


WAYS = [
    pytest.param(compiled, id="the model"),
    pytest.param(lambda model: within(model, "trunk"), id="the trunk"),
    pytest.param(lambda model: in_place(model, "trunk"), id="the trunk, in place"),
    pytest.param(lambda model: in_place(model, ""), id="the model, in place"),
    pytest.param(lambda model: within(model, "head"), id="the head"),
    pytest.param(lambda model: in_place(model, "head"), id="the head, in place"),
    pytest.param(lambda model: nn.Sequential(compiled(model)), id="inside another"),
]


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def x():
    return torch.randn(50, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(x):
    model = st.MLP(3, 4, hidden=(20, 10), dropout=0.3).eval()
    nn.init.normal_(model.head.output.weight)
    return st.calibrate_prior(model, x)


def check(network, model, x):
    for method in METHODS.values():
        pred, expected = (st.predict(m, 10 * x, method) for m in (network, model))
        torch.testing.assert_close(pred.probs, expected.probs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(pred.output_variance, expected.output_variance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_after_it_has_run(model, x, way):
    network = way(copy.deepcopy(model))
    with torch.no_grad():
        network(x)
    check(network, model, x)


@pytest.mark.parametrize("way", [pytest.param(*p.values, id=p.id) for p in WAYS])
def test_before_it_has_run(model, x, way):
    network = way(copy.deepcopy(model))
    check(network, model, x)
    with torch.no_grad():
        torch.testing.assert_close(network(x), model(x))  # no mask was compiled into it


def test_dropout_inside_a_compiled_part_is_sampled(x):
    parts = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 20)), st.StationaryHead(20, 4)
    network = nn.Sequential(compiled(parts[0]), parts[1]).eval()
    with torch.no_grad():
        network(x)
    pred, expected = (st.predict(m, x, st.MCDropout(20)) for m in (network, nn.Sequential(*parts)))
    torch.testing.assert_close(pred.output_variance, expected.output_variance, rtol=1e-4, atol=1e-5)


def test_calibrated_by_its_compiled_self(model, x):
    network = compiled(st.MLP(3, 4, hidden=(20, 10), dropout=0.3).eval())
    network.load_state_dict({f"_orig_mod.{name}": value for name, value in model.state_dict().items()})
    st.calibrate_prior(network, 2 * x)
    st.calibrate_prior(model, 2 * x)
    torch.testing.assert_close(network.head.restored_prior.variance, model.head.restored_prior.variance)


def test_the_exact_predictor_compiles_in_one_graph(model, x):
    predictor = torch.compile(st.exact_predictor(model), backend="eager", fullgraph=True)
    with torch.no_grad():
        mean, std = predictor(10 * x)
    expected = st.predict(model, 10 * x, st.ExactDropout(), family=st.Gaussian)
    torch.testing.assert_close(mean, expected.mean)
    torch.testing.assert_close(std, expected.std())
