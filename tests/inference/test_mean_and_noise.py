"""Networks whose noise depends on the input: what each method makes of it, against every mask and by simulation."""

from copy import deepcopy
from itertools import product

import pytest
import torch
from torch import nn

import stationary as st
from stationary.nn.mean_and_noise import LOUDEST, QUIETEST, bounded

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def trained(m=2, dropout=0.3, hidden=(6,)):
    """A network whose outputs are not those of its start."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = st.MeanAndNoise(st.MLP(3, 2 * m, hidden=hidden, dropout=dropout)).double()
        nn.init.normal_(model.network.head.output.weight, std=0.7)
        nn.init.normal_(model.network.head.output.bias, mean=-2.0)
    return model.eval()


def every_mask(model, x):
    """Mean and raw log variance (2^6, n, m) of the network with every mask, and the masks' probabilities."""
    head = model.network.head
    masks = torch.tensor(list(product((0.0, 1.0), repeat=6)), dtype=torch.float64)
    p = head.dropout.p
    probability = (p ** (6 - masks.sum(1))) * (1 - p) ** masks.sum(1)
    with torch.no_grad():
        outputs = torch.stack([head.output(head.features(x) * mask / (1 - p)) for mask in masks])
    return *outputs.chunk(2, -1), probability[:, None, None]


def test_exact_dropout_is_the_mean_over_every_mask():
    model = trained()
    mean, log_variance, probability = every_mask(model, X)
    expected = (probability * mean).sum(0)
    masks = (probability * (mean - expected).square()).sum(0)
    noise = (probability * log_variance.exp()).sum(0)
    pred = st.predict(model, X, family=st.Gaussian)
    torch.testing.assert_close(pred.mean, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(pred.epistemic_variance, masks, rtol=1e-10, atol=1e-12)
    assert (noise > masks).any() and (noise < masks).any()
    wanted = (noise - masks).clamp(min=0)  # up to the bounds: 1e-6 more, and 1e-6 less of each unit
    torch.testing.assert_close(pred.aleatoric_variance, wanted, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_mc_dropout_tends_to_exact_dropout(shared):
    model, samples = trained(), 20_000
    exact = st.predict(model, X, family=st.Gaussian)
    pred = st.predict(model, X, st.MCDropout(samples, shared_masks=shared), family=st.Gaussian)
    _, log_variance, probability = every_mask(model, X)
    noise = log_variance.exp()
    spread = (probability * noise.square()).sum(0) - (probability * noise).sum(0).square()
    error = (spread / samples).sqrt()  # of the mean over the samples
    assert ((pred.aleatoric_variance - exact.aleatoric_variance).abs() < 5 * error + 1e-9).all()


def test_the_other_methods_average_the_noise_of_their_members():
    members = [trained(hidden=(width,)) for width in (4, 5, 6)]
    with torch.no_grad():
        outputs = [member.network(X).chunk(2, -1) for member in members]
    means, noises = (torch.stack(part) for part in zip(*outputs, strict=True))
    pred = st.predict(st.Ensemble(3).posterior(members), X, family=st.Gaussian)
    torch.testing.assert_close(pred.epistemic_variance, means.var(0, correction=0))
    torch.testing.assert_close(pred.aleatoric_variance, noises.exp().mean(0), rtol=1e-4, atol=2e-6)
    point = st.predict(members[0], X, st.Point(), family=st.Gaussian)
    torch.testing.assert_close(point.aleatoric_variance, noises[0].exp(), rtol=1e-4, atol=2e-6)
    assert not point.epistemic_variance.any()


def test_swag_averages_the_noise_of_its_samples():
    x, y = X, X[:, :1]
    build = lambda: st.MeanAndNoise(st.MLP(3, 2, hidden=(8,))).double()
    posterior = st.fit(st.SWAG(n_samples=4), build, (x, y), st.Training("beta_nll", epochs=20, learning_rate=0.02))
    pred, noises = st.predict(posterior, x, family=st.Gaussian), []
    for weights in posterior.weights():
        network = deepcopy(posterior.networks[0]).eval()
        nn.utils.vector_to_parameters(weights, network.parameters())
        with torch.no_grad():
            noises.append(network(x)[1])
    assert torch.stack(noises).std(0).min() > 0
    torch.testing.assert_close(pred.aleatoric_variance, torch.stack(noises).mean(0))


def test_the_prior_comes_back_for_the_means_and_leaves_the_noise_alone():
    model = trained()
    far, y = 1e4 * torch.ones(1, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    before = st.predict(model, far, family=st.Gaussian)
    assert not before.epistemic_variance.any()
    st.calibrate_prior(model, X, y)
    for method in (st.ExactDropout(), st.MCDropout(8), st.Point()):
        pred = st.predict(model, far, method, family=st.Gaussian)
        torch.testing.assert_close(pred.epistemic_variance[0], y.var(0, correction=0))
        bias = model.network.head.output.bias.detach()[2:]
        torch.testing.assert_close(pred.aleatoric_variance[0], bias.exp(), rtol=1e-4, atol=2e-6)


def test_dropout_in_front_and_only_the_last_one():
    body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), st.StationaryHead(8, 2))
    model = st.MeanAndNoise(body).double()
    assert (st.predict(model, X, st.MCDropout(5), family=st.Gaussian).aleatoric_variance > 0).all()
    exact = st.predict(model, X, st.ExactDropout(last_layer=True), family=st.Gaussian)
    sampled = st.predict(model, X, st.MCDropout(4000, last_layer=True), family=st.Gaussian)
    torch.testing.assert_close(sampled.aleatoric_variance, exact.aleatoric_variance, rtol=0.1, atol=1e-3)


def test_the_predictor_for_export_has_the_means():
    model = trained()
    st.calibrate_prior(model, X, torch.randn(9, 2, dtype=torch.float64))
    pred = st.predict(model, X, family=st.Gaussian)
    mean, std = st.exact_predictor(model)(X)
    torch.testing.assert_close(mean, pred.mean)
    torch.testing.assert_close(std, pred.epistemic_variance.sqrt())
    assert model.network.head.output.out_features == 4


def test_laplace_is_refused_before_anything_is_trained():
    build = lambda: st.MeanAndNoise(st.MLP(3, 2, hidden=(8,))).double()
    with pytest.raises(ValueError, match="takes the noise as constant; got MeanAndNoise: leave it out"):
        st.fit(st.Laplace(), build, (X, X[:, :1]), st.Training("beta_nll"))


def test_the_noise_is_bounded_and_keeps_its_slope():
    log_variance = torch.tensor([-1e4, -30.0, -5.0, 0.0, 3.0, 30.0, 1e4], dtype=torch.float64, requires_grad=True)
    variance = bounded(log_variance)
    assert variance.min() >= QUIETEST and variance.max() <= LOUDEST + QUIETEST
    inside = slice(2, 5)
    torch.testing.assert_close(variance[inside], log_variance[inside].exp(), rtol=3e-4, atol=0)
    loss = st.beta_nll(torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64), variance, beta=0.0)
    (slope,) = torch.autograd.grad(loss.sum(), log_variance)
    assert slope.isfinite().all() and slope[1] < 0 < slope[5]  # up from below, and down from above


def test_it_starts_with_the_variance_of_standardised_targets():
    model = st.MeanAndNoise(st.MLP(3, 4, hidden=(10,)))
    torch.testing.assert_close(model(X.float())[1], torch.ones(9, 2), rtol=0, atol=3e-6)
