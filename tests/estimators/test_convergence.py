"""What scikit-learn's users expect: warnings of a training that ended too early, weights of classes, no surprises."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_sample_weight

import stationary as st
from stationary.estimators._convergence import warn_unless_converged

X, Y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
TABLE = rng.normal(size=(200, 3))
LABELS = (TABLE[:, 0] + 0.3 * rng.normal(size=200) > 0.8).astype(int)  # a fifth of them 1


@pytest.fixture
def silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("estimator", [st.StationaryClassifier, st.StationaryRegressor])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_an_end_before_convergence_warns(estimator, early_stopping):
    with pytest.warns(
        ConvergenceWarning, match=r"max_iter=4 ended the training before it converged.*raise max_iter"
    ) as c:
        estimator((20,), max_iter=4, early_stopping=early_stopping, random_state=0).fit(TABLE, LABELS)
    assert c[0].filename == __file__


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("estimator", [st.StationaryClassifier, st.StationaryRegressor])
def test_a_training_that_stopped_by_itself_is_silent(estimator):
    model = estimator((20,), max_iter=400, n_iter_no_change=10, learning_rate_init=0.02, random_state=0)
    assert model.fit(TABLE, LABELS).n_iter_ < 400
    estimator().fit(TABLE, LABELS)  # infinite width trains nothing


def test_losses_that_fall_and_losses_that_scatter(silence):
    flat = 0.3 + 0.05 * rng.normal(size=200)
    ask = lambda losses: warn_unless_converged(losses, len(losses), len(losses), 30, early_stopping=False)
    ask(list(flat))
    ask([0.2] * 50)
    for losses in (list(flat - 0.002 * np.arange(200)), list(np.exp(-np.arange(100) / 50)), [1.0]):
        with pytest.warns(ConvergenceWarning):
            ask(losses)
    ask([])  # nothing was trained
    warn_unless_converged([1.0, 0.5], 2, 10, 30, early_stopping=True)  # it stopped by itself


def test_a_network_that_is_far_too_unsure_says_so():
    model = st.StationaryClassifier((100,), max_iter=2, random_state=0)
    with (
        pytest.warns(
            UserWarning, match=r"far too unsure: of 180 held-out rows it expects \d+ wrong and gets \d+ wrong"
        ),
        pytest.warns(ConvergenceWarning),
    ):
        model.fit(X, Y)


@pytest.mark.usefixtures("silence")
def test_a_network_that_is_trained_is_not():
    warnings.filterwarnings("ignore", "max_iter=")
    st.StationaryClassifier((100,), max_iter=60, random_state=0).fit(X, Y)


def test_weights_of_classes_are_those_of_their_rows():
    for weights in ("balanced", {0: 1.0, 1: 5.0}):
        rows = compute_sample_weight(weights, LABELS)
        for settings in ({}, {"hidden_layer_sizes": (20,), "max_iter": 5}):
            weighted = st.StationaryClassifier(class_weight=weights, random_state=0, **settings).fit(TABLE, LABELS)
            plain = st.StationaryClassifier(random_state=0, **settings).fit(TABLE, LABELS, sample_weight=rows)
            np.testing.assert_allclose(weighted.predict_proba(TABLE), plain.predict_proba(TABLE), rtol=1e-6)
    plain = st.StationaryClassifier(random_state=0).fit(TABLE, LABELS)
    assert weighted.predict_proba(TABLE)[:, 1].mean() > plain.predict_proba(TABLE)[:, 1].mean()
    with pytest.raises(ValueError, match=r"class_weight|balanced"):
        st.StationaryClassifier(class_weight="even").fit(TABLE, LABELS)


@pytest.mark.parametrize("estimator", [st.StationaryClassifier, st.StationaryRegressor])
def test_no_partial_fit_as_scikit_learn_sees_it(estimator):
    model = estimator()
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError) as error:
        model.partial_fit(TABLE, LABELS)
    assert "fit it again with all rows" in str(error.value.__cause__ or error.value)


@pytest.mark.parametrize("estimator", [st.StationaryClassifier, st.StationaryRegressor])
def test_sparse_tables_are_refused_as_scikit_learn_does(estimator):
    with pytest.raises(TypeError, match=r"dense data is required"):
        estimator().fit(sparse.csr_matrix(TABLE), LABELS)
    assert not estimator().__sklearn_tags__().input_tags.sparse
