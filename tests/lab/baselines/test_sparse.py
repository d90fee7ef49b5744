"""The sparse GP baselines against GPyTorch, closed forms, quadrature and Monte Carlo; alone, stacked and trained."""

import math
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import scipy.special
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import stationary as st
from stationary.lab.baselines import GPDNN, SVDKL, SVGP
from stationary.lab.baselines.likelihoods import Bernoulli, GaussHermite, RobustMax, Softmax, log_ndtr
from stationary.lab.baselines.sparse import (
    NUS,
    RadialKernel,
    SparseGP,
    cholesky,
    kmeans,
    relu_trunk,
    some_rows,
    squared_distances,
    typical_distance,
)
from stationary.nn.masks import Noise, masked
from stationary.training import Group, train

SMALL = {
    "SVGP": SVGP(n_inducing=12, n_samples=7),
    "SVGP-ard": SVGP(n_inducing=12, n_samples=7, ard=True),
    "GPDNN": GPDNN(n_inducing=9, hidden=(8, 6)),
    "SVDKL": SVDKL(grid_size=12, hidden=(8, 6)),
}
FULL_BATCH = st.Training("own", epochs=100, batch_size=None, learning_rate=0.03)
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64, with condition numbers of 1e4 or so

methods = pytest.mark.parametrize("method", SMALL.values(), ids=SMALL)
nus = pytest.mark.parametrize("nu", NUS)
classes = pytest.mark.parametrize("c", [2, 3])


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def data(n, c, d=4):
    x = normal(n, d)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long() * (c > 2)


def shaken(module):
    """Away from where it starts, so that every term counts."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


def reference_kernel(nu, kernel):
    options = {"ard_num_dims": kernel.lengthscale.numel()} if kernel.lengthscale.ndim else {}
    kernels = gpytorch.kernels
    base = kernels.RBFKernel(**options) if math.isinf(nu) else kernels.MaternKernel(nu, **options)
    reference = gpytorch.kernels.ScaleKernel(base).double()
    reference.outputscale, base.lengthscale = kernel.variance.detach(), kernel.lengthscale.detach()
    return reference


# The kernel


@nus
@pytest.mark.parametrize("n_lengthscales", [1, 4])
def test_kernel_is_gpytorchs(nu, n_lengthscales):
    x, z = 3 + normal(30, 4), 3 + normal(20, 4)
    kernel = RadialKernel(nu, 0.7, 2.5, n_lengthscales=n_lengthscales).double()
    assert kernel.lengthscale.detach() == pytest.approx(0.7) and kernel.variance.item() == pytest.approx(2.5)
    shaken(kernel)
    reference = reference_kernel(nu, kernel)
    torch.testing.assert_close(kernel.variance * kernel.correlation(x, z), reference(x, z).to_dense(), **EXACT)
    other = ~torch.eye(20, dtype=torch.bool)  # GPyTorch's own diagonal has the rounding of a distance of 0
    torch.testing.assert_close((kernel.variance * kernel.gram(z, 0.0))[other], reference(z).to_dense()[other], **EXACT)
    assert torch.equal(kernel.gram(z, 1e-3).diagonal(), torch.full((20,), 1 + 1e-3, dtype=torch.float64))


@nus
def test_gradients_are_finite_and_right_where_points_coincide(nu):
    """At distance 0 a square root has none; the kernel's own derivative there is 0, or taken as 0 for nu = 1/2."""
    z = normal(6, 3)
    z[1] = z[0]
    module = shaken(SparseGP(nn.Identity(), RadialKernel(nu).double(), z, Bernoulli(), 10, 1e-4))
    with torch.no_grad():
        module.variational.points[1] = module.variational.points[0]
    x = torch.cat([module.variational.points.detach()[:2], normal(5, 3)]).requires_grad_()
    module.losses(x, torch.tensor([0, 1, 0, 1, 1, 0, 1])).mean().backward()
    assert all(p.grad.isfinite().all() for p in [x, *module.parameters()])
    kernel, near = RadialKernel(nu).double(), normal(1, 3).requires_grad_()
    (slope,) = torch.autograd.grad(kernel.correlation(near, near.detach()).sum(), near)
    assert slope.abs().max() == 0


@nus
def test_kernel_in_float32_far_from_the_origin(nu):
    """Centred before the product: the error is that of points about their mean, not of where they are."""
    x, z = 1000 + normal(50, 30), 1000 + normal(40, 30)
    kernel = RadialKernel(nu, 7.0)
    got, exact = kernel.correlation(x.float(), z.float()), kernel.double().correlation(x, z)
    assert (got - exact).abs().max() < 30 * 1000 * 2**-24  # inputs themselves are rounded to 1000 2^-24 each


# The sparse process


class Reference(gpytorch.models.ApproximateGP):
    """GPyTorch's, with the parameters of ours."""

    def __init__(self, ours):
        v, jitter = ours.variational, ours.jitter * ours.kernel.variance.item()
        m, c = v.mean.shape
        q = gpytorch.variational.CholeskyVariationalDistribution(m, batch_shape=torch.Size([c]))
        points = v.points.detach().expand(c, -1, -1)
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, q, jitter_val=jitter))
        self.double()
        q.variational_mean.data, q.chol_variational_covar.data = v.mean.detach().T, v.factor.detach().mT
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.kernel = reference_kernel(ours.kernel.nu, ours.kernel)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))


@nus
@pytest.mark.parametrize("n", [5, 40])  # fewer and more than inducing points: GPyTorch has code for each
def test_sparse_process_is_gpytorchs(nu, n):
    ours = shaken(SparseGP(nn.Identity(), RadialKernel(nu).double(), normal(15, 4), RobustMax(3, 0.1), 10, 1e-3))
    reference, x = Reference(ours), normal(n, 4)
    mean, variance = ours(x)
    for mode in (reference.train, reference.eval):
        mode()
        q = reference(x)
        torch.testing.assert_close(mean, q.mean.T, **EXACT)
        jitter = ours.jitter * ours.kernel.variance.item()  # GPyTorch adds it to the variance of the inputs as well
        torch.testing.assert_close(variance, q.variance.T - jitter, **EXACT)
    torch.testing.assert_close(ours.latent(x)[2], reference.variational_strategy.kl_divergence().sum(), **EXACT)


@nus
def test_unwhitened_process_by_dense_formulas(nu):
    """q(u) = N(m, S) of the values at the inducing points, by the textbook's inverses."""
    kernel = RadialKernel(nu).double()
    ours = shaken(SparseGP(nn.Identity(), kernel, normal(15, 4), RobustMax(3, 0.1), 10, 1e-3, whitened=False))
    q, x = ours.variational, normal(40, 4)
    gram, cross = kernel.variance * kernel.gram(q.points, 1e-3), kernel.variance * kernel.correlation(q.points, x)
    weights, covariance = torch.linalg.solve(gram, cross), q.factor.triu().mT @ q.factor.triu()
    mean, variance, divergence = ours.latent(x)
    torch.testing.assert_close(mean, weights.mT @ q.mean, **EXACT)
    explained = torch.einsum("mn,kn,cmk->nc", weights, weights, covariance - gram)
    torch.testing.assert_close(variance, kernel.variance + explained, **EXACT)
    prior = torch.distributions.MultivariateNormal(torch.zeros(15).double(), gram)
    posterior = torch.distributions.MultivariateNormal(q.mean.mT, covariance)
    torch.testing.assert_close(divergence, torch.distributions.kl_divergence(posterior, prior).sum(), **EXACT)


def test_bound_is_gpytorchs(monkeypatch):
    # GPyTorch's own is off by up to 2e-3 below -1.
    monkeypatch.setattr("gpytorch.likelihoods.bernoulli_likelihood.log_normal_cdf", torch.special.log_ndtr)
    x, y = data(40, 2)
    ours = shaken(SparseGP(nn.Identity(), RadialKernel(1.5).double(), normal(15, 4), Bernoulli(), 333, 1e-11))
    reference, likelihood = Reference(ours).train(), gpytorch.likelihoods.BernoulliLikelihood()
    nodes, weights = np.polynomial.hermite.hermgauss(20)  # GPyTorch rounds them to float32
    likelihood.quadrature.locations, likelihood.quadrature.weights = torch.tensor(nodes), torch.tensor(weights)
    elbo = gpytorch.mlls.VariationalELBO(likelihood, reference, num_data=333)
    torch.testing.assert_close(ours.losses(x, y).mean(), -elbo(reference(x), y.double())[0], **EXACT)


def test_all_points_as_inducing_points_and_the_prior_as_q_is_the_prior():
    x = normal(20, 3)
    module = SparseGP(nn.Identity(), RadialKernel(1.5, 1.0, 2.0).double(), x, Bernoulli(), 20, 1e-9)
    mean, variance = module(torch.cat([x, 100 + x]))
    assert mean.abs().max() == 0
    torch.testing.assert_close(variance, torch.full((40, 1), 2.0).double(), rtol=1e-6, atol=0)
    assert module.latent(x)[2] == 0


def test_a_failed_factorization_shows_in_the_loss():
    x, y = data(20, 2)
    module = SVGP(n_inducing=10).build(x, 2)
    module.jitter = -2.0
    assert module.losses(x, y).isnan().all()
    good, bad = torch.eye(3), -torch.eye(3)
    factors = vmap(cholesky)(torch.stack([good, bad]))
    assert torch.equal(factors[0], good) and factors[1].isnan().all()


@pytest.mark.parametrize("lengthscale", [0.3, 1.0, 10.0, 100.0])
@nus
def test_jitter_is_enough_for_float32(nu, lengthscale):
    """300 points that are nearly one, seen from a long length-scale."""
    z = kmeans(torch.randn(2000, 4), 300)
    gram = RadialKernel(nu, lengthscale * typical_distance(z)).gram(z, SVGP().jitter)
    assert cholesky(gram).isfinite().all()


# Likelihoods


def dense(mean, variance, g):
    """E[g(f)] by a fine grid."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2) / torch.exp(-z.square() / 2).sum()
    return g(mean[..., None] + variance.sqrt()[..., None] * z) @ weight


def test_gauss_hermite_is_exact_for_polynomials():
    points, weights = GaussHermite()(torch.tensor(2.0).double(), torch.tensor(9.0).double()), GaussHermite().weights
    assert (points**4 @ weights).item() == pytest.approx(16 + 6 * 4 * 9 + 3 * 81)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float64, 1e-15), (torch.float32, 1e-6)])
def test_log_ndtr_and_its_gradient(dtype, eps):
    x = torch.cat([torch.linspace(-40, 40, 4001), torch.tensor([-1e4, -1.0, 0.0, 1e4])]).to(dtype).requires_grad_()
    got = log_ndtr(x)
    torch.testing.assert_close(got, torch.special.log_ndtr(x), rtol=4 * eps, atol=1e-6 * eps)
    got.sum().backward()
    hazard = math.sqrt(2 / math.pi) / scipy.special.erfcx(-x.detach().double().numpy() / math.sqrt(2))
    torch.testing.assert_close(x.grad.double(), torch.tensor(hazard), rtol=4 * eps, atol=eps)


def test_bernoulli_by_quadrature():
    mean, variance = normal(50, 1) * 2, torch.rand(50, 1).double() * 4 + 0.01
    y = torch.arange(50) % 2
    got = Bernoulli().expected_log_prob(mean, variance, y)
    exact = dense(mean[:, 0], variance[:, 0], lambda f: torch.special.log_ndtr(f * (2 * y - 1)[:, None]))
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4)
    narrow = Bernoulli().expected_log_prob(mean, variance / 16, y)
    exact = dense(mean[:, 0], variance[:, 0] / 16, lambda f: torch.special.log_ndtr(f * (2 * y - 1)[:, None]))
    torch.testing.assert_close(narrow, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("ratio", "error"), [(1.0, 1.01e-6), (2.0, 1e-4), (3.0, 2e-3)])
def test_robust_max_of_two_classes_has_a_closed_form(ratio, error):
    """P(f_y > f_o) = Phi((mean_y - mean_o) / sqrt(variance_y + variance_o)); the docstring's errors."""
    mean, variance = normal(200, 2) * 3, torch.tensor([ratio**2, 1.0]).double().expand(200, 2)
    got = RobustMax(2, 0.1).largest(mean, variance, torch.zeros(200, dtype=torch.long))
    exact = torch.special.ndtr((mean[:, 0] - mean[:, 1]) / math.sqrt(ratio**2 + 1))
    assert (got - exact).abs().max() < error


def test_robust_max_of_five_classes_by_monte_carlo():
    n, c, epsilon = 400_000, 5, 0.2
    mean, variance = normal(6, c), torch.rand(6, c).double() + 0.5
    f = mean + variance.sqrt() * normal(n, 6, c)
    largest = torch.nn.functional.one_hot(f.argmax(-1), c).double().mean(0)
    likelihood = RobustMax(c, epsilon)
    pred = likelihood.predictive(mean, variance, 0, False)
    exact = largest * (1 - epsilon) + (1 - largest) * epsilon / (c - 1)
    sigma = (largest * (1 - largest) / n).sqrt()
    assert ((pred.probs - exact).abs() <= 4.5 * sigma + 1e-5).all()
    y = torch.arange(6) % c
    exact = largest * math.log(1 - epsilon) + (1 - largest) * math.log(epsilon / (c - 1))
    got = likelihood.expected_log_prob(mean, variance, y)
    scale = math.log((1 - epsilon) / (epsilon / (c - 1)))
    assert ((got - exact[range(6), y]).abs() <= scale * (4.5 * sigma[range(6), y] + 1e-4)).all()
    torch.testing.assert_close(pred.expected_log_probs, exact, rtol=0, atol=4e-3 * scale)
    p = torch.tensor([1 - epsilon] + 4 * [epsilon / 4]).double()
    torch.testing.assert_close(pred.expected_entropy(), torch.special.entr(p).sum().expand(6))
    torch.testing.assert_close(pred.probs.sum(-1), torch.ones(6).double())


def test_robust_max_ranks_what_is_improbable():
    """P of class 1 is 1e-6 and less, beside epsilon / 2 = 0.05: float32 could hardly tell them apart."""
    mean = torch.zeros(5, 3)
    mean[:, 0] = torch.linspace(6.8, 7.2, 5)
    probs = RobustMax(3, 0.1).float().predictive(mean, torch.ones(5, 3), 0, False).probs[:, 1]
    assert (probs.diff() < 0).all() and probs[0] < 0.05 + 2e-6


def test_robust_max_keeps_classes_that_one_other_hides():
    """Class 0 is far above; 1 and 2 still compete: P_1 = 1e-6 Phi((mean_1 - mean_2) / sqrt 2), and training sees it."""
    mean = torch.tensor([[60.0, 1.0, 0.0], [60.0, 0.0, 1.0]]).double().requires_grad_()
    largest = RobustMax(3, 0.1).largest(mean, torch.ones(2, 3).double(), torch.tensor([1, 1]))
    phi = torch.special.ndtr(torch.tensor([1.0, -1.0]).double() / math.sqrt(2))
    torch.testing.assert_close(largest, 1e-6 * phi, rtol=1e-5, atol=0)
    largest.sum().backward()
    assert (mean.grad[:, 1] > 1e-8).all() and (mean.grad[:, 2] < -1e-8).all()


def test_robust_max_has_gradients_where_a_class_is_hopeless():
    mean = torch.tensor([[0.0, 60.0, 0.0]], requires_grad=True)
    variance = torch.tensor([[1e-8, 1.0, 1e-8]], requires_grad=True)
    for y in range(3):
        RobustMax(3, 0.1).float().expected_log_prob(mean, variance, torch.tensor([y])).sum().backward()
    assert mean.grad.isfinite().all() and variance.grad.isfinite().all()


@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("n", [7, 4])  # 4 rows of 4 latent functions: GPyTorch transposes those
def test_softmax_is_gpytorchs(mixing, n):
    mean, variance, y = normal(n, 4), torch.rand(n, 4).double() + 0.1, torch.arange(n) % 3
    weights = normal(3, 4) if mixing else None
    ours, noise = Softmax(4, 30, 30), normal(30, n, 4)
    with masked(ours, lambda *_: noise):
        got = ours.expected_log_prob(mean, variance, y, weights)
    f = mean + variance.sqrt() * noise
    by_hand = (f if weights is None else torch.einsum("snk,ck->snc", f, weights)).log_softmax(-1)[:, range(n), y]
    torch.testing.assert_close(got, by_hand.mean(0), **EXACT)
    if n != 4:
        reference = gpytorch.likelihoods.SoftmaxLikelihood(4, 3 if mixing else 4, mixing_weights=mixing).double()
        if mixing:
            reference.mixing_weights.data = weights
        torch.testing.assert_close(got, reference(f).log_prob(y).mean(0), **EXACT)


def test_softmax_prediction_converges():
    """Against dense quadrature for two classes, whose difference is one Gaussian; other moments are exact."""
    n, mixing = 40_000, normal(2, 3)
    mean, variance = normal(5, 3), torch.rand(5, 3).double()
    pred = Softmax(3, 1, n).predictive(mean, variance, 0, False, mixing)
    difference = mixing[1] - mixing[0]
    exact = dense(mean @ difference, variance @ difference.square(), torch.sigmoid)
    assert ((pred.probs[:, 1] - exact).abs() < 4.5 * 0.5 / math.sqrt(n)).all()
    torch.testing.assert_close(pred.output_mean, mean @ mixing.T)
    torch.testing.assert_close(pred.output_variance, variance @ mixing.T.square())


# SV-DKL's grid


class GridReference(gpytorch.models.ApproximateGP):
    """The GP layer of GPyTorch's tutorial, with the parameters of ours."""

    def __init__(self, ours):
        features, size = ours.variational.mean.shape
        q = gpytorch.variational.CholeskyVariationalDistribution(size, batch_shape=torch.Size([features]))
        grid = gpytorch.variational.GridInterpolationVariationalStrategy(self, size, [(-10.0, 10.0)], q)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(grid, num_tasks=features))
        self.double()
        points = ours.start + ours.spacing * torch.arange(size).double()
        torch.testing.assert_close(grid.grid[:, 0], points, rtol=1e-6, atol=1e-6)
        grid.grid[:, 0], grid.inducing_points[:, 0] = points, points  # GPyTorch's are rounded to float32
        grid.variational_params_initialized.fill_(1)
        q.variational_mean.data, q.chol_variational_covar.data = ours.variational.mean.data, ours.variational.root.data
        self.mean, self.kernel = gpytorch.means.ConstantMean().double(), reference_kernel(ours.kernel.nu, ours.kernel)
        self.mean.constant = ours.kernel.mean.data

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


@nus
@pytest.mark.parametrize("size", [8, 50])
def test_grid_process_is_gpytorchs(nu, size):
    x, _ = data(30, 3)
    ours = shaken(SVDKL(nu, grid_size=size, hidden=(8, 6)).build(x, 3)).train()
    reference, scale = GridReference(ours), gpytorch.utils.grid.ScaleToBounds(-10.0, 10.0)
    features = scale(ours.trunk(x))
    torch.testing.assert_close(ours.scaled(ours.trunk(x)), features, **EXACT)
    q = reference(features.T[..., None])
    mean, variance = ours(x)
    torch.testing.assert_close(mean, q.mean, **EXACT)
    torch.testing.assert_close(variance, q.variance, **EXACT)
    kl = reference.variational_strategy.kl_divergence()
    torch.testing.assert_close(ours.divergence(), kl, rtol=1e-8, atol=1e-8)
    mean.sum().backward()  # also through the range of the batch
    ours_gradient = ours.trunk[0].weight.grad.clone()
    ours.zero_grad()
    q.mean.sum().backward()
    torch.testing.assert_close(ours_gradient, ours.trunk[0].weight.grad, rtol=1e-7, atol=1e-9)


def test_interpolation_reproduces_parabolas():
    """The cubic convolution of Keys is exact for polynomials of degree two, up to where features can be."""
    module = SVDKL(grid_size=8, hidden=(3,)).build(normal(5, 2), 2)
    x = torch.linspace(-9.5, 9.5, 101, dtype=torch.float64)
    grid = module.start + module.spacing * torch.arange(8).double()
    weights = module.weights(x)
    assert ((weights != 0).sum(-1) <= 4).all()
    for power in range(3):
        torch.testing.assert_close(weights @ grid**power, x**power, rtol=1e-9, atol=1e-9)


def test_grid_process_starts_at_its_prior():
    module = SVDKL(hidden=(5,)).build(normal(20, 3), 2)
    assert module.divergence().item() == pytest.approx(0, abs=1e-2)  # of means about 1e-3
    assert module.kernel.lengthscale.item() == module.kernel.variance.item() == pytest.approx(math.log(2))


def test_calibration_fixes_the_scale_of_predictions():
    x, _ = data(100, 2)
    method = SVDKL(grid_size=12, hidden=(8, 6))
    model = shaken(method.build(x, 2)).eval()
    free = model(x[:10])[0]
    torch.testing.assert_close(free[:5], model(x[:10])[0][:5])
    assert not torch.allclose(free[:5], model(x[:5])[0])  # by the batch's own range
    method.calibrate(model, x, batch_size=len(x))
    features = model.trunk(x)
    torch.testing.assert_close(model.bounds, torch.stack([features.min(), features.max()]))
    torch.testing.assert_close(model(x)[0][:5], model(x[:5])[0], **EXACT)
    torch.testing.assert_close(model(x)[0], model.train()(x)[0], **EXACT)  # the batch that has this range
    assert model.eval().scaled(model.trunk(1e6 * x)).abs().max() <= 9.5 + 1e-9
    method.calibrate(model, x, batch_size=40)
    wide, (low, high) = features.max() - features.min(), model.bounds
    assert features.min() <= low < high < features.max() and high - low > wide / 2


def test_features_that_are_all_dead_have_a_loss_and_gradients():
    x, y = data(20, 2)
    model = SVDKL(grid_size=12, hidden=(8, 6)).build(x, 2)
    with torch.no_grad():
        model.trunk[-2].bias.fill_(-100.0)
    model.losses(x, y).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# One by one and stacked


class Losses(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, y):
        return self.module.losses(x, y)


def stacked_step(modules, state, x, y, noise):
    """Mean losses of stacked modules and their gradients, as a training loop has them."""

    def losses(parameters, buffers, x, y, noise):
        with masked(modules[0], lambda *_: noise):
            return functional_call(Losses(modules[0]), (parameters, buffers), (x, y))

    means = vmap(losses, randomness="different")(*state, x, y, noise).mean(1)
    return means, dict(zip(state[0], torch.autograd.grad(means.sum(), list(state[0].values())), strict=True))


def drawn(module, k, x):
    n = next((part.n for part in module.modules() if isinstance(part, Noise)), 1)
    return torch.randn(k, n, len(x), module(x)[0].shape[1]).to(x)


@methods
@classes
def test_stacked_modules_are_the_modules(method, c):
    k, n = 3, 11
    modules = []
    for rows in (30, 31, 31):  # folds differ in size
        torch.manual_seed(rows)
        modules.append(shaken(method.build(data(rows, c)[0], c)).train())
    assert torch.stack([m.n_data for m in modules]).tolist() == [30, 31, 31]
    x, y = (torch.stack(part) for part in zip(*(data(n, c) for _ in range(k)), strict=True))
    noise = drawn(modules[0], k, x[0])
    losses, grads = stacked_step(modules, stack_module_state([Losses(m) for m in modules]), x, y, noise)
    for i, module in enumerate(modules):
        with masked(module, lambda *_: noise[i]):
            loss = module.losses(x[i], y[i]).mean()
        torch.testing.assert_close(losses[i], loss, **EXACT)
        loss.backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(grads[f"module.{name}"][i], parameter.grad, rtol=1e-7, atol=1e-9)


@methods
def test_every_parameter_is_trained_and_named_for_its_kind(method):
    x, y = data(40, 3)
    module = shaken(method.build(x, 3)).train()
    module.losses(x, y).mean().backward()
    for name, parameter in module.named_parameters():
        assert name.split(".")[0] in ("trunk", "kernel", "variational", "mixing")
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name


@methods
@classes
def test_gradients_by_differences(method, c):
    x, y = data(9, c)
    module = shaken(method.build(data(20, c)[0], c)).train()
    (noise,) = drawn(module, 1, x)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def mean_loss(*values):
        with masked(module, lambda *_: noise):
            state = {f"module.{name}": value for name, value in zip(names, values, strict=True)}
            return functional_call(Losses(module), state, (x, y)).mean()

    torch.autograd.gradcheck(mean_loss, parameters, fast_mode=True)


@methods
def test_autocast_reaches_the_trunk_only(method):
    x, y = data(40, 3)
    x = x.float()
    module = method.build(x, 3).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = module.trunk(x)
        mean, variance = module(x)
        losses = module.losses(x, y)
    assert features.dtype == (torch.float32 if isinstance(method, SVGP) else torch.bfloat16)
    assert mean.dtype == variance.dtype == losses.dtype == torch.float32
    module.trunk = nn.Identity()
    for got, same in zip((mean, variance), module(features.float()), strict=True):
        assert torch.equal(got, same)
    state = stack_module_state([module, module])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stacked = vmap(lambda *state: functional_call(module, state, (features.float(),))[0])(*state)
    torch.testing.assert_close(stacked[0], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@methods
@classes
def test_a_cuda_graph_records_a_step(method, c):
    x, y = data(60, c)
    x, y = x.float().cuda(), y.cuda()
    modules = [shaken(method.build(x, c)).train() for _ in range(3)]
    state, noise = stack_module_state([Losses(m) for m in modules]), drawn(modules[0], 3, x)
    step = lambda: stacked_step(modules, state, x.expand(3, -1, -1), y.expand(3, -1), noise)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected, expected_grads = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        losses, grads = step()
    graph.replay()
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    for name, gradient in grads.items():
        torch.testing.assert_close(gradient, expected_grads[name], rtol=1e-3, atol=1e-4)


# From data to predictions


def blobs(n, c):
    """Classes on a spiral of blobs: no line separates them."""
    y = torch.arange(n) % c
    which = torch.randint(2, (n,))
    angle = 2 * math.pi * (y + c * which) / (2 * c)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.35 * torch.randn(n, 2), y


@classes
@pytest.mark.parametrize(
    "method",
    [
        SVGP(n_inducing=20, n_samples=20),
        SVGP(math.inf, n_inducing=20, n_samples=20),
        GPDNN(n_inducing=15, hidden=(20, 10)),
        SVDKL(grid_size=20, hidden=(20, 10)),
    ],
    ids=lambda m: f"{type(m).__name__}-{m.nu}",
)
def test_learns(method, c):
    x, y = blobs(300, c)
    rate = 0.003 if isinstance(method, GPDNN) else 0.03  # large steps carry its features out of the points' reach
    posterior = st.fit(method, method.builder((x, y)), (x, y), replace(FULL_BATCH, epochs=150, learning_rate=rate))
    x, y = blobs(300, c)
    pred = st.predict(posterior, x)
    assert st.metrics.accuracy(pred, y) > 0.95
    assert st.metrics.nlpd(pred, y) < 0.45
    torch.testing.assert_close(pred.probs.sum(-1), torch.ones(300).to(pred.probs))
    again = st.predict(posterior, x)
    assert all(torch.equal(value, again.tensors()[name]) for name, value in pred.tensors().items())
    if isinstance(method, SVDKL):
        assert posterior.networks[0].bounds.isfinite().all()  # calibrated


@methods
def test_members_in_lockstep_train_as_alone(method):
    """Inside the training loop, with its noise, in mini-batches and with the paper's groups of parameters."""
    x, y = data(60, 3)
    groups = (Group("variational", decay=0.0), Group("kernel", rate=0.01, decay=0.0))
    training = st.Training("own", epochs=2, batch_size=25, learning_rate=0.01, weight_decay=1e-4, groups=groups, seed=3)
    both = train(lambda: method.build(x, 3), (x, y), training, n_members=2)
    (alone,) = train(lambda: method.build(x, 3), (x, y), replace(training, seed=4))
    for name, value in alone.named_parameters():
        torch.testing.assert_close(both[1].get_parameter(name), value, rtol=1e-6, atol=1e-7)


def test_far_away_the_process_returns_to_its_prior():
    x, y = blobs(200, 2)
    posterior = st.fit(SVGP(n_inducing=20), SVGP(n_inducing=20).builder((x, y)), (x, y), FULL_BATCH)
    torch.testing.assert_close(st.predict(posterior, 1000 * x).probs, torch.full((200, 2), 0.5), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("method", "c"), [(SMALL["SVGP"], 2), (SMALL["GPDNN"], 2), (SMALL["GPDNN"], 3)])
def test_closed_forms_do_not_depend_on_the_batch(method, c):
    x, _ = data(50, c)
    posterior = method.posterior(shaken(method.build(x, c)))
    whole, parts = st.predict(posterior, x), st.predict(posterior, x, batch_size=7)
    for name, value in whole.tensors().items():
        torch.testing.assert_close(value, parts.tensors()[name], **EXACT)
    with pytest.raises(ValueError, match="closed form, got keep_samples=True"):
        st.predict(posterior, x, keep_samples=True)


def test_samples_are_kept_and_seeded():
    x, _ = data(20, 3)
    for method, s in ((SMALL["SVGP"], 7), (SMALL["SVDKL"], 16)):
        model = shaken(method.build(x, 3))
        pred = st.predict(method.posterior(model), x, keep_samples=True)
        assert pred.samples.shape == (s, 20, 3)
        torch.testing.assert_close(pred.probs, pred.samples.softmax(-1).mean(0), **EXACT)
        other = st.predict(replace(method, seed=1).posterior(model), x)
        assert not torch.equal(pred.probs, other.probs)


@methods
def test_build_is_random_by_the_global_seed_only(method):
    x, _ = data(40, 3)

    def build(seed):
        torch.manual_seed(seed)
        return dict(method.build(x, 3).named_parameters())

    first, again, other = build(1), build(1), build(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert hash(method) == hash(replace(method))


# Initial values


def test_kmeans_finds_clusters():
    centers = 10 * torch.tensor([[0.0, 0], [1, 0], [0, 1]])
    x = centers.repeat(100, 1) + 0.1 * torch.randn(300, 2)
    found = kmeans(x, 3)
    while squared_distances(centers, found).amin(1).max() > 1:  # Lloyd's algorithm may stop with two in one cluster
        found = kmeans(x, 3)
    assert squared_distances(centers, found).amin(1).max() < (4.5 * 0.1 * 2 / math.sqrt(100)) ** 2
    inertia = lambda z: squared_distances(x, z).amin(1).sum()
    start = some_rows(x, 20)
    assert inertia(kmeans(x, 20)) < inertia(start)


def test_kmeans_with_few_or_equal_rows():
    x = torch.randn(5, 2)
    assert squared_distances(x, kmeans(x, 9)).amin(1).max() < 1e-10
    same = kmeans(torch.ones(30, 2), 4)  # three clusters stay empty
    assert torch.equal(same, torch.ones(4, 2))
    assert typical_distance(same) == typical_distance(same[:1]) == 1
    assert SVGP(n_inducing=500).build(torch.randn(12, 3), 2).variational.points.shape == (12, 3)


@pytest.mark.parametrize("d", [2, 50])
@pytest.mark.parametrize("units", [0.01, 100.0])
def test_initial_correlations_are_neither_0_nor_1(d, units):
    x = units * torch.randn(500, d)
    module = SVGP(n_inducing=50).build(x, 2)
    correlation = module.kernel.correlation(x, module.variational.points)
    assert 0.2 < correlation.mean() < 0.8
    for ard in (False, True):
        lengthscale = SVGP(n_inducing=50, lengthscale=3.0, ard=ard).build(x, 2).kernel.lengthscale.detach()
        assert lengthscale.shape == (d,) * ard and lengthscale.numpy() == pytest.approx(3)


def test_ard_finds_the_columns_that_matter():
    x, y = data(400, 2, d=6)  # y is known from the first
    method, some = SVGP(n_inducing=30, ard=True), (x.float(), y)
    posterior = st.fit(method, method.builder(some), some, replace(FULL_BATCH, epochs=300))
    lengthscale = posterior.networks[0].kernel.lengthscale
    assert lengthscale[0] < 0.7 * lengthscale[1:].min()


def test_features_are_large_against_adams_steps():
    """GPDNN's weights are about 0.1, where PyTorch's would make features, and the length-scale, of 0.1 and less."""
    module = GPDNN(n_inducing=20).build(torch.randn(200, 50), 2)
    for layer in module.trunk[::2]:
        assert layer.weight.abs().max() <= 0.2 and layer.weight.std().item() == pytest.approx(0.088, abs=0.002)
        assert (layer.bias == 0.1).all()
    assert module.kernel.lengthscale > 5


def test_trunk_ends_linear_or_with_relu():
    layers = [type(layer) for layer in relu_trunk(7, (5, 4, 3))]
    assert layers == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert relu_trunk(7, (5, 4, 3))(torch.randn(2, 7)).shape == (2, 3)
    assert SVDKL(hidden=(5, 4)).build(torch.randn(9, 7), 2).trunk(torch.randn(2, 7)).min() >= 0, "but for SV-DKL"


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SVGP(nu=1.0), r"nu must be 0.5, 1.5, 2.5 or math.inf \(the RBF\), got 1.0"),
        (lambda: SVGP(n_inducing=0), "n_inducing must be a positive integer, got 0"),
        (lambda: SVGP(n_samples=2.5), "n_samples must be a positive integer, got 2.5"),
        (lambda: SVGP(jitter=0.0), "jitter must be a positive number, got 0.0; 1e-4 keeps"),
        (lambda: SVGP(lengthscale=-1.0), "lengthscale must be a positive number, got -1.0; None takes"),
        (lambda: GPDNN(epsilon=0.7), r"epsilon must be in \(0, 0.5\)"),
        (lambda: GPDNN(hidden=()), r"hidden must be a tuple of positive widths.*got \(\)"),
        (lambda: SVDKL(hidden=[50]), r"hidden must be a tuple of positive widths.*got \[50\]"),
        (lambda: SVDKL(grid_size=7), "grid_size must be at least 8, for cubic interpolation, got 7"),
        (lambda: SVGP().build(torch.randn(3), 2), r"x must be \(n, d\) in float32 or float64.*got \(3,\)"),
        (lambda: SVDKL().build(torch.ones(3, 2).long(), 2), "got .* torch.int64: flatten inputs, use x.float"),
        (lambda: GPDNN().build(torch.randn(3, 2), 1), "n_classes must be at least 2, got 1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_only_classes_are_predicted():
    x = torch.randn(20, 2)
    posterior = SVGP(n_inducing=5).posterior(SVGP(n_inducing=5).build(x, 2))
    with pytest.raises(ValueError, match="predicts a Categorical, got family=Gaussian; use family=Categorical"):
        st.predict(posterior, x, family=st.Gaussian)
