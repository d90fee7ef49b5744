"""Training of the network's end on the trunk's features, and what it says of known and unknown classes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary import metrics
from stationary.inference import InfiniteWidth, MCDropout, Posterior, fit_folds, predict
from stationary.lab.data import cifar10
from stationary.lab.data.augment import is_held_out
from stationary.lab.data.split import Split
from stationary.lab.experiments import networks
from stationary.lab.experiments.cifar10 import trunk
from stationary.lab.experiments.cifar10.config import (
    AS_STATED,
    HELD_OUT,
    PAPER,
    TRAINED,
    TRUNK_CLASSES,
    Config,
    Trained,
)
from stationary.lab.experiments.paper import look_up
from stationary.lab.experiments.scores import as_is, scored
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.nn import StationaryHead
from stationary.nn.restored_prior import calibrate_prior
from stationary.predictive import Categorical
from stationary.training import Training
from stationary.training.data import Pair

COPIES = 10  # shifted and perhaps mirrored copies of each training image, where training is augmented
BINS = 40  # number of bins of the histograms
ENDS = 7  # number of images from each end of a histogram, as in the paper


def missing(configs: Sequence[Config]) -> str | None:
    """Say why these configurations cannot run here and what to do about it; None if they can run."""
    settings = {config.setting: True for config in configs if config.setting != "generated"}
    limits = (config.setting for config in configs if config.setting in PAPER and TRAINED[config.prior].infinite)
    settings |= {f"{setting}-held-out": True for setting in limits}
    try:
        for setting in settings:
            trunk.find_trunk(TRUNK_CLASSES[setting], setting in HELD_OUT)
        if settings:
            cifar10.find()
    except FileNotFoundError as problem:
        return str(problem)
    return None


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train and evaluate networks, and return arrays with names "row: quantity", whose first axis is that of the seeds.

    A row is the key of the prior; the same network has another row, with "restored", where its prior can be restored.
    """
    row = look_up(TRAINED, config.prior, "prior")
    split = trunk.features(config.setting, device, copies=_copies(row))
    if row.infinite:
        posteriors = [_infinite_width(row, config, seed, device) for seed in inside.parts(config.seeds, "seed")]
    else:
        train = _held_out(split)[0] if config.setting in HELD_OUT else split.train
        build, data, training = partial(_head, row, config, split), [train] * len(config.seeds), _training(row, config)
        watch = inside.watched(training.epochs)
        posteriors = fit_folds(
            MCDropout(config.n_samples),
            build,
            data,
            training,
            seeds=config.seeds,
            progress=watch.epoch,
            checkpoint=watch.checkpoint,
        )
    found = [dict(_evaluated(row, config, posterior, split)) for posterior in posteriors]
    return {name: np.stack([arrays[name] for arrays in found]) for name in found[0]}


def _head(row: Trained, config: Config, split: Split) -> StationaryHead:
    known = len(cifar10.KNOWN)
    activation = networks.activation(row.prior, config.lengthscale, code_scale=True)
    return StationaryHead(split.n_features, known, hidden=config.hidden, activation=activation, dropout=config.dropout)


def _infinite_width(row: Trained, config: Config, seed: int, device: str) -> Posterior:
    """Make the posterior on the features, which are a trunk's although the network here begins behind it.

    Its numbers are chosen by images that the trunk has not seen. The trunks of the paper's settings have seen all, so
    that they take the numbers of the trunk that was trained like them without the images that are held out.
    """
    chooser = config.setting if config.setting not in PAPER else f"{config.setting}-held-out"
    train, held = _held_out(trunk.features(chooser, device, copies=0))  # as above, for its cache
    network = nn.Linear(train[0].shape[1], len(cifar10.KNOWN)).to(train[0])
    method = InfiniteWidth(row.prior.name, geometry="polar", per_column=False, seed=seed)
    posterior = replace(method, **inside.of_fit()).posterior([network], train, validation=held)
    if chooser == config.setting:
        return posterior
    found = posterior.numbers
    given = replace(
        method,
        lengthscale=float(found.lengthscale),
        variance=found.variance,
        temperature=found.temperature,
        **inside.of_fit(),
    )
    return given.posterior([network], trunk.features(config.setting, device, copies=0).train)


def _held_out(split: Split) -> tuple[Pair, Pair]:
    """Return the training rows without those that are held out, and these."""
    out = is_held_out(split.y_train)
    return (split.x_train[~out], split.y_train[~out]), (split.x_train[out], split.y_train[out])


def _copies(row: Trained) -> int:
    """Return the number of copies of each training image; 0 for the images as they are."""
    return COPIES if row.recipe.augmented else 0


def _training(row: Trained, config: Config) -> Training:
    """Return the training; a pass over all copies of the images counts as that many epochs."""
    epochs = config.epochs // max(1, _copies(row))
    return Training(
        epochs=epochs,
        milestones=(epochs // 2,) if row.recipe.steps else (),
        batch_size=config.batch_size,
        optimizer="adam" if row.recipe.l2 else "adamw",
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
    )


def _evaluated(row: Trained, config: Config, posterior: Posterior, split: Split) -> Iterator[tuple[str, Any]]:
    yield from _row(row.key, config, posterior, split)
    if row.prior.restorable and row.recipe == AS_STATED and not row.infinite:
        restored = Trained(replace(row.prior, restored=True))
        calibrate_prior(posterior.networks[0], split.x_train)
        yield from _row(restored.key, config, posterior, split)


def _row(row: str, config: Config, posterior: Posterior, split: Split) -> Iterator[tuple[str, Any]]:
    labels = split.y_test.cpu()
    known = labels < len(cifar10.KNOWN)
    inside, outside = (as_is(predict(posterior, split.x_test[rows]).to("cpu")) for rows in (known, ~known))
    y = labels[known]
    for rule, (of_known, of_unknown) in {
        "": map(metrics.at_mean_output, (inside, outside)),  # the paper's rule for this table
        " mean-probability": (inside, outside),
    }.items():
        unknown = metrics.unknown_nlpd(of_unknown)
        yield f"{row}: ACC known{rule}", metrics.accuracy(of_known, y)
        yield f"{row}: NLPD known{rule}", metrics.nlpd(of_known, y)
        yield f"{row}: NLPD unknown{rule}", unknown.value
        yield f"{row}: clipped unknown{rule}", unknown.clipped
    yield f"{row}: ECE known", metrics.ece(inside, y)
    judged, measures = scored(posterior)
    if judged is not posterior:
        inside, outside = (predict(judged, split.x_test[rows]).to("cpu") for rows in (known, ~known))
    for name, score in measures.items():
        scores = score(inside), score(outside)
        yield f"{row}: AUROC {name}", metrics.auroc(*scores)
        yield f"{row}: AUPR {name}", metrics.aupr(*scores)
        yield f"{row}: FPR95 {name}", metrics.fpr95(*scores)
        if name in ("std", "entropy"):
            edges, *counts = _histogram(*scores)
            yield f"{row}: {name} edges", edges
            yield f"{row}: {name} known", counts[0]
            yield f"{row}: {name} unknown", counts[1]
    for group, rows, pred, sign in (("known", known, inside, -1), ("unknown", ~known, outside, 1)):
        ends = _ends(pred, rows.nonzero()[:, 0], labels[rows], sign)
        yield f"{row}: ends {group}", ends
        yield f"{row}: pixels {group}", trunk.images_of(config.setting).x_test[ends[:, 0].astype(int)].numpy()


def _histogram(known: Tensor, unknown: Tensor) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the edges of the bins and the two counts; the last bin includes all larger scores."""
    scores = [s.double().numpy() for s in (known, unknown)]
    edges = np.linspace(0, max(np.quantile(s, 0.99) for s in scores) + 1e-9, BINS + 1)
    return edges, *(np.histogram(s.clip(max=edges[-1]), edges)[0] for s in scores)


def _ends(pred: Categorical, places: Tensor, y: Tensor, sign: int) -> np.ndarray[Any, Any]:
    """Describe the images with the smallest ``sign`` times std, in an array (7, 4).

    The columns are the place in the test data, the class, the prediction and its probability by the paper's rule.
    """
    rows = (sign * pred.std()).argsort()[:ENDS]
    at_mean = metrics.at_mean_output(pred)
    columns = places[rows], y[rows], at_mean.predict()[rows], at_mean.confidence()[rows]
    return torch.stack([column.double() for column in columns], -1).numpy()
