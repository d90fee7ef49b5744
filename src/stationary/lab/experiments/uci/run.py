"""Training and evaluation of every method, one fold after the other or all folds together."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from stationary import metrics
from stationary.inference import (
    SWAG,
    Ensemble,
    ExactDropout,
    InfiniteWidth,
    MCDropout,
    Method,
    Point,
    Posterior,
    fit_folds,
    predict,
)
from stationary.lab.baselines import GPDNN, SVDKL, SVGP
from stationary.lab.baselines.sparse import SparseMethod
from stationary.lab.data import Split, uci
from stationary.lab.experiments import networks, paper
from stationary.lab.experiments.uci.config import (
    EXACT_ROW,
    METHODS,
    METRICS,
    RESTORED_ROW,
    SECONDS,
    Config,
    EnsembleRow,
    GPDNNRow,
    InfiniteWidthRow,
    NetworkRow,
    Row,
    SVDKLRow,
    SVGPRow,
    SWAGRow,
)
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.nn import MLP
from stationary.nn.restored_prior import calibrate_prior
from stationary.predictive import Categorical
from stationary.training import Build, Group, Training
from stationary.training.data import Pair

LEARNING_RATES = dict.fromkeys(("adult", "adult-scaled"), 5e-5) | {"covtype": 5e-4, "diabetes": 1e-4}
LEARNING_RATES |= dict.fromkeys(("connect-4", "connect-4-codes", "connect-4-onehot"), 2e-4)
SMOOTHNESS = paper.NUS | {"rbf": math.inf}
LENGTHSCALE = 0.5
HELD_OUT = 0.1  # share of the training rows that the trunk of infinite width is not trained on
CONVERGED = 50  # factor on the epochs that lets SV-DKL converge

Prediction = tuple[Categorical, Categorical]  # the prediction that NLPD and AUC measure, and the one that ACC measures
Predictions = dict[str, Callable[[], Prediction]]  # by name of a row, a function that predicts


class Clock:
    """Measures the seconds of set-up, training and evaluation.

    Set-up is all time before evaluation that is beyond the number of epochs times the mean time of a later epoch: for
    example what the first epoch takes longer than the others. What a method computes after the last epoch counts as
    training where it is noted as ``solving``.

    Args:
        device: the device that computes; "cuda" is waited for before the time is read.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.start, self.epochs, self.solving = self.now(), list[float](), 0.0

    def now(self) -> float:
        """Return the time in seconds, when the device has finished its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def epoch(self, number: int, *_: Any) -> None:
        """Note the end of an epoch, as ``fit(progress=)`` calls it; each of several folds begins at number 1 again."""
        if number == 1 and self.epochs:
            self.start += self.now() - self.epochs[-1]
        self.epochs.append(self.now())

    def seconds(self, trained: float) -> tuple[float, float, float]:
        """Return the seconds of set-up, training and evaluation until now; ``trained`` is when training was over.

        They are NaN for a training that was stopped and continued, of which this clock has seen a part.
        """
        if inside.resumed():
            return math.nan, math.nan, math.nan
        epochs = self.epochs or [self.start]
        first, later = epochs[0] - self.start, epochs[-1] - epochs[0]
        training = later * len(epochs) / max(1, len(epochs) - 1) + self.solving
        return max(0.0, trained - self.start - training) if training else first, training, self.now() - trained


@dataclass(frozen=True)
class Given:
    """What every method is given.

    Args:
        config: the configuration.
        splits: the training and test data of its folds, on the device.
        clock: the clock that measures its time.
    """

    config: Config
    splits: list[Split]
    clock: Clock

    def build(self) -> nn.Module:
        """Build a fresh network, with an activation of its own, whose parameters may be trained."""
        split = self.splits[0]
        activation = _activation(METHODS[self.config.method], self.config.prior)
        return MLP(split.n_features, split.n_classes, hidden=self.config.hidden, activation=activation)

    def training(self, **options: Any) -> Training:
        """Return the training that the methods share; the options replace or add to its arguments."""
        common: dict[str, Any] = {
            "epochs": self.config.epochs,
            "milestones": (10, 15),
            "batch_size": self.config.batch_size,
            "precision": "bfloat16" if self.clock.device == "cuda" else "float32",
        }
        return Training(**common | options)

    def fit(
        self,
        method: Method,
        build: Build | Sequence[Build],
        training: Training,
        folds: Sequence[Pair] | None = None,
    ) -> list[Posterior]:
        """Fit a posterior to each fold, or to other data for each."""
        config, folds = self.config, folds or [split.train for split in self.splits]
        seeds = [config.seed + fold + 1000 * i for fold in config.folds for i in range(method.n_networks)]
        watch = inside.watched(training.epochs)

        def progress(number: int, *losses: float | None) -> None:
            self.clock.epoch(number)
            watch.epoch(number)

        return fit_folds(
            method,
            build,
            folds,
            training,
            seeds=seeds,
            progress=progress,
            keep_diverged=True,
            checkpoint=watch.checkpoint,
        )


def _activation(row: Row, name: str) -> nn.Module:
    variant = row.variant if isinstance(row, NetworkRow) else ""
    prior = paper.Prior(name) if variant == "lengthscale" else paper.Prior(name, variant)
    return networks.activation(prior, LENGTHSCALE, code_scale=variant != "lengthscale")


def _network(row: NetworkRow, given: Given) -> Iterator[Predictions]:
    """Train once for up to three rows: MC dropout, the exact integral over dropout, and the restored prior."""
    config = given.config
    training = given.training(learning_rate=LEARNING_RATES[config.dataset])
    for posterior, split in zip(
        given.fit(MCDropout(config.n_samples), given.build, training), given.splits, strict=True
    ):
        rows: Predictions = {row.name: partial(_with_dropout, posterior, split)}
        if not row.variant:
            rows[EXACT_ROW] = partial(_with_dropout, ExactDropout().posterior(posterior.networks), split)
        if not row.variant and config.prior in paper.LOCAL:
            rows[RESTORED_ROW] = partial(_restored, posterior, split)
        yield rows


def _with_dropout(posterior: Posterior, split: Split) -> Prediction:
    return predict(posterior, split.x_test), predict(posterior.networks[0], split.x_test, Point())


def _restored(posterior: Posterior, split: Split) -> Prediction:
    """Predict with the restored prior; this comes last, since all later predictions of the network have it too."""
    calibrate_prior(posterior.networks[0], split.x_train)
    return _with_dropout(posterior, split)


def _ensemble(row: EnsembleRow, given: Given) -> Iterator[Predictions]:
    training = given.training(learning_rate=LEARNING_RATES[given.config.dataset])
    return _each(given, Ensemble(row.size), given.build, training)


def _swag(row: SWAGRow, given: Given) -> Iterator[Predictions]:
    """Train for SWAG, which collects the weights after the epochs 16 to 20, at the last learning rate."""
    training = given.training(learning_rate=LEARNING_RATES[given.config.dataset])
    if training.epochs < 4:  # SWAG needs the weights of two epochs at least
        training = replace(training, epochs=4)
    return _each(given, SWAG(start=0.5 if training.epochs < 12 else 0.75), given.build, training)


def _svgp(row: SVGPRow, given: Given) -> Iterator[Predictions]:
    config = given.config
    method = SVGP(SMOOTHNESS[config.prior], config.n_inducing, lengthscale=1.0 if row.unit else None, ard=row.ard)
    return _gp(given, method, given.training(loss="own", learning_rate=0.01, milestones=()))


def _gpdnn(row: GPDNNRow, given: Given) -> Iterator[Predictions]:
    config = given.config
    method = GPDNN(SMOOTHNESS[config.prior], config.hidden[-1], row.epsilon, config.hidden)
    rate = row.learning_rate
    return _gp(given, method, given.training(loss="own", learning_rate=rate, milestones=()))


def _svdkl(row: SVDKLRow, given: Given) -> Iterator[Predictions]:
    config = given.config
    longer = CONVERGED if row.converged else 1
    training = given.training(
        loss="own",
        optimizer="sgd",
        nesterov=True,
        learning_rate=0.15 if config.dataset.startswith("connect-4") else 0.1,
        weight_decay=1e-4,
        groups=(Group("trunk"), Group("kernel", rate=0.01, decay=0.0), Group("", decay=0.0)),
        epochs=longer * config.epochs,
        milestones=(10 * longer, 15 * longer),
    )
    return _gp(given, SVDKL(SMOOTHNESS[config.prior], max(8, config.hidden[-1]), config.hidden), training)


def _gp(given: Given, method: SparseMethod, training: Training) -> Iterator[Predictions]:
    builds = [partial(method.build, split.x_train, split.n_classes) for split in given.splits]
    return _each(given, method, builds, training)


def _infinite_width(row: InfiniteWidthRow, given: Given) -> Iterator[Predictions]:
    """Train trunks by the network's own head, if there are any, and solve for the posterior of each fold."""
    config, clock = given.config, given.clock
    trains: list[Pair] = [split.train for split in given.splits]
    helds: list[Pair | None] = [None] * len(trains)
    models: list[nn.Module] = [nn.Linear(split.n_features, split.n_classes).to(split.x_train) for split in given.splits]
    stages = 1 if row.columns else 2
    if not row.columns:
        seeds = [config.seed + fold for fold in config.folds]
        parts = [networks.held_out(train, HELD_OUT, seed) for train, seed in zip(trains, seeds, strict=True)]
        trains, helds = [train for train, _ in parts], [held for _, held in parts]
        training = given.training(learning_rate=LEARNING_RATES[config.dataset])
        with inside.part(0, stages):
            models = [posterior.networks[0] for posterior in given.fit(Point(), given.build, training, trains)]
    method = InfiniteWidth(config.prior, n_inducing=2 * config.n_inducing)
    for k, (model, train, held, split) in enumerate(zip(models, trains, helds, given.splits, strict=True)):
        start = clock.now()
        with inside.part(stages - 1, stages), inside.part(k, len(models), "fold"):
            posterior = replace(method, **inside.of_fit()).posterior([model], train, validation=held)
        clock.solving += clock.now() - start
        yield {row.name: partial(_once, posterior, split)}


def _each(given: Given, method: Method, build: Build | Sequence[Build], training: Training) -> Iterator[Predictions]:
    """Train once for one row."""
    for posterior, split in zip(given.fit(method, build, training), given.splits, strict=True):
        yield {given.config.method: partial(_once, posterior, split)}


def _once(posterior: Posterior, split: Split) -> Prediction:
    prediction = predict(posterior, split.x_test, batch_size=10_000)
    return prediction, prediction


PREDICTIONS: dict[type, Callable[[Any, Given], Iterator[Predictions]]] = {
    NetworkRow: _network,
    EnsembleRow: _ensemble,
    SWAGRow: _swag,
    SVGPRow: _svgp,
    GPDNNRow: _gpdnn,
    SVDKLRow: _svdkl,
    InfiniteWidthRow: _infinite_width,
}


def predictions_of(given: Given) -> Iterator[Predictions]:
    """Yield what the configuration's method predicts, one fold after the other."""
    row = paper.look_up(METHODS, given.config.method, "method")
    return PREDICTIONS[type(row)](row, given)


# Run


def missing(configs: Sequence[Config]) -> str | None:
    """Say why these configurations cannot run here: some need Covtype, and it cannot be loaded; else None."""
    return _no_covtype() if any(config.dataset == "covtype" for config in configs) else None


@cache
def _no_covtype() -> str | None:
    """Look for Covtype once, since it may be downloaded, which is tried for a while."""
    try:
        uci.load("covtype")
    except FileNotFoundError as problem:
        return str(problem)
    return None


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train and evaluate the folds, and return arrays with names "row: metric" and those of ``SECONDS``.

    An array has one number for each fold, which is NaN where training diverged.
    """
    splits = _splits(config.dataset, config.n_folds, config.seed, config.folds, device)
    given = Given(config, splits, Clock(device))
    folds = list(predictions_of(given))
    rule = METHODS[config.method].nlpd
    _evaluate(
        rule, config.method, folds[:1], splits[:1]
    )  # the first evaluation loads and compiles, which is part of set-up
    trained, seconds, measured = given.clock.now(), (0.0, 0.0, 0.0), Arrays()
    for name in folds[0]:
        values = _evaluate(rule, name, folds, splits)
        measured |= {f"{name}: {metric}": np.array([fold[metric] for fold in values]) for metric in values[0]}
        if name == config.method:
            seconds = given.clock.seconds(trained)
    return measured | {name: np.full(len(splits), s / len(splits)) for name, s in zip(SECONDS, seconds, strict=True)}


@lru_cache(maxsize=1)  # configurations of one data set run one after the other
def _splits(dataset: str, n_folds: int, seed: int, folds: tuple[int, ...], device: str) -> list[Split]:
    table = _load(dataset).to(device)
    rows = table.fold_rows(n_folds, seed=seed)
    return [table.split(*rows[fold]) for fold in folds]


_load = lru_cache(maxsize=1)(uci.load)


def _evaluate(rule: str, name: str, folds: list[Predictions], splits: list[Split]) -> list[dict[str, float]]:
    """Compute the metrics of a row for each fold: predictions one after the other, metrics in threads."""
    predictions = [[part.to("cpu") for part in fold[name]()] for fold in folds]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(partial(_measure, rule), predictions, (split.y_test.cpu() for split in splits)))


def _measure(rule: str, prediction: Sequence[Categorical], y: torch.Tensor) -> dict[str, float]:
    """Compute the metrics of one fold; ``rule`` is the authors' for NLPD, "expected_nll" or "nlpd"."""
    sampled, point = prediction
    if not sampled.probs.isfinite().all():
        return dict.fromkeys(METRICS, math.nan) | {"diverged": 1.0}
    found = metrics.classification(sampled, y)
    return {
        "NLPD": found[rule],
        "ACC": metrics.accuracy(point, y),
        "AUC": found["auc"],
        "NLPD mean-probability": found["nlpd"],
        "ECE": found["ece"],
        "Brier": found["brier"],
        "diverged": 0.0,
    }
