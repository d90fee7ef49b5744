"""The joint distribution of several outputs: against GPyTorch, every dropout mask, and what ``predict`` gives."""

from importlib.util import find_spec

import gpytorch
import pytest
import torch
from dropout_networks import enumerated, small_head
from exact_process import exact
from torch import nn

import stationary as st
from stationary.inference.base import joint_of

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.stack([X[:, 0].sin() + X[:, 1], X[:, 2] * X[:, 0]], 1)
NEW = 2 * torch.randn(12, 3, generator=GENERATOR, dtype=torch.float64)
TRAINING = st.Training(epochs=4, learning_rate=1e-2, loss="mse")
LAPLACE = pytest.mark.skipif(not find_spec("laplace"), reason="laplace-torch is missing; make interop has it")
METHODS = [
    pytest.param(st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1, n_inducing=20), id="infinite width"),
    pytest.param(st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise="input", n_inducing=20), id="varying noise"),
    pytest.param(st.ExactDropout(), id="exact dropout"),
    pytest.param(st.MCDropout(8), id="mc dropout"),
    pytest.param(st.Ensemble(3), id="ensemble"),
    pytest.param(st.SWAG(4, start=0.5), id="swag"),
    pytest.param(st.Laplace(), id="laplace", marks=LAPLACE),
]
each = pytest.mark.parametrize("method", METHODS)


def network():
    return st.MLP(3, 2, hidden=(8, 16)).double()


@pytest.fixture(scope="module")
def posterior_of():
    """The posterior of a method, made once."""
    made = {}

    def posterior(method):
        if method not in made:
            made[method] = st.fit(method, network, (X, Y), TRAINING)
        return made[method]

    return posterior


# What every joint promises


@each
def test_the_diagonal_is_what_predict_gives(method, posterior_of):
    posterior = posterior_of(method)
    joint, pred = posterior.joint(NEW), st.predict(posterior, NEW, family=st.Gaussian)
    assert joint.mean.shape == joint.noise.shape == (12, 2) and joint.covariance.shape == (2, 12, 12)
    torch.testing.assert_close(joint.mean, pred.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(joint.variance(), pred.epistemic_variance, rtol=1e-8, atol=1e-12)
    if not isinstance(method, st.Laplace):  # whose predictions leave it out
        torch.testing.assert_close(joint.noise, pred.aleatoric_variance, rtol=1e-10, atol=0)
    assert (joint.covariance - joint.covariance.mT).abs().max() < 1e-14 * joint.covariance.abs().max()
    assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-12 * joint.covariance.abs().max()
    assert not joint.covariance.requires_grad


@each
def test_groups_are_blocks(method, posterior_of):
    posterior = posterior_of(method)
    whole, groups = posterior.joint(NEW), posterior.joint(NEW, group_size=4)
    assert groups.mean.shape == (3, 4, 2) and groups.covariance.shape == (3, 2, 4, 4)
    for g in range(3):
        rows = slice(4 * g, 4 * g + 4)
        torch.testing.assert_close(groups.mean[g], whole.mean[rows], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(groups.covariance[g], whole.covariance[:, rows, rows], rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(groups.noise[g], whole.noise[rows], rtol=1e-10, atol=0)
    with pytest.raises(ValueError, match=r"group_size must be None or a positive integer that divides .* 12; got 5"):
        posterior.joint(NEW, group_size=5)


@each
def test_gradients_in_the_inputs(method, posterior_of):
    posterior, x = posterior_of(method), NEW[:3].clone().requires_grad_()
    parts = lambda x: (lambda joint: (joint.mean, joint.covariance, joint.noise))(posterior.joint(x))
    assert all(part.requires_grad for part in parts(x)[:2])
    assert torch.autograd.gradcheck(parts, x, eps=1e-6, atol=1e-6)
    with torch.no_grad():
        assert not posterior.joint(x).mean.requires_grad


@pytest.mark.parametrize("method", METHODS[2:])  # infinite width keeps its prior by itself
def test_a_restored_prior_adds_to_the_diagonal(method):
    posterior, far = st.fit(method, network, (X, Y), TRAINING), 1e3 * NEW
    for model in posterior.networks:
        st.calibrate_prior(model, X, Y)
    joint, pred = posterior.joint(far), st.predict(posterior, far, family=st.Gaussian)
    torch.testing.assert_close(joint.variance(), pred.epistemic_variance, rtol=1e-8, atol=1e-12)
    assert (joint.variance() > 0.5 * Y.var(0)).all()


def test_a_calibrated_posterior_corrects_it(posterior_of):
    for method in (st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1, n_inducing=20), st.ExactDropout()):
        posterior = st.calibrate(posterior_of(method), (NEW, NEW[:, :2]), family=st.Gaussian)
        joint, pred = posterior.joint(NEW), st.predict(posterior, NEW, family=st.Gaussian)
        torch.testing.assert_close(joint.variance(), pred.epistemic_variance, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(joint.noise, pred.aleatoric_variance, rtol=1e-8, atol=0)


def test_without_a_joint_distribution_it_is_an_error():
    model = network()
    with pytest.raises(ValueError, match=r"Point has no joint distribution.*use InfiniteWidth"):
        st.Point().posterior(model).joint(NEW)
    with pytest.raises(ValueError, match="shared_masks must be True"):
        st.MCDropout(4, shared_masks=False).posterior(model).joint(NEW)
    with pytest.raises(ValueError, match=r"got object, which has none; use InfiniteWidth"):
        joint_of(object(), NEW)


def test_arrays_and_other_types_go_in(posterior_of):
    for method in (st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1, n_inducing=20), st.Ensemble(3)):
        posterior = posterior_of(method)
        expected = posterior.joint(NEW.float().double())
        for form in (NEW.float().numpy(), NEW.float()):
            torch.testing.assert_close(posterior.joint(form).covariance, expected.covariance, rtol=0, atol=0)


# Oracles


@pytest.mark.parametrize(("kernel", "nu"), [("matern12", 0.5), ("matern32", 1.5), ("matern52", 2.5), ("rbf", None)])
def test_with_all_rows_as_inducing_inputs_it_is_the_exact_gaussian_process(kernel, nu):
    mean, std, centre, spread = X.mean(0), X.std(0, correction=0), Y.mean(0), Y.var(0, correction=0)
    method = st.InfiniteWidth(kernel, lengthscale=1.7, variance=1.3, noise=0.05)
    joint = method.posterior(nn.Linear(3, 2).double(), (X, Y)).joint(NEW)
    for k in range(2):
        args = (X - mean) / std, Y[:, k] - centre[k], (NEW - mean) / std
        their_mean, their_covariance = exact(*args, nu, 1.7, 1.3 * spread[k], 0.05 * spread[k])
        error = 1e-7 if kernel == "matern12" else 1e-8  # r is the root of a difference, and e^-r has a slope at 0
        torch.testing.assert_close(joint.mean[:, k], centre[k] + their_mean, rtol=0, atol=error)
        torch.testing.assert_close(joint.covariance[k], their_covariance, rtol=0, atol=error)


def test_with_few_inducing_inputs_it_is_the_definition():
    """Condition the joint prior of training targets and new outputs, in which training rows share only W."""
    method = st.InfiniteWidth(lengthscale=1.7, variance=1.3, noise=0.05, n_inducing=10)
    posterior = method.posterior(nn.Linear(3, 2).double(), (X, Y))
    mean, std, centre, spread = X.mean(0), X.std(0, correction=0), Y.mean(0), Y.var(0, correction=0)
    matern = gpytorch.kernels.MaternKernel(2.5).double()
    matern.lengthscale = torch.tensor(1.7, dtype=torch.float64)
    places = posterior.basis.inducing, (X - mean) / std, (NEW - mean) / std
    with torch.no_grad():
        blocks = [[matern(a, b).to_dense() for b in places] for a in places]
    inverse = torch.linalg.inv(blocks[0][0])
    through = lambda i, j: blocks[i][0] @ inverse @ blocks[0][j]
    joint = posterior.joint(NEW)
    for k in range(2):
        rows = through(1, 1) + torch.diag((blocks[1][1] - through(1, 1)).diagonal())
        rows, across, new = (1.3 * spread[k] * part for part in (rows, through(2, 1), blocks[2][2]))
        gain = across @ torch.linalg.inv(rows + 0.05 * spread[k] * torch.eye(40))
        torch.testing.assert_close(joint.mean[:, k], centre[k] + gain @ (Y[:, k] - centre[k]), rtol=0, atol=1e-8)
        torch.testing.assert_close(joint.covariance[k], new - gain @ across.mT, rtol=0, atol=1e-8)


def test_classes_share_one_covariance():
    y = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()
    trunk = nn.Linear(3, 3).double()
    posterior = st.InfiniteWidth(lengthscale=1.0, variance=4.0, temperature=0.5).posterior(trunk, (X, y))
    joint, (mean, variance) = posterior.joint(NEW), posterior.moments(NEW)
    assert joint.covariance.shape == (1, 12, 12) and not joint.noise.any()
    torch.testing.assert_close(joint.mean, mean)
    torch.testing.assert_close(joint.variance(), variance)
    assert joint.sample(5).shape == (5, 12, 3)


def test_around_the_networks_own_answers_it_is_the_prior_far_away():
    """Nothing was learnt there: the covariance is s^2 kappa, and s^2 has the variance of the network's outputs too."""
    y = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()
    model = st.MLP(3, 3, hidden=(8, 16)).double()
    method = st.InfiniteWidth(lengthscale=1.0, variance=4.0, temperature=0.5, prior_mean="network")
    posterior = method.posterior(model, (X, y))
    joint, (mean, variance) = posterior.joint(NEW), posterior.moments(NEW)
    torch.testing.assert_close(joint.mean, mean)
    torch.testing.assert_close(joint.variance(), variance)
    assert posterior.numbers.variance > 4.0
    far = 30 * torch.cat([NEW, NEW + 0.1 * NEW.flip(0)])
    with torch.no_grad():
        places = posterior.geometry(posterior._features(far))
    kappa = gpytorch.kernels.MaternKernel(2.5).double()
    kappa.lengthscale = torch.tensor(1.0, dtype=torch.float64)
    expected = posterior.numbers.variance * kappa(places).to_dense().detach()
    torch.testing.assert_close(posterior.joint(far).covariance[0], expected, rtol=1e-6, atol=1e-6)


def test_exact_dropout_against_every_mask():
    head, x = small_head(4), NEW
    with torch.no_grad():
        outputs, chance = enumerated(head, x, 0.3)
        mean = (chance[:, None, None] * outputs).sum(0)
        deviation = outputs - mean
        covariance = torch.einsum("s,snc,skc->cnk", chance, deviation, deviation)
    joint = st.ExactDropout().posterior(head).joint(x)
    torch.testing.assert_close(joint.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(joint.covariance, covariance, rtol=1e-10, atol=1e-12)


@LAPLACE
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_laplace_against_laplace_torch(structure):
    posterior = st.fit(st.Laplace(structure), network, (X, Y), TRAINING)
    mean, covariance = posterior.fitted._glm_predictive_distribution(NEW, joint=True)
    joint = posterior.joint(NEW)
    torch.testing.assert_close(joint.mean, mean.view(12, 2))
    torch.testing.assert_close(joint.covariance, covariance.view(12, 2, 12, 2).diagonal(dim1=1, dim2=3).movedim(-1, 0))
    torch.testing.assert_close(joint.noise, posterior.fitted.sigma_noise.square().expand(12, 2).double())
