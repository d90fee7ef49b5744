"""The configurations of the arena: an event, its data, a method and seeds."""

from dataclasses import dataclass

from stationary.lab.experiments import ranges
from stationary.lab.experiments.arena import protocol_tables as tables
from stationary.lab.experiments.arena.protocol import JUDGES, PROTOCOL, RECIPES, Entry

TITLE = "The arena: against what people would pick instead"
REPRODUCES = "nothing: our heads beside other libraries' methods, on the same features, splits and seeds"
DURATION = {"smoke": "seconds", "demo": "five minutes of one core", "paper": "nine hours of one core"}
VERSION = 1
LOCKSTEP = "seeds"

IMAGES, TRAINING = "unknown images", "recipes of a trunk"
EVENTS = {
    "clinc150": "unknown questions",
    "fashion-mnist": IMAGES,
    "cifar10": IMAGES,
    "cifar10-five": IMAGES,
    "cifar10-strict": IMAGES,
    "cifar10-imagenet": IMAGES,
    "cifar10-imagenet-five": IMAGES,
    **{dataset: TRAINING for dataset in RECIPES if dataset != "cifar10-strict"},
    "generated": "generated",
}
FROZEN = ("clinc150", "cifar10-imagenet", "cifar10-imagenet-five")  # one trunk for all seeds, trained on other data
SHIFT = "calibration under shift"  # the event of the corrupted images of cifar10, whose methods are fitted only once
SEEDS = 5
DEMO = ("cifar10-strict", "boston", "yacht", "diabetes")  # the quickest data of an event each, and one table more
GENERATED_VALUES, GENERATED_TABLE = "generated values", "generated table"
DATASETS = {event: [dataset for dataset, of in EVENTS.items() if of == event] for event in EVENTS.values()}  # by event
DATASETS |= {
    tables.VALUES_EVENT: [*tables.VALUES, GENERATED_VALUES],
    tables.TABLES_EVENT: [*tables.TABLES, GENERATED_TABLE],
}


@dataclass(frozen=True)
class Config:
    """One method on one data set.

    Args:
        event: name of the event.
        dataset: name of the data set: a key of ``EVENTS``, or one of ``protocol_tables``.
        method: name of the method: a key of ``PROTOCOL``, or of the protocol of the event in ``protocol_tables``.
        seeds: seeds; each is that of a trunk, or where the features are frozen draws which of the known rows train
            and which validate, and is the seed of heads. Of a table of values it is the number of the split.
    """

    event: str
    dataset: str
    method: str
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        ranges.check(self, seeds="seeds")
        ranges.check_name("event", self.event, DATASETS)
        ranges.check_name(f"dataset of event={self.event!r}", self.dataset, DATASETS[self.event])
        methods = tables.OF_EVENT.get(self.event, PROTOCOL)
        ranges.check_name(f"method of event={self.event!r}", self.method, methods)


def configs(scale: str = "paper") -> list[Config]:
    """Return the configurations.

    "smoke" has generated features and the methods that need no other library, "demo" one seed of ``DEMO``.
    """
    if scale == "smoke":
        generated = [("generated", "generated", PROTOCOL), *_on_tables((GENERATED_VALUES,), (GENERATED_TABLE,))]
        return [
            Config(event, dataset, name)
            for event, dataset, methods in generated
            for name, entry in methods.items()
            if not entry.needs
        ]
    datasets = [dataset for dataset in EVENTS if dataset != "generated"]
    on_tables = _on_tables(tables.VALUES, tables.TABLES)
    if scale == "demo":
        datasets = [dataset for dataset in datasets if dataset in DEMO]
        on_tables = [one for one in on_tables if one[1] in DEMO]
    on_features = [
        Config(EVENTS[dataset], dataset, method, (seed,))
        for dataset in datasets
        for method in (JUDGES if EVENTS[dataset] == TRAINING else PROTOCOL)
        if PROTOCOL[method].runs_on(dataset)
        for seed in range(SEEDS if scale == "paper" and not one_ensemble(dataset, method) else 1)
    ]
    return on_features + [
        Config(event, dataset, method, (seed,))
        for event, dataset, methods in on_tables
        for method in methods
        for seed in range(tables.MORE_SPLITS.get(dataset, tables.SPLITS) if scale == "paper" else 1)
    ]


def _on_tables(values: tuple[str, ...], classes: tuple[str, ...]) -> list[tuple[str, str, dict[str, Entry]]]:
    """Return event, data set and methods of each table, of values or of classes."""
    named = {tables.VALUES_EVENT: values, tables.TABLES_EVENT: classes}
    return [(event, dataset, tables.OF_EVENT[event]) for event, datasets in named.items() for dataset in datasets]


def one_ensemble(dataset: str, method: str) -> bool:
    """Whether the seeds are the members, so that there is one result."""
    return EVENTS[dataset] == IMAGES and dataset not in FROZEN and method == "ensemble"
