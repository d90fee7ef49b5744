"""The posterior leaves Python as one plain network: the same mean and standard deviation from torch.export and ONNX."""

import onnxruntime
import pytest
import torch
from torch import nn

import stationary as st

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR)
TARGETS = {
    "classes": (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long(),
    "labels": torch.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 0] + X[:, 2] > 1], 1).long(),
    "values": torch.stack([X[:, 0] * X[:, 1], X[:, 2].sin(), X[:, 3]], 1),
}
NEW = torch.cat([X[:20], 1.5 * X[20:40], 1e3 * X[40:60]])
GIVEN = {"lengthscale": 1.0, "variance": 5.0, "temperature": 0.5, "noise": 0.1, "n_inducing": 60}
BATCH = ({0: torch.export.Dim("batch")},)
each_kind = pytest.mark.parametrize("kind", TARGETS)
each_geometry = pytest.mark.parametrize("geometry", ["polar", "euclidean", "whitened"])
runs_onnx = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # from within torch.onnx


class Net(nn.Module):
    """A trunk with BatchNorm and dropout, as networks have them, and a linear classifier."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))
        self.classify = nn.Linear(8, 3)

    def features(self, x):
        return self.body(x).relu()

    def forward(self, x):
        return self.classify(self.features(x))


def posterior_of(network, kind="classes", **settings):
    dtype = next(network.parameters()).dtype
    y = TARGETS[kind]
    y = y.to(dtype) if y.is_floating_point() else y
    return st.InfiniteWidth(**(GIVEN | settings)).posterior(network, (X.to(dtype), y))


def check(outputs, posterior, x, atol=1e-6):
    mean, variance = posterior.moments(x)
    assert outputs[0].shape == outputs[1].shape == mean.shape
    for found, expected in zip(outputs, (mean, variance.sqrt()), strict=True):
        torch.testing.assert_close(found.detach().double(), expected, rtol=1e-6, atol=atol)


def onnx_outputs(model, x):
    """The outputs for x of a graph that was made for three rows."""
    names = ["output_mean", "output_std"]
    program = torch.onnx.export(
        model, (x[:3],), dynamo=True, verbose=False, input_names=["x"], output_names=names, dynamic_shapes=BATCH
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return [torch.from_numpy(output) for output in session.run(names, {"x": x.numpy()})]


# The same numbers


@each_geometry
@each_kind
def test_the_mean_and_std_of_the_posterior(kind, geometry):
    posterior = posterior_of(Net(), kind, geometry=geometry)
    model = st.exact_predictor(posterior)
    outputs = model(NEW)
    assert outputs[0].dtype == outputs[1].dtype == torch.float32
    check(outputs, posterior, NEW)
    program = torch.export.export(model, (NEW[:3],), dynamic_shapes=BATCH)
    check(program.module()(NEW), posterior, NEW)


def test_what_began_with_the_network():
    posterior = posterior_of(Net(), prior_mean="network")
    check(st.exact_predictor(posterior)(NEW), posterior, NEW)


def test_the_std_of_a_regression_is_that_of_the_function():
    posterior = posterior_of(Net(), "values")
    _, std = st.exact_predictor(posterior)(X)
    pred = st.predict(posterior, X)
    torch.testing.assert_close(std.detach().square(), pred.epistemic_variance, rtol=1e-4, atol=1e-6)
    assert (std < pred.std()).all()


@pytest.mark.parametrize("kind", ["classes", "values"])
@pytest.mark.parametrize("kernel", ["matern52", "rbf"])
def test_a_kernel_matrix_that_is_almost_singular(kernel, kind):
    y = {"classes": (X[:, 0] > 0).long(), "values": X[:, :1].sin().double()}[kind]
    method = st.InfiniteWidth(
        kernel=kernel, lengthscale=100.0, variance=1000.0, temperature=1.0, noise=1e-3, geometry="euclidean"
    )
    posterior = method.posterior(nn.Linear(4, y.max().long().item() + 1).double(), (X.double(), y))
    assert torch.linalg.cond(posterior.basis.factor) > 1e6
    check(st.exact_predictor(posterior)(NEW.double()), posterior, NEW.double())


# Where the features are


@pytest.mark.parametrize("side", ["no trunk", "a head", "a name", "a method", "a module"])
def test_wherever_the_features_are(side):
    network = {"no trunk": nn.Linear(4, 3), "a head": st.MLP(4, 3, hidden=(16, 8, 20))}.get(side) or Net()
    features = {
        "a name": lambda: "body",
        "a method": lambda: network.features,
        "a module": lambda: network.body,
    }.get(side, lambda: None)()
    posterior = posterior_of(network, features=features)
    model = st.exact_predictor(posterior)
    check(model(NEW), posterior, NEW)
    check(torch.export.export(model, (NEW[:3],), dynamic_shapes=BATCH).module()(NEW), posterior, NEW)


def test_a_function_whose_weights_cannot_be_found_is_an_error():
    network = Net()
    posterior = posterior_of(network, features=lambda x: network.body(x))
    with pytest.raises(ValueError, match="features must be the name of a module, a module or a method of one"):
        st.exact_predictor(posterior)


def test_the_network_is_copied_and_must_not_have_changed():
    network = Net().train()
    posterior = posterior_of(network)
    model = st.exact_predictor(posterior)
    expected = model(NEW)
    assert network.training and isinstance(network.classify, nn.Linear) and not model.body[1].training
    with torch.no_grad():
        network.body[0].weight += 1
    assert torch.equal(model(NEW)[0], expected[0])
    with pytest.raises(ValueError, match="the trunk must be the one"):
        st.exact_predictor(posterior)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    posterior = posterior_of(Net().to(dtype))
    outputs = st.exact_predictor(posterior)(NEW.to(dtype))
    assert outputs[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    check(outputs, posterior, NEW.to(dtype))


# ONNX


@runs_onnx
@pytest.mark.parametrize(
    ("kind", "geometry", "features"),
    [  # what the exported module computes is compared above, of every kind; two of them run each day
        pytest.param("classes", "polar", None, marks=pytest.mark.slow),
        ("classes", "whitened", None),
        pytest.param("labels", "euclidean", None, marks=pytest.mark.slow),
        ("values", "polar", "body"),
    ],
)
def test_onnxruntime_gives_the_same(kind, geometry, features):
    """In double precision, so that what differs is the head: ONNX's exporter holds sqrt(5) in 32 bits."""
    posterior = posterior_of(Net().double(), kind, geometry=geometry, features=features)
    check(onnx_outputs(st.exact_predictor(posterior), NEW.double()), posterior, NEW.double())


@runs_onnx
def test_onnxruntime_with_a_trunk_of_32_bits():
    posterior = posterior_of(Net())
    outputs = onnx_outputs(st.exact_predictor(posterior), NEW)
    assert outputs[0].dtype == torch.float32
    check(outputs, posterior, NEW, atol=1e-5)
