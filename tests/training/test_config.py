"""The configuration of a training is checked, hashes and compares."""

import math

import pytest

import stationary as st
from stationary.training import Group


def test_training_hashes_and_compares():
    assert hash(st.Training(milestones=(1, 2))) == hash(st.Training(milestones=(1, 2)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", "nll"), ("epochs", 0), ("epochs", 2.5), ("batch_size", 0), ("batch_size", True), ("optimizer", "rms"),
        ("learning_rate", 0.0), ("learning_rate", math.inf), ("momentum", 1.0), ("momentum", math.nan),
        ("nesterov", True), ("weight_decay", -1.0), ("milestones", [10]), ("milestones", (0,)), ("patience", 0),
        ("validation_fraction", 1.0), ("precision", "float8"),
        ("groups", [Group("a")]), ("groups", ("a",)), ("seed", -1), ("seed", 0.5),
    ],
)  # fmt: skip
def test_bad_configuration(name, value):
    with pytest.raises(ValueError, match=f"{name} must be") as error:
        st.Training(**{name: value})
    assert repr(value) in str(error.value)
