"""The GP baselines against the textbook formulas, scikit-learn and quadrature."""

import gpytorch
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import stationary as st
from stationary.gp import kernel_of
from stationary.lab.baselines.exact import VGP, ExactGP, gp_training, probit


def fit(method, kernel, data, steps, learning_rate=0.05):
    return st.fit(method, method.builder(kernel, data), data, gp_training(steps, learning_rate))


def test_regression_is_conditioning():
    """With fixed hyperparameters: K* (K + s^2 I)^-1 y, and its covariance."""
    x, y, test = torch.randn(30, 2).double(), torch.randn(30).double(), torch.randn(7, 2).double()
    posterior = ExactGP().posterior(ExactGP().builder(gpytorch.kernels.MaternKernel(2.5), (x, y))().eval())
    pred = st.predict(posterior, test, family=st.Gaussian)
    kernel = lambda a, b: posterior.networks[0].kernel(a, b).to_dense().detach()
    noise = posterior.networks[0].likelihood.noise.item()
    solve = torch.linalg.solve(kernel(x, x) + noise * torch.eye(30), torch.cat([y[:, None], kernel(x, test)], 1))
    torch.testing.assert_close(pred.mean[:, 0], kernel(test, x) @ solve[:, 0], rtol=1e-6, atol=1e-8)
    variance = kernel(test, test).diagonal() - (kernel(test, x) * solve[:, 1:].T).sum(1)
    torch.testing.assert_close(pred.epistemic_variance[:, 0], variance, rtol=1e-6, atol=1e-8)
    assert pred.aleatoric_variance[0, 0].item() == pytest.approx(noise)


def test_regression_finds_scikit_learns_optimum():
    x = torch.linspace(-3, 3, 60)[:, None].double()
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(60).double()
    reference = GaussianProcessRegressor(ConstantKernel() * Matern(nu=2.5) + WhiteKernel(), random_state=0).fit(
        x.numpy(), y.numpy()
    )
    posterior = fit(ExactGP(), gpytorch.kernels.MaternKernel(2.5), (x, y), 600, 0.05)
    test = torch.linspace(-4, 4, 33)[:, None].double()
    pred = st.predict(posterior, test, family=st.Gaussian)
    mean, std = reference.predict(test.numpy(), return_std=True)
    torch.testing.assert_close(pred.mean[:, 0], torch.tensor(mean), rtol=0, atol=0.02)
    torch.testing.assert_close(pred.std()[:, 0], torch.tensor(std), rtol=0.05, atol=0.01)


def test_classification_against_the_exact_posterior():
    """Six points: the exact posterior under the learnt kernel, by weighting 100,000 draws from the prior."""
    x = torch.tensor([[-2.0], [-1.5], [-0.5], [0.4], [1.0], [2.0]]).double()
    y = torch.tensor([0, 0, 1, 1, 0, 1])
    test = torch.tensor([[-1.8], [0.0], [0.7], [1.5], [5.0]]).double()
    posterior = fit(VGP(), gpytorch.kernels.MaternKernel(2.5), (x, y), 250, 0.1)
    both = torch.cat([x, test])
    covariance = posterior.networks[0].kernel(both).to_dense().detach() + 1e-9 * torch.eye(11)
    f = torch.randn(100_000, 11).double() @ torch.linalg.cholesky(covariance).T
    weight = torch.special.ndtr(f[:, :6] * (2 * y - 1)).prod(1)
    exact = (weight[:, None] * torch.special.ndtr(f[:, 6:])).sum(0) / weight.sum()
    pred = st.predict(posterior, test).probs[:, 1]
    assert (pred - exact).abs().max() < 0.02  # the error of the Gaussian; Monte Carlo's is about 0.004


def test_classification_agrees_with_scikit_learn():
    """Another likelihood (logit) and another approximation (Laplace): the same decisions."""
    x, y = make_moons(80, noise=0.2, random_state=0)
    reference = GaussianProcessClassifier(ConstantKernel() * Matern(nu=2.5), random_state=0).fit(x, y)
    data = torch.tensor(x), torch.tensor(y)
    posterior = fit(VGP(), gpytorch.kernels.MaternKernel(2.5), data, 200, 0.1)
    test = torch.tensor(make_moons(200, noise=0.2, random_state=1)[0])
    assert (st.predict(posterior, test).predict().numpy() == reference.predict(test.numpy())).mean() > 0.97


def test_far_away_the_stationary_process_returns_to_its_prior():
    x, y = make_moons(60, noise=0.2, random_state=0)
    data = torch.tensor(x), torch.tensor(y)
    posterior = fit(VGP(), gpytorch.kernels.MaternKernel(2.5), data, 150, 0.1)
    far = st.predict(posterior, 100 * data[0])
    torch.testing.assert_close(far.probs, torch.full((60, 2), 0.5).double(), rtol=0, atol=1e-6)
    assert far.mutual_information().min() > st.predict(posterior, data[0]).mutual_information().median()


def test_kernels_of_ours_are_taken():
    x = torch.randn(40, 2).double()
    y = (x[:, 0] > 0).long()
    posterior = fit(VGP(), kernel_of(st.Matern(1.5)), (x, y), 12)
    assert (st.predict(posterior, x).predict() == y).double().mean() > 0.8


def test_probit_expectations_by_brute_force():
    mean, variance = torch.tensor([0.0, 1.0, -3.0]).double(), torch.tensor([1.0, 0.01, 9.0]).double()
    pred = probit(mean, variance)
    z = torch.linspace(-12, 12, 100_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2) / torch.exp(-z.square() / 2).sum()
    p = torch.special.ndtr(mean[:, None] + variance.sqrt()[:, None] * z)
    torch.testing.assert_close(pred.probs[:, 1], p @ weight, rtol=0, atol=1e-8)
    entropy = torch.special.entr(p) + torch.special.entr(1 - p)
    torch.testing.assert_close(pred.expected_entropy(), entropy @ weight, rtol=0, atol=1e-4)
    log_p = torch.special.log_ndtr(mean[:, None] + variance.sqrt()[:, None] * z)
    torch.testing.assert_close(pred.expected_log_probs[:, 1], log_p @ weight, rtol=1e-5, atol=1e-5)


def test_errors():
    x = torch.randn(10, 2)
    with pytest.raises(ValueError, match=r"y must be \(n,\) with the classes 0 and 1"):
        fit(VGP(), gpytorch.kernels.RBFKernel(), (x, torch.arange(10)), 1)
    posterior = fit(ExactGP(), gpytorch.kernels.RBFKernel(), (x, torch.randn(10)), 1)
    with pytest.raises(ValueError, match="predicts a Gaussian without samples, got family=Categorical"):
        st.predict(posterior, x)


@pytest.mark.gpu
def test_the_same_on_a_gpu():
    x = torch.randn(30, 2, dtype=torch.float64)
    labels, targets, test = (x[:, 0] > 0).long(), x.sum(1), torch.randn(7, 2, dtype=torch.float64)
    for method, y, family in ((VGP(), labels, st.Categorical), (ExactGP(), targets, st.Gaussian)):
        on_cpu = st.predict(fit(method, kernel_of(st.Matern(1.5)), (x, y), 20), test, family=family)
        posterior = fit(method, kernel_of(st.Matern(1.5)), (x.cuda(), y.cuda()), 20)
        on_gpu = st.predict(posterior, test.cuda(), family=family)
        for name, value in on_cpu.tensors().items():
            torch.testing.assert_close(on_gpu.to("cpu").tensors()[name], value, rtol=1e-4, atol=1e-6)
