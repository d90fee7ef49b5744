"""The posterior of real values against GPyTorch's exact Gaussian process and the definition of the bound."""

import gpytorch
import pytest
import torch
from torch import nn

import stationary as st
from stationary.inference.infinite_width import _values
from stationary.inference.infinite_width._basis import Basis
from stationary.theory.isotropic import KERNELS, gram

NOISE, VARIANCE = 0.05, 1.3
X = 2 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.stack([X[:, 0].sin() + X[:, 1], X[:, 2] * X[:, 0]], 1)
NEW = 3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def exact(x, y, new, nu, lengthscale, variance, noise):
    """Mean and variance of the function by GPyTorch, in float64 and by Cholesky factors."""
    base = gpytorch.kernels.RBFKernel() if nu is None else gpytorch.kernels.MaternKernel(nu)
    model = ExactGP(x, y, gpytorch.kernels.ScaleKernel(base)).double()
    model.covar_module.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    model.covar_module.outputscale = variance
    model.likelihood.noise = noise
    model.eval()
    with (
        torch.no_grad(),
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.fast_pred_var(False),
    ):
        result = model(new)
        return result.mean, result.variance


@pytest.mark.parametrize(("kernel", "nu"), [("matern12", 0.5), ("matern32", 1.5), ("matern52", 2.5), ("rbf", None)])
def test_with_all_rows_as_inducing_inputs_it_is_the_exact_gaussian_process(kernel, nu):
    mean, std, centre, spread = X.mean(0), X.std(0, correction=0), Y.mean(0), Y.var(0, correction=0)
    method = st.InfiniteWidth(kernel, lengthscale=1.7, variance=VARIANCE, noise=NOISE)
    pred = st.predict(method.posterior(nn.Linear(3, 2).double(), (X, Y)), NEW)
    assert isinstance(pred, st.Gaussian)
    torch.testing.assert_close(pred.aleatoric_variance, (NOISE * spread).expand(40, 2))
    for j in range(2):
        args = (X - mean) / std, Y[:, j] - centre[j], (NEW - mean) / std
        their_mean, their_variance = exact(*args, nu, 1.7, VARIANCE * spread[j], NOISE * spread[j])
        error = 1e-7 if kernel == "matern12" else 1e-8  # r is the root of a difference, and e^-r has a slope at 0
        torch.testing.assert_close(pred.mean[:, j], centre[j] + their_mean, rtol=0, atol=error)
        torch.testing.assert_close(pred.epistemic_variance[:, j], their_variance, rtol=0, atol=error)


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_fewer_inducing_inputs_what_they_do_not_see_counts_as_noise_of_each_row(kernel):
    """The dense formula: a Gaussian process whose prior covariance is Q, but for its diagonal, which is that of K."""
    method = st.InfiniteWidth(kernel, lengthscale=1.7, variance=VARIANCE, noise=NOISE, n_inducing=15, geometry="polar")
    posterior = method.posterior(nn.Linear(3, 2).double(), (X, Y))
    u, new, inducing = posterior.geometry(X), posterior.geometry(NEW), posterior.basis.inducing
    assert len(inducing) == 15
    k = lambda a, b: gram(kernel, a / 1.7, b / 1.7)
    low = lambda a, b: k(a, inducing) @ torch.linalg.solve(k(inducing, inducing), k(inducing, b))
    spread, centre, pred = Y.var(0, correction=0), Y.mean(0), st.predict(posterior, NEW)
    for j in range(2):
        s2, noise = VARIANCE * spread[j], NOISE * spread[j]
        inner = s2 * (low(u, u) + torch.diag(1 - low(u, u).diagonal())) + noise * torch.eye(50)
        cross = s2 * low(new, u)
        torch.testing.assert_close(
            pred.mean[:, j], centre[j] + cross @ torch.linalg.solve(inner, Y[:, j] - centre[j]), rtol=0, atol=1e-6
        )
        variance = s2 - (cross * torch.linalg.solve(inner, cross.T).T).sum(1)
        torch.testing.assert_close(pred.epistemic_variance[:, j], variance, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bound_is_its_definition(kernel):
    y = Y - Y.mean(0)
    variance, noise = torch.tensor([1.3, 0.4]).double(), torch.tensor([0.05, 0.2]).double()
    cross, inner = gram(kernel, X / 1.5, X[:12] / 1.5), gram(kernel, X[:12] / 1.5, X[:12] / 1.5)
    bound = _values.collapsed_bound(inner, cross.mT, y, torch.ones(50).double(), variance, noise)
    expected = 0.0
    for j in range(2):
        q = variance[j] * cross @ torch.linalg.solve(inner, cross.T)
        normal = torch.distributions.MultivariateNormal(torch.zeros(50).double(), q + noise[j] * torch.eye(50))
        expected += normal.log_prob(y[:, j]) - (variance[j] * 50 - q.trace()) / (2 * noise[j])
    assert bound.item() == pytest.approx(float(expected), rel=1e-7)


def test_with_all_rows_the_bound_is_the_evidence_of_gpytorch():
    y = (Y - Y.mean(0))[:, 0]
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5)).double()
    kernel.base_kernel.lengthscale = torch.tensor(1.5, dtype=torch.float64)
    kernel.outputscale = torch.tensor(VARIANCE, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(50).double(), kernel(X).to_dense().detach() + NOISE * torch.eye(50)
    )
    numbers = (torch.tensor([value], dtype=torch.float64) for value in (VARIANCE, NOISE))
    numbers = list(numbers)
    similarity = gram("matern52", X / 1.5, X / 1.5)
    bound = _values.collapsed_bound(similarity, similarity, y[:, None], torch.ones(50).double(), *numbers)
    evidence = _values.log_evidence(similarity, y[:, None], torch.ones(50).double(), *numbers)
    assert evidence.item() == pytest.approx(float(normal.log_prob(y)), rel=1e-9)
    assert bound.item() == pytest.approx(float(normal.log_prob(y)), rel=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_slopes_in_closed_form_are_those_of_differences(kernel):
    y, weight = (Y - Y.mean(0))[:20], torch.linspace(0.5, 2, 20).double()
    start = torch.cat([torch.full((3,), 1.5), torch.tensor([1.3, 0.2])]).double().log().requires_grad_()

    def similarity(u):  # whose diagonal is 1, without the rounding errors that differences would see
        return gram(kernel, u, u) * (1 - torch.eye(len(u))) + torch.eye(len(u))

    def bound(theta):
        u, z = X[:20] / theta[:3].exp(), X[20:27] / theta[:3].exp()
        inner, cross = similarity(z), gram(kernel, z, u)
        return _values.collapsed_bound(inner, cross, y, weight, theta[3:4].exp(), theta[4:].exp())

    def evidence(theta):
        u = X[:20] / theta[:3].exp()
        return _values.log_evidence(similarity(u), y, weight, theta[3:4].exp(), theta[4:].exp())

    for function in (bound, evidence):
        assert torch.autograd.gradcheck(function, start, eps=1e-6, atol=1e-5, rtol=1e-5)


def test_several_outputs_of_one_variance_are_the_sum_of_each():
    y, weight = Y - Y.mean(0), torch.linspace(0.5, 2, 50).double()
    numbers = torch.tensor([1.3]).double(), torch.tensor([0.2]).double()
    kernels = gram("matern52", X[:12], X[:12]), gram("matern52", X[:12], X)
    each = sum(_values.collapsed_bound(*kernels, y[:, [j]], weight, *numbers) for j in range(2))
    assert _values.collapsed_bound(*kernels, y, weight, *numbers).item() == pytest.approx(each.item(), rel=1e-12)
    each = sum(_values.log_evidence(gram("matern52", X, X), y[:, [j]], weight, *numbers) for j in range(2))
    found = _values.log_evidence(gram("matern52", X, X), y, weight, *numbers)
    assert found.item() == pytest.approx(each.item(), rel=1e-12)


def test_rows_of_weight_two_count_as_two():
    weight = torch.ones(50, dtype=torch.float64)
    weight[:20] = 2
    both = torch.cat([X, X[:20]]), torch.cat([Y, Y[:20]])
    kernels = lambda u: (gram("matern52", X[:30], X[:30]), gram("matern52", X[:30], u))
    numbers = torch.tensor([1.0, 2.0]).double(), torch.tensor([0.1, 0.3]).double()
    once = _values.collapsed_bound(*kernels(X), Y, weight, *numbers)
    twice = _values.collapsed_bound(*kernels(both[0]), both[1], torch.ones(70).double(), *numbers)
    assert once.item() == pytest.approx(twice.item(), rel=1e-10)
    similarity = lambda u: gram("matern52", u, u).fill_diagonal_(1.0)
    once = _values.log_evidence(similarity(X), Y, weight, *numbers)
    twice = _values.log_evidence(similarity(both[0]), both[1], torch.ones(70).double(), *numbers)
    assert once.item() == pytest.approx(twice.item(), rel=1e-8)
    method = st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1, geometry="polar")
    a = method.posterior(nn.Linear(3, 2).double(), (X, Y), sample_weight=weight)
    b = method.posterior(nn.Linear(3, 2).double(), both)
    torch.testing.assert_close(st.predict(a, NEW).mean, st.predict(b, NEW).mean, rtol=0, atol=1e-7)


def test_the_numbers_come_out_of_the_data():
    """A function drawn from the prior: its length-scale, variance and noise are found again, roughly."""
    generator = torch.Generator().manual_seed(2)
    x = 4 * torch.rand(400, 1, generator=generator, dtype=torch.float64)
    K = 4 * gram("matern52", x / 0.5, x / 0.5) + 1e-10 * torch.eye(400)
    y = torch.linalg.cholesky(K) @ torch.randn(400, 1, generator=generator, dtype=torch.float64)
    y = y + 0.2 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    numbers = st.InfiniteWidth().posterior(nn.Linear(1, 1).double(), (x, y)).numbers
    assert float(numbers.noise) == pytest.approx(0.04, rel=0.25)
    lengthscale = float(numbers.lengthscale * x.std(0, correction=0))
    assert 0.3 < lengthscale < 0.9 and 1 < float(numbers.variance) < 16


def test_a_column_without_meaning_is_found():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    y = (2 * x[:, :1]).sin() + 0.05 * torch.randn(200, 1, generator=generator, dtype=torch.float64)
    lengthscale = st.InfiniteWidth().posterior(nn.Linear(2, 1).double(), (x, y)).numbers.lengthscale
    assert lengthscale[1] > 10 * lengthscale[0]


def test_validation_rows_choose_the_noise_that_they_show():
    """Training targets without noise, validation targets with: only they can tell."""
    generator = torch.Generator().manual_seed(4)
    x, new = (torch.randn(200, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    noisy = new.sin() + 0.3 * torch.randn(200, 1, generator=generator, dtype=torch.float64)
    network = nn.Linear(1, 1).double()
    plain = st.InfiniteWidth().posterior(network, (x, x.sin()))
    told = st.InfiniteWidth().posterior(network, (x, x.sin()), validation=(new, noisy))
    assert float(plain.numbers.noise) < 0.001 and float(told.numbers.noise) == pytest.approx(0.09, rel=0.3)
