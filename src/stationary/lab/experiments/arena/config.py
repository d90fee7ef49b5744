"""The configurations of the arena: an event, its data, a method and seeds."""

from dataclasses import dataclass

from stationary.lab.experiments import ranges
from stationary.lab.experiments.arena.protocol import PROTOCOL

TITLE = "The arena: against what people would pick instead"
REPRODUCES = "nothing: our heads beside other libraries' methods, on the same features, splits and seeds"
DURATION = {"smoke": "seconds", "demo": "minutes, when the data and the peers are there", "paper": "an hour"}
VERSION = 1
LOCKSTEP = "seeds"

IMAGES = "unknown images"
EVENTS = {
    "clinc150": "unknown questions",
    "fashion-mnist": IMAGES,
    "cifar10": IMAGES,
    "cifar10-five": IMAGES,
    "cifar10-strict": IMAGES,
    "cifar10-imagenet": IMAGES,
    "cifar10-imagenet-five": IMAGES,
    "generated": "generated",
}
FROZEN = ("clinc150", "cifar10-imagenet", "cifar10-imagenet-five")  # one trunk for all seeds, trained on other data
SHIFT = "calibration under shift"  # the event of the corrupted images of cifar10, whose methods are fitted only once
SEEDS = 5


@dataclass(frozen=True)
class Config:
    """One method on one data set.

    Args:
        event: name of the event.
        dataset: name of the data set: a key of ``EVENTS``.
        method: name of the method: a key of ``PROTOCOL``.
        seeds: seeds; each is that of a trunk, or where the features are frozen draws which of the known rows train
            and which validate, and is the seed of heads.
    """

    event: str
    dataset: str
    method: str
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        ranges.check(self, seeds="seeds")


def configs(scale: str = "paper") -> list[Config]:
    """Return the configurations; "smoke" has generated features and the methods that need no other library."""
    if scale == "smoke":
        return [Config("generated", "generated", name) for name, entry in PROTOCOL.items() if not entry.needs]
    datasets = [dataset for dataset in EVENTS if dataset != "generated"]
    return [
        Config(EVENTS[dataset], dataset, method, (seed,))
        for dataset in datasets
        for method in PROTOCOL
        for seed in range(SEEDS if scale == "paper" and not one_ensemble(dataset, method) else 1)
    ]


def one_ensemble(dataset: str, method: str) -> bool:
    """Whether the seeds are the members, so that there is one result."""
    return EVENTS[dataset] == IMAGES and dataset not in FROZEN and method == "ensemble"
