"""What the experiments take from the paper: its numbers, and the scale of its activations."""

import csv
import math
from importlib.resources import files

import pytest
import torch

from stationary.lab.experiments import networks, paper
from stationary.lab.report.content import Measured


def test_all_published_numbers_are_there():
    with (files("stationary.lab.experiments") / "paper_tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 182
    assert all(paper.published(*list(row.values())[:5]).mean == float(row["mean"]) for row in rows)
    assert paper.published("uci", "diabetes", "matern32", "NN", "NLPD") == Measured(0.486, 0.081)
    assert paper.published("uci", "diabetes", "relu", "NN", "NLPD") is None


def test_rows_are_named_after_what_they_are():
    assert paper.TRAINABLE["matern12 surrogate"] == paper.Prior("matern12", "surrogate")
    assert paper.TRAINABLE["relu"].label == "ReLU" and not paper.TRAINABLE["relu"].restorable
    assert paper.RESTORED["matern52 restored"].label == "Matérn-5/2 restored"
    assert all(prior.key == key for key, prior in (paper.TRAINABLE | paper.RESTORED).items())


@pytest.mark.parametrize("words", [("relu", "surrogate"), ("rbf", "learnable"), ("relu", "", True), ("other",)])
def test_a_prior_that_is_none_is_refused(words):
    with pytest.raises(ValueError, match=f"one of .*; got '{words[0]}"):
        paper.Prior(*words)


def test_a_name_that_is_unknown_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"prior must be one of step, relu, .*, matern72 learnable; got 'relus'"):
        paper.look_up(paper.TRAINABLE, "relus", "prior")
    with pytest.raises(ValueError, match=r"prior must be one of 40 names, such as relu 9, .*; got 'relu 99'"):
        paper.look_up({f"relu {k}": k for k in range(40)}, "relu 99", "prior")


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52", "rbf"])
@pytest.mark.parametrize("lengthscale", [0.5, 1.0])
def test_scale_of_the_authors_code(name, lengthscale):
    """The integral of sigma^2 is lambda / nu there, and 1 here; its RBF is e^(-x^2)."""
    x = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
    for code_scale in (True, False):
        y = networks.activation(paper.Prior(name), lengthscale, code_scale=code_scale)(x)
        if name == "rbf" and code_scale:
            torch.testing.assert_close(y, torch.exp(-x.square()))
            continue
        nu = paper.NUS.get(name)
        expected = math.sqrt(2 * nu) / lengthscale / nu if code_scale else 1.0
        assert torch.trapezoid(y.square(), x).item() == pytest.approx(expected, rel=1e-3)
