"""The configurations of Bayesian optimisation: a function, a surrogate and seeds."""

from dataclasses import dataclass
from typing import Any

from stationary.lab.experiments import ranges

TITLE = "Choosing the next experiment: Bayesian optimisation"
REPRODUCES = "nothing: kernels of stationary networks beside BoTorch's surrogates"
DURATION = {"smoke": "seconds", "demo": "minutes", "paper": "five hours on one core"}
VERSION = 1
LOCKSTEP = "seeds"


@dataclass(frozen=True)
class Function:
    """A function to optimise.

    Args:
        label: its name in reports.
        dims: number of its inputs.
        steps: number of evaluations after the initial design, at the scale paper.
        seeds: number of seeds at the scale paper.
        candidates: number of points at which the acquisition function is looked at in each step.
    """

    label: str
    dims: int
    steps: int = 60
    seeds: int = 5
    candidates: int = 256

    @property
    def n_initial(self) -> int:
        """The number of points of the initial design: 2 (d + 1), and at most 20."""
        return min(2 * (self.dims + 1), 20)


FUNCTIONS = {
    "branin": Function("Branin", 2, steps=40, seeds=20),
    "hartmann6": Function("Hartmann", 6, steps=40, seeds=20),
    "vehicle": Function("table of networks", 5, candidates=1000),
    "rosenbrock10": Function("Rosenbrock", 10),
    "ackley20": Function("Ackley", 20),
    "subspace100": Function("Branin in a plane", 100),
}
SURROGATES = {  # by name, the label in reports
    "random": "random search",
    "matern gp": "GP, Matérn-5/2, ARD",
    "relu network": "ReLU network (I-BNN), depth 3",
    "matern network 1": "ours: Matérn-5/2 network, depth 1",
    "matern network 3": "ours: Matérn-5/2 network, depth 3",
    "sine-cosine": "ours: sine-cosine network, depth 1",
    "infinite width": "ours: infinite width on a trunk",
    "rbf gp": "GP, RBF, ARD (BoTorch's default)",
    "one length-scale": "GP, Matérn-5/2, one length-scale",
}


@dataclass(frozen=True)
class Config:
    """One surrogate on one function.

    Args:
        dataset: name of the function: a key of ``FUNCTIONS``.
        method: name of the surrogate: a key of ``SURROGATES``.
        seeds: seeds; each is that of an initial design, which is the same for all surrogates, and of what follows.
        n_initial: number of points of the initial design.
        steps: number of evaluations after it.
        fit_steps: largest number of L-BFGS steps of a fit of a surrogate's hyperparameters.
        candidates: number of points at which the acquisition function is looked at before it is optimised; for a
            table, number of rows of which, with those next to the best row, the best one is taken.
        restarts: number of them from which it is then optimised.
        search_steps: largest number of L-BFGS steps of that.
    """

    dataset: str
    method: str
    seeds: tuple[int, ...] = (0,)
    n_initial: int = 10
    steps: int = 40
    fit_steps: int = 20
    candidates: int = 256
    restarts: int = 4
    search_steps: int = 40

    def __post_init__(self) -> None:
        ranges.check(self, counts="n_initial steps fit_steps candidates restarts search_steps", seeds="seeds")
        ranges.check_name("dataset", self.dataset, FUNCTIONS)
        ranges.check_name("method", self.method, SURROGATES)


SMALL: dict[str, Any] = {"n_initial": 5, "steps": 2, "fit_steps": 5, "candidates": 16, "restarts": 2, "search_steps": 5}


def configs(scale: str = "paper") -> list[Config]:
    """Return the configurations, all functions and surrogates with one seed before any with the next."""
    if scale == "smoke":
        return [Config(name, method, **SMALL) for name in ("branin", "vehicle") for method in SURROGATES]
    chosen = {"demo": ("branin", "hartmann6"), "paper": tuple(FUNCTIONS)}[scale]
    return [
        Config(name, method, (seed,), function.n_initial, function.steps, candidates=function.candidates)
        for seed in range(1 if scale == "demo" else max(function.seeds for function in FUNCTIONS.values()))
        for name, function in FUNCTIONS.items()
        for method in SURROGATES
        if name in chosen and seed < function.seeds
    ]
