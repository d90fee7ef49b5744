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
