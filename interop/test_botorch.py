"""Bayesian optimisation with BoTorch: network kernels in its own models, and posteriors of networks as its models."""

import math

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qExpectedImprovement, qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.optim.utils import sample_all_priors
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import nn

import stationary as st
from stationary.bo import SurrogateModel, centred, with_priors
from stationary.gp import kernel_of

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(15, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.stack([-(X - 0.4).square().sum(-1), X.prod(-1)], 1)
BOUNDS = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
POINTS = torch.rand(4, 2, 3, generator=GENERATOR, dtype=torch.float64)  # four t-batches of q = 2

KERNELS = {
    "matern52": lambda **options: kernel_of(st.Matern(2.5), **options),
    "matern32, depth 3": lambda **options: kernel_of(st.Matern(1.5), depth=3, **options),
    "sine-cosine": lambda **options: kernel_of(st.SinCos(), **options),
    "relu, depth 2": lambda **options: kernel_of(st.ReLU(), depth=2, **options),
    "erf": lambda **options: kernel_of(st.Erf(), **options),
    "binary weights": lambda **options: kernel_of(st.Matern(2.5), weights="binary", **options),
}
each_kernel = pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)


def scaled(make, **options):
    return ScaleKernel(make(**options), **options).double()


# The kernels as they are


@each_kernel
def test_batches_of_inputs(make):
    kernel = scaled(make)
    for x in (POINTS, POINTS.expand(2, 4, 2, 3)):
        matrix, diagonal = kernel(x, X).to_dense(), kernel(x, diag=True)
        assert matrix.shape == (*x.shape[:-1], 15) and matrix.dtype == torch.float64
        flat = kernel(x.reshape(-1, 3), X).to_dense()
        torch.testing.assert_close(matrix.reshape(-1, 15), flat, rtol=1e-10, atol=1e-12)
        own = kernel(x).to_dense()
        torch.testing.assert_close(own.diagonal(dim1=-2, dim2=-1), diagonal, rtol=1e-10, atol=1e-12)


@each_kernel
def test_batches_of_hyperparameters(make):
    kernel = scaled(make, batch_shape=torch.Size([2]))
    kernel.base_kernel.bias_std = torch.tensor([0.5, 2.0], dtype=torch.float64)[:, None, None]
    together = kernel(X[None]).to_dense()
    for k, bias in enumerate((0.5, 2.0)):
        alone = scaled(make)
        alone.base_kernel.bias_std = torch.tensor(bias, dtype=torch.float64)
        torch.testing.assert_close(together[k], alone(X).to_dense(), rtol=1e-10, atol=1e-12)


@each_kernel
def test_it_is_fitted_in_a_single_task_gp(make):
    model = SingleTaskGP(X, Y[:, :1], covar_module=scaled(make))
    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
    before = likelihood(model(*model.train_inputs), model.train_targets).item()
    fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": 3}})
    model.train()
    assert likelihood(model(*model.train_inputs), model.train_targets).item() > before
    posterior = model.posterior(POINTS)
    assert posterior.mean.shape == (4, 2, 1) and posterior.mean.dtype == torch.float64
    assert (posterior.variance > 0).all()


@each_kernel
def test_gradients_of_the_acquisition_function(make):
    model = SingleTaskGP(X[:8], Y[:8, :1], covar_module=scaled(make))
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qLogExpectedImprovement(model, Y[:, 0].max(), sampler=sampler)
    assert torch.autograd.gradcheck(acquisition, POINTS[:1].clone().requires_grad_(), eps=1e-6, atol=1e-4, rtol=1e-3)
    few = {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 3}}
    candidates, value = optimize_acqf(acquisition, BOUNDS, q=2, **few)
    assert candidates.shape == (2, 3) and value.isfinite()


@each_kernel
def test_fantasies(make):
    model = SingleTaskGP(X, Y[:, :1], covar_module=scaled(make), outcome_transform=None)
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    fantasy = model.fantasize(POINTS, sampler)
    assert fantasy.posterior(X[:3]).mean.shape == (5, 4, 3, 1)
    with torch.no_grad():
        new = model.posterior(POINTS[0], observation_noise=True).mean
        model.posterior(X[:1])  # BoTorch asks for the caches of the old rows
        conditioned = model.condition_on_observations(POINTS[0], new)
        again = SingleTaskGP(
            torch.cat([X, POINTS[0]]), torch.cat([Y[:, :1], new]), covar_module=scaled(make), outcome_transform=None
        )
        again.load_state_dict(model.state_dict())
        theirs, mine = conditioned.posterior(POINTS[1]), again.posterior(POINTS[1])
        torch.testing.assert_close(theirs.mean, mine.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(theirs.variance, mine.variance, rtol=1e-4, atol=1e-6)


@each_kernel
def test_several_outputs(make):
    several = SingleTaskGP(X, Y, covar_module=scaled(make, batch_shape=torch.Size([2])))
    alone = ModelListGP(*(SingleTaskGP(X, Y[:, k : k + 1], covar_module=scaled(make)) for k in range(2)))
    first, second = several.posterior(POINTS), alone.posterior(POINTS)
    assert first.mean.shape == (4, 2, 2)
    torch.testing.assert_close(first.mean, second.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(first.variance, second.variance, rtol=1e-6, atol=1e-8)


@each_kernel
def test_priors_are_those_of_a_fit(make):
    """BoTorch draws hyperparameters from their priors where a fit fails, and begins again."""
    kernel = with_priors(make())
    model = SingleTaskGP(X, Y[:, :1], covar_module=kernel, input_transform=centred(3))
    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
    own = kernel.base_kernel
    own.weight_std, own.bias_std = torch.full_like(own.weight_std, 2.0), torch.full_like(own.bias_std, 0.5)
    log_normal = -0.5 * math.log(2) ** 2 - 0.5 * math.log(2 * math.pi)  # less log 2 for 2, and log 0.5 for 0.5
    found = {name: prior.log_prob(closure(module)).sum() for name, module, prior, closure, _ in own.named_priors()}
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        {"weight_std_prior": log_normal - math.log(2), "bias_std_prior": log_normal + math.log(2)}
    )
    sample_all_priors(model)
    assert own.weight_std.item() != 2.0
    fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": 5}})
    assert not own.has_lengthscale or own.lengthscale.item() == pytest.approx(1.0)
    assert model.posterior(POINTS).variance.gt(0).all()


def test_inputs_are_centred():
    cube = torch.rand(4000, 7, generator=GENERATOR, dtype=torch.float64)
    for square in (1.0, 7.0):
        inputs = centred(7, square)(cube)
        norms = inputs.square().sum(-1)
        assert norms.mean().item() == pytest.approx(square, abs=5 * norms.std().item() / 4000**0.5)
        torch.testing.assert_close(centred(7, square)(1 - cube), -inputs)


# Posteriors of networks


def infinite(**options):
    method = st.InfiniteWidth(**{"lengthscale": 1.7, "variance": 1.3, "noise": 0.05, **options})
    return method.posterior(nn.Linear(3, 2).double(), (X, Y))


def exact(output):
    """The same process as a model of BoTorch, with the standardisation done by hand, and a map to its inputs."""
    mean, std, centre, spread = X.mean(0), X.std(0, correction=0), Y.mean(0)[output], Y.var(0, correction=0)[output]
    to_theirs = lambda x: (x - mean) / std
    kernel = ScaleKernel(MaternKernel(2.5)).double()
    kernel.base_kernel.lengthscale = torch.tensor(1.7, dtype=torch.float64)
    kernel.outputscale = 1.3 * spread
    targets = Y[:, output : output + 1] - centre
    model = SingleTaskGP(
        to_theirs(X),
        targets,
        torch.full_like(targets, float(0.05 * spread)),
        covar_module=kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    return model.eval(), to_theirs, centre


class First(ScalarizedPosteriorTransform):
    """The first of two outputs, for acquisition functions of one."""

    def __init__(self):
        super().__init__(torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_it_is_the_model_of_the_same_gaussian_process():
    model = SurrogateModel(infinite(), num_outputs=2)
    posterior = model.posterior(POINTS)
    assert posterior.mean.shape == posterior.variance.shape == (4, 2, 2) and model.num_outputs == 2
    for k in range(2):
        theirs, to_theirs, centre = exact(k)
        expected = theirs.posterior(to_theirs(POINTS))
        one = model.posterior(POINTS, output_indices=[k])
        torch.testing.assert_close(posterior.mean[..., k : k + 1], expected.mean + centre, rtol=0, atol=1e-8)
        torch.testing.assert_close(one.mean, expected.mean + centre, rtol=0, atol=1e-8)
        covariance = expected.distribution.covariance_matrix
        torch.testing.assert_close(one.distribution.covariance_matrix, covariance, rtol=0, atol=1e-8)


def test_its_acquisition_function_and_gradient_are_those_of_the_same_process():
    theirs, to_theirs, centre = exact(0)
    model = SurrogateModel(infinite(), num_outputs=2).subset_output([0])
    best, x = Y[:, 0].max(), POINTS.clone().requires_grad_()
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    mine = qLogExpectedImprovement(model, best, sampler=sampler)(x)
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    expected = qLogExpectedImprovement(theirs, best - centre, sampler=sampler)(to_theirs(x))
    torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-6)
    slopes = [torch.autograd.grad(value.sum(), x)[0] for value in (mine, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6)


def test_new_observations_are_those_of_the_same_process():
    theirs, to_theirs, centre = exact(0)
    model = SurrogateModel(infinite(), num_outputs=2).subset_output([0])
    new_x, new_y = POINTS[0], torch.tensor([[0.3], [-0.2]], dtype=torch.float64)
    noise = model.posterior(new_x, observation_noise=True).variance - model.posterior(new_x).variance
    with torch.no_grad():
        theirs.posterior(to_theirs(X[:1]))
        expected = theirs.condition_on_observations(to_theirs(new_x), new_y - centre, noise=noise)
        conditioned = model.condition_on_observations(new_x, new_y)
        first, second = conditioned.posterior(POINTS), expected.posterior(to_theirs(POINTS))
        torch.testing.assert_close(first.mean, second.mean + centre, rtol=0, atol=1e-7)
        torch.testing.assert_close(
            first.distribution.covariance_matrix, second.distribution.covariance_matrix, rtol=0, atol=1e-7
        )
        twice = model
        for i in range(2):
            twice = twice.condition_on_observations(new_x[i : i + 1], new_y[i : i + 1])
        torch.testing.assert_close(twice.posterior(POINTS).mean, first.mean, rtol=0, atol=1e-10)


def test_new_observations_are_those_of_an_update():
    """Far rows become inducing inputs, so that both are the exact process."""
    posterior, far = infinite(), 3 + 2 * POINTS[0]
    targets = torch.tensor([[0.3, 1.0], [-0.2, 0.5]], dtype=torch.float64)
    updated = SurrogateModel(posterior.update((far, targets)), num_outputs=2)
    conditioned = SurrogateModel(posterior, num_outputs=2).condition_on_observations(far, targets)
    x = torch.cat([POINTS, far.expand(4, 2, 3)], 1)
    first, second = updated.posterior(x), conditioned.posterior(x)
    torch.testing.assert_close(first.mean, second.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        first.distribution.covariance_matrix, second.distribution.covariance_matrix, rtol=0, atol=1e-9
    )


def test_a_pending_point_is_worth_nothing_again():
    model = SurrogateModel(infinite(), num_outputs=2).subset_output([0])
    options = {"best_f": Y[:, 0].median(), "sampler": SobolQMCNormalSampler(torch.Size([1024]), seed=0)}
    pending, others = POINTS[0, :1], POINTS[1:, :1]
    alone, both = qExpectedImprovement(model, **options), qExpectedImprovement(model, **options)
    both.set_X_pending(pending)
    assert both(pending).item() == pytest.approx(alone(pending).item(), rel=0.02)
    together = torch.cat([others, pending.expand(3, 1, 3)], 1)
    torch.testing.assert_close(both(others), alone(together), rtol=1e-10, atol=0)
    assert both(others).max() > 1.3 * alone(pending)


def test_fantasies_of_a_network():
    model = SurrogateModel(infinite(), num_outputs=2)
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    fantasy = model.fantasize(POINTS, sampler)
    assert fantasy.batch_shape == (5, 4) and fantasy.num_outputs == 2
    posterior = fantasy.posterior(X[:3])
    assert posterior.mean.shape == (5, 4, 3, 2)
    targets = SobolQMCNormalSampler(torch.Size([5]), seed=0)(model.posterior(POINTS, observation_noise=True))
    one = model.condition_on_observations(POINTS[2], targets[1, 2]).posterior(X[:3])
    torch.testing.assert_close(posterior.mean[1, 2], one.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.variance[1, 2], one.variance, rtol=0, atol=1e-10)
    noise = torch.full((1, 2), 1e-4, dtype=torch.float64)
    assert model.fantasize(POINTS, sampler, observation_noise=noise).posterior(X[:3]).mean.shape == (5, 4, 3, 2)


NETWORKS = {
    "infinite width": st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1, n_inducing=10),
    "exact dropout": st.ExactDropout(),
    "mc dropout": st.MCDropout(8),
    "ensemble": st.Ensemble(3),
    "swag": st.SWAG(4, start=0.5),
    "laplace": st.Laplace(),
}


@pytest.mark.parametrize("method", NETWORKS.values(), ids=NETWORKS)
def test_every_method_behind_a_trunk(method):
    training = st.Training(epochs=5, loss="mse")
    posterior = st.fit(method, lambda: st.MLP(3, 1, hidden=(8, 16)).double(), (X, Y[:, :1]), training)
    model = SurrogateModel(posterior, noise=1e-3)
    mean = st.predict(posterior, POINTS.reshape(-1, 3), family=st.Gaussian).mean
    torch.testing.assert_close(model.posterior(POINTS).mean.reshape(-1, 1), mean, rtol=1e-8, atol=1e-10)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qLogExpectedImprovement(model, Y[:, 0].max(), sampler=sampler)
    assert torch.autograd.gradcheck(acquisition, POINTS[:2].clone().requires_grad_(), eps=1e-6, atol=1e-4, rtol=1e-3)
    assert model.condition_on_observations(POINTS, Y[:2, :1]).posterior(POINTS).mean.shape == (4, 2, 1)
    weights = [p.grad for network in posterior.networks for p in network.parameters()]
    candidates, value = optimize_acqf(acquisition, BOUNDS, q=2, num_restarts=2, raw_samples=8)
    assert candidates.shape == (2, 3) and value.isfinite()
    assert weights == [p.grad for network in posterior.networks for p in network.parameters()]


@pytest.mark.parametrize(
    "method", [NETWORKS["infinite width"], NETWORKS["ensemble"]], ids=["infinite width", "ensemble"]
)
def test_a_calibrated_posterior(method):
    base = st.fit(
        method, lambda: st.MLP(3, 1, hidden=(8, 16)).double(), (X, Y[:, :1]), st.Training(epochs=5, loss="mse")
    )
    posterior = st.calibrate(base, (POINTS.reshape(-1, 3), torch.ones(8, 1, dtype=torch.float64)), family=st.Gaussian)
    pred = st.predict(posterior, POINTS.reshape(-1, 3), family=st.Gaussian)
    found = SurrogateModel(posterior).posterior(POINTS, observation_noise=True)
    torch.testing.assert_close(found.mean.reshape(-1, 1), pred.mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.variance.reshape(-1, 1), pred.variance(), rtol=1e-6, atol=1e-10)
    plain = st.predict(base, POINTS.reshape(-1, 3), family=st.Gaussian).variance()
    assert (pred.variance() > 1.5 * plain).all(), "these targets are farther out than the network thinks"


def test_a_regressor_has_the_units_of_its_table():
    x, y = 100 + 30 * X, 1000 * Y
    regressor = st.StationaryRegressor(random_state=0).fit(x.numpy(), y.numpy())
    model, points = SurrogateModel(regressor, num_outputs=2), 100 + 30 * POINTS
    mean, std = regressor.predict(points.reshape(-1, 3).numpy(), return_std=True)
    found = model.posterior(points, observation_noise=True)
    torch.testing.assert_close(found.mean.reshape(-1, 2), torch.as_tensor(mean))
    torch.testing.assert_close(found.variance.reshape(-1, 2).sqrt(), torch.as_tensor(std), rtol=1e-4, atol=0)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qLogExpectedImprovement(model.subset_output([0]), y[:, 0].max(), sampler=sampler)
    assert torch.autograd.gradcheck(acquisition, points[:1].clone().requires_grad_(), eps=1e-4, atol=1e-4, rtol=1e-3)
    classifier = st.StationaryClassifier(random_state=0).fit(X.numpy(), (X[:, 0] > 0.5).numpy())
    with pytest.raises(ValueError, match="posterior must be of a regression, got one of Categorical"):
        SurrogateModel(classifier)


def test_acquisition_functions_of_botorch():
    model = SurrogateModel(infinite(), num_outputs=2).subset_output([0])
    options = {"bounds": BOUNDS, "num_restarts": 2, "raw_samples": 8}
    for acquisition, q in (
        (LogExpectedImprovement(model, Y[:, 0].max()), 1),
        (qLogNoisyExpectedImprovement(model, X), 2),
        (qKnowledgeGradient(model, num_fantasies=4), 2),
    ):
        candidates, value = optimize_acqf(acquisition, q=q, **options)
        assert candidates.shape == (q, 3) and value.isfinite()
    both = SurrogateModel(infinite(), num_outputs=2)
    acquisition = qLogExpectedImprovement(both, Y[:, 0].max(), posterior_transform=First())
    torch.testing.assert_close(both.posterior(POINTS, posterior_transform=First()).mean, model.posterior(POINTS).mean)
    assert acquisition(POINTS).shape == (4,)


def test_a_network_in_float32_takes_inputs_in_float64():
    posterior = st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1).posterior(
        nn.Linear(3, 1), (X.float(), Y[:, :1].float())
    )
    result = SurrogateModel(posterior).posterior(POINTS)
    assert result.mean.dtype == torch.float64 and result.mean.shape == (4, 2, 1)


def test_observation_noise():
    model, own = SurrogateModel(infinite(), num_outputs=2, noise=0.1), infinite().numbers.noise
    plain, noisy = (model.posterior(POINTS, observation_noise=noise).variance for noise in (False, True))
    torch.testing.assert_close(noisy - plain, (own + 0.1).expand(4, 2, 2))
    given = model.posterior(POINTS, observation_noise=torch.full((1, 2), 0.3, dtype=torch.float64)).variance
    torch.testing.assert_close(given - plain, torch.full_like(plain, 0.3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SurrogateModel(infinite()).posterior(POINTS), "num_outputs must be .* outputs, 2; got 1"),
        (lambda: SurrogateModel(infinite(), num_outputs=0), "num_outputs must be a positive integer"),
        (lambda: SurrogateModel(infinite(), noise=-1.0), "noise must be at least 0"),
        (lambda: SurrogateModel(st.Point().posterior(nn.Linear(3, 1))).posterior(POINTS), "Point has no joint"),
        (
            lambda: SurrogateModel(infinite(), num_outputs=2).condition_on_observations(X, Y[:, :1]),
            r"Y must be \(..., 15, 2\)",
        ),
        (
            lambda: SurrogateModel(
                st.InfiniteWidth(lengthscale=1.0, variance=1.0).posterior(nn.Linear(3, 2).double(), (X, X[:, 0].long()))
            ),
            "posterior must be of a regression, got one of Categorical",
        ),
    ],
)
def test_what_cannot_be_is_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
