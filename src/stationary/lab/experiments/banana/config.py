"""The configurations of the Banana experiment."""

from dataclasses import dataclass
from typing import Any

from stationary.lab.experiments import ranges
from stationary.lab.experiments.paper import LOCAL, TRAINABLE

VERSION = 1
TITLE = "Banana (Fig. 1)"
REPRODUCES = "Fig. 1: decision boundaries and uncertainty of GPs and networks on Banana"
DURATION = {"smoke": "seconds", "demo": "about a minute", "paper": "about ten minutes"}
LOCKSTEP = None

PRIORS = ("step", "relu", "erf", "rbf", "matern52")
INFINITE = ("infinite width", "infinite width, trunk")  # models, without and with a trained trunk
MODELS = {"network": tuple(TRAINABLE), "gp": PRIORS, **dict.fromkeys(INFINITE, LOCAL)}  # by model, its priors
PLACES = ("data", "radius 4", "radius 8", "radius 20")
CIRCLES = (20, 400)  # radii on which the least uncertainty is looked for: 7 and 130 times the largest of the data


@dataclass(frozen=True)
class Config:
    """One model, with one prior.

    Args:
        model: "network"; "gp" for a variational Gaussian process; "infinite width" for the limit of a head on the two
            columns; or "infinite width, trunk" for one behind two trained layers of ReLU.
        prior: name of the activation, or of the one whose kernel the Gaussian process or the infinite width has.
        lengthscale: length-scale of the network's activation.
        hidden: number of units of the hidden layer, and of each layer of a trunk.
        dropout: dropout probability of these units.
        epochs: number of epochs of training.
        n_samples: number of MC dropout samples of the picture.
        vgp_steps: number of training steps of the Gaussian process.
        n_seeds: number of networks, each with its own seed.
        resolution: number of grid points along each side of the picture.
        extent: half the width of the picture.
        seed: seed of the first network.
    """

    model: str = "network"
    prior: str = "matern52"
    lengthscale: float = 0.5
    hidden: int = 50
    dropout: float = 0.2
    epochs: int = 2000
    n_samples: int = 5000
    vgp_steps: int = 1000
    n_seeds: int = 5
    resolution: int = 300
    extent: float = 3.75
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="hidden epochs n_samples vgp_steps n_seeds",
            grids="resolution",
            positive="lengthscale extent",
            probabilities="dropout",
            seeds="seed",
        )
        ranges.check_name("model", self.model, MODELS)
        ranges.check_name(f"prior of model={self.model!r}", self.prior, MODELS[self.model])


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_samples": 20, "vgp_steps": 10, "n_seeds": 2, "resolution": 20},
    "demo": {"n_samples": 500, "vgp_steps": 200, "n_seeds": 3, "resolution": 120},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    gps = [Config(model="gp", prior=prior, **SCALES[scale]) for prior in PRIORS]
    nets = [Config(prior=prior, **SCALES[scale]) for prior in (*PRIORS, "sincos")]
    return gps + nets + [Config(model=model, **SCALES[scale]) for model in INFINITE]
