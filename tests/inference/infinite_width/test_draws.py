"""Predictions that average over what the evidence leaves open of length-scale, variance and noise."""

import io
import pickle

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import stationary as st
from stationary.inference.infinite_width import _values
from stationary.inference.infinite_width._outputs import mixed
from stationary.theory.isotropic import gram

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(80, 2, generator=GENERATOR, dtype=torch.float64)
Y = torch.stack([(2 * X[:, 0]).sin(), X[:, 0] + X[:, 1]], 1)
Y = Y + 0.2 * torch.randn(80, 2, generator=GENERATOR, dtype=torch.float64)
NEW = torch.cat([X[:10] + 0.1, 3 * X[:10]])


def of(draws, y=Y, x=X, **settings):
    network = nn.Linear(x.shape[1], y.shape[1]).double()
    return st.InfiniteWidth(draws=draws, **settings).posterior(network, (x, y))


@pytest.fixture(scope="module")
def posterior():
    return of(4)


# Which numbers


def test_draws_scatter_as_the_curvature_of_the_log_evidence_says():
    """Against the Hessian by autograd of the density of a normal distribution, written out."""
    x, y = X[:, :1], (Y[:, :1] - Y[:, :1].mean(0))
    start = torch.tensor(1.0, dtype=torch.float64)
    chosen = _values.choose("matern52", None, (x, y, torch.ones(80).double()), None, start, draws=512)
    theta = lambda numbers: torch.cat([torch.as_tensor(part).reshape(-1) for part in numbers]).log()
    numbers = lambda each: (each.lengthscale, each.variance, each.noise)
    spread = y.square().mean()

    def surprise(at):  # of ln length-scale, ln variance and ln of the noise above its floor
        lengthscale, variance, noise = at.exp()
        distance = (x - x.mT).square().add(1e-30).sqrt() * 5**0.5 / lengthscale
        kernel = variance * (1 + distance + distance.square() / 3) * (-distance).exp()
        total = kernel + (noise + _values.QUIETEST * spread) * torch.eye(80)
        return -torch.distributions.MultivariateNormal(torch.zeros(80).double(), total).log_prob(y[:, 0])

    best = theta(numbers(chosen))
    curvature = torch.autograd.functional.hessian(surprise, best)
    scatter = torch.stack([theta(numbers(draw)) - best for draw in chosen.draws])
    root = torch.linalg.cholesky(curvature)
    whitened = scatter @ root
    torch.testing.assert_close(whitened.mT @ whitened / 512, torch.eye(3).double(), rtol=0, atol=0.1)


def test_numbers_that_are_given_stay_and_others_stay_in_their_limits():
    posterior = of(6, lengthscale=1.5, noise=1e-3)
    for draw in posterior.draws:
        assert draw.numbers.lengthscale == 1.5
        torch.testing.assert_close(draw.numbers.noise, posterior.numbers.noise)
        assert (draw.numbers.variance != posterior.numbers.variance).all()
    still = of(6, torch.zeros_like(Y))  # says nothing of the variance
    share = torch.stack([draw.numbers.variance for draw in still.draws])
    assert share.min() >= np.exp(-5.01) and share.max() <= np.exp(5.01)


def test_the_same_draws_each_time():
    first, second = (st.predict(of(3), NEW).std() for _ in range(2))
    assert torch.equal(first, second)


# What is made of them


def test_the_prediction_is_the_mixture_of_fits_with_these_numbers(posterior):
    x, y = X[:, :1], Y[:, :1]
    posterior, spread = of(4, y, x), y.var(0, correction=0)
    parts = []
    for numbers in (posterior.numbers, *(draw.numbers for draw in posterior.draws)):
        given = {"variance": float(numbers.variance / spread), "noise": float(numbers.noise / spread)}
        parts.append(st.predict(of(0, y, x, lengthscale=float(numbers.lengthscale), **given), NEW[:, :1]))
    means = torch.stack([part.mean for part in parts])
    pred = st.predict(posterior, NEW[:, :1])
    torch.testing.assert_close(pred.mean, means.mean(0))
    epistemic = torch.stack([part.epistemic_variance for part in parts]).mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(pred.epistemic_variance, epistemic)
    torch.testing.assert_close(pred.aleatoric_variance, torch.stack([p.aleatoric_variance for p in parts]).mean(0))


def test_every_way_to_predict_says_the_same(posterior):
    pred = st.predict(posterior, NEW)
    mean, variance = posterior.moments(NEW)
    torch.testing.assert_close(mean, pred.mean)
    torch.testing.assert_close(variance, pred.epistemic_variance)
    torch.testing.assert_close(posterior.output_mean(NEW), pred.mean)
    joint = posterior.joint(NEW)
    torch.testing.assert_close(joint.mean, pred.mean)
    torch.testing.assert_close(joint.variance(), pred.epistemic_variance)
    torch.testing.assert_close(joint.noise, pred.aleatoric_variance)
    assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-9
    pairs = posterior.joint(NEW, group_size=2)
    torch.testing.assert_close(pairs.covariance[3], joint.covariance[:, 6:8, 6:8])
    torch.testing.assert_close(pairs.mean.flatten(0, 1), pred.mean)


def test_far_away_it_is_the_prior(posterior):
    prior = posterior.prior()
    parts = torch.stack([each.numbers.variance for each in (posterior, *posterior.draws)])
    torch.testing.assert_close(prior.epistemic_variance[0], parts.mean(0))
    pred = st.predict(posterior, 1000 * NEW)
    torch.testing.assert_close(pred.std(), prior.std().expand_as(pred.std()), rtol=0.01, atol=0)


def test_few_rows_leave_more_open_than_many():
    x = 2 * torch.randn(400, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = (2 * x[:, :1]).sin() + 0.1 * torch.randn(400, 1, generator=GENERATOR, dtype=torch.float64)
    ratios = []
    for n in (20, 400):
        best, drawn = (st.predict(of(draws, y[:n], x[:n]), x[:20] + 0.05).std() for draws in (0, 8))
        ratios.append((drawn / best).mean().item())
    assert ratios[0] > 1.05 and ratios[1] == pytest.approx(1, abs=0.02)


# What else a posterior does


def test_a_file_and_a_pickle_keep_it(posterior, tmp_path):
    path = posterior.save(tmp_path / "head.safetensors")
    loaded = st.InfiniteWidth.load(path, posterior.networks[0])
    for other in (loaded, pickle.loads(pickle.dumps(posterior))):
        assert len(other.draws) == 4
        for name, value in st.predict(other, NEW).tensors().items():
            torch.testing.assert_close(value, getattr(st.predict(posterior, NEW), name), rtol=1e-12, atol=1e-12)


def test_more_rows_are_learnt_by_every_draw(posterior):
    far = 20 + torch.randn(30, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = torch.ones(30, 2, dtype=torch.float64)
    grown = posterior.update((far, targets))
    before, after = (st.predict(each, far) for each in (posterior, grown))
    assert after.std().max() < 0.7 * before.std().min() and (after.mean - 1).abs().max() < 0.3
    assert len(grown.draws) == 4 and all(draw.rows is grown.rows for draw in grown.draws)
    whole = mixed([each.moments(NEW) for each in (grown, *grown.draws)][1:])
    alone = [draw.update((far, targets)).moments(NEW) for draw in posterior.draws]
    torch.testing.assert_close(whole, mixed(alone))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # from within torch.onnx
def test_it_leaves_python_as_one_network(posterior):
    pred, model = st.predict(posterior, NEW), st.exact_predictor(posterior)
    mean, std = model(NEW)
    torch.testing.assert_close(mean, pred.mean)
    torch.testing.assert_close(std, pred.epistemic_variance.sqrt())
    file = io.BytesIO()
    names = {"input_names": ["x"], "output_names": ["output_mean", "output_std"]}
    program = torch.onnx.export(model, (NEW[:3],), dynamo=True, verbose=False, **names)
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    for found, expected in zip(session.run(None, {"x": NEW[:3].numpy()}), (mean, std), strict=True):
        np.testing.assert_allclose(found, expected[:3].detach(), rtol=1e-6, atol=1e-6)


def test_a_regressor_takes_it():
    x, y = X.numpy(), Y[:, 0].numpy()
    plain, drawn = (
        st.StationaryRegressor(method=method).fit(x, y).predict(4 * x, return_std=True)[1]
        for method in (st.InfiniteWidth(), st.InfiniteWidth(draws=4))
    )
    assert np.mean(drawn > plain) > 0.9


# What is refused


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_a_number_that_is_none(value):
    with pytest.raises(ValueError, match="draws must be an integer from 0"):
        st.InfiniteWidth(draws=value)


@pytest.mark.parametrize("settings", [{"noise": "input"}, {"distributed": True}], ids=str)
def test_where_numbers_have_no_draws(settings):
    with pytest.raises(ValueError, match="draws must be 0 with noise='input' and with distributed=True, got 3"):
        st.InfiniteWidth(draws=3, **settings)


def test_where_the_evidence_does_not_choose():
    network, held = nn.Linear(2, 2).double(), (X[:20], Y[:20])
    known = {"lengthscale": 1.0, "variance": 1.0, "noise": 0.1}
    for call in (
        lambda: st.InfiniteWidth(draws=3).posterior(network, (X, (X[:, 0] > 0).long())),
        lambda: st.InfiniteWidth(draws=3).posterior(network, (X, Y), validation=held),
        lambda: st.InfiniteWidth(draws=3, **known).posterior(network, (X, Y)),
    ):
        with pytest.raises(ValueError, match="draws must be 0 for classes, with validation= and where all numbers are"):
            call()


def test_draws_agree_with_a_gram_of_their_own():
    """The kernel of a draw is that of its length-scales."""
    draw = of(2).draws[0]
    lengthscale = draw.numbers.lengthscale
    u = draw.geometry(X[:5])
    torch.testing.assert_close(
        draw.basis.similarity(u), gram("matern52", u / lengthscale, draw.basis.inducing / lengthscale)
    )
