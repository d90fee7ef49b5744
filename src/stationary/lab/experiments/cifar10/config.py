"""Its configurations, and the rows of its tables: activations, and how the end of the network is trained."""

from dataclasses import dataclass
from itertools import product

from stationary.lab.experiments.paper import RESTORED, TRAINABLE, Prior, in_a_row

TITLE = "CIFAR-10: known and unknown classes (Fig. 4, Table 5)"
REPRODUCES = "Fig. 4 and the CIFAR-10 table: accuracy, NLPD and uncertainty of known and unknown classes"
DURATION = {"smoke": "a minute", "demo": "minutes, when the features are there", "paper": "minutes on a GPU"}
VERSION = 1
LOCKSTEP = "seeds"

TRUNK_CLASSES = {"paper": 10, "strict": 5}  # by setting, on how many of the classes the trunk is trained: the first
TRUNK_EPOCHS = 40


@dataclass(frozen=True)
class Recipe:
    """How the end of the network is trained, where it is otherwise than we read the paper: what differs?

    Args:
        augmented: on copies of the images that are shifted and mirrored, as in the code base that the paper names.
        l2: with Adam, where weight decay is part of the gradient, instead of AdamW.
        steps: with a learning rate that is divided by 10 in the middle, as in that code base.
    """

    augmented: bool = False
    l2: bool = False
    steps: bool = False

    @property
    def key(self) -> str:
        words = ("augmented", self.augmented), ("L2", self.l2), ("steps", self.steps)
        return in_a_row(*(word for word, used in words if used))


AS_STATED = Recipe()


@dataclass(frozen=True)
class Trained:
    """A row of the tables: an activation, and how the network's end that has it was trained."""

    prior: Prior
    recipe: Recipe = AS_STATED

    @property
    def key(self) -> str:
        """As ``Config.prior`` and stored results name it, such as "matern52 augmented steps"."""
        return in_a_row(self.prior.key, self.recipe.key)

    @property
    def label(self) -> str:
        """As reports print it, such as "Matérn-5/2 augmented steps"."""
        return in_a_row(self.prior.label, self.recipe.key)


RECIPES = [Recipe(*choices) for choices in product((False, True), repeat=3)]
TRAINED = {row.key: row for row in (Trained(prior, recipe) for recipe in RECIPES for prior in TRAINABLE.values())}
ROWS = TRAINED | {key: Trained(prior) for key, prior in RESTORED.items()}

PUBLISHED = [Prior(name) for name in ("rbf", "matern52", "matern32", "matern12", "erf", "step", "relu", "siren")]
BEYOND = [Prior("matern12", "surrogate"), Prior("step", "surrogate"), Prior("matern52", "learnable")]
BEYOND += [Prior("sincos"), Prior("triangle_wave"), Prior("periodic_relu")]
OTHERWISE = [
    Recipe(augmented=True),
    Recipe(steps=True),
    Recipe(augmented=True, steps=True),
    Recipe(l2=True, steps=True),
]


@dataclass(frozen=True)
class Config:
    """One activation, on one trunk.

    Args:
        setting: "paper" or "strict", or "generated" for made-up images and an untrained trunk.
        prior: the key of a ``Trained``: the activation, perhaps with a variant, as in "step surrogate", or with how it
            is trained otherwise, as in "relu augmented steps".
        seeds: of the networks.
        hidden, lengthscale, dropout, n_samples, epochs, batch_size, learning_rate: as the paper says.
        weight_decay: of AdamW, which the paper's code base has as its default; the paper does not say it.
    """

    setting: str = "paper"
    prior: str = "matern52"
    seeds: tuple[int, ...] = (0,)
    hidden: int = 512
    lengthscale: float = 1.0
    dropout: float = 0.2
    n_samples: int = 10
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 0.01


def configs(scale: str = "paper") -> list[Config]:
    if scale == "smoke":
        return [Config("generated", prior, epochs=10) for prior in ("matern52", "relu", "step surrogate")]
    if scale == "demo":
        return [Config(setting, prior.key, epochs=10) for setting in TRUNK_CLASSES for prior in PUBLISHED]
    rows = [Trained(prior) for prior in (*PUBLISHED, *BEYOND)]
    rows += [Trained(prior, recipe) for recipe in OTHERWISE for prior in PUBLISHED]
    return [Config(setting, row.key, (seed,)) for setting in TRUNK_CLASSES for row in rows for seed in range(5)]
