"""scikit-learn's own checks, its tools around the estimators, and what the networks say far from their data."""

import math
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_iris, make_blobs, make_circles, make_friedman1, make_friedman2
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

import stationary as st
from stationary import StationaryClassifier, StationaryRegressor, metrics
from stationary.estimators import _network
from stationary.estimators._network import _repeated
from stationary.inference import exact_dropout
from stationary.inference.infinite_width import InfiniteWidthPosterior

BOTH = [StationaryClassifier, StationaryRegressor]
SMALL = {"hidden_layer_sizes": (16,), "max_iter": 30, "random_state": 0}
WEIGHTS = "batches and held-out rows are drawn from the rows: a repeated row is not the same draw as a row of weight 2"
METHODS = {
    "exact": st.ExactDropout(approximate=True),
    "mc": st.MCDropout(20),
    "ensemble": st.Ensemble(2),
    "point": st.Point(),
    "swag": st.SWAG(n_samples=5),
}


def table(estimator, n=120, seed=0):
    """A small problem for either estimator."""
    if issubclass(estimator, StationaryClassifier):
        return make_blobs(n, 3, centers=3, cluster_std=2.0, random_state=seed)
    return make_friedman2(n, random_state=seed)


WIDE = {"hidden_layer_sizes": (), "method": st.InfiniteWidth(n_inducing=40)}


FINITE = {"hidden_layer_sizes": (16,), "max_iter": 30}
LIMIT = {"hidden_layer_sizes": (), "method": st.InfiniteWidth(n_inducing=40, per_column=False)}


@parametrize_with_checks(
    [estimator(**LIMIT) for estimator in BOTH],
    expected_failed_checks=lambda _: {"check_sample_weight_equivalence_on_dense_data": WEIGHTS},
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [estimator(**FINITE) for estimator in BOTH]
    + [StationaryRegressor(noise="input", **settings) for settings in (FINITE, LIMIT)],
    expected_failed_checks=lambda _: {"check_sample_weight_equivalence_on_dense_data": WEIGHTS},
)
def test_scikit_learn_with_finite_networks_and_where_the_noise_depends_on_the_input(estimator, check):
    check(estimator)


# What scikit-learn does with an estimator


def test_in_a_pipeline_a_grid_search_and_a_cross_validation():
    X, y = make_blobs(150, 3, centers=3, random_state=1)
    X[::10, 0] = np.nan
    pipeline = make_pipeline(SimpleImputer(), StationaryClassifier(**SMALL | {"learning_rate_init": 0.02}))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.9
    assert cross_val_score(pipeline, X, y, cv=3, scoring="neg_log_loss").mean() > -0.4
    grid = {
        "stationaryclassifier__activation": ["matern32", st.Matern(nu=2.2, lengthscale=0.5)],
        "stationaryclassifier__hidden_layer_sizes": np.array([8, 16]),
        "stationaryclassifier__method": [None, st.Ensemble(2)],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.9 and len(search.cv_results_["params"]) == 8


@pytest.mark.parametrize(("few", "threads"), [(101, 1), (100, 2)], ids=["few rows", "many"])
def test_infinite_width_takes_free_threads_to_fit_and_one_for_few_rows(monkeypatch, few, threads):
    seen, own, predict = [], _network.fit, InfiniteWidthPosterior.predict
    X, y = make_blobs(100, 3, centers=2, random_state=1)
    monkeypatch.setattr(_network, "fit", lambda *a, **k: (seen.append(torch.get_num_threads()), own(*a, **k))[1])
    noted = lambda *a, **k: (seen.append(torch.get_num_threads()), predict(*a, **k))[1]
    monkeypatch.setattr(InfiniteWidthPosterior, "predict", noted)
    monkeypatch.setattr(_network, "BULK", 10 * 100**2 + 1)  # for 10 rows and 100 inducing inputs
    monkeypatch.setattr(_network.FREE_THREADS, "count", lambda: 2)
    monkeypatch.setattr(_network, "FEW", few)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for estimator in BOTH:
            model = estimator(method=st.InfiniteWidth(lengthscale=1.0, variance=1.0)).fit(X, y)
            assert seen[0] == threads and torch.get_num_threads() == 3
            seen.clear()
            for rows in (10, 11):
                model.predictive(X[:rows])
            assert seen == [1, 3] and torch.get_num_threads() == 3
            seen.clear()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("units", "threads"), [(20, 1), (40_000, 3)], ids=["small", "large"])
def test_small_networks_train_and_predict_with_one_thread(monkeypatch, units, threads):
    seen = []
    X, y = make_blobs(100, 3, centers=2, random_state=1)
    for owner, name in ((_network, "fit"), (st.MLP, "forward"), (exact_dropout, "of_classes")):
        own = getattr(owner, name)
        noted = lambda *a, own=own, **k: (seen.append(torch.get_num_threads()), own(*a, **k))[1]
        monkeypatch.setattr(owner, name, noted)
    for limit in ("ENOUGH", "BULK"):
        monkeypatch.setattr(_network, limit, 10**6)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for estimator in BOTH:
            model = estimator((units,), batch_size=10, max_iter=1, random_state=0).fit(X, y)
            assert set(seen) == {threads} and torch.get_num_threads() == 3
            fitted = len(seen)
            model.predict(X[:10])
            assert set(seen) == {threads} and len(seen) > fitted and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_calibrated_by_scikit_learn():
    X, y = make_circles(200, noise=0.1, factor=0.4, random_state=0)
    calibrated = CalibratedClassifierCV(StationaryClassifier(random_state=0), cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.9


@pytest.mark.parametrize("estimator", BOTH)
def test_clone_keeps_methods_and_modules(estimator):
    before = estimator(activation=st.Matern(nu=1.5, learnable=True), method=st.MCDropout(7), **SMALL)
    after = clone(before)
    assert after.method == before.method and after.activation is not before.activation
    assert repr(after.activation) == repr(before.activation)
    assert after.set_params(method=st.Point(), alpha=0.5).get_params()["method"] == st.Point()


@pytest.mark.parametrize("estimator", BOTH)
def test_fitting_leaves_the_parameters_alone(estimator):
    activation = st.Matern(nu=1.5, learnable=True)
    before = pickle.dumps(activation)
    model = estimator(activation=activation, **SMALL).fit(*table(estimator))
    assert pickle.dumps(activation) == before
    assert model.posterior_.networks[0].head.activation is not activation


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("method", METHODS)
def test_pickle_and_joblib(estimator, method, tmp_path):
    X, y = table(estimator)
    fitted = estimator(method=METHODS[method], **SMALL, early_stopping=method != "swag").fit(X, y)
    joblib.dump(fitted, tmp_path / "fitted.joblib")
    for other in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "fitted.joblib")):
        np.testing.assert_array_equal(other.uncertainty(X), fitted.uncertainty(X))


@pytest.mark.parametrize("estimator", BOTH)
def test_the_same_random_state_gives_the_same_fit(estimator):
    X, y = table(estimator)
    fit = lambda state: estimator(**SMALL | {"random_state": state}).fit(X, y).uncertainty(X)
    np.testing.assert_array_equal(fit(3), fit(3))
    np.testing.assert_array_equal(fit(np.random.RandomState(3)), fit(3))
    assert not np.array_equal(fit(3), fit(4))
    before = torch.get_rng_state()
    assert not np.array_equal(fit(None), fit(None))
    assert torch.equal(torch.get_rng_state(), before)


# Infinite width


def sine_with_a_gap():
    random = np.random.RandomState(0)
    x = random.uniform(-3, 3, 100)
    x = x[np.abs(x) > 0.8][:, None]
    return x, np.sin(2 * x[:, 0]) + 0.1 * random.randn(len(x))


def test_infinite_width_is_unsure_in_a_gap_and_knows_its_noise():
    x, y = sine_with_a_gap()
    model = StationaryRegressor((), method=st.InfiniteWidth()).fit(x, y)
    _, std = model.predict(np.array([[0.0], [1.5], [20.0], [-20.0]]), return_std=True)
    assert std[0] > 0.3 and std[1] < 0.15 and (std[2:] > 0.6).all()
    assert model.noise_variance_[0] == pytest.approx(0.01, rel=0.5) and model.n_iter_ == 1


def test_infinite_width_needs_no_seed():
    X, y = table(StationaryClassifier)
    first, second = (StationaryClassifier(**WIDE, random_state=seed).fit(X, y).predict_proba(X) for seed in (1, 2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("estimator", BOTH)
def test_infinite_width_on_a_trunk(estimator):
    X, y = table(estimator, 200)
    model = estimator((32, 32), method=st.InfiniteWidth(n_inducing=50), random_state=0).fit(X, y)
    assert model.n_iter_ > 0 and model.score(X, y) > 0.8
    assert model.posterior_.validation_rows is not None


# What goes in


def test_pandas_and_string_labels():
    frame = load_iris(as_frame=True)
    names = frame.target_names[frame.target]
    model = StationaryClassifier(random_state=0).fit(frame.data, names)
    assert model.feature_names_in_.tolist() == frame.data.columns.tolist()
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert set(model.predict(frame.data)) <= set(names) and model.score(frame.data, names) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.data.rename(columns={"petal width (cm)": "width"}))


@pytest.mark.parametrize("columns", [None, 1, 2])
def test_predictions_have_the_shape_of_y(columns):
    X, y = make_friedman2(150, random_state=0)
    Y = y if columns is None else np.stack([y, -3 * y + 5][:columns], 1)
    model = StationaryRegressor(random_state=0).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert model.predict(X).shape == mean.shape == std.shape == model.uncertainty(X).shape == Y.shape
    assert model.score(X, Y) > 0.9
    if columns == 2:  # the same problem in other units
        np.testing.assert_allclose(model.predictive(X).mean[:, 1], -3 * mean[:, 0] + 5, atol=0.5 * y.std())


def test_units_do_not_matter():
    X, y = make_friedman2(150, random_state=0)
    shift, scale = np.array([1e3, -5, 0, 2]), np.array([1e-3, 10, 1, 1e4])
    other = shift + scale * X
    mean, std = StationaryRegressor(**SMALL).fit(X, y).predict(X, return_std=True)
    same = StationaryRegressor(**SMALL).fit(other, 7 + 1e4 * y).predict(other, return_std=True)
    np.testing.assert_allclose(same, (7 + 1e4 * mean, 1e4 * std), rtol=1e-6)


@pytest.mark.parametrize("estimator", BOTH)
def test_constant_columns_do_no_harm(estimator):
    X, y = table(estimator)
    wide = np.column_stack([np.full(len(X), 1e9), X, np.zeros(len(X))])
    assert np.isfinite(estimator(**SMALL).fit(wide, y).uncertainty(wide)).all()


@pytest.mark.parametrize(("settings", "error"), [(SMALL, 0.5), ({}, 1e-6)], ids=["finite", "infinite width"])
def test_a_constant_target_is_predicted_with_a_positive_std(settings, error):
    X = np.random.RandomState(0).randn(40, 2)
    mean, std = StationaryRegressor(**settings).fit(X, np.full(40, 3.0)).predict(X, return_std=True)
    assert np.abs(mean - 3).max() < error and (std > 0).all()


def test_columns_of_both_kinds():
    """The recipe of docs/estimators.md."""
    random = np.random.RandomState(0)
    n = 400
    frame = pd.DataFrame(
        {
            "age": random.randint(18, 80, n).astype(float),
            "income": random.lognormal(10, 1, n),
            "colour": random.choice(["red", "green", "blue"], n),
            "city": pd.Series(random.choice(["Oslo", "Rome"], n), dtype="category"),
        }
    )
    y = np.where((frame.colour == "red") & (frame.age > 40), "yes", "no")
    frame.loc[::17, "age"] = np.nan
    columns = make_column_transformer(
        (SimpleImputer(add_indicator=True), make_column_selector(dtype_include="number")),
        (
            OneHotEncoder(handle_unknown="ignore", sparse_output=False),
            make_column_selector(dtype_exclude="number"),
        ),
    )
    model = make_pipeline(columns, StationaryClassifier(random_state=0)).fit(frame[:300], y[:300])
    assert model.score(frame[300:], y[300:]) > 0.9
    unseen = frame[300:].assign(colour="ultraviolet")
    assert np.isfinite(model.predict_proba(unseen)).all()


@pytest.mark.parametrize("estimator", BOTH)
def test_rows_of_weight_zero_are_not_there(estimator):
    X, y = table(estimator)
    keep = np.arange(len(X)) % 3 > 0
    spoilt = np.where(keep[:, None], X, 1e6)
    weighted = estimator(**SMALL).fit(spoilt, y, sample_weight=keep.astype(float))
    without = estimator(**SMALL).fit(X[keep], y[keep])
    np.testing.assert_array_equal(weighted.uncertainty(X), without.uncertainty(X))


@pytest.mark.parametrize("settings", [{}, {"method": st.Ensemble(2), "max_iter": 40, "learning_rate_init": 0.01}])
def test_heavier_rows_are_fitted_better(settings):
    X, y = np.tile(np.linspace(-1, 1, 50), 2)[:, None], np.repeat([0.0, 1.0], 50)
    for weights, expected in [((9, 1), 0.1), ((1, 9), 0.9)]:
        labels = StationaryClassifier(random_state=0, **settings).fit(X, y, np.repeat(weights, 50))
        values = StationaryRegressor(random_state=0, **settings).fit(X, y, np.repeat(weights, 50))
        assert abs(labels.predict_proba(X)[:, 1].mean() - expected) < 0.1
        assert abs(values.predict(X).mean() - expected) < 0.1


# Training


def test_held_out_rows_count_as_often_as_they_weigh():
    rows = np.array([4, 1, 3])
    assert _repeated(rows, np.full(5, 0.7)).tolist() == [4, 1, 3]
    values, counts = np.unique(_repeated(rows, np.array([9.0, 1.0, 9.0, 4.0, 5.0])), return_counts=True)
    assert values.tolist() == [1, 3, 4] and counts.tolist() == [3, 12, 15]


def test_early_stopping_holds_out_a_row_of_each_class_that_has_two(capsys):
    X, y = make_blobs([30, 30, 2, 1], 2, random_state=0)
    model = StationaryClassifier(100, max_iter=400, n_iter_no_change=5, random_state=0, verbose=True).fit(X, y)
    assert len(model.loss_curve_) == model.n_iter_ < 400
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.predict_proba(X).shape == (63, 4)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[0].startswith("Iteration 1, loss = ") and "validation loss = " in lines[0]


def test_without_early_stopping_every_row_is_trained_on_for_all_epochs(capsys):
    X, y = np.array([[0.0], [1.0], [2.0]]), ["a", "b", "c"]
    model = StationaryClassifier(100, early_stopping=False, max_iter=400, alpha=0, random_state=0).fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 400 and model.predict(X).tolist() == y
    assert capsys.readouterr().out == ""


def test_early_stopping_finds_the_noise():
    random = np.random.RandomState(0)
    X = random.uniform(-2, 2, (600, 1))
    y = 10 * np.sin(2 * X[:, 0]) + 3 * random.randn(600)
    model = StationaryRegressor(100, random_state=0).fit(X, y)
    assert 0.7 < math.sqrt(model.noise_variance_[0]) / 3 < 1.3
    test = random.uniform(-2, 2, (600, 1))
    mean, std = model.predict(test, return_std=True)
    assert 0.9 < (np.abs(10 * np.sin(2 * test[:, 0]) + 3 * random.randn(600) - mean) < 2 * std).mean() < 0.995


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("method", METHODS)
def test_every_method(estimator, method):
    X, y = table(estimator, 200)
    settings = {"max_iter": 60, "learning_rate_init": 0.01, "random_state": 0, "early_stopping": method != "swag"}
    model = estimator(method=METHODS[method], **settings).fit(X, y)
    assert model.score(X, y) > 0.7
    assert model.posterior_.method == METHODS[method]
    members = model.posterior_.networks
    assert all(member.head.restored_prior.known for member in members)
    spread = model.uncertainty(X) if estimator is StationaryRegressor else model.uncertainty(X, "std")
    assert (spread >= 0).all() and (spread.max() > 0)


@pytest.mark.parametrize("activation", ["relu", "sine"])
def test_an_activation_that_does_not_decay_has_no_prior_to_restore(activation):
    X, y = table(StationaryClassifier)
    model = StationaryClassifier(activation=activation, **SMALL).fit(X, y)
    assert not model.posterior_.networks[0].head.restored_prior.known
    with pytest.raises(ValueError, match="decays"):
        StationaryClassifier(activation=activation, restore_prior=True, **SMALL).fit(X, y)


# Predictions


@pytest.mark.parametrize("tempered", [None, 1.0, 2.0], ids=["finite", "infinite width", "tempered"])
def test_the_ways_to_ask_a_classifier_agree(tempered):
    X, y = table(StationaryClassifier)
    limit = {"method": st.InfiniteWidth(lengthscale=1.0, variance=1.0, temperature=tempered)}
    model = StationaryClassifier(**(limit if tempered else SMALL)).fit(X, y)
    pred = model.predictive(X)
    np.testing.assert_array_equal(model.predict_proba(X), pred.probs.numpy())
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), pred.probs.numpy())
    np.testing.assert_array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(1)])
    np.testing.assert_array_equal(model.uncertainty(X), pred.entropy().numpy())
    np.testing.assert_array_equal(model.uncertainty(X, "mutual_information"), pred.mutual_information().numpy())
    assert model.score(X, y) == pytest.approx(metrics.accuracy(pred, torch.as_tensor(y)))
    assert model.predict_proba(X).dtype == np.float64


def test_the_ways_to_ask_a_regressor_agree():
    X, y = table(StationaryRegressor)
    model = StationaryRegressor(**SMALL).fit(X, y)
    pred, (mean, std) = model.predictive(X), model.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, pred.mean[:, 0].numpy())
    np.testing.assert_allclose(std**2, model.uncertainty(X) ** 2 + model.noise_variance_)
    assert np.isfinite(metrics.nlpd(pred, torch.as_tensor(y)))


@pytest.mark.parametrize(
    "settings",
    [{}, {"noise": "input"}, {"method": st.ExactDropout(), "max_iter": 20}],
    ids=["width", "noise", "finite"],
)
@pytest.mark.filterwarnings("ignore:.*max_iter")
def test_the_joint_of_a_regressor_is_in_the_units_of_its_table(settings):
    x, noise = np.random.default_rng(0).normal(size=(2, 60, 2))
    y, x = np.stack([x[:, 0] + x[:, 1], 1000 * np.sin(x[:, 0])], 1) + [0.3, 300] * noise, 100 + 30 * x
    model = StationaryRegressor(random_state=0, **settings).fit(x, y)
    new = torch.tensor(x[:6] + 5).requires_grad_()
    joint, pred = model.joint(new), model.predictive(new.detach().numpy())
    torch.testing.assert_close(joint.mean, pred.mean)
    torch.testing.assert_close(joint.variance(), pred.epistemic_variance)
    torch.testing.assert_close(joint.noise.expand_as(pred.mean), pred.aleatoric_variance)
    torch.testing.assert_close(model.joint(x[:6] + 5, group_size=3).covariance[1], joint.covariance[:, 3:, 3:])
    (slope,) = torch.autograd.grad(joint.covariance[1, 0, 1], new)
    step = torch.zeros_like(new)
    step[0, 0] = 1e-3
    ends = (model.joint((new + sign * step).detach()).covariance[1, 0, 1] for sign in (1, -1))
    assert float(slope[0, 0]) == pytest.approx(float(next(ends) - next(ends)) / 2e-3, rel=1e-4)


@pytest.mark.parametrize("settings", [SMALL, LIMIT, {**SMALL, "method": st.Ensemble(2)}], ids=["exact", "limit", "two"])
@pytest.mark.parametrize("noise", ["constant", "input"])
def test_the_mean_alone_is_that_of_the_whole_prediction(settings, noise):
    """Up to the rounding of the products of infinite width, 2e-10 of a standard deviation at most."""
    X, y = table(StationaryRegressor)
    y = np.stack([y, X[:, 0] - 7], 1)
    model = StationaryRegressor(**settings, noise=noise).fit(X, y)
    far = np.concatenate([X, 100 * X])
    error = np.abs(model.predict(far) - model.predictive(far).mean.numpy())
    assert (error <= 1e-9 * y.std(0)).all()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_far_from_the_data_the_classifier_does_not_know(seed):
    X, y = make_blobs(300, 4, centers=5, cluster_std=2.0, random_state=seed)
    wide = StationaryClassifier(random_state=seed).fit(X, y)
    model = StationaryClassifier(100, random_state=seed).fit(X, y)
    far = X.mean(0) + 100 * (X - X.mean(0))
    for each in (wide, model):
        assert np.median(each.uncertainty(X)) < 0.5 * math.log(5)
        assert np.median(each.uncertainty(far)) > 0.95 * math.log(5)
    ways = np.random.RandomState(seed).randn(500, 4)
    ways *= 100 * np.linalg.norm(X - X.mean(0), axis=1).max() / np.linalg.norm(ways, axis=1, keepdims=True)
    assert wide.uncertainty(X.mean(0) + ways).min() > 0.99 * math.log(5), "infinite width does so in every direction"
    plain = StationaryClassifier(100, random_state=seed, restore_prior=False).fit(X, y)
    assert np.median(model.uncertainty(far, "std")) > 10 * np.median(plain.uncertainty(far, "std"))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_far_from_the_data_the_regressor_returns_to_its_prior(seed):
    X, y = make_friedman2(300, random_state=seed, noise=20)
    model = StationaryRegressor(100, random_state=seed).fit(X, y)
    assert model.predictive(X).prior_restored
    assert np.median(model.uncertainty(X)) < 0.3 * y.std()
    for times, tolerance in [(100, 0.1), (1000, 0.05)]:
        far = X.mean(0) + times * (X - X.mean(0))
        assert abs(np.median(model.uncertainty(far)) / y.std() - 1) < tolerance
        assert abs(np.median(model.predict(far, return_std=True)[1]) / y.std() - 1) < tolerance


# Defaults


@pytest.mark.parametrize("estimator", BOTH)
def test_by_default_the_width_is_infinite(estimator):
    X, y = table(estimator)
    model = estimator(random_state=0).fit(X, y)
    posterior = model.posterior_
    assert isinstance(posterior.method, st.InfiniteWidth) and model.loss_curve_ == [] and model.n_iter_ == 1
    assert (posterior.method.kernel, posterior.basis.lengthscale.shape) == ("matern52", (X.shape[1],))
    np.testing.assert_array_equal(estimator(random_state=0).fit(X, y).predict(X), model.predict(X))
    for given in ({"method": st.InfiniteWidth()}, {"early_stopping": False, "dropout": 0.5, "max_iter": 1}):
        np.testing.assert_allclose(estimator(**given, random_state=0).fit(X, y).predict(X), model.predict(X))
    assert estimator((), "rbf").fit(X, y).posterior_.method.kernel == "rbf"


@pytest.mark.parametrize("estimator", BOTH)
def test_methods_that_need_hidden_layers_have_some(estimator):
    X, y = table(estimator)
    widths = lambda model: [layer.in_features for layer in model.posterior_.networks[0].modules() if is_linear(layer)]
    is_linear = lambda layer: isinstance(layer, torch.nn.Linear)
    assert widths(estimator(method=st.Point(), max_iter=1).fit(X, y))[-1] == 300
    finite = estimator((7,), max_iter=1).fit(X, y)
    assert widths(finite)[-1] == 7 and isinstance(finite.posterior_.method, st.ExactDropout)
    assert isinstance(estimator(8, "relu", max_iter=1).fit(X, y).posterior_.method, st.ExactDropout)


def wide_gap():
    """200 rows with noise .1, and places in the gap around 0 and far away."""
    random = np.random.default_rng(0)
    X = np.concatenate([random.uniform(-3, -1, 100), random.uniform(1, 3, 100)])[:, None]
    y = np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=200)
    return X, y, np.concatenate([np.linspace(-0.9, 0.9, 19), [-20.0, 20.0]])[:, None]


def test_in_a_gap_the_regressor_knows_what_a_gaussian_process_does():
    X, y, new = wide_gap()
    kernel = ConstantKernel() * Matern(1.0, nu=2.5) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    mean, std = process.predict(new, return_std=True)
    ours = StationaryRegressor(random_state=0).fit(X, y).predict(new, return_std=True)
    np.testing.assert_allclose(ours[0], mean, atol=0.02)
    np.testing.assert_allclose(ours[1], std, rtol=0.03)


@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": st.MCDropout(50)},
        {"method": st.Ensemble(2)},
        {"method": st.Point()},
        {"hidden_layer_sizes": (100,), "activation": "relu", "method": st.Point()},
        {"early_stopping": False},
        {"early_stopping": False, "method": st.Point()},
        {"early_stopping": False, "method": st.SWAG(n_samples=10)},
        {"hidden_layer_sizes": (50, 50, 50)},
        {"hidden_layer_sizes": (50, 50), "activation": "relu", "method": st.Point()},
        {"hidden_layer_sizes": (50, 50), "early_stopping": False, "method": st.Ensemble(2)},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the standard deviation may be far too small")
def test_in_a_gap_a_finite_network_knows_more_than_the_noise(settings, noise):
    """In its middle the std is .4 to .8, where the process has .42 and the noise is .1; at the rows it is .1 to .4."""
    X, y, new = wide_gap()
    settings = {"hidden_layer_sizes": (300,), "noise": noise} | settings
    for seed in range(2):
        std = StationaryRegressor(random_state=seed, **settings).fit(X, y).predict([*new, [2.0]], return_std=True)[1]
        assert std[9] > max(0.3, 1.25 * std[-1]), std


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"early_stopping": False}, "early_stopping=False left no rows to measure the noise by"),
        ({"early_stopping": False, "method": st.SWAG(n_samples=10)}, "early_stopping=False left no rows"),
    ],
    ids=str,
)
def test_some_finite_regressors_say_that_their_std_may_be_too_small(settings, warning):
    X, y, new = wide_gap()
    model = StationaryRegressor(**{"hidden_layer_sizes": (30,), "max_iter": 30} | settings).fit(X, y)
    model.predict(new)  # the mean alone is no reason to warn
    with pytest.warns(UserWarning, match=f"the standard deviation may be far too small: {warning}"):
        model.predict(new, return_std=True)


def test_without_held_out_rows_the_noise_is_too_small():
    """Why there is a warning: a network of 300 units learns the noise of 200 rows by heart."""
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(200, 5)), random.normal(size=200)
    stds = [
        StationaryRegressor((300,), early_stopping=early, random_state=0).fit(X, X[:, 0] + noise).noise_variance_ ** 0.5
        for early in (True, False)
    ]
    assert 0.9 < stds[0].item() < 1.1 and stds[1].item() < 0.5


def test_ten_times_out_the_regressor_has_the_spread_of_the_targets():
    X, y = make_friedman1(500, 10, noise=1.0, random_state=0)
    model = StationaryRegressor(random_state=0).fit(X, y)
    far = X.mean(0) + 10 * (X - X.mean(0))
    assert np.median(model.predict(far, return_std=True)[1]) > 0.9 * y.std()


# What is refused


def test_activations_without_a_kernel_need_hidden_layers():
    X, y = table(StationaryClassifier)
    with pytest.raises(ValueError, match=r"activation must be one of .*hidden_layer_sizes=\(300,\).*got 'relu'"):
        StationaryClassifier(activation="relu").fit(X, y)


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be positive integers"),
        ({"hidden_layer_sizes": (10, 0)}, r"hidden_layer_sizes must .*got \(10, 0\)"),
        ({"hidden_layer_sizes": "wide"}, "hidden_layer_sizes must"),
        ({"activation": "no such"}, "activation name must be one of"),
        ({"activation": st.Matern}, "activation must be a name"),
        ({"dropout": 1.0}, r"dropout must be a probability in \[0, 1\)"),
        ({"dropout": "high"}, r"dropout must be a probability in \[0, 1\), got 'high'"),
        ({"dropout": 0.0}, "must have an active nn.Dropout"),
        ({"device": "gpu"}, "device must be one of PyTorch, such as 'cpu' or 'cuda', got 'gpu'"),
        ({"alpha": -1}, "alpha must be a finite number, at least 0, or None; got -1"),
        ({"batch_size": "auto"}, "batch_size must be a positive integer or None"),
        ({"learning_rate_init": 0}, "learning_rate_init must be a positive number"),
        ({"max_iter": 0}, "max_iter must be a positive integer"),
        ({"n_iter_no_change": 2.5}, "n_iter_no_change must be a positive integer"),
        ({"validation_fraction": 1}, r"validation_fraction must be a number in \(0, 1\)"),
        (
            {"validation_fraction": 0.999},
            r"validation_fraction must leave a row of each class to train on, got 0.999 of",
        ),
        ({"method": st.SWAG()}, "SWAG, which needs the whole path of training.*early_stopping=False"),
        ({"method": st.SWAG(), "early_stopping": False, "max_iter": 4}, "SWAG needs at least 2"),
    ],
)
def test_wrong_parameters_are_refused(estimator, settings, message):
    with pytest.raises(ValueError, match=message):
        estimator(**SMALL | settings).fit(*table(estimator))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(ValueError, match=r"device must be None or 'cpu' here.*got 'cuda'"):
        StationaryClassifier(device="cuda").fit(*table(StationaryClassifier))


@pytest.mark.parametrize("estimator", BOTH)
def test_wrong_data_are_refused(estimator):
    X, y = table(estimator)
    model = estimator(**SMALL)
    with pytest.raises(NotFittedError, match=f"This {estimator.__name__} instance is not fitted yet"):
        model.predict(X)
    hole = X.copy()
    hole[3, 1] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(hole, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        model.fit(X, y, -np.ones(len(y)))
    model.fit(X, y)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict(hole)
    with pytest.raises(ValueError, match=f"X has 1 features, but {estimator.__name__} is expecting {X.shape[1]}"):
        model.predict(X[:, :1])


def test_what_only_one_of_them_refuses():
    X, y = table(StationaryClassifier)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        StationaryClassifier(**SMALL).fit(X, y + 0.5)
    with pytest.raises(ValueError, match=r"measure must be one of std, variance, .*got 'spread'"):
        StationaryClassifier(**SMALL).fit(X, y).uncertainty(X, "spread")
    with pytest.raises(ValueError, match="no two of the same class: set early_stopping=False"):
        StationaryClassifier(**SMALL).fit(X[:3], [0, 1, 2])
    for settings in (SMALL, {}):
        with pytest.raises(ValueError, match="y must have at least two classes, got one class, 'a'"):
            StationaryClassifier(**settings).fit(X, ["a"] * len(X))
    for weight in (-1, np.nan, np.inf):  # whose rows would be left out as those of weight 0 are
        with pytest.raises(ValueError, match=r"class_weight must be finite and at least 0, got \{0: "):
            StationaryClassifier(class_weight={0: weight}).fit(X, y)


def test_what_goes_wrong_with_the_prior_is_not_hidden(monkeypatch):
    """Only an activation that does not decay leaves the prior out; every other error is shown."""

    def broken(*args, **kwargs):
        raise ValueError("something else is wrong")

    monkeypatch.setattr("stationary.estimators._network.calibrate_prior", broken)
    X, y = table(StationaryClassifier)
    with pytest.raises(ValueError, match="something else is wrong"):
        StationaryClassifier(**SMALL).fit(X, y)
    StationaryClassifier(activation="relu", **SMALL).fit(X, y)


def test_swag_weighs_rows():
    X, y = table(StationaryClassifier)
    fit = lambda weight: StationaryClassifier(**SMALL, method=st.SWAG(n_samples=5), early_stopping=False).fit(
        X, y, weight
    )
    weight = np.random.default_rng(0).uniform(0.1, 2, len(y))
    assert not np.array_equal(fit(weight).predict_proba(X), fit(None).predict_proba(X))


@pytest.mark.gpu
@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("method", [None, st.MCDropout(20), st.Ensemble(2)])
def test_on_a_gpu(estimator, method):
    X, y = table(estimator, 300)
    model = estimator(device="cuda", method=method, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8
    assert next(model.posterior_.networks[0].parameters()).is_cuda
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.uncertainty(X), model.uncertainty(X))
