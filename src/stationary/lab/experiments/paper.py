"""What the experiments share with the paper: its published numbers, its activations' scale, its toy network.

``paper_tables.csv`` holds the numbers of the paper's tables (Meronen, Irwanto and Solin, NeurIPS 2020), as printed.
"""

import csv
import math
from functools import cache
from importlib.resources import files

from torch import nn

from stationary.activations import RBF, Matern, Sine, Step
from stationary.activations import activation as activation_by_name
from stationary.lab.report.content import Measured
from stationary.training import Training

NUS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5, "matern72": 3.5}
NAMES = {
    "step": "step",
    "relu": "ReLU",
    "erf": "ERF",
    "rbf": "RBF",
    "matern12": "Matérn-1/2",
    "matern32": "Matérn-3/2",
    "matern52": "Matérn-5/2",
    "matern72": "Matérn-7/2",
    "leaky_relu": "leaky ReLU",
    "sine": "sine",
    "cosine": "cosine",
    "triangle_wave": "triangle wave",
    "periodic_relu": "periodic ReLU",
    "sincos": "sine-cosine",
    "siren": "SIREN",
}
LOCAL = ("rbf", *NUS)  # they decay, so their prior can be restored
VARIANTS = {"surrogate": ("step", "matern12"), "learnable": tuple(NUS)}  # and of which activations


def activation(name: str, lengthscale: float, *, code_scale: bool) -> nn.Module:
    """The paper's activation by name, perhaps with a variant, as in "matern12 surrogate" or "matern52 learnable".

    Args:
        name: "siren", or a name of ``stationary.activation``. Surrogate gradients are those of a jump blurred by the
            length-scale.
        lengthscale: of the Matérn ones.
        code_scale: scaled as in the authors' published code, whose Matérn activations have the variance
            lambda / nu = 2 / (lengthscale sqrt(2 nu)) instead of 1, and whose RBF is e^(-x^2).
    """
    name, _, variant = name.partition(" ")
    if variant and name not in VARIANTS.get(variant, ()):
        known = ", ".join(f"{name} {variant}" for variant, names in VARIANTS.items() for name in names)
        raise ValueError(f"an activation with a variant must be one of {known}; got {name} {variant}")
    surrogate = lengthscale if variant == "surrogate" else None
    if name in NUS:
        nu = NUS[name]
        variance = 2 / (lengthscale * math.sqrt(2 * nu)) if code_scale else 1.0
        return Matern(nu, lengthscale, variance, surrogate=surrogate, learnable=variant == "learnable")
    if name == "step":
        return Step(surrogate=surrogate)
    if name == "siren":
        return Sine(1.0)  # the frequency is not in the paper
    if name == "rbf":
        return RBF(1.0, math.sqrt(math.pi / 2)) if code_scale else RBF(lengthscale)
    return activation_by_name(name)


def name_of(prior: str) -> str:
    """As it is printed, with its variant."""
    name, _, variant = prior.partition(" ")
    return f"{NAMES[name]} {variant}".strip()


def toy_training(epochs: int, *, loss: str = "cross_entropy", seed: int = 0) -> Training:
    """Full batches, Adam 0.02, divided by 10 at the epochs 250, 500 and 1000."""
    return Training(
        loss=loss, epochs=epochs, batch_size=None, learning_rate=0.02, milestones=(250, 500, 1000), seed=seed
    )


def published(experiment: str, dataset: str, prior: str, method: str, metric: str) -> Measured | None:
    """A number of the paper's tables, or None where it gives none."""
    return _tables().get((experiment, dataset, prior, method, metric))


@cache
def _tables() -> dict[tuple[str, ...], Measured]:
    with (files("stationary.lab.experiments") / "paper_tables.csv").open(encoding="utf-8") as file:
        return {
            (row["experiment"], row["dataset"], row["prior"], row["method"], row["metric"]): Measured(
                float(row["mean"]), float(row["std"]) if row["std"] else None
            )
            for row in csv.DictReader(file)
        }
