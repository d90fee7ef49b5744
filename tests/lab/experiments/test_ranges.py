"""Every number of every configuration has a range and every name is one of some, as the configuration itself checks."""

from dataclasses import fields, replace
from typing import get_args, get_origin, get_type_hints

import pytest

from stationary.lab.cli import select
from stationary.lab.experiments import EXPERIMENTS

NUMBERS = [
    (name, field.name)
    for name, experiment in EXPERIMENTS.items()
    for field in fields(experiment.config.Config)
    if {int, float} & {(kind := get_type_hints(experiment.config.Config)[field.name]), *get_args(kind)}
]

NAMES = [
    (name, field.name)
    for name, experiment in EXPERIMENTS.items()
    for field in fields(experiment.config.Config)
    if get_type_hints(experiment.config.Config)[field.name] is str
]


@pytest.mark.parametrize(("name", "setting"), NAMES)
def test_names_that_nothing_has_are_refused(name, setting):
    for config in EXPERIMENTS[name].config.configs("smoke"):
        with pytest.raises(ValueError, match=rf"^{setting}( of \w+='.*')? must be one of .*; got 'abc'$"):
            select.changed(EXPERIMENTS[name], [config], [f"{setting}=abc"])


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_numbers_below_their_range_are_refused(name, setting):
    module = EXPERIMENTS[name].config
    config, kind = module.configs("smoke")[0], get_type_hints(module.Config)[setting]
    with pytest.raises(ValueError, match=f"{setting} must .*got "):
        select.changed(EXPERIMENTS[name], [config], [f"{setting}=-3"])
    if get_origin(kind) is tuple:
        with pytest.raises(ValueError, match=f"{setting} must have at least one entry"):
            replace(config, **{setting: ()})
    if kind is float or float in get_args(kind):
        with pytest.raises(ValueError, match=f"{setting} must .*got "):
            select.changed(EXPERIMENTS[name], [config], [f"{setting}=nan"])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("banana", {"dropout": 1.0}, "dropout must be a number of at least 0 and below 1; got 1.0"),
        ("banana", {"hidden": 0}, "hidden must be an integer of at least 1; got 0"),
        ("banana", {"resolution": 1}, "resolution must be an integer of at least 2; got 1"),
        ("digits", {"hidden": (10, 0)}, r"each must be an integer of at least 1; got \(10, 0\)"),
        ("uci", {"folds": (10,)}, r"n_folds must be at least 2 and more than the last of folds; got 10 and \(10,\)"),
        ("radar", {"n_emitters": 4}, "n_emitters must be at least 5.*got 4"),
        ("covariance", {"nus": (1.5, 0.0)}, "nus must have at least one entry, each positive"),
    ],
)
def test_edges_of_ranges(name, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(EXPERIMENTS[name].config.configs("smoke")[0], **changes)
