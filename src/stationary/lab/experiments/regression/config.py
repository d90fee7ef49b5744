"""The configurations of the regression experiment."""

from dataclasses import dataclass
from typing import Any

VERSION = 1
TITLE = "Regression with a gap (Fig. 2)"
REPRODUCES = "Fig. 2: 1-D regression, Gaussian processes over networks"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "a few minutes"}
LOCKSTEP = None

PRIORS = ("relu", "rbf", "matern52", "matern32", "matern12")
PLACES = {"in the gap": 0.0, "at the edges": 2.5, "far away": 20.0}


@dataclass(frozen=True)
class Config:
    model: str = "network"  # or "gp"
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


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_samples": 20, "gp_steps": 10, "n_repeats": 2, "n_points": 21},
    "demo": {"n_samples": 500, "gp_steps": 200, "n_repeats": 10},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    gps = [Config(model="gp", prior=prior, **SCALES[scale]) for prior in PRIORS]
    return gps + [Config(prior=prior, **SCALES[scale]) for prior in (*PRIORS, "sincos")]
