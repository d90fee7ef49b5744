"""Layers under a bound on their spectral norm: it holds while they train, and nothing else changes."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import stationary as st

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] * X[:, 1] > 0).long()


def conv_network():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 2))


def norms(module):
    bounded = [layer for layer in module.modules() if parametrize.is_parametrized(layer, "weight")]
    assert bounded
    return [torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2).item() for layer in bounded]


def stretched(module, factor=10.0):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(factor)
    return module


@pytest.mark.parametrize("build", [lambda: st.MLP(4, 2, hidden=(30, 30, 50)), conv_network])
@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_the_norm_is_at_most_the_bound(build, bound):
    model = st.spectral_normalize(stretched(build()), bound).train()
    x = X if isinstance(model, st.MLP) else torch.randn(5, 3, 6, 6)
    for _ in range(30):
        model(x)
    assert max(norms(model.eval())) < 1.01 * bound


def test_what_is_below_the_bound_is_unchanged():
    model, plain = (st.MLP(4, 2, hidden=(30, 30, 50)) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    expected = plain.eval()(X)
    assert torch.equal(st.spectral_normalize(model, 100.0).eval()(X), expected)


def test_the_slope_is_that_of_the_bounded_weight():
    """Along the weight itself the bounded layer is constant, so that the slope is orthogonal to it."""
    layer = st.spectral_normalize(stretched(nn.Linear(4, 3).double()), 1.0).eval()
    (layer(X.double()).square().sum()).backward()
    original = layer.parametrizations.weight.original
    assert original.grad.norm() > 0.1
    assert (original.grad * original).sum().abs() < 1e-10 * original.grad.norm() * original.norm()


def test_heads_and_what_is_named_are_left_alone():
    model = st.spectral_normalize(st.MLP(4, 2, hidden=(30, 30, 50)))
    assert len(norms(model)) == 2
    assert not any(parametrize.is_parametrized(layer) for layer in model.head.modules())
    network = st.spectral_normalize(conv_network(), skip=["4"])
    assert len(norms(network)) == 2 and not parametrize.is_parametrized(network[4])


def test_eval_mode_changes_nothing_and_training_mode_follows_the_weights():
    model = st.spectral_normalize(st.MLP(4, 2, hidden=(30, 30, 50))).eval()
    before = deepcopy(model.state_dict())
    model(X)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.train()(X)
    assert not all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_copies_and_files(tmp_path):
    model = st.spectral_normalize(stretched(st.MLP(4, 2, hidden=(30, 30, 50)))).eval()
    expected = model(X)
    assert torch.equal(deepcopy(model)(X), expected)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = st.spectral_normalize(st.MLP(4, 2, hidden=(30, 30, 50))).eval()
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(other(X), expected)
    for layer in list(model.modules()):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(X), expected)


@pytest.mark.parametrize("n_members", [1, 3])
def test_training_keeps_the_bound(n_members):
    """By itself, and in lockstep with others: 300 steps that would stretch far more."""
    training = st.Training(epochs=60, batch_size=40, learning_rate=1e-2)

    def build():
        return st.spectral_normalize(st.MLP(4, 2, hidden=(30, 30, 50)), 1.5)

    models = st.train(build, (X, Y), training, n_members=n_members)
    free = st.train(lambda: st.MLP(4, 2, hidden=(30, 30, 50)), (X, Y), training)[0]
    assert torch.linalg.matrix_norm(free.trunk[2].weight, 2) > 2
    for model in models:
        assert max(norms(model)) < 1.5 * 1.1  # one power iteration lags behind weights that move fast
        assert (model(X).argmax(1) == Y).float().mean() > 0.9


def test_the_limit_stands_on_a_bounded_trunk():
    training = st.Training(epochs=5, batch_size=40)
    method = st.InfiniteWidth(lengthscale=1.0, variance=10.0, temperature=1.0)
    posterior = st.fit(
        method, lambda: st.spectral_normalize(st.MLP(4, 2, hidden=(30, 30, 50))), (X, Y), training, validation=(X, Y)
    )
    assert st.predict(posterior, X).probs.isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.spectral_normalize(nn.Linear(2, 2), 0.0), "bound must be a positive number, got 0.0"),
        (lambda: st.spectral_normalize(nn.Linear(2, 2), n_power_iterations=0), "n_power_iterations must be a positive"),
        (lambda: st.spectral_normalize(conv_network(), skip=["fc"]), "skip must be a list of names of modules"),
        (lambda: st.spectral_normalize(st.StationaryHead(2, 2)), "a linear or convolutional layer outside its head"),
        (lambda: st.spectral_normalize(st.spectral_normalize(conv_network())), "call spectral_normalize once"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
