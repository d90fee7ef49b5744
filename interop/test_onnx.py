"""The exact-dropout predictor leaves Python: onnxruntime gives its mean and std, without a random operator."""

import onnxruntime
import pytest
import torch
import torchvision
from torch import nn

import stationary as st

ACTIVATIONS = {
    "matern12": "matern12",
    "matern32": "matern32",
    "matern52": "matern52",
    "matern of any nu": st.Matern(nu=2.2, lengthscale=0.7),
    "rbf": "rbf",
}
RANDOM = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
NAMES = ["output_mean", "output_std"]  # not "mean": the exporter calls global pooling so, and does not look


def exported(model, x):
    options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
    return torch.onnx.export(model, (x,), dynamo=True, input_names=["x"], output_names=NAMES, **options)


def operators(program):
    """The operators of the graph, of the functions it calls and of the graphs inside it."""
    todo, found = [program.model_proto.graph, *program.model_proto.functions], set()
    while todo:
        for node in todo.pop().node:
            found.add(node.op_type)
            todo += [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
    return found


def check(model, x, method):
    """One graph for every batch size, the same numbers as ``predict``, nothing random."""
    program = exported(st.exact_predictor(model), x[:3])
    assert not operators(program) & RANDOM
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for part in (x[:1], x[:7], 100 * x[:7]):
        mean, std = (torch.from_numpy(output) for output in session.run(NAMES, {"x": part.numpy()}))
        expected = st.predict(model, part, method, family=st.Gaussian)
        torch.testing.assert_close(mean, expected.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(std, expected.std(), rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _same_randomness():
    torch.manual_seed(0)


@pytest.mark.parametrize("calibrated", [False, True], ids=["as trained", "prior restored"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_multilayer_perceptron(name, calibrated):
    model, x = st.MLP(3, 4, hidden=(20, 15), activation=ACTIVATIONS[name], dropout=0.3), torch.randn(50, 3)
    nn.init.normal_(model.head.hidden.bias)
    if calibrated:
        st.calibrate_prior(model, x)
        restored, as_trained = (
            st.predict(model, 100 * x, st.ExactDropout(restore_prior=r), family=st.Gaussian).std().mean()
            for r in (True, False)
        )
        assert restored > as_trained + 1e-3  # so that the numbers below tell
    check(model, x, st.ExactDropout())


@pytest.mark.parametrize("calibrated", [False, True], ids=["as trained", "prior restored"])
def test_a_residual_network_of_torchvision(calibrated):
    model = st.replace_head(torchvision.models.resnet18(weights=None), st.StationaryHead(512, 5)).eval()
    x = torch.randn(7, 3, 32, 32)
    if calibrated:
        st.calibrate_prior(model, x)
    check(model, x, st.ExactDropout())


def test_dropout_in_the_trunk_is_off():
    model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Dropout(0.5), st.StationaryHead(20, 2))
    check(model, torch.randn(7, 3), st.ExactDropout(last_layer=True))


def test_a_random_operator_would_be_found():
    assert operators(exported(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).train(), torch.randn(3, 3))) & RANDOM
