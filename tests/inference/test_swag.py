"""SWAG draws from the Gaussian that it collected."""

import copy
from dataclasses import replace

import pytest
import torch
from inference_problems import CLASSIFY, classes, line, mlp
from torch import nn
from torch.nn.utils import parameters_to_vector

import stationary as st
from stationary.inference.swag import Path, SWAGPosterior
from stationary.training import Group, train

REGRESS = st.Training("mse", epochs=400, batch_size=10, optimizer="sgd", learning_rate=0.02)


def collected(n, rank, p=4):
    points = torch.randn(n, p, dtype=torch.float64) @ torch.randn(p, p, dtype=torch.float64) + 3.0
    path = Path(rank, first=0, learning_rate=None)
    for point in points:
        path.add(point)
    return points, path


@pytest.mark.parametrize(("n", "rank"), [(2, 5), (12, 5), (12, 20)])
def test_path_collects_moments_and_deviations(n, rank):
    points, path = collected(n, rank)
    torch.testing.assert_close(path.mean, points.mean(0))
    torch.testing.assert_close(path.squares / n, points.var(0, correction=0))
    running = torch.stack([point - points[: i + 1].mean(0) for i, point in enumerate(points)])
    torch.testing.assert_close(torch.stack(list(path.deviations)), running[-rank:])


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_drawn_weights_have_the_collected_mean_and_covariance(scale):
    n = 40_000
    _, path = collected(12, 5)
    deviations = torch.stack(list(path.deviations))
    model = nn.Linear(3, 1).double()
    posterior = SWAGPosterior(st.SWAG(n, scale=scale), (model,), path.squares / 12, deviations)
    drawn = torch.stack(list(posterior.weights()))
    mean = parameters_to_vector(model.parameters()).detach()
    covariance = scale * (torch.diag(path.squares / 12) + deviations.T @ deviations / 4)
    variance = covariance.diagonal()
    assert ((drawn.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    # Var of a sample covariance of normal numbers: (s_ii s_jj + s_ij^2) / n.
    spread = ((variance[:, None] * variance + covariance.square()) / n).sqrt()
    assert ((torch.cov(drawn.T) - covariance).abs() < 5 * spread).all()


def test_fit_collects_the_weights_after_each_late_epoch():
    data, seen = classes(), []
    posterior = st.fit(st.SWAG(start=0.5, rank=3), mlp, data, CLASSIFY)
    note = lambda _, parameters, __: seen.append(parameters_to_vector(parameters.values()).detach())
    train(mlp, data, CLASSIFY, observers=[note])
    late = torch.stack(seen[4:])
    torch.testing.assert_close(parameters_to_vector(posterior.networks[0].parameters()).detach(), late.mean(0))
    torch.testing.assert_close(posterior.variance, late.var(0, correction=0))
    assert posterior.deviations.shape == (3, late.shape[1])


@pytest.mark.parametrize("milestones", [(), (4,), (6,)])
def test_learning_rate_of_the_collection(milestones):
    """With a vanishing learning rate from ``start`` on, all collected weights are those of that epoch."""
    training = replace(CLASSIFY, milestones=milestones)
    still = st.fit(st.SWAG(start=0.5, learning_rate=1e-14), mlp, classes(), training)
    moving = st.fit(st.SWAG(start=0.5), mlp, classes(), training)
    assert still.variance.max() < 1e-24 < moving.variance.max()
    (at_start,) = train(mlp, classes(), replace(training, epochs=4))
    torch.testing.assert_close(still.networks[0].state_dict(), at_start.state_dict())


def test_prediction_is_the_mean_over_drawn_networks():
    x, _ = data = classes()
    posterior = st.fit(st.SWAG(7, start=0.5), mlp, data, CLASSIFY)
    before = copy.deepcopy(posterior.networks[0].state_dict())
    prediction = st.predict(posterior, x)
    again = st.predict(posterior, x, batch_size=13)
    by_hand = []
    for weights in posterior.weights():
        model = copy.deepcopy(posterior.networks[0])
        nn.utils.vector_to_parameters(weights, model.parameters())
        by_hand.append(model(x).softmax(-1))
    torch.testing.assert_close(prediction.probs, torch.stack(by_hand).mean(0))
    torch.testing.assert_close(again.probs, prediction.probs)  # the same networks for every batch
    assert all(torch.equal(value, before[name]) for name, value in posterior.networks[0].state_dict().items())
    assert not torch.equal(st.predict(replace(posterior, method=st.SWAG(7, seed=1)), x).probs, prediction.probs)


def test_swag_leaves_randomness_alone():
    before = torch.get_rng_state()
    st.predict(st.fit(st.SWAG(3, start=0.5), mlp, classes(), CLASSIFY), classes()[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_linear_regression_is_less_sure_away_from_the_data():
    x, y = line()
    posterior = st.fit(st.SWAG(200, start=0.5, rank=30), lambda: nn.Linear(1, 1).double(), (x, y), REGRESS)
    at = torch.tensor([[0.0], [5.0], [-5.0], [50.0]], dtype=torch.float64)
    prediction = st.predict(posterior, at, family=st.Gaussian)
    exact = torch.linalg.lstsq(torch.cat([x, torch.ones_like(x)], 1), y).solution
    assert posterior.networks[0].weight.item() == pytest.approx(exact[0].item(), abs=0.05)
    near, right, left, far = prediction.std()[:, 0].tolist()
    assert 0 < near < min(left, right)
    assert far == pytest.approx(50 * prediction.std()[1].item() / 5, rel=0.5)  # linear in the distance


def test_swag_restores_the_prior():
    x, y = classes()
    posterior = st.fit(st.SWAG(5, start=0.5), mlp, (x, y), CLASSIFY)
    st.calibrate_prior(posterior.networks[0], x)
    far = 1e3 * x[:4]
    restored = st.predict(posterior, far, family=st.Gaussian).epistemic_variance
    plain = st.predict(replace(posterior, method=st.SWAG(5, restore_prior=False)), far, family=st.Gaussian)
    assert (restored > plain.epistemic_variance).all()


def test_swag_goes_on_from_a_trained_network():
    (trained,) = train(mlp, classes(), CLASSIFY)
    weights = parameters_to_vector(trained.parameters()).detach().clone()
    slow = replace(CLASSIFY, learning_rate=1e-6)
    posterior = st.fit(st.SWAG(start=0.1), lambda: copy.deepcopy(trained), classes(), slow)
    assert (parameters_to_vector(posterior.networks[0].parameters()) - weights).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_samples", 1), ("start", 0.0), ("start", 1.0), ("rank", 1), ("learning_rate", 0.0), ("scale", 0.0)],
)
def test_bad_swag(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*; got {value!r}"):
        st.SWAG(**{name: value})


def test_swag_errors():
    with pytest.raises(ValueError, match=r"needs the path that training takes.*fit"):
        st.predict(mlp(), classes()[0], st.SWAG())
    with pytest.raises(ValueError, match=r"patience must be None for SWAG.*3"):
        st.fit(st.SWAG(), mlp, classes(), replace(CLASSIFY, patience=3))
    with pytest.raises(ValueError, match=r"start=0.9 of 8 epochs leaves 1"):
        st.fit(st.SWAG(start=0.9), mlp, classes(), CLASSIFY)
    with pytest.raises(ValueError, match=r"without running statistics.*'1' is BatchNorm1d"):
        st.fit(st.SWAG(), lambda: nn.Sequential(mlp(), nn.BatchNorm1d(2)).double(), classes(), CLASSIFY)


@pytest.mark.gpu
@pytest.mark.parametrize("method", [st.Ensemble(2), st.SWAG(3, start=0.5)])
def test_on_gpu(method):
    x, y = (part.cuda() for part in classes())
    prediction = st.predict(st.fit(method, mlp, (x, y), CLASSIFY), x)
    assert prediction.probs.is_cuda and (prediction.predict() == y).double().mean() > 0.7


def test_swag_of_folds_is_that_of_each():
    generator = torch.Generator().manual_seed(3)
    folds = [(torch.randn(n, 3, generator=generator), torch.randint(2, (n,), generator=generator)) for n in (50, 51)]
    training = st.Training(epochs=8, batch_size=20)
    build = lambda: st.MLP(3, 2, hidden=(6, 5))
    together = st.fit_folds(st.SWAG(), [build] * 2, folds, training, seeds=[7, 3])
    for seed, fold, posterior in zip((7, 3), folds, together, strict=True):
        alone = st.fit(st.SWAG(), build, fold, replace(training, seed=seed))
        for a, b in zip(posterior.weights(), alone.weights(), strict=True):
            torch.testing.assert_close(a, b)


def test_a_fold_that_diverges_is_kept_on_request():
    x = torch.ones(8, 1, dtype=torch.float64)
    build = lambda: nn.Linear(1, 1).double()
    wild = st.Training("mse", 8, None, "sgd", 1e200, momentum=0.0)
    folds = [(x, 2 * x), (0 * x, 2 * x)]
    with pytest.raises(RuntimeError, match="no longer finite"):
        st.fit_folds(st.SWAG(start=0.5), build, folds, wild)
    posteriors = st.fit_folds(st.SWAG(4, start=0.5), build, folds, wild, keep_diverged=True)
    assert not st.predict(posteriors[0], x, family=st.Gaussian).mean.isfinite().any()


def test_the_constant_rate_keeps_the_factors_of_the_groups():
    rates = []
    training = replace(CLASSIFY, groups=(Group("head", rate=0.1),), learning_rate=0.01)
    path = st.SWAG(start=0.5, learning_rate=1e-3).observer(training)

    def watch(epoch, parameters, optimizer):
        path(epoch, parameters, optimizer)
        rates.append([group["lr"] for group in optimizer.param_groups])

    train(mlp, classes(), training, observers=[watch])
    assert rates[0] == pytest.approx([1e-3, 0.01]) and rates[-1] == pytest.approx([1e-4, 1e-3])


def test_a_prior_that_the_network_brought_along_is_kept():
    trained = st.calibrate_prior(mlp(), classes()[0])
    slow = replace(CLASSIFY, learning_rate=1e-6)
    posterior = st.fit(st.SWAG(4, start=0.5), lambda: copy.deepcopy(trained), classes(), slow)
    assert posterior.networks[0].head.restored_prior.known
    with pytest.warns(UserWarning, match="the restored prior is stale"):
        assert st.predict(posterior, classes()[0]).prior_restored


def test_a_constant_rate_does_not_go_with_one_cycle():
    with pytest.raises(ValueError, match="learning_rate of SWAG must be None with schedule='one_cycle'"):
        st.SWAG(learning_rate=0.1).observer(replace(CLASSIFY, schedule="one_cycle"))
