"""The regressor whose noise depends on the input: of infinite width, and of finite networks by every method."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import stationary as st
from stationary import StationaryRegressor

FINITE = {"hidden_layer_sizes": (100,), "max_iter": 150}
METHODS = {
    "infinite": {},
    "exact": FINITE,
    "mc": FINITE | {"method": st.MCDropout(30)},
    "ensemble": FINITE | {"method": st.Ensemble(2)},
    "point": FINITE | {"method": st.Point()},
    "swag": FINITE | {"method": st.SWAG(n_samples=10), "early_stopping": False},
    "trunk": {"hidden_layer_sizes": (20, 20), "max_iter": 60, "method": st.InfiniteWidth(n_inducing=100)},
}


def noise_std(x):
    return 10 * (0.1 + 0.4 / (1 + np.exp(-6 * x)))


def table(n=300, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (n, 1))
    return X, 1000 + 10 * np.sin(2 * X[:, 0]) + noise_std(X[:, 0]) * random.normal(size=n)


def coverage(fitted, X, y, rows):
    lower, upper = (ends.numpy()[rows, 0] for ends in fitted.predictive(X).interval(0.9))
    return np.mean((lower < y[rows]) & (y[rows] < upper))


@pytest.mark.parametrize(  # "mc" draws what "exact" integrates, and "point" is an ensemble of one
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("mc", "point") else ()) for name in METHODS]
)
def test_both_halves_are_covered_where_one_noise_for_all_covers_neither(name):
    """The truth is a factor of 5; 150 rows in a half tell its logarithm up to sqrt(1 / 300) = 6 %."""
    (X, y), (new, new_y) = table(), table(4000, 1)
    settings = METHODS[name] | {"random_state": 0}
    fitted = StationaryRegressor(noise="input", **settings).fit(X, y)
    quiet, loud = new[:, 0] < 0, new[:, 0] > 0
    noise = fitted.predictive(new).aleatoric_variance[:, 0].sqrt().numpy()
    assert 0.6 < noise[quiet].mean() / noise_std(new[quiet, 0]).mean() < 1.5
    assert 0.75 < noise[loud].mean() / noise_std(new[loud, 0]).mean() < 1.33
    assert 0.8 < coverage(fitted, new, new_y, quiet) < 0.99 and 0.8 < coverage(fitted, new, new_y, loud) < 0.99
    if name in ("infinite", "exact"):
        constant = StationaryRegressor(noise="constant", **settings).fit(X, y)
        assert coverage(constant, new, new_y, loud) < 0.8


@pytest.mark.parametrize("name", ["infinite", "exact"])
def test_units_and_several_targets(name):
    X, y = table(200)
    both = np.stack([y, 3 * y - 7], 1)
    pred = StationaryRegressor(noise="input", random_state=0, **METHODS[name]).fit(X, both).predictive(X)
    assert pred.aleatoric_variance.shape == (200, 2)
    ratio = (pred.aleatoric_variance[:, 1] / pred.aleatoric_variance[:, 0]).numpy()
    np.testing.assert_allclose(np.median(ratio), 9, rtol=1e-3 if name == "infinite" else 0.02)


def test_rows_of_weight_zero_are_not_there():
    X, y = table(120)
    weight = np.arange(120) % 2
    fit = lambda *data: StationaryRegressor(noise="input").fit(*data).predictive(X).aleatoric_variance.numpy()
    np.testing.assert_allclose(fit(X, y, weight), fit(X[weight > 0], y[weight > 0]), rtol=1e-6)


def test_the_fitted_noise_does_not_follow_the_parameter():
    X, y = table(100)
    fitted = StationaryRegressor(noise="input").fit(X, y)
    before = fitted.predict(X, return_std=True)[1]
    assert np.ptp(before) > 0.5 * before.min()
    np.testing.assert_array_equal(fitted.set_params(noise="constant").predict(X, return_std=True)[1], before)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X, return_std=True)[1], before)


def test_what_is_around_it():
    X, y = table(120)
    fitted = StationaryRegressor(noise="input").fit(X, y)
    mean = fitted.predictive(X).aleatoric_variance.numpy().mean(0)
    np.testing.assert_allclose(fitted.noise_variance_, mean)
    said = StationaryRegressor(method=st.InfiniteWidth(noise="input")).fit(X, y).predictive(X)
    np.testing.assert_allclose(said.aleatoric_variance, fitted.predictive(X).aleatoric_variance, rtol=1e-6)
    assert clone(fitted).noise == "input"
    fitted.conformalize(*table(60, 2))
    search = GridSearchCV(StationaryRegressor(), {"noise": ["constant", "input"]}, cv=2, error_score="raise")
    assert search.fit(X, y).best_score_ > 0.5


def test_what_cannot_be_is_refused():
    X, y = table(20)
    with pytest.raises(ValueError, match="noise must be 'constant' or 'input', got 'foo'"):
        StationaryRegressor(noise="foo").fit(X, y)
    with pytest.raises(ValueError, match=r"lets the noise depend on the input.*got Laplace\(.*or noise='constant'"):
        StationaryRegressor(noise="input", method=st.Laplace()).fit(X, y)
    with pytest.raises(ValueError, match="method must leave its noise out for noise='input'"):
        StationaryRegressor(noise="input", method=st.InfiniteWidth(noise=0.1)).fit(X, y)
