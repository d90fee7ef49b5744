"""The configurations of the CIFAR-10 experiment, and the rows of its tables: activations and ways of training."""

from dataclasses import dataclass
from itertools import product

from stationary.lab.experiments import ranges
from stationary.lab.experiments.paper import RESTORED, TRAINABLE, Prior, in_a_row

TITLE = "CIFAR-10: known and unknown classes (Fig. 4, Table 5)"
REPRODUCES = "Fig. 4 and the CIFAR-10 table: accuracy, NLPD and uncertainty of known and unknown classes"
DURATION = {"smoke": "a minute", "demo": "minutes, when the features are there", "paper": "minutes on a GPU"}
VERSION = 1
LOCKSTEP = "seeds"

# By setting, how many classes, the first ones, the trunk is trained on. A trunk that is held out has not seen the last
# tenth of the training images of each class.
TRUNK_CLASSES = {"paper": 10, "strict": 5, "paper-held-out": 10, "strict-held-out": 5}
PAPER, HELD_OUT = tuple(TRUNK_CLASSES)[:2], tuple(TRUNK_CLASSES)[2:]
TRUNK_EPOCHS = 40


@dataclass(frozen=True)
class Recipe:
    """How training of the network's end differs from the training that we read in the paper.

    Args:
        augmented: whether it is trained on shifted and mirrored copies of the images, as in the code base that the
            paper names.
        l2: whether the optimizer is Adam, where weight decay is part of the gradient, instead of AdamW.
        steps: whether the learning rate is divided by 10 in the middle, as in that code base.
    """

    augmented: bool = False
    l2: bool = False
    steps: bool = False

    @property
    def key(self) -> str:
        """The name in configurations and reports, such as "augmented steps"; empty if nothing differs."""
        words = ("augmented", self.augmented), ("L2", self.l2), ("steps", self.steps)
        return in_a_row(*(word for word, used in words if used))


AS_STATED = Recipe()


@dataclass(frozen=True)
class Trained:
    """A row of the tables.

    Args:
        prior: the activation of the network's end.
        recipe: how the end is trained.
        infinite: whether the end is not trained, but the limit of infinite width with the kernel of the prior's name.
    """

    prior: Prior
    recipe: Recipe = AS_STATED
    infinite: bool = False

    @property
    def key(self) -> str:
        """The name in ``Config.prior`` and in stored results, such as "matern52 augmented steps"."""
        return in_a_row(self.prior.key, self.recipe.key, "infinite width" * self.infinite)

    @property
    def label(self) -> str:
        """The name in reports, such as "Matérn-5/2 augmented steps"."""
        return in_a_row(self.prior.label, self.recipe.key, "infinite width" * self.infinite)


RECIPES = [Recipe(*choices) for choices in product((False, True), repeat=3)]
TRAINED = {row.key: row for row in (Trained(prior, recipe) for recipe in RECIPES for prior in TRAINABLE.values())}
LIMITS = [Trained(Prior(name), infinite=True) for name in ("matern52", "matern32")]
TRAINED |= {row.key: row for row in LIMITS}
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
    """One activation, on one trunk. The defaults are the paper's, but for the weight decay, which it does not state.

    Args:
        setting: "paper" for the trunk that saw all ten classes, "strict" for the one that saw the known classes;
            "paper-held-out" and "strict-held-out" for such trunks that did not see the last tenth of the images, which
            nothing is trained on and which choose the numbers of infinite width, in the other two settings as well; or
            "generated" for generated images and an untrained trunk.
        prior: key of a ``Trained``: the activation, which may have a variant, as in "step surrogate", or another way
            of training, as in "relu augmented steps"; or a kernel of infinite width, as in "matern52 infinite width".
        seeds: seeds of the networks; one network is trained for each.
        hidden: number of units between the features and the classes.
        lengthscale: length-scale of the activation.
        dropout: dropout probability of the hidden units.
        n_samples: number of MC dropout samples in prediction.
        epochs: number of epochs of training.
        batch_size: number of images in a batch.
        learning_rate: learning rate of the optimizer.
        weight_decay: weight decay of the optimizer; the default is that of the code base which the paper names.
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

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="hidden n_samples epochs batch_size",
            positive="lengthscale learning_rate",
            not_negative="weight_decay",
            probabilities="dropout",
            seeds="seeds",
        )
        ranges.check_name("setting", self.setting, [*TRUNK_CLASSES, "generated"])
        ranges.check_name("prior", self.prior, TRAINED)


def configs(scale: str = "paper") -> list[Config]:
    if scale == "smoke":
        return [
            Config("generated", prior, epochs=10) for prior in ("matern52", "relu", "step surrogate", LIMITS[0].key)
        ]
    if scale == "demo":
        return [Config(setting, prior.key, epochs=10) for setting in PAPER for prior in PUBLISHED]
    rows = [*map(Trained, (*PUBLISHED, *BEYOND)), *LIMITS]
    rows += [Trained(prior, recipe) for recipe in OTHERWISE for prior in PUBLISHED]
    again = [*map(Trained, PUBLISHED), *LIMITS]
    both = [(setting, row) for some, these in ((PAPER, rows), (HELD_OUT, again)) for setting in some for row in these]
    return [Config(setting, row.key, (seed,)) for setting, row in both for seed in range(5)]
