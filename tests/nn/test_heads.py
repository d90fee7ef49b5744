"""The head: linear, activation, dropout, linear, and a calibration that goes with its weights."""

import copy
import pickle

import pytest
import torch
from torch import nn

import stationary as st

X = torch.linspace(-2, 2, 40).view(5, 8)


# --------------------------------------------------------------------------------------------------------------------
# StationaryHead


def test_head_is_linear_activation_dropout_linear():
    head = st.StationaryHead(8, 3, hidden=7, activation="matern32", dropout=0.4)
    assert (head.in_features, head.out_features, head.dropout.p) == (8, 3, 0.4)
    assert head(X).shape == (5, 3) and head(X.view(5, 1, 8)).shape == (5, 1, 3)
    head.eval()
    phi = st.matern(head.hidden(X), 1.5, 1.0)
    torch.testing.assert_close(head.features(X), phi)
    torch.testing.assert_close(head(X), phi @ head.output.weight.T + head.output.bias)


def test_head_drops_units_in_train_and_nothing_in_eval():
    head = st.StationaryHead(8, 3)
    assert not head(X).equal(head(X))
    head.eval()
    assert head(X).equal(head(X))


@pytest.mark.parametrize("name", ["matern12", "rbf", "relu", "sine"])
def test_activation_by_name_and_by_module(name):
    by_name, by_module = (
        st.StationaryHead(8, 3, activation=name),
        st.StationaryHead(8, 3, activation=st.activation(name)),
    )
    by_module.load_state_dict(by_name.state_dict())
    assert by_name.eval()(X).equal(by_module.eval()(X))


def test_any_module_is_an_activation():
    head = st.StationaryHead(8, 3, activation=nn.Tanh()).eval()
    assert head.features(X).equal(head.hidden(X).tanh())


@pytest.mark.parametrize("bad", [0, -1, 2.0, "8"])
@pytest.mark.parametrize("argument", ["in_features", "out_features", "hidden"])
def test_head_refuses_widths(argument, bad):
    with pytest.raises(ValueError, match=f"{argument} must be a positive integer, got {bad!r}"):
        st.StationaryHead(**{"in_features": 8, "out_features": 3, argument: bad})


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, float("nan")])
def test_head_refuses_dropout(bad):
    with pytest.raises(ValueError, match=r"dropout must be a probability in \[0, 1\), got"):
        st.StationaryHead(8, 3, dropout=bad)


def test_head_refuses_an_unknown_activation():
    with pytest.raises(ValueError, match="matern25"):
        st.StationaryHead(8, 3, activation="matern25")


@pytest.mark.parametrize("build", [st.StationaryHead, st.MLP])
def test_wrong_number_of_features(build):
    with pytest.raises(ValueError, match=r"x must have 8 features in its last dimension, got shape \(5, 7\)"):
        build(8, 3)(X[:, :7])


# --------------------------------------------------------------------------------------------------------------------
# The calibration comes and goes with the weights


def calibrated(model):
    head = model.head if isinstance(model, st.MLP) else model
    head.restored_prior.variance, head.restored_prior.reference = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(4.0)
    return model


def test_an_uncalibrated_head_stores_no_calibration():
    head = st.StationaryHead(8, 3)
    assert (
        head.restored_prior.variance is None and head.restored_prior.reference is None and not head.restored_prior.known
    )
    assert set(head.state_dict()) == {"hidden.weight", "hidden.bias", "output.weight", "output.bias"}


@pytest.mark.parametrize("build", [lambda: st.StationaryHead(8, 3), lambda: st.MLP(8, 3, hidden=(6, 4))])
def test_calibration_goes_through_a_state_dict(build):
    saved, fresh = calibrated(build()).eval(), build().eval()
    fresh.load_state_dict(saved.state_dict())
    assert fresh(X).equal(saved(X))
    head, expected = (m.head if isinstance(m, st.MLP) else m for m in (fresh, saved))
    assert head.restored_prior.variance.equal(expected.restored_prior.variance) and head.restored_prior.reference.equal(
        expected.restored_prior.reference
    )
    head.restored_prior.variance += 1
    assert expected.restored_prior.variance.tolist() == [1, 2, 3]  # a copy


def test_weights_without_calibration_take_it_away():
    head = calibrated(st.StationaryHead(8, 3))
    head.load_state_dict(st.StationaryHead(8, 3).state_dict())
    assert head.restored_prior.variance is None and head.restored_prior.reference is None


def test_missing_variance_is_the_prior_where_no_unit_is_active_and_zero_in_distribution():
    head = calibrated(st.StationaryHead(8, 3))
    features = torch.zeros(3, 50)
    features[1, 0], features[2, 0] = 2**0.5, 2.0  # |phi|^2 of 2 and 4, the reference
    expected = torch.outer(torch.tensor([1.0, 0.5, 0.0]).square(), head.restored_prior.variance)
    torch.testing.assert_close(head.restored_prior(features), expected)
    assert (head.restored_prior(3 * features)[2] == 0).all()


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_deepcopy_and_pickle(clone):
    model = calibrated(st.MLP(8, 3, hidden=(6, 4))).eval()
    other = clone(model)
    assert other(X).equal(model(X)) and other.head.restored_prior.variance.equal(model.head.restored_prior.variance)
    nn.init.zeros_(other.head.output.weight)
    assert model.head.output.weight.abs().min() > 0
