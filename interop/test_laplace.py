"""laplace-torch fits our models unchanged, and its Gaussian is the textbook's.

What every method promises, tests/inference/test_methods.py checks; ``make interop`` runs its cases of Laplace too.
"""

import pickle

import pytest
import torch
from torch import nn

import stationary as st

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def classes():
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    return x, (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 1).long()


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_classification(classes, structure):
    x, y = classes
    build = lambda: st.MLP(3, 4, hidden=(16, 20), activation="matern32")
    posterior = st.fit(st.Laplace(structure), build, (x, y), st.Training(epochs=30, learning_rate=1e-2))
    pred = st.predict(posterior, x)
    assert pred.mutual_information().min() > 0
    torch.testing.assert_close(pred.output_mean, posterior.networks[0](x).detach())
    torch.testing.assert_close(pred.probs.sum(-1), torch.ones(200))


def test_regression_against_bayesian_linear_regression():
    """With "full" structure and a fixed prior precision the covariance is phi^T (Phi^T Phi / s^2 + I / t^2)^-1 phi."""
    torch.manual_seed(0)
    x = torch.randn(100, 2, dtype=torch.float64)
    y = x.sum(-1, keepdim=True).sin()
    model = st.StationaryHead(2, 1, hidden=10).double().eval()
    posterior = st.Laplace("full", prior_precision=3.0).posterior(model, (x, y))
    pred = st.predict(posterior, 2 * x, family=st.Gaussian)
    with torch.no_grad():
        features = lambda x: nn.functional.pad(model.features(x), (0, 1), value=1.0)
        noise = (model(x) - y).square().mean()
        precision = features(x).T @ features(x) / noise + 3.0 * torch.eye(11)
        expected = (features(2 * x) @ precision.inverse() * features(2 * x)).sum(-1, keepdim=True)
    torch.testing.assert_close(pred.epistemic_variance, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_an_estimator_can_be_pickled_without_its_data(classes, structure):
    x, y = classes[0].double().numpy(), classes[1].numpy()
    estimator = st.StationaryClassifier((8, 16), max_iter=4, random_state=0, method=st.Laplace(structure)).fit(x, y)
    estimator.posterior_.networks[0].train()  # the mode is the user's, and dropout must stay off
    stored = pickle.dumps(estimator)
    torch.testing.assert_close(pickle.loads(stored).predict_proba(x), estimator.predict_proba(x))
    assert not any(row.tobytes() in stored for row in estimator.scaler_.transform(x))


@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_batches_give_the_same_posterior(classes, targets):
    x, y = classes
    y = y if targets == "classes" else x[:, :1].sin()
    family = st.Categorical if targets == "classes" else st.Gaussian
    model = st.MLP(3, 4 if targets == "classes" else 1, hidden=(8, 16))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 50)
    whole, parts = (st.Laplace("full").posterior(model, data) for data in ((x, y), loader))
    a, b = (st.predict(posterior, x, family=family).tensors() for posterior in (whole, parts))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_it_says_what_is_missing():
    with pytest.raises(ValueError, match="data must be the training data"):
        st.predict(st.MLP(3, 2), X, st.Laplace())
    with pytest.raises(ValueError, match="structure must be 'full', 'kron' or 'diag', got 'dense'"):
        st.Laplace("dense")
    with pytest.raises(ValueError, match="sample_weight must be None for Laplace"):
        st.fit(
            st.Laplace(), lambda: st.MLP(3, 2), (X, X[:, 0].gt(0).long()), st.Training(), sample_weight=torch.rand(5)
        )


def test_laplace_chooses_rows_together(classes):
    """The outputs are drawn at all rows together, so that a row and its copy are not asked for both."""
    x, y = classes
    build = lambda: st.MLP(3, 4, hidden=(16, 20), activation="matern32")
    posterior = st.fit(st.Laplace(), build, (x, y), st.Training(epochs=30, learning_rate=1e-2))
    pool = 2 * torch.randn(20, 3, generator=torch.Generator().manual_seed(1)).repeat(2, 1)
    top, joint = (st.acquire(posterior, pool, 2, batch=batch) for batch in ("top", "joint"))
    assert (top[1] - top[0]).item() == 20 and joint[0] == top[0] and joint[1] % 20 != top[0]
    assert torch.equal(joint, st.acquire(posterior, pool, 2)) and len(set(st.acquire(posterior, pool, 9).tolist())) == 9
