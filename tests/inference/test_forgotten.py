"""A prior that was forgotten, and one that is stale, are said where they matter, and nowhere else."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import stationary as st
from stationary.nn.restored_prior import heads_of

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
FORGOTTEN = (
    r"activation decays and its prior was not calibrated.*calibrate_prior\(model, x_train\).*restore_prior=False"
)
STALE = r"the restored prior is stale: .*calibrate_prior\(model, x_train\) again"


def network(activation="matern52", outputs=2):
    return st.MLP(3, outputs, hidden=(8,), activation=activation)


@pytest.fixture
def silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def step(model):
    """A step of further training."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(X).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("method", [None, st.MCDropout(5), st.Ensemble(2)], ids=str)
def test_epistemic_measures_of_classes_warn(method):
    model = st.Ensemble(2).posterior([network(), network()]) if isinstance(method, st.Ensemble) else network()
    pred = st.predict(model, X, None if isinstance(method, st.Ensemble) else method)
    assert pred.prior_missing and not pred.prior_restored
    for ask in (pred.mutual_information, pred.std, pred[:3].std, lambda: st.ood.score(pred, "variance")):
        with pytest.warns(UserWarning, match=FORGOTTEN):
            ask()


@pytest.mark.parametrize("score", ["std", "variance", "mutual_information"])
def test_detectors_by_epistemic_measures_warn(score):
    with pytest.warns(UserWarning, match=FORGOTTEN):
        st.OODDetector(network(), score).fit(X)


def test_it_is_said_once_for_each_line():
    pred = st.predict(network(), X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            pred.mutual_information()
    assert len(caught) == 1 and caught[0].filename == __file__


def test_regressions_warn():
    with pytest.warns(UserWarning, match=FORGOTTEN) as caught:
        st.predict(network(outputs=1), X, family=st.Gaussian)
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("silence")
def test_nothing_is_said_where_nothing_is_amiss(tmp_path):
    pred = st.predict(network(), X)
    pred.probs, pred.entropy(), repr(pred), pred.columns(), pred.energy()
    saved = st.Categorical.load(pred.save(tmp_path / "pred.npz"))
    assert saved.prior_missing
    for model, method in (
        (network(), st.ExactDropout(restore_prior=False)),
        (network("relu"), None),
        (nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 2)), None),
        (st.calibrate_prior(network(), X), None),
        (st.calibrate_prior(network(), X), st.MCDropout(5, restore_prior=True)),
    ):
        pred = st.predict(model, X, method)
        pred.mutual_information(), pred.std()
        assert not pred.prior_missing
    st.predict(network(outputs=1), X, st.Point(), family=st.Gaussian)
    st.predict(network(outputs=1), X, st.MCDropout(5, restore_prior=False), family=st.Gaussian)
    st.predict(st.InfiniteWidth(n_inducing=10).posterior(network(), (X, Y)), X).mutual_information()


@pytest.mark.usefixtures("silence")
def test_estimators_restore_the_prior_or_were_told_not_to():
    settings = {"max_iter": 3, "early_stopping": False, "n_iter_no_change": 1}
    warnings.filterwarnings("ignore", "max_iter=")
    for restore in (None, False):
        model = st.StationaryClassifier((8,), restore_prior=restore, **settings).fit(X.numpy(), Y.numpy())
        model.uncertainty(X.numpy(), "mutual_information")
        st.StationaryRegressor((8,), restore_prior=restore, **settings).fit(X.numpy(), X[:, 0]).predict(X.numpy())


def test_further_training_makes_the_prior_stale(silence):
    model = st.calibrate_prior(network(), X)
    st.predict(model, X)
    step(model)
    with pytest.warns(UserWarning, match=STALE) as caught:
        pred = st.predict(model, X)
    assert pred.prior_restored and caught[0].filename == __file__
    st.predict(model, X)  # it was said
    step(model)
    with pytest.warns(UserWarning, match=STALE):
        st.predict(model, X)
    st.predict(st.calibrate_prior(model, X), X)
    step(model)
    st.predict(model, X, st.ExactDropout(restore_prior=False))
    with pytest.warns(UserWarning, match=STALE):
        st.exact_predictor(model)


def test_training_the_trunk_behind_a_frozen_head_makes_the_prior_stale(silence, tmp_path):
    model = st.MLP(3, 2, hidden=(6, 8))
    st.predict(st.calibrate_prior(model, X), X)
    model.head.requires_grad_(False)
    step(model)
    with pytest.warns(UserWarning, match=STALE):
        st.predict(model, X)
    st.predict(model, X)  # it was said
    other = st.MLP(3, 2, hidden=(6, 8))
    other.load_state_dict(model.state_dict())  # with the trunk that has changed, and the prior before
    with pytest.warns(UserWarning, match=STALE):
        st.predict(other, X)
    around = nn.Sequential(nn.Linear(3, 3), st.calibrate_prior(model, X))
    st.predict(around, X)  # what is in front of it is no further training of this network
    st.predict(model, X), st.predict(model.double(), X)
    before = model.head.restored_prior.mark
    model.head.restored_prior.mark = before[:2]  # as in files of the head alone
    step_of_trunk = [weight.detach().add_(1) for weight in model.trunk.parameters()]
    assert step_of_trunk and st.predict(model, X).prior_restored


def test_training_a_copy_further_makes_its_prior_stale():
    model = st.calibrate_prior(network(), X)
    posterior = st.fit(st.ExactDropout(), lambda: copy.deepcopy(model), (X, Y), st.Training(epochs=1))
    with pytest.warns(UserWarning, match=STALE):
        st.predict(posterior, X)


@pytest.mark.usefixtures("silence")
def test_copies_files_and_types_are_not_further_training(tmp_path):
    model = st.calibrate_prior(network(), X)
    other = network()
    st.predict(other, X)
    other.load_state_dict(model.state_dict())
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model).double()):
        assert st.predict(same, X.to(next(same.parameters()).dtype)).prior_restored
        assert heads_of(same)[0].restored_prior.mark is not None
    before = {name: value for name, value in model.state_dict().items() if "mark" not in name}
    other.load_state_dict(before)  # of a file that was written before there were marks
    step(other)
    assert st.predict(other, X).prior_restored and other.head.restored_prior.mark is None


def test_after_another_type_further_training_is_seen(silence):
    model = st.calibrate_prior(network(), X).double()
    st.predict(model, X)
    with torch.no_grad():
        model.head.output.bias.add_(1)
    with pytest.warns(UserWarning, match=STALE):
        st.predict(model, X)


def test_a_head_that_takes_the_place_of_another_is_seen():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert not st.predict(model, X, st.Point()).prior_missing
    st.replace_head(model, st.StationaryHead(4, 2))
    assert st.predict(model, X).prior_missing
    st.replace_head(model, st.StationaryHead(4, 2, activation="relu"))
    assert not st.predict(model, X).prior_missing
