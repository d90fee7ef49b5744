"""What the experiments take from the paper: the names of its activations, and its published numbers.

``paper_tables.csv`` holds the numbers of the paper's tables (Meronen, Irwanto and Solin, NeurIPS 2020), as printed.
Nothing here needs torch.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal, TypeVar

from stationary.lab.experiments.ranges import check_name
from stationary.lab.report.content import Measured

T = TypeVar("T")

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
LOCAL = ("rbf", *NUS)  # activations that decay, so that their prior can be restored
Variant = Literal["", "surrogate", "learnable"]
VARIANTS: dict[Variant, tuple[str, ...]] = {  # by variant, the activations that have it
    "": tuple(NAMES),
    "surrogate": ("step", "matern12"),
    "learnable": tuple(NUS),
}


def in_a_row(*words: str) -> str:
    """Join the words that are not empty with spaces, to name a row of a table."""
    return " ".join(filter(None, words))


def look_up(rows: Mapping[str, T], key: str, setting: str) -> T:
    """Return the entry of ``rows`` that has the name ``key``.

    Args:
        rows: the entries by name.
        key: the name.
        setting: what the error message calls the name.

    Raises:
        ValueError: if nothing has this name.
    """
    check_name(setting, key, rows)
    return rows[key]


@dataclass(frozen=True)
class Prior:
    """An activation, named after the prior over functions that it stands for.

    Args:
        name: name of the activation, one of ``NAMES``.
        variant: "surrogate" for a jump that is trained with the gradients of a blurred one; "learnable" for smoothness
            and length-scale that are trained; "" for the activation as it is.
        restored: whether predictions are made with the restored prior, by a network that was trained without it.
    """

    name: str
    variant: Variant = ""
    restored: bool = False

    def __post_init__(self) -> None:
        if self.name not in VARIANTS[self.variant]:
            known = ", ".join(VARIANTS[self.variant])
            raise ValueError(f"name must be one of {known} for the variant {self.variant!r}; got {self.name!r}")
        if self.restored and not self.restorable:
            raise ValueError(
                f"restored needs a name that is one of {', '.join(LOCAL)}, without a variant; got {self.key!r}"
            )

    @property
    def restorable(self) -> bool:
        """Whether predictions can also be made with the restored prior, for a row of their own."""
        return self.name in LOCAL and not self.variant

    @property
    def key(self) -> str:
        """The name in configurations and stored results, such as "matern12 surrogate"."""
        return in_a_row(self.name, self.variant, "restored" * self.restored)

    @property
    def label(self) -> str:
        """The name in reports, such as "Matérn-1/2 surrogate"."""
        return in_a_row(NAMES[self.name], self.variant, "restored" * self.restored)


_trainable = [Prior(name, variant) for variant, names in VARIANTS.items() for name in names]
_restored = [replace(prior, restored=True) for prior in _trainable if prior.restorable]
TRAINABLE, RESTORED = ({prior.key: prior for prior in priors} for priors in (_trainable, _restored))


def published(experiment: str, dataset: str, prior: str, method: str, metric: str) -> Measured | None:
    """Return a number of the paper's tables, or None where the paper gives none."""
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
