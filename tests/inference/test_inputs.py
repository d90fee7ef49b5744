"""Arrays, tensors, lists of batches and loaders go in wherever inputs do; what does not fit is explained."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stationary as st
from stationary.inference.base import check_method
from stationary.nn.inputs import first_tensor, tensor_of

N = 120
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] + X[:, 1] > 0).long()
TRAINING = st.Training(epochs=3, batch_size=40, learning_rate=0.01)
WAYS = {  # of inputs
    "array": lambda x: x.numpy(),
    "float64 array": lambda x: x.double().numpy(),
    "Fortran order": lambda x: np.asfortranarray(x.numpy()),
    "backwards": lambda x: np.ascontiguousarray(x.numpy()[::-1])[::-1],
    "other byte order": lambda x: x.numpy().astype(">f4"),
    "table": lambda x: pd.DataFrame(x.numpy(), columns=["a", "b", "c"]),
    "float64": lambda x: x.double(),
    "list": lambda x: [x[:50], x[50:]],
    "list of arrays": lambda x: [x[:50].numpy(), x[50:].double().numpy()],
    "loader": lambda x: DataLoader(TensorDataset(x.double()), 50),
}
PAIRS = {  # of inputs and targets
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "float64 arrays": lambda x, y: (x.double().numpy(), y.numpy()),
    "float64": lambda x, y: (x.double(), y),
    "table": lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
    "one array": lambda x, y: (x, y.numpy()),
    "list": lambda x, y: [(x[:50], y[:50]), (x[50:].double().numpy(), y[50:].numpy())],
    "loader": lambda x, y: DataLoader(TensorDataset(x.double(), y), 50),
}


@pytest.fixture(scope="module")
def model():
    network = st.fit(st.Point(), lambda: st.MLP(3, 2, hidden=(20,)), (X, Y), TRAINING).networks[0]
    return st.calibrate_prior(network, X)


@pytest.fixture(scope="module")
def infinite(model):
    return st.InfiniteWidth(n_inducing=20).posterior(model, (X, Y))


@pytest.mark.parametrize("way", WAYS)
def test_inputs_in_every_form(model, infinite, way):
    given = WAYS[way](X)
    torch.testing.assert_close(st.predict(model, given).probs, st.predict(model, X).probs)
    torch.testing.assert_close(st.predict(infinite, given).probs, st.predict(infinite, X).probs)
    detector, same = st.OODDetector(model).fit(given), st.OODDetector(model).fit(X)
    assert detector.threshold == pytest.approx(same.threshold) and torch.equal(detector.predict(given), same.predict(X))
    called = st.OODDetector(model, lambda x: x.square().sum(-1)).fit(given)
    torch.testing.assert_close(called.scores(given), X.square().sum(-1))
    assert torch.equal(infinite.nearest(given, 1).rows[:, 0], torch.arange(N))
    sets = st.conformal(model, (X, Y))
    assert torch.equal(sets.predict_set(given), sets.predict_set(X))
    before = model.head.restored_prior.variance.clone()
    st.calibrate_prior(model, given)
    torch.testing.assert_close(model.head.restored_prior.variance, before)


@pytest.mark.parametrize("way", PAIRS)
def test_pairs_in_every_form(model, infinite, way):
    given = PAIRS[way](X, Y)
    assert st.calibrate(model, given).temperature == pytest.approx(st.calibrate(model, (X, Y)).temperature, rel=1e-4)
    torch.testing.assert_close(st.conformal(model, given).threshold, st.conformal(model, (X, Y)).threshold)
    other = st.InfiniteWidth(n_inducing=20).posterior(model, given, validation=given)
    same = st.InfiniteWidth(n_inducing=20).posterior(model, (X, Y), validation=(X, Y))
    torch.testing.assert_close(st.predict(other, X).probs, st.predict(same, X).probs)
    more, same = infinite.update(given), infinite.update((X, Y))
    torch.testing.assert_close(st.predict(more, X).probs, st.predict(same, X).probs)
    fitted = st.fit(st.Point(), lambda: st.MLP(3, 2, hidden=(20,)), given, TRAINING, validation=given)
    assert torch.isfinite(st.predict(fitted, X).probs).all()


def test_a_fit_of_arrays_is_that_of_their_tensors():
    build, weight = lambda: st.MLP(3, 2, hidden=(20,)), torch.rand(N)
    watched = st.Training(epochs=3, batch_size=40, learning_rate=0.01, patience=2)
    expected, fitted = (
        st.predict(st.fit(st.Ensemble(2), build, data, watched, sample_weight=w, validation=data), X).probs
        for data, w in (((X, Y), weight), ((X.double().numpy(), Y.numpy()), weight.numpy()))
    )
    torch.testing.assert_close(fitted, expected)


def test_a_regression_of_arrays():
    y = (X[:, :1] * 2).double().numpy()
    build = lambda: st.MLP(3, 1, hidden=(20,))
    posterior = st.fit(st.ExactDropout(), build, (X.numpy(), y), st.Training("mse", epochs=3, batch_size=40))
    network = st.calibrate_prior(posterior.networks[0], X.numpy(), y)
    assert network.head.restored_prior.variance.item() == pytest.approx(y.var(), rel=1e-5)
    wide = st.InfiniteWidth(n_inducing=20).posterior(network, (X.numpy(), y), sample_weight=np.ones(N))
    assert st.predict(wide, X.numpy()).mean.shape == (N, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_real_inputs_get_the_type_of_the_network(model, dtype):
    given = X.to(dtype)
    torch.testing.assert_close(st.predict(model, given).probs, st.predict(model, given.float()).probs)
    double = st.MLP(3, 2, hidden=(20,)).double()
    assert st.predict(double, given).probs.dtype == torch.float64


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_refused_where_real_numbers_are_needed(model, kind):
    whole = X.abs().to(kind)
    for given in (whole, whole.numpy(), [whole]):
        with pytest.raises(ValueError, match=r"inputs must have the columns and the type that MLP takes.*x\.float\(\)"):
            st.predict(model, given)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    with pytest.raises(
        ValueError, match=r"that Sequential takes, whose first weights are \(4, 3\) torch.float32; got x "
    ):
        st.predict(plain, whole)
    with pytest.raises(ValueError, match=r"x\.float\(\) makes real numbers of integers"):
        st.fit(st.Point(), lambda: st.MLP(3, 2), (whole, Y), TRAINING)


def test_wrong_columns_are_named():
    plain = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    with pytest.raises(
        ValueError, match=r"first weights are \(4, 3\) torch.float32; got x \(120, 2\).*takes 3 columns and gets 2$"
    ) as error:
        st.predict(plain, X[:, :2])
    assert "mat1" not in str(error.value) and "integers" not in str(error.value)
    assert "mat1" in str(error.value.__cause__), "which says where"
    with pytest.raises(ValueError, match=r"x\.float\(\) makes real numbers of integers$"):
        st.predict(plain, X.long())


def test_what_is_deployed_refuses_another_type(model, infinite):
    deep = st.InfiniteWidth(lengthscale=1.0, variance=1.0, temperature=1.0).posterior(
        st.MLP(3, 2, hidden=(8, 8)), (X, Y)
    )
    for network in (st.exact_predictor(model), st.exact_predictor(deep), st.exact_predictor(model.head)):
        with pytest.raises(ValueError, match=r"inputs must be torch.float32, .*got torch.float64; use x.to\(torch.fl"):
            network(X.double())
        assert len(network(X)) == 2
    assert len(st.exact_predictor(infinite)(X.double())) == 2, "without a trunk there are no weights in another type"


class Words(nn.Module):
    """A network that takes integers, and a mask."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), st.StationaryHead(4, 2)

    def forward(self, ids, mask):
        return self.head((self.words(ids) * mask[..., None]).sum(1))


def test_mappings_of_arrays_and_embeddings():
    ids, mask = torch.randint(10, (N, 5)), torch.ones(N, 5)
    network = Words()
    expected = st.predict(network, {"ids": ids, "mask": mask}).probs
    given = {"ids": ids.numpy(), "mask": mask.double().numpy()}
    torch.testing.assert_close(st.predict(network, given, batch_size=50).probs, expected)
    with pytest.raises(
        ValueError, match=r"that Words takes.*got ids \(120, 5\) torch.float32, mask.*x\.long\(\) makes"
    ):
        st.predict(network, {"ids": ids.float(), "mask": mask})


def test_a_type_that_the_network_has_somewhere_is_its_own_affair():
    class Careful(nn.Module):
        """It standardises in float64, and goes on in float32."""

        def __init__(self):
            super().__init__()
            self.network = st.MLP(3, 2, hidden=(8,))
            self.register_buffer("shift", torch.full((3,), 1e9, dtype=torch.float64))

        def forward(self, x):
            assert x.dtype == torch.float64
            return self.network((x - self.shift).float())

    network = Careful()
    expected = st.predict(network.network, X).probs
    torch.testing.assert_close(st.predict(network, X.double() + 1e9).probs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([["a", "b", "c"]]), "x must hold numbers, got ndarray of <U1; encode"),
        (pd.DataFrame({"a": [1.0], "b": [True], "c": [2.0]}), r"got DataFrame of object; .* write \.astype\(float\)$"),
        (TensorDataset(X, Y), "or an iterable of batches, got TensorDataset; pass a DataLoader of it$"),
        (pd.DataFrame({"a": [1.0], "b": ["x"], "c": [2.0]}), "x must hold numbers, got DataFrame of object"),
        ([[1.0, 2.0, 3.0]], "x must be a tensor or an array, got list; torch.tensor"),
        (3, "x must be a tensor, an array, a mapping of these or an iterable of batches, got int"),
    ],
)
def test_what_is_no_input(model, x, message):
    with pytest.raises(TypeError, match=message):
        st.predict(model, x)


def test_a_value_beyond_the_type_of_the_network(model):
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in row 1"):
        st.predict(model, np.array([[0.0, 0.0, 0.0], [1e300, 0.0, 0.0]]))


def test_a_single_input_and_a_batch_of_batches(model, infinite):
    for posterior in (model, infinite):
        with pytest.raises(ValueError, match=r"a single input (is passed )?as x\[None\]$"):
            st.predict(posterior, X[0])
    for ask in (lambda: st.predict(infinite, X[None]), lambda: infinite.nearest(X[None], 1)):
        with pytest.raises(ValueError, match=rf"must give 3 features in each row, .* got {3 * N}: look at the shape"):
            ask()


def test_features_of_another_number_are_not_taken_for_all():
    """A function may read one column where there were three, which would be subtracted from each of their means."""
    numbers = {"lengthscale": 1.0, "variance": 1.0, "temperature": 1.0}
    posterior = st.InfiniteWidth(**numbers, features=lambda x: x).posterior(nn.Linear(3, 2), (X, Y))
    with pytest.raises(ValueError, match="must give 3 features in each row, as the training rows do; got 1:"):
        st.predict(posterior, X[:, :1])


@pytest.mark.parametrize("k", [0, N + 1, 1.5])
def test_a_number_of_neighbours_that_is_none(infinite, k):
    with pytest.raises(ValueError, match=f"k must be an integer from 1 to the number of training rows, {N}; got {k}"):
        infinite.nearest(X, k)


def test_targets_of_another_number(model):
    for ask in (st.calibrate, st.conformal):
        with pytest.raises(ValueError, match=rf"y must have the shape of the mean, \({N}, 2\); got \({N}, 3\)"):
            ask(model, (X, X), family=st.Gaussian)


def test_what_is_near_to_what_is_meant(model, infinite):
    build, one = lambda: st.MLP(3, 2, hidden=(5,)), lambda: st.MLP(3, 1, hidden=(5,))
    estimator, weights = st.StationaryClassifier(), {0: 1.0, 1: 2.0}
    for ask, error, message in (
        (lambda: st.fit(st.Point(), build, (X, Y), {"epochs": 3}), TypeError, r"training must be .*Training\(epochs="),
        (lambda: st.predict(model, X, family="Gaussian"), TypeError, "family must be stationary.*got 'Gaussian'"),
        (lambda: st.OODDetector(model, family="Gaussian").fit(X), TypeError, "family must be stationary"),
        (lambda: st.predict(model, X, batch_size=2.5), ValueError, "batch_size must be a positive integer .*got 2.5"),
        (
            lambda: st.predict(model, X, batch_size="all"),
            ValueError,
            "batch_size must be a positive integer .*got 'all",
        ),
        (lambda: st.predict(nn.Conv2d(3, 2, 3), X), ValueError, r"that Conv2d takes, .*got x \(120, 3\)"),
        (
            lambda: st.calibrate_prior(estimator, X),
            TypeError,
            "got StationaryClassifier: an estimator has a posterior_",
        ),
        (lambda: st.exact_predictor(st.calibrate(infinite, (X + 1, Y))), TypeError, "calibrated posterior its base"),
        (lambda: st.calibrate_prior(one(), X), ValueError, "y_train must be the real targets .*; got none"),
        (lambda: st.calibrate_prior(one(), X, Y), ValueError, "y_train must be the real targets .*; got torch.int64"),
        (lambda: st.calibrate_prior(one(), X, X[:, :1] / 0), ValueError, "y_train must be finite, got NaN or infinity"),
        (
            lambda: st.InfiniteWidth(class_weight=weights).posterior(model, (X, Y)),
            TypeError,
            "or a tuple with a number for each class",
        ),
        (lambda: st.MLP(3, 2, hidden=5), ValueError, r"such as \(50,\); got 3 and 5"),
        (lambda: st.MLP("3", 2), ValueError, "in_features and the widths in hidden must be positive integers"),
        (lambda: st.StationaryHead(3, 2, activation=nn.ReLU), TypeError, "activation must be a name .*got <class"),
        (lambda: st.StationaryHead(3, 2, activation=3), TypeError, "activation must be a name .*got 3"),
    ):
        with pytest.raises(error, match=message):
            ask()


def test_weights_in_a_list():
    build, weight = lambda: st.MLP(3, 2, hidden=(5,)), torch.rand(N)
    listed, method = [float(w) for w in weight], st.InfiniteWidth(n_inducing=10)
    for make in (
        lambda w: st.fit(st.Point(), build, (X, Y), TRAINING, sample_weight=w),
        lambda w: method.posterior(nn.Linear(3, 2), (X, Y), sample_weight=w),
    ):
        torch.testing.assert_close(st.predict(make(listed), X).probs, st.predict(make(weight), X).probs)


def test_what_is_no_pair(model):
    with pytest.raises(TypeError, match=r"got a pair of Tensor and list: torch.tensor"):
        st.calibrate(model, (X, Y.tolist()))
    with pytest.raises(TypeError, match="data must have targets that are tensors or arrays, got list"):
        st.calibrate(model, [(X, Y.tolist())])


def test_arrays_that_cannot_be_written_to_are_copied():
    array = np.zeros((2, 3))
    array.flags.writeable = False
    assert tensor_of(array, "x").shape == (2, 3)
    assert tensor_of(X, "x") is X and tensor_of("other", "x") == "other"


def test_the_first_tensor_is_that_of_pytorch():
    odd = nn.Sequential(nn.ReLU(), nn.Embedding(3, 2), nn.BatchNorm1d(2, affine=False))
    for network in (st.MLP(3, 2), odd, nn.BatchNorm1d(2, affine=False)):
        expected = next(iter([*network.parameters(), *network.buffers()]))
        assert first_tensor(network) is expected
    assert first_tensor(nn.ReLU()) is None
    counter = nn.BatchNorm1d(2, affine=False)
    counter.running_mean = counter.running_var = None
    assert first_tensor(counter) is counter.num_batches_tracked and first_tensor(counter, floating=True) is None


# Methods


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("mc", r"MCDropout\(100\)"),
        ("MC Dropout", r"MCDropout\(100\)"),
        ("exact", r"ExactDropout\(\)"),
        ("ensemble", r"Ensemble\(5\)"),
        ("swag", r"SWAG\(\)"),
        ("infinite_width", r"InfiniteWidth\(\)"),
        ("what?", r"MCDropout\(100\)"),
        (100, r"MCDropout\(100\) for as many samples"),
        (st.MCDropout, r"MCDropout\(\), with brackets"),
        (True, r"MCDropout\(100\)"),
    ],
)
def test_what_is_no_method_gets_an_answer(model, method, instead):
    message = rf"method must be MCDropout\(100\), .*; got .*: write stationary\.{instead}"
    for ask in (
        lambda: st.predict(model, X, method),
        lambda: st.OODDetector(model, method=method),
        lambda: st.calibrate(model, (X, Y), method),
        lambda: st.conformal(model, (X, Y), method=method),
        lambda: st.fit(method, lambda: st.MLP(3, 2), (X, Y), TRAINING),
        lambda: st.StationaryClassifier((10,), method=method).fit(X.numpy(), Y.numpy()),
    ):
        with pytest.raises(TypeError, match=message):
            ask()


@pytest.mark.parametrize("device", ["cuda", "cpu", "cuda:1", torch.device("cuda")])
def test_a_device_is_no_method(model, device):
    with pytest.raises(TypeError, match=r"got the device 'c.*': move the network and its inputs there, model\.to\('c"):
        st.predict(model, X, device)


def test_targets_go_beside_their_inputs(model, infinite):
    for y in (Y, Y.numpy()):
        for ask in (
            lambda y: st.conformal(model, X, y),
            lambda y: st.calibrate(model, X, y),
            lambda y: st.InfiniteWidth().posterior(model, X, y),
        ):
            with pytest.raises(TypeError, match=r"targets go beside their inputs.*\(x, y\)"):
                ask(y)


def test_every_method_is_one():
    for method in (st.Point(), st.MCDropout(), st.ExactDropout(), st.Ensemble(), st.SWAG(), st.InfiniteWidth()):
        check_method(method)


def test_an_estimator_is_no_network():
    estimator = st.StationaryClassifier().fit(X.numpy(), Y.numpy())
    for ask in (lambda: st.predict(estimator, X), lambda: st.calibrate(estimator, (X, Y))):
        with pytest.raises(TypeError, match=r"got StationaryClassifier; of an estimator use .* predictive\(X\)"):
            ask()
    pipe = make_pipeline(StandardScaler(), st.StationaryClassifier()).fit(X.numpy(), Y.numpy())
    with pytest.raises(TypeError, match=r"got Pipeline; .* pipe\[-1\]\.predictive\(pipe\[:-1\]\.transform\(X\)\)"):
        st.predict(pipe, X)
    search = GridSearchCV(pipe, {"stationaryclassifier__random_state": [0]}, cv=2).fit(X.numpy(), Y.numpy())
    with pytest.raises(TypeError, match=r"got GridSearchCV; .* search\.best_estimator_"):
        st.OODDetector(search).fit(X.numpy())
    foreign = LogisticRegression().fit(X.numpy(), Y.numpy())
    for other in (foreign, make_pipeline(StandardScaler(), foreign)):
        for detector in (st.OODDetector(other), st.OODDetector(other, lambda x: x[:, 0])):
            with pytest.raises(TypeError, match=r"got (Log|Pip)\w+; stationary\.fit makes one; for a table"):
                detector.fit(X.numpy())
    scores = st.OODDetector(estimator, "mutual_information").fit(X.numpy()).scores(X.numpy())
    np.testing.assert_allclose(scores, estimator.uncertainty(X.numpy(), "mutual_information"), rtol=1e-6)
