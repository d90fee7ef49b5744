"""skorch trains our networks as scikit-learn estimators, and what it trained predicts with uncertainty."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

import stationary as st

OPTIONS = {
    "module__in_features": 2,
    "module__hidden": (30, 20),
    "module__dropout": 0.3,
    "optimizer": torch.optim.Adam,
    "lr": 0.02,
    "max_epochs": 20,
    "verbose": 0,
}


def classifier():
    return NeuralNetClassifier(st.MLP, module__out_features=2, criterion=nn.CrossEntropyLoss, **OPTIONS)


@pytest.fixture
def data():
    torch.manual_seed(0)
    x, y = make_moons(200, noise=0.1, random_state=0)
    return x.astype(np.float32), y


def test_classification(data):
    x, y = data
    net = classifier().fit(x, y)
    assert net.score(x, y) > 0.9
    inputs = torch.from_numpy(x)
    one_pass = st.predict(net.module_, inputs, st.Point())
    torch.testing.assert_close(torch.from_numpy(net.predict_proba(x)), one_pass.probs)
    near, far = (st.predict(net.module_, s * inputs, st.MCDropout()) for s in (1, 1000))
    assert (near.mutual_information() > 0).all()
    assert far.entropy().mean() > near.entropy().mean()


def test_a_grid_of_activations(data):
    x, y = data
    names = ["matern32", "rbf", "relu"]
    grid = {"neuralnetclassifier__module__activation": names}
    search = GridSearchCV(make_pipeline(StandardScaler(), classifier()), grid, cv=2, scoring="neg_log_loss").fit(x, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(set(search.cv_results_["mean_test_score"])) == len(names)
    scaler, best = search.best_estimator_
    activation = search.best_params_["neuralnetclassifier__module__activation"]
    assert type(best.module_.head.activation) is type(st.activation(activation))
    pred = st.predict(best.module_, torch.from_numpy(scaler.transform(x)), st.MCDropout())
    assert (pred.mutual_information() > 0).any() and st.metrics.accuracy(pred, torch.from_numpy(y)) > 0.8


def test_regression(data):
    x, _ = data
    y = np.sin(2 * x[:, :1])
    net = NeuralNetRegressor(st.MLP, module__out_features=1, **OPTIONS).fit(x, y)
    st.calibrate_prior(net.module_, torch.from_numpy(x), torch.from_numpy(y))
    pred = st.predict(net.module_, torch.from_numpy(x), st.ExactDropout(), family=st.Gaussian)
    np.testing.assert_allclose(net.predict(x), pred.mean, atol=1e-6)
    assert net.score(x, y) > 0.5 and (pred.std() > 0).all()


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "torch.save"])
def test_saved_parameters_carry_the_calibrated_head(data, tmp_path, safe):
    x, y = data
    net, loaded = classifier().fit(x, y), classifier().initialize()
    st.calibrate_prior(net.module_, torch.from_numpy(x))
    net.save_params(f_params=tmp_path / "net", use_safetensors=safe)
    loaded.load_params(f_params=tmp_path / "net", use_safetensors=safe)
    far = 1000 * torch.from_numpy(x)
    expected = st.predict(net.module_, far, st.MCDropout())
    assert torch.equal(st.predict(loaded.module_, far, st.MCDropout()).probs, expected.probs)
    assert loaded.module_.head.restored_prior.known
