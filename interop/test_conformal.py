"""Conformal sets and intervals beside MAPIE's and crepes', and our estimators in MAPIE's own classes."""

import numpy as np
import pytest
import torch
from crepes import ConformalClassifier, ConformalRegressor
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import APSConformityScore, RAPSConformityScore
from mapie.regression import SplitConformalRegressor
from sklearn.datasets import make_blobs, make_friedman1

import stationary as st

CLASSES = make_blobs(900, 3, centers=4, cluster_std=4.0, random_state=0)
VALUES = make_friedman1(600, 5, noise=1.0, random_state=0)
FIT, CALIBRATE, NEW = slice(0, 200), slice(200, 400), slice(400, None)


@pytest.fixture(scope="module")
def classifier():
    return st.StationaryClassifier(20, max_iter=20, random_state=0).fit(CLASSES[0][FIT], CLASSES[1][FIT])


@pytest.fixture(scope="module")
def regressor():
    return st.StationaryRegressor(random_state=0).fit(VALUES[0][FIT], VALUES[1][FIT])


def ours(model, table, score, coverage=0.9, **options):
    data = model.inputs(table[0][CALIBRATE]), torch.as_tensor(table[1][CALIBRATE])
    return st.conformal(model.posterior_, data, coverage, score, **options)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_lac_is_that_of_mapie(classifier, coverage):
    theirs = SplitConformalClassifier(classifier, coverage, "lac", prefit=True)
    theirs.conformalize(CLASSES[0][CALIBRATE], CLASSES[1][CALIBRATE])
    predicted, sets = theirs.predict_set(CLASSES[0][NEW])
    np.testing.assert_array_equal(predicted, classifier.predict(CLASSES[0][NEW]))
    classifier.conformalize(CLASSES[0][CALIBRATE], CLASSES[1][CALIBRATE], coverage)
    np.testing.assert_array_equal(classifier.predict_set(CLASSES[0][NEW]), sets[:, :, 0])


def test_aps_is_that_of_mapie_but_for_the_class_that_crosses_the_threshold(classifier):
    """Theirs adds the first class beyond the threshold; what is below it is the same."""
    theirs = SplitConformalClassifier(classifier, 0.9, APSConformityScore(), prefit=True)
    theirs.conformalize(CLASSES[0][CALIBRATE], CLASSES[1][CALIBRATE])
    sets = theirs.predict_set(CLASSES[0][NEW], conformity_score_params={"include_last_label": True})[1][:, :, 0]
    made = ours(classifier, CLASSES, "aps")
    x = classifier.inputs(CLASSES[0][NEW])
    found, probs = made.predict_set(x).numpy(), st.predict(classifier.posterior_, x).probs.numpy()
    assert (found <= sets).all() and (sets.sum(1) - found.sum(1) <= 1).all()
    order = np.argsort(-probs, 1)
    for ours_, theirs_, ranks in zip(found, sets, order, strict=True):
        extra = np.flatnonzero(theirs_ & ~ours_)
        assert all(ranks[ours_.sum()] == k for k in extra), "the next most probable"


def test_raps_has_the_classes_of_mapie(classifier):
    theirs = SplitConformalClassifier(classifier, 0.9, RAPSConformityScore(size_raps=0.2), prefit=True, random_state=0)
    theirs.conformalize(CLASSES[0][CALIBRATE], CLASSES[1][CALIBRATE])
    sets = theirs.predict_set(CLASSES[0][NEW], conformity_score_params={"include_last_label": True})[1][:, :, 0]
    found = ours(classifier, CLASSES, "raps").predict_set(classifier.inputs(CLASSES[0][NEW])).numpy()
    assert abs(sets.sum(1).mean() - found.sum(1).mean()) < 1.0, "they choose their penalty by some of the rows"
    assert found[np.arange(500), CLASSES[1][NEW]].mean() > 0.87


def test_absolute_intervals_are_those_of_mapie(regressor):
    theirs = SplitConformalRegressor(regressor, 0.9, "absolute", prefit=True)
    theirs.conformalize(VALUES[0][CALIBRATE], VALUES[1][CALIBRATE])
    _, interval = theirs.predict_interval(VALUES[0][NEW])
    regressor.conformalize(VALUES[0][CALIBRATE], VALUES[1][CALIBRATE], 0.9, "absolute")
    np.testing.assert_allclose(regressor.predict_interval(VALUES[0][NEW]), interval[:, :, 0], rtol=1e-6)


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_scaled_intervals_are_those_of_crepes(regressor, coverage):
    x, new = (regressor.inputs(VALUES[0][rows]) for rows in (CALIBRATE, NEW))
    y = torch.as_tensor(regressor.target_scaler_.transform(VALUES[1][CALIBRATE, None]))
    before, after = (st.predict(regressor.posterior_, some) for some in (x, new))
    theirs = ConformalRegressor().fit((y - before.mean)[:, 0].numpy(), sigmas=before.std()[:, 0].numpy())
    interval = theirs.predict_int(after.mean[:, 0].numpy(), sigmas=after.std()[:, 0].numpy(), confidence=coverage)
    lower, upper = st.conformal(regressor.posterior_, (x, y), coverage, "std").predict_interval(new)
    np.testing.assert_allclose(torch.cat([lower, upper], 1), interval, rtol=1e-9)


def test_sets_per_class_are_those_of_crepes(classifier):
    """Where 0.07 (n + 1) is no whole number for any class; else theirs take one class more than they must."""
    x, new = (classifier.inputs(CLASSES[0][rows]) for rows in (CALIBRATE, NEW))
    y = CLASSES[1][CALIBRATE]
    before, after = (1 - st.predict(classifier.posterior_, some).probs.numpy() for some in (x, new))
    theirs = ConformalClassifier().fit(before[np.arange(200), y], bins=y)
    sets = np.stack(
        [
            theirs.predict_set(after[:, [k]], bins=np.full(500, k), confidence=0.93, smoothing=False)[:, 0]
            for k in range(4)
        ],
        1,
    )
    found = ours(classifier, CLASSES, "lac", 0.93, per_class=True).predict_set(new)
    np.testing.assert_array_equal(found.numpy(), sets.astype(bool))


def test_mapie_fits_our_estimators_by_itself():
    model = SplitConformalClassifier(st.StationaryClassifier(8, max_iter=2, random_state=0), 0.9, prefit=False)
    model.fit(CLASSES[0][FIT], CLASSES[1][FIT]).conformalize(CLASSES[0][CALIBRATE], CLASSES[1][CALIBRATE])
    assert model.predict_set(CLASSES[0][NEW])[1].shape == (500, 4, 1)
