"""The configurations of the Banana grid experiment."""

from dataclasses import dataclass
from typing import Any

from stationary.lab.experiments import ranges

VERSION = 1
TITLE = "Banana: units and samples (appendix)"
REPRODUCES = "the appendix's 3 x 3 grid: 10, 50, 500 hidden units and 10, 100, 1000 samples"
DURATION = {"smoke": "seconds", "demo": "half a minute", "paper": "a minute"}
LOCKSTEP = None


@dataclass(frozen=True)
class Config:
    """Networks of one width.

    Args:
        hidden: number of units of the hidden layer.
        n_samples: numbers of MC dropout samples, one for each picture.
        lengthscale: length-scale of the Matérn-5/2 activation.
        dropout: dropout probability of the hidden units.
        epochs: number of epochs of training.
        n_seeds: number of networks, each with its own seed.
        resolution: number of grid points along each side of the picture.
        extent: half the width of the picture.
        seed: seed of the first network.
    """

    hidden: int = 50
    n_samples: tuple[int, ...] = (10, 100, 1000)
    lengthscale: float = 0.5
    dropout: float = 0.2
    epochs: int = 2000
    n_seeds: int = 5
    resolution: int = 300
    extent: float = 3.75
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="hidden n_samples epochs n_seeds",
            grids="resolution",
            positive="lengthscale extent",
            probabilities="dropout",
            seeds="seed",
        )


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_seeds": 2, "resolution": 20},
    "demo": {"n_seeds": 3, "resolution": 120},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    return [Config(hidden=hidden, **SCALES[scale]) for hidden in (10, 50, 500)]
