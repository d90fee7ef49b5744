"""The configurations of the digits experiment."""

from dataclasses import dataclass
from typing import Any

from stationary.lab.experiments import ranges
from stationary.lab.experiments.paper import TRAINABLE

VERSION = 1
TITLE = "Unknown digits"
REPRODUCES = "nothing: an example like the paper's CIFAR-10 experiment, on data that scikit-learn brings"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "a minute"}
LOCKSTEP = None

PRIORS: tuple[str, ...] = ("relu", "leaky_relu", "erf", "step", "rbf", "matern72", "matern52", "matern32", "matern12")
PRIORS += ("sine", "cosine", "sincos", "triangle_wave", "periodic_relu")  # periodic ones
INFINITE = {f"{prior} infinite width": prior for prior in ("matern52", "matern32")}  # rows, and their kernels
MEASURES = ("std", "entropy", "mutual_information")


@dataclass(frozen=True)
class Config:
    """One activation.

    Args:
        prior: name of the activation of the last hidden layer; followed by "infinite width", the last hidden layer only
            trains the others, and a posterior with the kernel of that name takes its place.
        lengthscale: length-scale of that activation.
        hidden: widths of the hidden layers.
        dropout: dropout probability of the units of the last hidden layer.
        epochs: number of epochs of training.
        batch_size: number of images in a batch.
        learning_rate: learning rate of the optimizer.
        n_seeds: number of networks, each with its own seed.
        seed: seed of the first network, and of the split into training and test images.
    """

    prior: str = "matern52"
    lengthscale: float = 0.5
    hidden: tuple[int, ...] = (100, 50)
    dropout: float = 0.2
    epochs: int = 60
    batch_size: int = 100
    learning_rate: float = 0.003
    n_seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="hidden epochs batch_size n_seeds",
            positive="lengthscale learning_rate",
            probabilities="dropout",
            seeds="seed",
        )
        ranges.check_name("prior", self.prior, [*TRAINABLE, *INFINITE])


def configs(scale: str = "paper") -> list[Config]:
    small: dict[str, Any] = {"epochs": 5, "n_seeds": 2} if scale == "smoke" else {}
    return [Config(prior=prior, **small) for prior in (*PRIORS, *INFINITE)]
