"""CIFAR-10 with five known classes and five unknown ones: does the network know what it does not know?

A GoogLeNet trunk is frozen, and a 1024-512-5 end is trained on plane, car, bird, cat and deer. Dropped out of the 512
units are 20 %, in training and ten times over in prediction. In the setting "paper" the trunk has been trained on all
ten classes, as the paper's had, so that it has seen the unknown ones, with their labels. In the setting "strict" it has
been trained on the known ones alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary import metrics, ood
from stationary.inference import MCDropout, calibrate_prior, predict
from stationary.lab.data import cifar10
from stationary.lab.data.split import Split
from stationary.lab.experiments import paper, trunk
from stationary.lab.experiments.cifar10_report import OTHERWISE, TITLE, report
from stationary.nn import StationaryHead
from stationary.predictive import Categorical
from stationary.training import Training, train

__all__ = ["DURATION", "LOCKSTEP", "REPRODUCES", "TITLE", "VERSION", "Config", "configs", "missing", "report", "run"]

VERSION = 1
LOCKSTEP = "seeds"
REPRODUCES = "Fig. 4 and the CIFAR-10 table: accuracy, NLPD and uncertainty of known and unknown classes"
DURATION = {"smoke": "a minute", "demo": "minutes, when the features are there", "paper": "minutes on a GPU"}
Arrays = dict[str, np.ndarray[Any, Any]]

PUBLISHED = ("rbf", "matern52", "matern32", "matern12", "erf", "step", "relu", "siren")
BEYOND = ("matern12 surrogate", "step surrogate", "matern52 learnable", "sincos", "triangle_wave", "periodic_relu")
TRAINED = ("augmented", "steps", "augmented steps", "L2 steps")  # otherwise than we read the paper: what differs?
COPIES = 10  # of each training image, shifted and perhaps mirrored, in what is "augmented"
BINS = 40  # of the histograms
ENDS = 7  # images from each end of them, as in the paper


@dataclass(frozen=True)
class Config:
    """One activation, on one trunk.

    Args:
        setting: "paper" or "strict", or "generated" for made-up images and an untrained trunk.
        prior: of the activation; perhaps with a variant, as in "step surrogate", or with how it is trained otherwise:
            "augmented", on copies of the images that are shifted and mirrored; "steps", with a learning rate that is
            divided by 10 in the middle, both as in the code base that the paper names; "L2", with Adam, where weight
            decay is part of the gradient.
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
        return [Config(setting, prior, epochs=10) for setting in trunk.CLASSES for prior in PUBLISHED]
    rows = (*PUBLISHED, *BEYOND, *(f"{prior} {how}" for how in TRAINED for prior in PUBLISHED))
    return [Config(setting, prior, (seed,)) for setting in trunk.CLASSES for prior in rows for seed in range(5)]


def missing(configs: Sequence[Config]) -> str | None:
    """Why these cannot run here, and what to do about it."""
    settings = {config.setting: True for config in configs if config.setting != "generated"}
    try:
        for setting in settings:
            trunk.find_trunk(trunk.CLASSES[setting])
        if settings:
            cifar10.find()
    except FileNotFoundError as problem:
        return str(problem)
    return None


def run(config: Config, device: str = "cpu") -> Arrays:
    """Arrays by "row: quantity", where a row is the prior or, of the same network, the prior with "restored".

    The first axis is that of the seeds.
    """
    split = trunk.features(config.setting, device, copies=_copies(config))
    models = train(partial(_head, config, split), *split.train, _training(config), seeds=list(config.seeds))
    found = [dict(_evaluated(config, model, split)) for model in models]
    return {name: np.stack([arrays[name] for arrays in found]) for name in found[0]}


def _head(config: Config, split: Split) -> StationaryHead:
    known = len(cifar10.KNOWN)
    prior = " ".join(word for word in config.prior.split() if word not in OTHERWISE)
    activation = paper.activation(prior, config.lengthscale, code_scale=True)
    return StationaryHead(split.n_features, known, hidden=config.hidden, activation=activation, dropout=config.dropout)


def _copies(config: Config) -> int:
    """Of each training image; 0 for the images as they are."""
    return COPIES if "augmented" in config.prior.split() else 0


def _training(config: Config) -> Training:
    """All copies of the images count as so many epochs."""
    words, epochs = config.prior.split(), config.epochs // max(1, _copies(config))
    return Training(
        epochs=epochs,
        milestones=(epochs // 2,) if "steps" in words else (),
        batch_size=config.batch_size,
        optimizer="adam" if "L2" in words else "adamw",
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
    )


def _evaluated(config: Config, model: nn.Module, split: Split) -> Iterator[tuple[str, Any]]:
    yield from _row(config.prior, config, model, split)
    if config.prior in paper.LOCAL:
        yield from _row(f"{config.prior} restored", config, calibrate_prior(model, split.x_train), split)


def _row(row: str, config: Config, model: nn.Module, split: Split) -> Iterator[tuple[str, Any]]:
    labels = split.y_test.cpu()
    known = labels < len(cifar10.KNOWN)
    method = MCDropout(config.n_samples)
    inside, outside = (predict(model, split.x_test[rows], method).to("cpu") for rows in (known, ~known))
    y = labels[known]
    for rule, (of_known, of_unknown) in {
        "": map(metrics.at_mean_output, (inside, outside)),  # the paper's, for this table
        " mean-probability": (inside, outside),
    }.items():
        unknown = metrics.unknown_nlpd(of_unknown)
        yield f"{row}: ACC known{rule}", metrics.accuracy(of_known, y)
        yield f"{row}: NLPD known{rule}", metrics.nlpd(of_known, y)
        yield f"{row}: NLPD unknown{rule}", unknown.value
        yield f"{row}: clipped unknown{rule}", unknown.clipped
    yield f"{row}: ECE known", metrics.ece(inside, y)
    for name in ood.SCORES:
        scores = ood.score(inside, name), ood.score(outside, name)
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
    """Edges and two counts; the last bin has all that is larger."""
    scores = [s.double().numpy() for s in (known, unknown)]
    edges = np.linspace(0, max(np.quantile(s, 0.99) for s in scores) + 1e-9, BINS + 1)
    return edges, *(np.histogram(s.clip(max=edges[-1]), edges)[0] for s in scores)


def _ends(pred: Categorical, places: Tensor, y: Tensor, sign: int) -> np.ndarray[Any, Any]:
    """(7, 4) of the images with the smallest ``sign`` times std.

    The columns are place in the test data, class, prediction and its probability, by the paper's rule.
    """
    rows = (sign * pred.std()).argsort()[:ENDS]
    at_mean = metrics.at_mean_output(pred)
    columns = places[rows], y[rows], at_mean.predict()[rows], at_mean.confidence()[rows]
    return torch.stack([column.double() for column in columns], -1).numpy()
