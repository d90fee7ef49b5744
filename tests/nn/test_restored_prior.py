"""The restored prior: back far away, absent in distribution, refused where it makes no sense."""

import copy
import math
from functools import cache

import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, make_moons
from sklearn.model_selection import train_test_split
from torch import nn

import stationary as st
from stationary.nn.running import to_device

METHODS = [st.Point(), st.MCDropout(100), st.MCDropout(100, shared_masks=False), st.ExactDropout()]
METHODS = [
    pytest.param(m, id=type(m).__name__ + ("-own" if not getattr(m, "shared_masks", True) else "")) for m in METHODS
]


def without(method):
    return type(method)(**{**vars(method), "restore_prior": False})


def load(name, seed):
    """Standardised train and test parts."""
    x, y = {
        "digits": lambda: load_digits(return_X_y=True),
        "moons": lambda: make_moons(600, noise=0.2, random_state=0),
        "diabetes": lambda: load_diabetes(return_X_y=True),
    }[name]()
    x = torch.tensor((x - x.mean(0)) / (x.std(0) + 1e-9), dtype=torch.float32)
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None] if name == "diabetes" else torch.tensor(y)
    train, test = train_test_split(range(len(x)), random_state=seed)
    return x[train], y[train], x[test], y[test]


@cache
def trained(name, seed, activation="matern52"):
    """A head on raw features, trained for 40 epochs."""
    x, y, *_ = load(name, seed)
    loss, c = (nn.functional.mse_loss, 1) if name == "diabetes" else (nn.functional.cross_entropy, int(y.max()) + 1)
    torch.manual_seed(seed)
    head = st.StationaryHead(x.shape[1], c, hidden=50, activation=activation)
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    for _ in range(40):
        for rows in torch.randperm(len(x)).split(200):
            optimizer.zero_grad()
            loss(head(x[rows]), y[rows]).backward()
            optimizer.step()
    return st.calibrate_prior(head, x, y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["digits", "moons"])
def test_classification(name, seed, method):
    head, (*_, x, y) = trained(name, seed), load(name, seed)
    far = st.predict(head, 100 * x, method).entropy().median() / math.log(head.out_features)
    assert far >= 0.95
    with_prior, plain = st.predict(head, x, method), st.predict(head, x, without(method))
    nlpd = [-p.probs[range(len(y)), y].log().mean().item() for p in (with_prior, plain)]
    assert nlpd[0] - nlpd[1] <= 0.005
    assert (with_prior.predict() != plain.predict()).float().mean() <= 0.005
    if not isinstance(method, st.Point):  # epistemic measures vanish far away without the prior, and do not with it
        restored, lost = (st.predict(head, 100 * x, m).mutual_information().median() for m in (method, without(method)))
        assert restored > 0.1 > 0.01 > lost


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(5))
def test_regression(seed, method):
    head, (_, y, x, _) = trained("diabetes", seed), load("diabetes", seed)
    prior_std = y.std(correction=0)
    restored, lost = (
        st.predict(head, 100 * x, m, family=st.Gaussian).std().median() / prior_std for m in (method, without(method))
    )
    assert abs(restored - 1) < 0.05
    assert lost < 0.2


@pytest.mark.parametrize(
    "activation", ["relu", "leaky_relu", "erf", "step", "sine", "sincos", "triangle_wave", "siren"]
)
def test_activations_that_do_not_decay_are_refused(activation):
    head = st.StationaryHead(3, 2, activation=activation)
    with pytest.raises(ValueError, match="needs an activation that decays on both sides"):
        st.calibrate_prior(head, torch.randn(50, 3))
    assert not head.restored_prior.known


@pytest.mark.parametrize("activation", ["matern12", "matern32", "matern72", "rbf", st.Matern(2.2, 0.3, learnable=True)])
def test_activations_that_decay_are_taken(activation):
    assert st.calibrate_prior(st.StationaryHead(3, 2, activation=activation), torch.randn(50, 3)).restored_prior.known


def test_what_is_stored():
    """Five of a hundred training inputs have smaller features than the reference; the rest is the definition."""
    head, x = st.StationaryHead(3, 4).double().eval(), torch.randn(100, 3, dtype=torch.float64)
    st.calibrate_prior(head, x, batch_size=7)
    norms = head.features(x).square().sum(-1)
    assert (norms < head.restored_prior.reference).sum() == 5
    centred = head(x) - head(x).mean(-1, keepdim=True)
    torch.testing.assert_close(head.restored_prior.variance, centred.var(0, correction=0).mean().expand(4))
    y = torch.randn(100, 4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0, 4.0])
    st.calibrate_prior(head, x, y)
    torch.testing.assert_close(head.restored_prior.variance, y.var(0, correction=0))
    torch.testing.assert_close(head.restored_prior(torch.zeros(2, 50).double()), y.var(0, correction=0).expand(2, 4))


def test_what_inference_mode_stored_has_gradients_beside_it():
    head, x = st.StationaryHead(3, 2), torch.randn(20, 3, requires_grad=True)
    with torch.inference_mode():
        st.calibrate_prior(head, x)
    st.ExactDropout().posterior(head).joint(10 * x).covariance.sum().backward()
    assert x.grad.abs().sum() > 0


def test_labels_and_features_that_vanish():
    head, x = st.StationaryHead(3, 4), torch.randn(100, 3)
    by_logits = st.calibrate_prior(head, x).restored_prior.variance.clone()
    torch.testing.assert_close(st.calibrate_prior(head, x, torch.randint(4, (100,))).restored_prior.variance, by_logits)
    dead = st.calibrate_prior(head, 1e6 * x)  # a reference of 0 would make 0 / 0
    assert st.predict(dead, 1e6 * x).probs.isfinite().all()


def test_it_is_added_to_the_exact_moments():
    head, x = trained("digits", 0), 100 * load("digits", 0)[2]
    mean, covariance = st.ExactDropout().posterior(head).moments(x)
    plain_mean, plain = st.ExactDropout(restore_prior=False).posterior(head).moments(x)
    torch.testing.assert_close(mean, plain_mean)
    torch.testing.assert_close(covariance - plain, torch.diag_embed(head.restored_prior(head.features(x))))


def test_dropout_elsewhere_gets_it_too():
    """The features differ from sample to sample, and so does what they lack."""
    head = st.StationaryHead(8, 3)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), head), torch.randn(50, 4)
    st.calibrate_prior(model, x)
    far = st.predict(model, 1000 * x, st.MCDropout(50)).output_variance.median()
    assert far > 0.5 * head.restored_prior.variance[0]


def test_errors():
    x = torch.randn(50, 3)
    with pytest.raises(
        ValueError, match=r"must have one head, .*such as a StationaryHead; Linear has 0: .*replace_head"
    ):
        st.calibrate_prior(nn.Linear(3, 2), x)
    with pytest.raises(ValueError, match="restore_prior=True needs a head that knows its prior"):
        st.predict(st.StationaryHead(3, 2), x, st.ExactDropout(restore_prior=True))
    for y in (None, torch.arange(50)):
        with pytest.raises(ValueError, match=r"y_train must be the real targets .* got (none|torch.int64)"):
            st.calibrate_prior(st.StationaryHead(3, 1), x, y)
    with pytest.raises(ValueError, match="y_train must have one row for each of the 50 inputs, got 40"):
        st.calibrate_prior(st.StationaryHead(3, 1), x, torch.randn(40))
    with pytest.raises(ValueError, match="y_train must have 2 columns, as the outputs of the model; got 1"):
        st.calibrate_prior(st.StationaryHead(3, 2), x, torch.randn(50))


@pytest.mark.parametrize("regression", [False, True])
def test_batches_calibrate_as_tensors_do(regression):
    """Read once, batch by batch; the targets of a regression come with them."""
    torch.manual_seed(0)
    x = torch.randn(90, 3, dtype=torch.float64)
    y = x[:, :2].sin() if regression else (x[:, 0] > 0).long()
    model = st.MLP(3, 2, hidden=(8, 16)).double()
    whole = copy.deepcopy(st.calibrate_prior(model, x, y).head.restored_prior.state_dict())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 40)
    for data in (loader, iter([(x, y)]), [(x[:50], y[:50]), (x[50:], y[50:])]):
        found = st.calibrate_prior(model, data).head.restored_prior.state_dict()
        torch.testing.assert_close(found, whole)


def test_the_head_keeps_the_module_that_moves_with_it():
    """A second module would stay on the CPU when the model is on a GPU, and so would what it loads later."""
    model = st.MLP(2, 2, hidden=(8, 8))
    before = model.head.restored_prior
    st.calibrate_prior(model, torch.randn(20, 2))
    assert model.head.restored_prior is before and before.known


class _Noted(torch.Tensor):
    """A tensor that notes how it is moved."""

    moves: list[bool]

    def to(self, device, non_blocking=False):
        self.moves.append(non_blocking)
        return self


@pytest.mark.parametrize(("device", "non_blocking"), [("cpu", False), ("cuda", True)])
def test_what_goes_to_the_cpu_is_waited_for(device, non_blocking):
    x = torch.zeros(2).as_subclass(_Noted)
    x.moves = []
    to_device({"x": x}, torch.device(device))
    assert x.moves == [non_blocking]
