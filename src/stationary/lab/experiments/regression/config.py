"""The configurations of the regression experiment."""

from dataclasses import dataclass
from typing import Any

from stationary.lab.experiments import ranges
from stationary.lab.experiments.paper import LOCAL, TRAINABLE

VERSION = 1
TITLE = "Regression with a gap (Fig. 2)"
REPRODUCES = "Fig. 2: 1-D regression, Gaussian processes over networks"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "a few minutes"}
LOCKSTEP = None

PRIORS = ("relu", "rbf", "matern52", "matern32", "matern12")
STATIONARY = PRIORS[1:]  # those whose kernels infinite width has
MODELS = {"network": tuple(TRAINABLE), "gp": PRIORS, "infinite width": LOCAL}  # by model, its priors
PLACES = {"in the gap": 0.0, "at the edges": 2.5, "far away": 20.0}  # |x| at which the uncertainty is measured


@dataclass(frozen=True)
class Config:
    """One model, with one prior.

    Args:
        model: "network"; "gp" for exact Gaussian process regression; or "infinite width", without a trunk.
        prior: name of the activation, or of the one whose kernel the Gaussian process or the infinite width has.
        lengthscale: length-scale of the network's activation.
        hidden: number of units of the hidden layer.
        dropout: dropout probability of these units.
        epochs: number of epochs of training.
        n_samples: number of MC dropout samples in prediction.
        gp_steps: number of training steps of the Gaussian process.
        n_repeats: number of networks, each with its own seed.
        extent: half the width of the interval on which the curves are drawn.
        n_points: number of inputs on that interval.
        seed: seed of the data, and of the first network.
    """

    model: str = "network"
    prior: str = "matern52"
    lengthscale: float = 1.0
    hidden: int = 50
    dropout: float = 0.2
    epochs: int = 2000
    n_samples: int = 1000
    gp_steps: int = 500
    n_repeats: int = 20
    extent: float = 2.5
    n_points: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="hidden epochs n_samples gp_steps n_repeats",
            grids="n_points",
            positive="lengthscale extent",
            probabilities="dropout",
            seeds="seed",
        )
        ranges.check_name("model", self.model, MODELS)
        ranges.check_name(f"prior of model={self.model!r}", self.prior, MODELS[self.model])


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_samples": 20, "gp_steps": 10, "n_repeats": 2, "n_points": 21},
    "demo": {"n_samples": 500, "gp_steps": 200, "n_repeats": 10},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    gps = [Config(model="gp", prior=prior, **SCALES[scale]) for prior in PRIORS]
    nets = [Config(prior=prior, **SCALES[scale]) for prior in (*PRIORS, "sincos")]
    return gps + nets + [Config(model="infinite width", prior=prior, **SCALES[scale]) for prior in STATIONARY]
