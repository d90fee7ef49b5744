"""The configurations of the active-learning experiment: a data set, a learner with its way of asking, and seeds."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stationary.lab.experiments import ranges

VERSION = 1
TITLE = "Active learning: which rows to label next"
REPRODUCES = "nothing: curves by number of labels, and seconds per round, against asking for random rows"
DURATION = {"smoke": "seconds", "demo": "minutes", "paper": "20 minutes, when the data are there"}
LOCKSTEP = "seeds"

IMAGES = ("digits", "fashion-mnist")  # data sets with classes
UCI = ("energy", "concrete", "kin8nm")  # with real values, as the next one, which scikit-learn brings
DATASETS = (*IMAGES, *UCI, "diabetes")
SECONDS = "seconds"  # the run that measures the time of a round of every learner


class Way(NamedTuple):
    """A learner and how it asks.

    Args:
        learner: "infinite width", "dropout" or "ensemble".
        score: score of ``acquire``, or None for random rows.
        batch: "joint" or "top", as for ``acquire``.
        always_new: whether the numbers of infinite width are chosen again in every round.
    """

    learner: str
    score: Literal["bald", "variance", "entropy"] | None = None
    batch: Literal["joint", "top"] = "joint"
    always_new: bool = False


WAYS = {
    "infinite width random": Way("infinite width"),
    "infinite width entropy": Way("infinite width", "entropy", "top"),
    "infinite width variance": Way("infinite width", "variance"),
    "infinite width bald": Way("infinite width", "bald"),
    "infinite width bald top": Way("infinite width", "bald", "top"),
    "infinite width random new fits": Way("infinite width", always_new=True),
    "infinite width bald new fits": Way("infinite width", "bald", always_new=True),
    "dropout random": Way("dropout"),
    "dropout bald": Way("dropout", "bald"),
    "ensemble random": Way("ensemble"),
    "ensemble entropy": Way("ensemble", "entropy", "top"),
    "ensemble bald": Way("ensemble", "bald", "top"),  # jointly, five networks know at most log 5 = 1.6 nats
}
# For real values with a constant noise all scores rank rows alike, so these would be runs of "bald" again.
CLASSES_ONLY = ("infinite width entropy", "infinite width variance", "ensemble entropy")


@dataclass(frozen=True)
class Config:
    """One way of asking on one data set.

    Args:
        dataset: name of the data set, one of ``DATASETS``.
        method: a key of ``WAYS``, or "seconds", which measures the time of a round of each learner in turn.
        start: number of random rows that are labelled at first.
        batch: number of rows that are asked for in a round.
        labels: number of labelled rows at the end.
        n_pool: largest number of rows of the pool, the labelled ones included.
        n_test: number of test rows of images; UCI tables have splits of their own.
        growth: factor by which the labels grow until the numbers of infinite width are chosen again.
        candidates: number of rows among which a batch is chosen jointly.
        hidden: widths of the hidden layers of the networks.
        dropout: dropout probability of the last hidden layer.
        epochs: number of epochs of training, on all rows at once.
        learning_rate: learning rate of Adam.
        n_samples: number of dropout masks in prediction.
        members: number of networks of an ensemble.
        seeds: seeds; each draws which rows are the pool, the test rows and the first ones, and is that of networks.
            On UCI tables it is the number of the standard split.
    """

    dataset: str = "digits"
    method: str = "infinite width bald"
    start: int = 20
    batch: int = 10
    labels: int = 200
    n_pool: int = 4000
    n_test: int = 500
    growth: float = 2.0
    candidates: int = 200
    hidden: tuple[int, ...] = (100, 50)
    dropout: float = 0.2
    epochs: int = 200
    learning_rate: float = 0.01
    n_samples: int = 100
    members: int = 5
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        ranges.check(
            self,
            counts="start batch labels n_pool n_test candidates hidden epochs n_samples members",
            positive="growth learning_rate",
            probabilities="dropout",
            seeds="seeds",
        )
        ranges.check_name("dataset", self.dataset, DATASETS)
        ranges.check_name("method", self.method, [*WAYS, SECONDS])
        if not 4 <= self.start <= self.labels <= self.n_pool:
            raise ValueError(
                "start must be at least 4, since a quarter is held out, labels at least start, and n_pool at least "
                f"labels; got start={self.start}, labels={self.labels} and n_pool={self.n_pool}"
            )

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of labelled rows after which learners are tested."""
        return (*range(self.start, self.labels, self.batch), self.labels)


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "labels": 40,
        "n_pool": 150,
        "n_test": 100,
        "candidates": 30,
        "hidden": (20,),
        "epochs": 20,
        "n_samples": 20,
        "members": 2,
    },
    "demo": {"labels": 100, "n_pool": 1000, "candidates": 100},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    """Return the configurations; below the scale "paper" they need no data but what scikit-learn brings.

    The other data sets are there by ``--set dataset=concrete``, or ``--set dataset=fashion-mnist --set n_test=4000``.
    """
    datasets = ("digits", "energy", "kin8nm") if scale == "paper" else ("digits", "diabetes")
    n_seeds = {"smoke": 1, "demo": 3, "paper": 5}[scale]
    return [
        Config(dataset, method, seeds=(seed,), **SCALES[scale])
        for dataset in datasets
        for method in (*WAYS, SECONDS)
        if dataset in IMAGES or method not in CLASSES_ONLY
        for seed in range(1 if method == SECONDS else n_seeds)
    ]
