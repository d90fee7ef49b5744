"""How data sets, unknown inputs and methods are called in a sentence, and how several of them are listed."""

from collections.abc import Iterable

from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH

NAMES = {  # of data sets and unknown inputs, by their names in configurations and results
    "clinc150": "CLINC150",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar10-five": "CIFAR-10, five classes",
    "cifar10-strict": "CIFAR-10, five classes, strict",
    "cifar10-imagenet": "CIFAR-10, ImageNet trunk",
    "cifar10-imagenet-five": "CIFAR-10, five classes, ImageNet trunk",
    "generated": "generated features",
    "out of scope": "questions out of scope",
    "adult": "Adult",
    "boston": "Boston",
    "concrete": "Concrete",
    "connect-4": "Connect-4",
    "covtype": "Covtype",
    "diabetes": "Diabetes",
    "energy": "Energy",
    "kin8nm": "Kin8nm",
    "naval": "Naval",
    "power": "Power",
    "protein": "Protein",
    "wine": "Wine",
    "yacht": "Yacht",
}
WITH_ARTICLE = (
    "ensemble",
    "isolation forest",
    "random forest",
    "Gaussian process",
    "sparse Gaussian process",
    "marginal Gaussian",
    "MLP",
)
OURS = "ours, "  # how the labels of our own methods begin


def name_of(name: str) -> str:
    """Return the proper name of a data set or of unknown inputs; a new one has that of its configuration."""
    return NAMES.get(name, name)


def called(label: str) -> str:
    """Return a method's label as a sentence has it: "the ensemble of 5", "our finite head", "infinite width"."""
    if label.startswith(OURS):
        own = label.removeprefix(OURS)
        return own if own.startswith(INFINITE_WIDTH) else f"our {own}"
    return f"the {label}" if label.startswith(WITH_ARTICLE) else label


def listed(parts: Iterable[str]) -> str:
    """Return parts as a list in a sentence.

    Examples:
        >>> listed(["RMD", "DDU", "energy"])
        'RMD, DDU and energy'
    """
    *before, last = parts
    return f"{', '.join(before)} and {last}" if before else last
