"""In every direction: far from the data the answer is that of the prior, and near them it is that of the trunk."""

import math
from itertools import pairwise

import pytest
import torch
from sklearn.datasets import load_digits, make_friedman1
from torch import nn

import stationary as st
from stationary.lab.data import banana
from stationary.theory import softmax

SEEDS = range(5)
FAR = 100.0


def trained(x, y, seed, loss="cross_entropy", outputs=10, layers=(128, 64)):
    sizes = (x.shape[1], *layers)
    body = lambda: [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    build = lambda: nn.Sequential(*body(), nn.Linear(sizes[-1], outputs))
    [model] = st.train(build, (x, y), st.Training(loss, epochs=60, learning_rate=2e-3, batch_size=64), seeds=[seed])
    return model


def digits(seed):
    data = load_digits()
    order = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(data.data[order] / 16).float(), torch.tensor(data.target[order])
    return [(x[rows], y[rows]) for rows in (slice(900), slice(900, 1200), slice(1200, None))]


def far_features(z, n=1000, seed=0):
    """Random directions and those of the data, at so many times the largest length of the data."""
    direction = torch.cat([torch.randn(n, z.shape[1], generator=torch.Generator().manual_seed(seed)), z])
    return FAR * z.norm(dim=1).max() * direction / direction.norm(dim=1, keepdim=True)


def shares(posterior, z):
    """What it predicts for features: the least entropy, at the temperature that was chosen too, relative to log c, and
    the least mutual information relative to the prior's."""
    own, pred = posterior.untempered()._of_features(z), posterior._of_features(z)
    c = pred.probs.shape[1]
    prior = softmax.of_gaussian(torch.zeros(1, c).double(), torch.tensor([posterior.numbers.variance]).double())
    information = math.log(c) - float(prior.entropy)
    entropy = min(float(each.entropy().min()) for each in (own, pred))
    return entropy / math.log(c), float(pred.mutual_information().min()) / information


def least_std(posterior, z):
    """The least standard deviation of a regression's function, without noise, at features, relative to the prior's."""
    pred = posterior._of_features(z)
    return float((pred.epistemic_variance / posterior.numbers.variance).sqrt().min())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_classes_return_to_the_prior_in_every_direction(seed):
    train, validation, (x, y) = digits(seed)
    model = trained(*train, seed)
    posterior = st.InfiniteWidth(n_inducing=500).posterior(model, train, validation=validation)
    pred = st.predict(posterior, x)
    own = (model(x).argmax(1) == y).float().mean()
    assert (pred.predict() == y).float().mean() >= own - 0.005
    assert pred.entropy().mean() < 0.3 * math.log(10)  # a model that always shrugs would not pass
    far = far_features(posterior.rows.z)
    entropy, information = shares(posterior, far)
    assert entropy >= 0.99 and information >= 0.9

    # Two that must fail: the geometry that does not see the length, and a finite head.
    blind = st.InfiniteWidth(n_inducing=500, geometry="l2").posterior(model, train, validation=validation)
    assert max(shares(blind, far)) < 0.9
    z, labels = posterior.rows.z, train[1]
    build = lambda: st.StationaryHead(z.shape[1], 10, hidden=64)
    finite = st.fit(st.ExactDropout(), build, (z, labels), st.Training(epochs=30, learning_rate=3e-3), seeds=[seed])
    away = st.predict(finite, far)
    assert float(away.entropy().min()) < 0.99 * math.log(10) or float(away.mutual_information().min()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "geometry"), [*((seed, "whitened") for seed in SEEDS), (0, "polar")])
def test_what_begins_with_the_network_leaves_it_in_every_direction(seed, geometry):
    train, validation, (x, y) = digits(seed)
    model = trained(*train, seed)
    method = st.InfiniteWidth(n_inducing=500, geometry=geometry, prior_mean="network")
    posterior = method.posterior(model, train, validation=validation)
    pred = st.predict(posterior, x)
    own = (model(x).argmax(1) == y).float().mean()
    assert (pred.predict() == y).float().mean() >= own - 0.005
    assert pred.entropy().mean() < 0.3 * math.log(10)
    far = far_features(posterior.rows.z)
    assert model[-1](far).softmax(1).amax(1).median() > 0.999  # where the network itself is sure
    entropy, information = shares(posterior, far)
    assert entropy >= 0.99 and information >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_real_values_return_to_the_prior_in_every_direction(seed):
    x, y = make_friedman1(1400, 6, noise=0.5, random_state=seed)
    x, y = torch.tensor(x).float(), torch.tensor(y).float()[:, None]
    y = (y - y.mean()) / y.std()
    train, validation, test = [(x[rows], y[rows]) for rows in (slice(700), slice(700, 1000), slice(1000, None))]
    model = trained(*train, seed, "mse", 1)
    posterior = st.InfiniteWidth(n_inducing=300).posterior(model, train, validation=validation)
    pred = st.predict(posterior, test[0])
    own = (model(test[0]) - test[1]).square().mean().sqrt()
    assert (pred.mean - test[1]).square().mean().sqrt() < 1.1 * own
    far = far_features(posterior.rows.z)
    assert least_std(posterior, far) >= 0.99
    blind = st.InfiniteWidth(n_inducing=300, geometry="l2").posterior(model, train, validation=validation)
    assert least_std(blind, far) < 0.9  # which must fail


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_banana_through_a_relu_trunk_has_no_rays(seed):
    data = banana.load()
    x, y = torch.as_tensor(data.x_train).float(), torch.as_tensor(data.y_train).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation = [(x[rows], y[rows]) for rows in (order[:300], order[300:])]
    model = trained(*train, seed, outputs=2, layers=(50, 20))
    posterior = st.InfiniteWidth().posterior(model, train, validation=validation)
    angle = torch.linspace(0, 2 * math.pi, 1001)[:-1]
    circle = FAR * x.norm(dim=1).max() * torch.stack([angle.cos(), angle.sin()], 1)
    pred = st.predict(posterior, circle)
    assert pred.entropy().min() >= 0.99 * math.log(2)
    assert st.predict(posterior, x).entropy().mean() < 0.7 * math.log(2)
    assert pred.output_variance.min() >= 0.98 * posterior.numbers.variance


@pytest.mark.slow
@pytest.mark.parametrize("hides", [nn.LayerNorm(64), nn.Tanh()], ids=["LayerNorm", "tanh"])
def test_what_a_trunk_hides_stays_hidden(hides):
    """No head sees the length of an input through a layer that removes it: said in the docs, and so measured here."""
    train, validation, _ = digits(0)
    model = trained(*train, 0)
    hiding = nn.Sequential(*model[:-1], hides, model[-1]).eval()
    posterior = st.InfiniteWidth(n_inducing=300).posterior(hiding, train, validation=validation)
    assert float(st.predict(posterior, FAR * train[0]).entropy().mean()) < 0.8 * math.log(10)
