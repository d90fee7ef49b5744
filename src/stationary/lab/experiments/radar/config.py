"""The configurations of the radar experiment, and the rows of its tables: activations and ways to average."""

from dataclasses import dataclass
from typing import Any, Literal

from stationary.lab.experiments import ranges
from stationary.lab.experiments.paper import LOCAL, RESTORED, TRAINABLE, Prior, in_a_row

TITLE = "Radar emitters (Fig. 5)"
REPRODUCES = "Fig. 5: predictive entropy of known, similar and different radar emitters, on a simulator of our own"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "minutes on a GPU, else hours"}
VERSION = 1
LOCKSTEP = "seeds"

GROUPS = ("known", "similar", "different")
TOP = 5  # number of classes that an example shows
# NN averages over MC dropout, ensemble and SWAG over several networks; infinite width, on the features, over functions.
Averaging = Literal["NN", "ensemble", "SWAG", "infinite width"]
AVERAGING: tuple[Averaging, ...] = ("NN", "ensemble", "SWAG", "infinite width")


@dataclass(frozen=True)
class Averaged:
    """A row of the tables.

    Args:
        prior: the activation.
        method: how predictions are averaged.
    """

    prior: Prior
    method: Averaging = "NN"

    @property
    def key(self) -> str:
        """The name in stored results, such as "matern52 restored" or "relu ensemble"."""
        return in_a_row(self.prior.key, "" if self.method == "NN" else self.method)

    @property
    def label(self) -> str:
        """The name in reports, such as "ReLU ensemble"."""
        return in_a_row(self.prior.label, "" if self.method == "NN" else self.method)


ROWS = {row.key: row for row in (Averaged(prior, method) for method in AVERAGING for prior in TRAINABLE.values())}
ROWS |= {key: Averaged(prior) for key, prior in RESTORED.items()}

LIMITS = [Averaged(Prior(name), "infinite width") for name in ("matern52", "matern32")]
PUBLISHED = [Prior("relu"), Prior("matern52")]
BEYOND = [Prior("rbf"), Prior("matern72"), Prior("matern32"), Prior("matern12"), Prior("matern12", "surrogate")]
BEYOND += [Prior("erf"), Prior("step"), Prior("step", "surrogate"), Prior("siren"), Prior("leaky_relu")]
BEYOND += [Prior("cosine"), Prior("sincos"), Prior("triangle_wave"), Prior("periodic_relu")]


@dataclass(frozen=True)
class Config:
    """One activation and one way to average. The defaults of the network and its training are the paper's.

    Args:
        prior: key of the prior whose activation the 120 units have; it may have a variant, as in "step surrogate".
        method: how predictions are averaged: "NN" (MC dropout), "ensemble", "SWAG" or "infinite width", where the 120
            units only train the features, and a posterior with the kernel of the same name takes their place.
        seeds: seeds of the networks; one posterior is fitted for each.
        n_emitters: number of known emitters, and of unknown ones in each group.
        n_modes: number of modes of each emitter.
        samples_per_mode: number of training samples of each mode at each of the 11 noise levels.
        n_test: number of samples in each of the three groups of test data.
        spread: how much the modes of an emitter differ, as for ``EmitterLibrary.generate``.
        error: how large the receiver's errors are, as for ``EmitterLibrary.generate``.
        lengthscale: length-scale of the activation.
        dropout: dropout probability of the 120 units.
        n_samples: number of MC dropout samples in prediction; SWAG always draws 30.
        epochs: number of epochs of training.
        batch_size: number of samples in a batch.
        learning_rate: learning rate of the optimizer.
    """

    prior: str = "matern52"
    method: Averaging = "NN"
    seeds: tuple[int, ...] = (0,)
    n_emitters: int = 100
    n_modes: int = 10
    samples_per_mode: int = 5
    n_test: int = 10_000
    spread: float = 0.15
    error: float = 0.15
    lengthscale: float = 1.0
    dropout: float = 0.2
    n_samples: int = 100
    epochs: int = 7
    batch_size: int = 50
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="n_emitters n_modes samples_per_mode n_test n_samples epochs batch_size",
            positive="lengthscale learning_rate",
            not_negative="spread error",
            probabilities="dropout",
            seeds="seeds",
        )
        known = LOCAL if self.method == "infinite width" else TRAINABLE
        ranges.check_name(f"prior of method={self.method!r}", self.prior, known)
        if self.n_emitters < TOP:
            raise ValueError(
                f"n_emitters must be at least {TOP}, the classes that an example shows; got {self.n_emitters}; raise it"
            )


def configs(scale: str = "paper") -> list[Config]:
    if scale == "smoke":
        small: dict[str, Any] = {"n_emitters": 5, "n_modes": 3, "samples_per_mode": 2, "n_test": 200, "epochs": 4}
        return [Config(row.prior.key, row.method, **small) for row in (*map(Averaged, PUBLISHED), LIMITS[0])]
    if scale == "demo":
        # not infinite width, whose search with 100 classes takes minutes without a GPU
        return [Config(prior.key, samples_per_mode=1, n_test=2_000) for prior in PUBLISHED]
    rows = [Averaged(prior) for prior in (*PUBLISHED, *BEYOND)]
    rows += [Averaged(prior, method) for prior in PUBLISHED for method in AVERAGING[1:3]] + LIMITS
    return [Config(row.prior.key, row.method, (seed,)) for row in rows for seed in range(5)]
