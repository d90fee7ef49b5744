"""The configurations of the covariance experiment."""

import math
from dataclasses import dataclass

from stationary.lab.experiments import ranges

TITLE = "Activations and covariance functions (Fig. 3)"
REPRODUCES = "Fig. 3, and the Gram matrices of the appendix"
DURATION = {"smoke": "1 second", "demo": "3 seconds", "paper": "3 seconds"}
VERSION = 2
LOCKSTEP = None
WEIGHTS = {"binary": "binary", "gaussian": "Gaussian"}  # distributions of the weights, and their names in reports


@dataclass(frozen=True)
class Config:
    """The whole experiment.

    Args:
        nus: smoothnesses of the Matérn activations; infinity is the RBF.
        lengthscale: length-scale of the activations.
        bias_std: standard deviation of the Gaussian bias.
        n_units: number of hidden units of the Monte Carlo estimate.
        x_max: half the width of the interval of inputs.
        n_points: number of inputs of the curves.
        n_gram: number of inputs of the Gram matrices.
        widths: numbers of hidden units of the networks from which functions are drawn.
        n_draws: number of functions that are drawn from each network, and from the Gaussian process.
        seed: seed of the random numbers.
    """

    nus: tuple[float, ...] = (0.5, 1.5, 2.5, math.inf)
    lengthscale: float = 0.5
    bias_std: float = 1.0
    n_units: int = 10_000
    x_max: float = 3.0
    n_points: int = 601
    n_gram: int = 121
    widths: tuple[int, ...] = (10, 100, 1000)
    n_draws: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="n_units widths n_draws",
            grids="n_points n_gram",
            positive="lengthscale bias_std x_max",
            seeds="seed",
        )
        if not self.nus or not all(nu > 0 for nu in self.nus):
            raise ValueError(f"nus must have at least one entry, each positive, where inf is the RBF; got {self.nus}")


def configs(scale: str = "paper") -> list[Config]:
    smoke = Config(n_units=1000, n_points=61, n_gram=21, widths=(10, 30))
    return [smoke if scale == "smoke" else Config()]
