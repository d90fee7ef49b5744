"""Sets, intervals and the reject option of the estimators: their definition, their promise, and what they refuse."""

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_blobs, make_friedman2
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import stationary as st
from stationary import StationaryClassifier, StationaryRegressor

NAMES = np.array(["ash", "birch", "cedar"])
FINITE = {"hidden_layer_sizes": (16,), "max_iter": 20, "random_state": 0}
WIDE = {"method": st.InfiniteWidth(n_inducing=40), "random_state": 0}
FIT, HOLD, NEW = slice(0, 150), slice(150, 350), slice(350, None)


def trees(n=2000, seed=0):
    X, y = make_blobs(n, 3, centers=[[0, 0, 0], [4, 0, 0], [0, 4, 0]], cluster_std=2.0, random_state=seed)
    return X, NAMES[y]


def values(n=800, columns=None):
    X, y = make_friedman2(n, noise=100, random_state=0)
    return X, y if columns is None else np.stack([y, 5 - 3e-3 * y], 1)[:, :columns]


@pytest.fixture(scope="module", params=[FINITE, WIDE], ids=["finite", "wide"])
def classifier(request):
    X, y = trees()
    return StationaryClassifier(**request.param).fit(X[FIT], y[FIT])


@pytest.fixture(scope="module", params=[FINITE, WIDE], ids=["finite", "wide"])
def regressor(request):
    X, y = values()
    return StationaryRegressor(**request.param).fit(X[FIT], y[FIT])


def smallest(scores, share):
    """The k-th smallest of n scores, k = ceil((n + 1) share)."""
    return np.sort(scores, 0)[math.ceil((len(scores) + 1) * share - 1e-9) - 1]


# Definitions


@pytest.mark.parametrize("coverage", [0.8, 0.9])
@pytest.mark.parametrize("per_class", [False, True])
def test_a_set_has_the_classes_that_are_probable_enough(classifier, coverage, per_class):
    X, y = trees()
    assert classifier.conformalize(X[HOLD], y[HOLD], coverage, per_class=per_class) is classifier
    doubt = 1 - classifier.predict_proba(X[HOLD])
    own = doubt[np.arange(200), [NAMES.tolist().index(name) for name in y[HOLD]]]
    limits = [smallest(own[y[HOLD] == name] if per_class else own, coverage) for name in NAMES]
    found = classifier.predict_set(X[NEW])
    assert found.dtype == bool and found.shape == (1650, 3) and classifier.classes_.tolist() == NAMES.tolist()
    np.testing.assert_array_equal(found, 1 - classifier.predict_proba(X[NEW]) <= limits)


@pytest.mark.parametrize("score", ["std", "absolute"])
def test_an_interval_is_as_wide_as_errors_were(regressor, score):
    X, y = values()
    assert regressor.conformalize(X[HOLD], y[HOLD], 0.9, score) is regressor
    mean, std = regressor.predict(X, return_std=True)
    unit = std if score == "std" else np.ones(len(X))
    reach = smallest(np.abs(y - mean)[HOLD] / unit[HOLD], 0.9) * unit
    np.testing.assert_allclose(regressor.predict_interval(X), np.stack([mean - reach, mean + reach], 1), rtol=1e-9)


@pytest.mark.parametrize(("columns", "shape"), [(None, (450, 2)), (1, (450, 1, 2)), (2, (450, 2, 2))])
def test_intervals_have_the_shape_and_the_units_of_y(columns, shape):
    X, y = values(columns=columns)
    model = StationaryRegressor(**FINITE).fit(X[FIT], y[FIT]).conformalize(X[HOLD], y[HOLD])
    found = model.predict_interval(X[NEW])
    assert found.shape == shape and found.dtype == np.float64
    held = (found[..., 0] <= y[NEW]) & (y[NEW] <= found[..., 1])
    assert (held.mean(0) > 0.8).all()  # six standard deviations of the coverage, of which HOLD has .021 and NEW .014


def test_known_rows_are_those_below_the_threshold(classifier):
    X, _ = trees()
    assert classifier.fit_reject(X[HOLD], accept=0.9, measure="mutual_information") is classifier
    measure = lambda rows: classifier.detector_.scores(classifier.inputs(rows)).numpy()
    known = classifier.accepts(X[NEW])
    assert known.dtype == bool and known.shape == (1650,)
    np.testing.assert_array_equal(known, measure(X[NEW]) <= smallest(measure(X[HOLD]), 0.9))
    p = classifier.detector_.p_value(classifier.inputs(X[NEW])).numpy()
    np.testing.assert_array_equal(known, p > 0.1 + 1e-9)  # the conformal p-value says the same


@pytest.mark.parametrize("params", [FINITE, WIDE], ids=["finite", "wide"])
def test_the_defaults_of_the_measure(params):
    X, y = trees(400)
    model = StationaryClassifier(**params).fit(X[FIT], y[FIT]).fit_reject(X[HOLD])
    assert model.detector_.score == "entropy" and len(model.detector_.known) == 200
    X, y = values(400)
    model = StationaryRegressor(**params).fit(X[FIT], y[FIT]).fit_reject(X[HOLD])
    assert model.detector_.score == "std"
    far = X.mean(0) + 1e3 * (X - X.mean(0))
    assert not model.accepts(far).any() and model.accepts(X[NEW]).mean() > 0.8


# Promises


@pytest.mark.parametrize(  # the promise is that of the ranks, whatever the network is
    "classifier",
    [pytest.param(FINITE, id="finite"), pytest.param(WIDE, id="wide", marks=pytest.mark.slow)],
    indirect=True,
)
def test_the_truth_is_held_and_known_rows_are_accepted_as_often_as_promised(classifier):
    """280 hold-outs of 39 rows and 100 new rows each: coverage is k / (n + 1) on average. Four standard errors."""
    covered, accepted = [], []
    for seed in range(280):
        X, y = trees(139, seed=seed + 1)
        classifier.conformalize(X[:39], y[:39], 0.8).fit_reject(X[:39], 0.9)
        sets = classifier.predict_set(X[39:])
        covered.append(sets[np.arange(100), np.searchsorted(NAMES, y[39:])].mean())
        accepted.append(classifier.accepts(X[39:]).mean())
    for found, promised in ((covered, 0.8), (accepted, 0.9)):  # 40 times each is a whole number
        error = np.std(found) / np.sqrt(280)
        assert abs(np.mean(found) - promised) < 4 * error
        assert error < 0.005, "a promise that is .02 off would be seen"


# scikit-learn


def test_a_rejected_row_has_the_label_that_was_asked_for(classifier):
    X, _ = trees()
    classifier.fit_reject(X[HOLD], 0.9)
    known, plain = classifier.accepts(X[NEW]), classifier.predict(X[NEW])
    labels = classifier.predict(X[NEW], reject_label="no idea at all")
    assert labels.dtype.kind == "U" and set(labels) == {*NAMES, "no idea at all"} and 0 < known.mean() < 1
    np.testing.assert_array_equal(labels[known], plain[known])
    assert (labels[~known] == "no idea at all").all()
    assert set(plain) <= set(NAMES), "without a label every row gets a class"


@pytest.mark.parametrize(("label", "kind"), [(-1, "i"), ("?", "O")])
def test_labels_of_another_kind_stay_what_they_are(label, kind):
    X, y = make_blobs(350, 2, centers=2, cluster_std=3.0, random_state=0)
    model = StationaryClassifier(**FINITE).fit(X[FIT], y[FIT]).fit_reject(X[HOLD], 0.8)
    found = model.predict(X[HOLD], reject_label=label)
    assert found.dtype.kind == kind and set(found.tolist()) == {0, 1, label}


def test_a_new_fit_forgets_what_was_promised_and_a_clone_never_knew():
    X, y = trees(600)
    model = StationaryClassifier(**FINITE).fit(X[FIT], y[FIT]).conformalize(X[HOLD], y[HOLD]).fit_reject(X[HOLD])
    for other in (clone(model).fit(X[FIT], y[FIT]), model.fit(X[HOLD], y[HOLD])):
        for call in (other.predict_set, other.accepts):
            with pytest.raises(NotFittedError, match="must be calibrated before"):
                call(X)
    model.conformalize(X[FIT], y[FIT])  # which the new fit has not seen


@pytest.mark.parametrize("estimator", [StationaryClassifier, StationaryRegressor])
def test_promises_are_pickled(estimator):
    X, y = trees(400) if estimator is StationaryClassifier else values(400)
    model = estimator(**WIDE).fit(X[FIT], y[FIT]).conformalize(X[HOLD], y[HOLD]).fit_reject(X[HOLD])
    other = pickle.loads(pickle.dumps(model))
    answer = lambda one: one.predict_set(X) if estimator is StationaryClassifier else one.predict_interval(X)
    np.testing.assert_allclose(answer(other), answer(model), rtol=1e-10)  # products round by where memory begins
    np.testing.assert_array_equal(other.accepts(X), model.accepts(X))
    with pytest.raises(ValueError, match="was not fitted to, got 150 of 150"):
        other.fit_reject(X[FIT])


def test_in_a_pipeline_and_a_grid_search():
    X, y = trees(600)
    pipeline = make_pipeline(MinMaxScaler(), StationaryClassifier(**FINITE))
    search = GridSearchCV(pipeline, {"stationaryclassifier__activation": ["matern32", "matern52"]}, cv=2)
    best = search.fit(X[FIT], y[FIT]).best_estimator_
    before, model = best[:-1], best[-1]
    model.conformalize(before.transform(X[HOLD]), y[HOLD]).fit_reject(before.transform(X[HOLD]))
    assert "unknown" in best.predict(1e3 + X[NEW], reject_label="unknown")
    assert model.predict_set(before.transform(X[NEW])).shape == (250, 3)
    assert set(cross_val_predict(best, X[FIT], y[FIT], cv=2)) <= set(NAMES), "the copies have no reject option"


def test_calibrated_by_scikit_learn_with_and_without_promises():
    X, y = trees(800)
    model = StationaryClassifier(**FINITE).fit(X[FIT], y[FIT])
    before = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid").fit(X[HOLD], y[HOLD])
    model.conformalize(X[HOLD], y[HOLD]).fit_reject(X[HOLD])
    after = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid").fit(X[HOLD], y[HOLD])
    np.testing.assert_array_equal(after.predict_proba(X[NEW]), before.predict_proba(X[NEW]))
    assert after.score(X[NEW], y[NEW]) > model.score(X[NEW], y[NEW]) - 0.05
    folds = CalibratedClassifierCV(StationaryClassifier(**WIDE), cv=2).fit(X[FIT], y[FIT])
    assert folds.score(X[NEW], y[NEW]) > 0.7
    assert FrozenEstimator(model).predict_set(X[NEW]).shape == (450, 3)


def test_tables_of_pandas():
    frame = load_iris(as_frame=True)
    order = np.random.default_rng(0).permutation(150)
    X, y = frame.data.iloc[order], frame.target_names[frame.target][order]
    model = StationaryClassifier(**FINITE).fit(X[:70], y[:70]).conformalize(X[70:120], y[70:120]).fit_reject(X[70:120])
    assert model.predict_set(X[120:]).shape == (30, 3) and model.accepts(X[120:]).shape == (30,)
    with pytest.raises(ValueError, match="feature names"):
        model.accepts(X.rename(columns={"petal width (cm)": "width"}))


# The detector on a table


@pytest.mark.parametrize("score", ["entropy", "variance"])
def test_the_detector_takes_an_estimator(classifier, score):
    X, _ = trees()
    detector = st.OODDetector(classifier, score).fit(X[HOLD])
    other = st.OODDetector(classifier.posterior_, score).fit(classifier.inputs(X[HOLD]))
    assert torch.equal(detector.p_value(X[NEW]), other.p_value(classifier.inputs(X[NEW])))
    np.testing.assert_array_equal(classifier.inputs(X), classifier.scaler_.transform(X))
    assert detector.discoveries(1e3 + X[NEW]).all()


def test_the_detector_takes_a_regressor_and_a_score_of_rows(regressor):
    X, _ = values()
    detector = st.OODDetector(regressor, "std").fit(X[HOLD])
    std = torch.as_tensor(regressor.uncertainty(X[NEW]))
    ours = detector.scores(X[NEW])
    torch.testing.assert_close(ours / ours[0], std / std[0])
    with pytest.raises(ValueError, match="score must be one of std, variance; got 'entropy'"):
        st.OODDetector(regressor, "entropy")
    distance = lambda x: x.norm(dim=1)
    torch.testing.assert_close(st.OODDetector(regressor, distance).scores(X), distance(regressor.inputs(X)))
    regressor.fit_reject(X[HOLD], 0.9, distance)
    np.testing.assert_array_equal(
        regressor.accepts(X[NEW]),
        np.linalg.norm(regressor.inputs(X[NEW]), axis=1) <= regressor.detector_.threshold,
    )


def test_the_detector_needs_a_fitted_estimator():
    with pytest.raises(NotFittedError, match="not fitted yet"):
        st.OODDetector(StationaryClassifier()).fit(np.ones((3, 2)))


# What is refused


def test_what_must_come_before():
    X, y = trees(300)
    for model in (StationaryClassifier(), StationaryRegressor()):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            model.fit_reject(X)
    classes, numbers = StationaryClassifier(**FINITE).fit(X, y), StationaryRegressor(**FINITE).fit(X, X[:, 0])
    call = r"call conformalize\(X_hold, y_hold\) with rows that fit has not seen"
    with pytest.raises(NotFittedError, match=f"StationaryClassifier must be calibrated before predict_set: {call}"):
        classes.predict_set(X)
    with pytest.raises(NotFittedError, match=f"StationaryRegressor must be calibrated before predict_interval: {call}"):
        numbers.predict_interval(X)
    for call in (classes.accepts, numbers.accepts, lambda X: classes.predict(X, reject_label="?")):
        with pytest.raises(NotFittedError, match=r"must be calibrated before accepts: call fit_reject\(X_hold\)"):
            call(X)


@pytest.mark.parametrize("share", [0, 1, 95, -0.5, math.nan])
def test_shares_are_between_0_and_1(classifier, regressor, share):
    (X, y), (Z, z) = trees(), values()
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got"):
        classifier.conformalize(X[HOLD], y[HOLD], share)
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got"):
        regressor.conformalize(Z[HOLD], z[HOLD], share)
    with pytest.raises(ValueError, match=r"accept must be in \(0, 1\), got"):
        classifier.fit_reject(X[HOLD], share)


def test_too_few_rows_are_refused(classifier, regressor):
    (X, y), (Z, z) = trees(), values()
    few, enough = slice(200, 218), slice(200, 219)
    for model, table in ((classifier, (X, y)), (regressor, (Z, z))):
        with pytest.raises(ValueError, match=r"data must have at least 19 rows for a coverage of 0.95; got 18"):
            model.conformalize(table[0][few], table[1][few], 0.95)
        with pytest.raises(ValueError, match=r"X must have at least 19 rows to accept 0.95 of new ones; got 18"):
            model.fit_reject(table[0][few], 0.95)
        model.conformalize(table[0][enough], table[1][enough], 0.95).fit_reject(table[0][enough], 0.95)


def test_a_class_that_is_missing_is_named(classifier):
    X, y = trees()
    some = np.flatnonzero(y[HOLD] != "birch") + 150
    with pytest.raises(ValueError, match=r"per_class=True needs at least 9 rows of each class .* got 0 of class birch"):
        classifier.conformalize(X[some], y[some], per_class=True)
    with pytest.warns(UserWarning, match=r"y has no row of class birch: .* shuffle"):
        classifier.conformalize(X[some], y[some])
    other = np.where(y == "birch", "oak", y)
    with pytest.raises(ValueError, match=r"y must have labels of classes_, got \['oak'\]"):
        classifier.conformalize(X[HOLD], other[HOLD])


def test_rows_of_the_fit_are_refused(classifier, regressor):
    (X, y), (Z, z) = trees(), values()
    for rows, count in ((FIT, "150 of 150"), (slice(0, 280), "150 of 280")):
        for model, table in ((classifier, (X, y)), (regressor, (Z, z))):
            with pytest.raises(ValueError, match=f"X must be rows that the estimator was not fitted to, got {count}"):
                model.conformalize(table[0][rows], table[1][rows])
            with pytest.raises(ValueError, match=f"X must be rows that the estimator was not fitted to, got {count}"):
                model.fit_reject(table[0][rows])


def test_shares_and_targets_that_are_no_numbers_are_refused(classifier, regressor):
    X, words = values()[0], np.array(["a", "b"])
    for share in ("most", None):
        with pytest.raises(ValueError, match=rf"accept must be in \(0, 1\), got {share!r}"):
            classifier.fit_reject(trees()[0][HOLD], accept=share)
        with pytest.raises(ValueError, match=rf"accept must be a share in \(0, 1\], got {share!r}"):
            st.OODDetector(regressor).fit(X[HOLD], accept=share)
    with pytest.raises(ValueError, match="could not convert string to float"):
        regressor.conformalize(X[HOLD], words[np.arange(200) % 2])


@pytest.mark.parametrize("seed", range(20))
def test_twins_are_not_refused_where_the_table_is_full_of_them(seed):
    """Two columns of four values each: every new row has a twin in the table, or most do."""
    random = np.random.default_rng(seed)
    X = random.integers(0, 4, (150, 2)).astype(float)
    X[: 10 * (seed % 10)] += random.normal(size=(10 * (seed % 10), 2))  # and some tables have fewer
    random.shuffle(X)
    model = StationaryRegressor(8, max_iter=1, early_stopping=False, random_state=0).fit(X[:100], X[:100].sum(1))
    model.fit_reject(X[100:], measure=lambda x: x[:, 0] + 1e-3 * x[:, 1])


def test_rows_that_chose_numbers_of_the_posterior_are_refused():
    X, y = trees(400)
    model = StationaryClassifier(**WIDE).fit(X[FIT], y[FIT])
    model.posterior_ = st.calibrate(model.posterior_, (model.inputs(X[HOLD]), torch.arange(200) % 3))
    with pytest.raises(ValueError, match="data must be rows that have chosen nothing before, got 200 that chose"):
        model.conformalize(X[HOLD], y[HOLD])


def test_other_wrong_arguments(classifier, regressor):
    (X, y), (Z, z) = trees(), values()
    classifier.fit_reject(X[HOLD])
    with pytest.raises(ValueError, match="reject_label must be none of classes_, got 'ash'"):
        classifier.predict(X, reject_label="ash")
    with pytest.raises(ValueError, match="score must be one of lac, aps, raps for a Categorical; got 'std'"):
        classifier.conformalize(X[HOLD], y[HOLD], score="std")
    with pytest.raises(ValueError, match="score must be one of std, variance; got 'entropy'"):
        regressor.fit_reject(Z[HOLD], measure="entropy")
    with pytest.raises(ValueError, match=r"y must have the shape \(n,\) that it had in fit; got \(200, 2\)"):
        regressor.conformalize(Z[HOLD], np.stack([z[HOLD]] * 2, 1))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        regressor.conformalize(Z[HOLD], z[NEW])
    hole = X.copy()
    hole[200, 0] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        classifier.fit_reject(hole[HOLD])
