"""What finite regressors know of their layers, against its closed form written out and scikit-learn's BayesianRidge."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge

import stationary as st
from stationary.estimators._layers import Layer, WithLayers, _units


def rows(n=200, m=1):
    x = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.stack([(x[:, 0] + 0.1 * j).sin() + 0.2 * x[:, 1] for j in range(m)], 1)
    return x, y + 0.3 * torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - y.mean(0)


def network(seed=0, m=1, hidden=(20,)):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return st.MLP(3, m, hidden=hidden).double()


def units(net, x):
    with _units(net) as of:
        return of(x)


def variances(layer, phi):
    return layer.factors(phi).square().sum(-1).mT


@pytest.mark.parametrize("n", [200, 15], ids=["more rows than units", "fewer"])
def test_the_variance_is_the_formula_at_the_highest_evidence(n):
    (x, y), net = rows(n, m=2), network(m=2)
    weight = torch.linspace(0.5, 1.5, len(x), dtype=torch.float64)[:, None]
    [phi] = units(net, x)
    layer = Layer.of_rows(phi, y, weight)
    root = weight.sqrt()
    eye = torch.eye(len(x), dtype=torch.float64)

    def evidence(ridge, target):  # log N(y; 0, s^2 (1 + Phi Phi^T / l)), at its best s^2
        covariance = eye + (root * phi) @ (root * phi).mT / ridge
        square = target @ torch.linalg.solve(covariance, target)
        return -len(x) / 2 * (square / len(x)).log() - torch.logdet(covariance) / 2, square / len(x)

    top = torch.linalg.eigvalsh((root * phi).mT @ (root * phi))[-1]
    for j in range(2):
        ridges = top * torch.logspace(-12, 2, 141, dtype=torch.float64)
        found = [evidence(ridge, (root * y)[:, j]) for ridge in ridges]
        best = max(range(141), key=lambda k: found[k][0])
        precision = (root * phi).mT @ (root * phi) + ridges[best] * torch.eye(21, dtype=torch.float64)
        expected = found[best][1] * (phi * torch.linalg.solve(precision, phi.mT).mT).sum(-1)
        torch.testing.assert_close(variances(layer, phi)[:, j], expected, rtol=1e-6, atol=0)


def test_scikit_learn_finds_about_the_same():
    """Its evidence has the same maximum, but for the steps of 26 % between the ridges that are tried."""
    (x, y), net = rows(), network()
    [phi] = units(net, x)
    theirs = BayesianRidge(fit_intercept=False, max_iter=10_000, tol=1e-9, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0)
    theirs.fit(phi.numpy(), y[:, 0].numpy())
    total = torch.as_tensor(theirs.predict(phi.numpy(), return_std=True)[1]).square()
    ours = variances(Layer.of_rows(phi, y, torch.ones_like(y)), phi)[:, 0]
    torch.testing.assert_close(ours, total - 1 / theirs.alpha_, rtol=0.1, atol=0)


def test_the_units_are_those_of_all_hidden_layers():
    (x, _), net = rows(), network(hidden=(20, 10, 5))
    found = units(net, x)
    assert [phi.shape[1] for phi in found] == [21, 11, 6]
    first = torch.relu(x @ net.trunk[0].weight.mT + net.trunk[0].bias)
    torch.testing.assert_close(found[0], torch.nn.functional.pad(first, (0, 1), value=1.0))
    torch.testing.assert_close(found[2][:, :-1], net.head.features(net.trunk(x)))


@pytest.mark.parametrize("hidden", [(20,), (20, 10)], ids=str)
@pytest.mark.parametrize("method", [st.ExactDropout(), st.Ensemble(2), st.Point()], ids=str)
def test_the_joint_has_the_variance_of_the_prediction_and_gradients(method, hidden):
    x, y = rows(m=2)
    networks = [network(k, m=2, hidden=hidden) for k in range(method.n_networks)]
    base = method.posterior(networks if len(networks) > 1 else networks[0])
    posterior = WithLayers.of_rows(base, x, y, torch.ones(len(x)), batch_size=64)
    new = x[:6].clone().requires_grad_()
    pred, own = st.predict(posterior, x[:6]), st.predict(base, x[:6], family=st.Gaussian)
    missing = [
        sum(map(variances, layers, units(net, x[:6]))) for net, layers in zip(networks, posterior.layers, strict=True)
    ]
    torch.testing.assert_close(pred.epistemic_variance, own.epistemic_variance + torch.stack(missing).mean(0))
    torch.testing.assert_close(pred.mean, own.mean)
    if method != st.Point():
        joint = posterior.joint(new)
        torch.testing.assert_close(joint.variance(), pred.epistemic_variance)
        assert torch.linalg.eigvalsh(joint.covariance.detach()).min() > -1e-9
        (slope,) = torch.autograd.grad(joint.variance().sum(), new)
        step = 1e-6 * torch.ones_like(new)
        rise = (
            posterior.joint(new.detach() + step).variance().sum()
            - posterior.joint(new.detach() - step).variance().sum()
        )
        torch.testing.assert_close(slope.sum(), rise / 2e-6, rtol=1e-5, atol=1e-8)
        assert posterior.joint(x[:6], group_size=3).covariance.shape[-3:] == (2, 3, 3)


def test_targets_that_are_all_the_same_leave_nothing_unknown():
    x, y = rows()
    layer = Layer.of_rows(units(network(), x)[0], 0 * y, torch.ones_like(y))
    assert not layer.scales.any()


def test_more_rows_leave_less_unknown():
    """Four times the rows, half of the standard deviation."""
    net, stds = network(), []
    [new] = units(net, rows(50)[0])
    for n in (500, 2000):
        x, y = rows(n)
        layer = Layer.of_rows(units(net, x)[0], y, torch.ones_like(y))
        stds.append(variances(layer, new).mean().sqrt().item())
    assert stds[0] / stds[1] == pytest.approx(2, rel=0.2)


def test_the_estimator_predicts_with_it():
    x, y = rows()
    model = st.StationaryRegressor((20,), max_iter=5, random_state=0).fit(x.numpy(), y[:, 0].numpy())
    assert isinstance(model.posterior_, WithLayers) and model.posterior_.method == st.ExactDropout()
    pred = st.predict(model.posterior_, model.inputs(x.numpy()))
    assert isinstance(pred, st.Gaussian)
    np.testing.assert_allclose(
        model.uncertainty(x.numpy()), pred.epistemic_variance[:, 0].sqrt() * model.target_scaler_.scale_[0]
    )


@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize("method", [st.Point(), st.Ensemble(2)], ids=str)
def test_without_hidden_layers_the_inputs_are_the_units(method, noise):
    """Far from the rows a linear model knows least; each keeps the noise that was asked for."""
    x, y = rows()
    model = st.StationaryRegressor((), method=method, noise=noise, max_iter=20, random_state=0)
    model.fit(x.numpy(), y[:, 0].numpy())
    layers = model.posterior_.layers
    assert [[len(layer.axes) for layer in each] for each in layers] == [[4]] * method.n_networks
    assert all(isinstance(net, st.MeanAndNoise) == (noise == "input") for net in model.posterior_.networks)
    near, far = model.uncertainty([[0.0] * 3, [50.0] * 3])
    assert far > 20 * near


def test_a_method_that_knows_its_last_layer_gets_the_others():
    """As Laplace does, which has a noise of its own."""
    x, y = rows()
    base = st.Point().posterior(network(hidden=(20, 10)))
    every, some = (WithLayers.of_rows(base, x, y, torch.ones(len(x)), 64, last=last) for last in (True, False))
    assert [len(part.layers[0]) for part in (every, some)] == [2, 1]
    added = st.predict(every, x).epistemic_variance - st.predict(some, x).epistemic_variance
    torch.testing.assert_close(added, variances(every.layers[0][1], units(base.networks[0], x)[1]))
