"""What is optimised: functions on the unit cube, to be made as large as possible."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from stationary._extras import extra
from stationary.lab.data.files import read
from stationary.lab.experiments.bo.config import FUNCTIONS
from stationary.lab.experiments.paper import look_up

with extra("bo"):
    from botorch.test_functions import Ackley, Branin, Hartmann, Rosenbrock

HALF_WIDTH = 2.0  # of the part of the plane that Branin's square covers, in units of the cube [-1, 1]^100


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube.

    Args:
        values: the function, from points (n, d) to values (n,).
        dims: number of inputs, d.
        best: its largest value.
        rows: (n, d) the only points where it is known, or None if it is known everywhere.
    """

    values: Callable[[Tensor], Tensor]
    dims: int
    best: float
    rows: Tensor | None = None


@lru_cache(maxsize=2)
def problem(name: str) -> Problem:
    """Return the function of a name in ``FUNCTIONS``.

    Ackley's domain is [-5, 10]^20: its optimum is not in the middle, where kernels of networks have their origin.
    """
    dims = look_up(FUNCTIONS, name, "dataset").dims
    if name == "vehicle":
        return _table(name)
    if name == "subspace100":
        return _in_a_plane(dims)
    function = {
        "branin": lambda: Branin(negate=True),
        "hartmann6": lambda: Hartmann(dims, negate=True),
        "rosenbrock10": lambda: Rosenbrock(dims, negate=True),
        "ackley20": lambda: Ackley(dims, negate=True, bounds=[(-5.0, 10.0)] * dims),
    }[name]().double()
    low, high = function.bounds
    return Problem(lambda x: function(low + (high - low) * x), dims, float(function.optimal_value))


def _in_a_plane(dims: int) -> Problem:
    """Branin of two random directions P z of z in [-1, 1]^d, which is constant in all the others.

    The rows of P are orthonormal. Branin's square covers |P z| <= ``HALF_WIDTH`` in each direction, and its border goes
    on outside; P' of any point of the square is in the cube, so that all of its optima are.
    """
    plane = torch.linalg.qr(torch.randn(dims, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    branin = problem("branin")

    def values(x: Tensor) -> Tensor:
        return branin.values((0.5 + (2 * x - 1) @ plane / (2 * HALF_WIDTH)).clamp(0, 1))

    return Problem(values, dims, branin.best)


def _table(name: str) -> Problem:
    """Return the accuracies of 30,000 small networks: five settings on a grid, which the cube has in equal steps."""
    table = read(f"hpobench-{name}", columns=("accuracy",))
    settings = torch.tensor(table.drop(columns="accuracy").to_numpy(), dtype=torch.float64)
    levels = [settings[:, k].unique() for k in range(settings.shape[1])]
    places = [torch.searchsorted(level, settings[:, k].contiguous()) for k, level in enumerate(levels)]
    rows = torch.stack([place / (len(level) - 1) for place, level in zip(places, levels, strict=True)], 1).double()
    accuracy = torch.tensor(table["accuracy"].to_numpy(), dtype=torch.float64)
    index = {tuple(row.tolist()): float(value) for row, value in zip(rows, accuracy, strict=True)}

    def values(x: Tensor) -> Tensor:
        return torch.tensor([index[tuple(row.tolist())] for row in x], dtype=torch.float64)

    return Problem(values, rows.shape[1], float(accuracy.max()), rows)
