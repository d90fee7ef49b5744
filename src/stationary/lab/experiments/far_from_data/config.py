"""The configurations of the far-from-data experiment."""

from dataclasses import dataclass

from stationary.lab.experiments import ranges

TITLE = "Far from the data: ReLU against Matérn"
REPRODUCES = "the claim behind Fig. 1, in one dimension (not a figure of the paper)"
DURATION = {"smoke": "2 seconds", "demo": "20 seconds", "paper": "20 seconds"}
VERSION = 2  # in version 1, networks were trained one by one, with other random numbers
LOCKSTEP = None


@dataclass(frozen=True)
class Config:
    """The whole experiment.

    Args:
        n_train: number of training points.
        nu: smoothness of the Matérn activation.
        lengthscale: length-scale of the Matérn activation.
        hidden: number of units of the hidden layer.
        dropout: dropout probability of these units.
        learning_rate: learning rate at the start.
        milestones: epochs at which the learning rate is divided by 10.
        epochs: number of epochs of training.
        n_members: number of networks of each activation, each with its own seed.
        n_samples: number of MC dropout samples in prediction.
        extent: half the width of the interval on which the networks predict.
        resolution: number of inputs on that interval.
        seed: seed of the training data; the first network has the next seed.
    """

    n_train: int = 200
    nu: float = 2.5
    lengthscale: float = 0.5
    hidden: int = 50
    dropout: float = 0.2
    learning_rate: float = 0.02
    milestones: tuple[int, ...] = (250, 500, 1000)
    epochs: int = 1500
    n_members: int = 8
    n_samples: int = 200
    extent: float = 10.0
    resolution: int = 401
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="n_train hidden milestones epochs n_members n_samples",
            grids="resolution",
            positive="nu lengthscale learning_rate extent",
            probabilities="dropout",
            seeds="seed",
        )


def configs(scale: str = "paper") -> list[Config]:
    smoke = Config(epochs=50, n_members=2, n_samples=20, resolution=41)
    return [smoke if scale == "smoke" else Config()]
