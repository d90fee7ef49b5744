"""A user's program: ``make types`` checks it with pyright in strict mode, and the tests run it."""

from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn, randn
from typing_extensions import assert_type

import stationary as st
from stationary.activations.tabulated import TabulatedActivation
from stationary.gp import kernel_of
from stationary.gp._base import NetworkKernel
from stationary.inference.base import Posterior

x: Tensor = randn(20, 3)
y: Tensor = (x[:, 0] > 0).long()


def activations() -> None:
    assert_type(st.activation("matern32"), nn.Module)
    assert_type(st.matern(x, nu=2.2, lengthscale=0.5), Tensor)
    act = st.Matern(nu=1.5, learnable=True)
    assert_type(act.log_nu, nn.Parameter)
    assert_type(act.variance, float)
    assert_type(st.activation_from_kernel(lambda r: (-(r**2) / 2).exp(), phase="zero"), TabulatedActivation)
    mean, error = st.monte_carlo_kernel(act, x, n_units=100)
    assert_type((mean, error), tuple[Tensor, Tensor])


def networks() -> None:
    head = st.StationaryHead(8, 2, hidden=5, activation=st.Matern(2.5), dropout=0.2)
    assert_type(head.hidden, nn.Linear)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), head)
    assert_type(st.predict(model, x), st.Categorical)
    assert_type(st.predict(model, x, st.MCDropout(10)).mutual_information(), Tensor)
    assert_type(st.predict(model, x, st.ExactDropout()).probs, Tensor)
    assert_type(st.predict(model, x, family=st.Gaussian), st.Gaussian)
    assert_type(st.replace_head(model, head), nn.Sequential)
    assert_type(st.OODDetector(model).fit(x).scores(x), Tensor)
    assert_type(st.metrics.nlpd(st.predict(model, x), y), float)
    assert_type(st.metrics.classification(st.predict(model, x), y), dict[str, float])


def training() -> None:
    def build() -> nn.Module:
        return st.MLP(3, 2, hidden=(8,), activation="rbf")

    for method in (st.Point(), st.MCDropout(10), st.ExactDropout(), st.Ensemble(2), st.SWAG(2)):
        posterior: Posterior = st.fit(method, build, (x, y), st.Training(epochs=8))
        assert_type(st.predict(posterior, x), st.Categorical)


def gaussian_processes() -> None:
    assert_type(kernel_of(st.Matern(1.5), weights="gaussian"), NetworkKernel)


def estimators() -> None:
    classifier = st.StationaryClassifier((8,), "matern32", max_iter=2, random_state=0)
    assert_type(classifier.fit(x, y), st.StationaryClassifier)
    assert_type(classifier.predict_proba(x), NDArray[Any])
    assert_type(classifier.predictive(x), st.Categorical)
    assert_type(classifier.fit_reject(x + 1, accept=0.5), st.StationaryClassifier)
    assert_type(classifier.conformalize(x + 1, y, coverage=0.5).predict_set(x), NDArray[Any])
    assert_type(st.OODDetector(classifier).fit(x + 1).p_value(x), Tensor)
    assert_type(st.StationaryRegressor(max_iter=2).fit(x, x[:, 0]).predictive(x), st.Gaussian)


if __name__ == "__main__":
    for part in (activations, networks, training, gaussian_processes, estimators):
        part()
