"""Radar emitters: a hundred known ones, and unknown ones that are similar to them or different.

The simulator is ours (``lab.data.radar``), the network and its training are the paper's. How hard it is to tell the
emitters apart, ``spread`` and ``error``, was chosen so that the ReLU network has about the paper's accuracy of 59 %
on a simulation of its own (seed ``VALIDATION``), before any result with unknown emitters had been looked at, and not
changed since (``docs/radar.md``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stationary import metrics, ood
from stationary.inference import SWAG, Ensemble, MCDropout, calibrate_prior, predict
from stationary.lab.data.radar import EmitterLibrary, Pulses
from stationary.lab.experiments import paper
from stationary.lab.experiments.radar_report import TITLE, report
from stationary.lab.models.radar_cnn import RadarCNN
from stationary.predictive import Categorical
from stationary.training import Training, train

__all__ = ["DURATION", "LOCKSTEP", "REPRODUCES", "TITLE", "VERSION", "Config", "configs", "report", "run"]

VERSION = 1
LOCKSTEP = "seeds"
REPRODUCES = "Fig. 5: predictive entropy of known, similar and different radar emitters, on a simulator of our own"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "minutes on a GPU, else hours"}
Arrays = dict[str, np.ndarray[Any, Any]]

PUBLISHED = ("relu", "matern52")
BEYOND: tuple[str, ...] = (
    "rbf",
    "matern72",
    "matern32",
    "matern12",
    "matern12 surrogate",
    "erf",
    "step",
    "step surrogate",
    "siren",
)
BEYOND += ("leaky_relu", "cosine", "sincos", "triangle_wave", "periodic_relu")
TRAINING, VALIDATION, TEST = 1, 2, 3  # seeds of simulations of the known emitters
SIMILAR, DIFFERENT = 4, 5  # and of the unknown ones
GROUPS = ("known", "similar", "different")
ENSEMBLE = 5
BINS = 40  # of the histograms
TOP = 5  # classes that an example shows
CLEAR = 2  # the highest noise level of the examples


@dataclass(frozen=True)
class Config:
    """One activation and one way to average.

    Args:
        prior: of the activation of the 120 units; perhaps with a variant, as in "step surrogate".
        method: "NN" (MC dropout), "ensemble" or "SWAG".
        seeds: of the networks.
        n_emitters, n_modes, samples_per_mode: of the training data; the last at each of 11 noise levels.
        n_test: samples in each of the three groups of test data.
        spread, error: how hard it is; as for ``EmitterLibrary.generate``.
        lengthscale, dropout, n_samples, epochs, batch_size, learning_rate: the paper's; n_samples are those of MC
            dropout, SWAG draws 30.
    """

    prior: str = "matern52"
    method: str = "NN"
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


def configs(scale: str = "paper") -> list[Config]:
    if scale == "smoke":
        small: dict[str, Any] = {"n_emitters": 5, "n_modes": 3, "samples_per_mode": 2, "n_test": 200, "epochs": 4}
        return [Config(prior, **small) for prior in PUBLISHED]
    if scale == "demo":
        return [Config(prior, samples_per_mode=1, n_test=2_000) for prior in PUBLISHED]
    rows = [(prior, "NN") for prior in (*PUBLISHED, *BEYOND)]
    rows += [(prior, method) for prior in PUBLISHED for method in ("ensemble", "SWAG")]
    return [Config(prior, method, (seed,)) for prior, method in rows for seed in range(5)]


class Simulated(NamedTuple):
    """Training data on the device, and the three groups of test data."""

    x: Tensor
    y: Tensor
    groups: dict[str, Pulses]


@lru_cache(maxsize=1)
def simulated(
    n_emitters: int, n_modes: int, samples_per_mode: int, n_test: int, spread: float, error: float, device: str
) -> Simulated:
    library = EmitterLibrary.generate(n_emitters, n_modes, spread=spread, error=error)
    training = library.simulate(samples_per_mode, seed=TRAINING)
    groups = {
        "known": library.draw(n_test, seed=TEST),
        "similar": library.similar(n_emitters, SIMILAR).draw(n_test, seed=SIMILAR),
        "different": library.different(n_emitters, DIFFERENT).draw(n_test, seed=DIFFERENT),
    }
    return Simulated(training.inputs().to(device), training.targets().to(device), groups)


def run(config: Config, device: str = "cpu") -> Arrays:
    """Arrays by "row: quantity", where a row is the prior and method; the first axis is that of the seeds."""
    if config.n_emitters < TOP:
        raise ValueError(
            f"n_emitters must be at least {TOP}, the classes that an example shows; got {config.n_emitters}"
        )
    data = simulated(
        config.n_emitters,
        config.n_modes,
        config.samples_per_mode,
        config.n_test,
        config.spread,
        config.error,
        device,
    )
    found = [dict(rows) for rows in METHODS[config.method](config, data)]
    return {name: np.stack([arrays[name] for arrays in found]) for name in found[0]}


# Methods: each gives the evaluated rows of one seed after the other


def build(config: Config) -> RadarCNN:
    activation = paper.activation(config.prior, config.lengthscale, code_scale=True)
    return RadarCNN(config.n_emitters, activation=activation, dropout=config.dropout)


def training_of(config: Config) -> Training:
    return Training(epochs=config.epochs, batch_size=config.batch_size, learning_rate=config.learning_rate)


Rows = Iterator[tuple[str, Any]]


def _networks(config: Config, data: Simulated) -> Iterator[Rows]:
    for model in _trained(config, data, config.seeds):
        yield _rows(config, data, model)


def _rows(config: Config, data: Simulated, model: nn.Module) -> Rows:
    method = MCDropout(config.n_samples)
    yield from _evaluated(config.prior, data, partial(predict, model, method=method))
    if config.prior in paper.LOCAL:
        calibrate_prior(model, data.x)
        yield from _evaluated(f"{config.prior} restored", data, partial(predict, model, method=method))


def _ensembles(config: Config, data: Simulated) -> Iterator[Rows]:
    seeds = [seed + 1000 * k for seed in config.seeds for k in range(ENSEMBLE)]
    models = _trained(config, data, seeds)
    for start in range(0, len(models), ENSEMBLE):
        posterior = Ensemble(ENSEMBLE).posterior(models[start : start + ENSEMBLE])
        yield _evaluated(f"{config.prior} ensemble", data, partial(predict, posterior))


def _swag(config: Config, data: Simulated) -> Iterator[Rows]:
    """Weights are collected after the last epochs."""
    n = len(config.seeds)
    posteriors = SWAG(start=0.5).fit_folds(
        [partial(build, config)] * n, [(data.x, data.y)] * n, training_of(config), seeds=config.seeds
    )
    for posterior in posteriors:
        yield _evaluated(f"{config.prior} SWAG", data, partial(predict, posterior))


METHODS: dict[str, Callable[[Config, Simulated], Iterator[Rows]]] = {
    "NN": _networks,
    "ensemble": _ensembles,
    "SWAG": _swag,
}


def _trained(config: Config, data: Simulated, seeds: Sequence[int]) -> list[nn.Module]:
    return train(partial(build, config), data.x, data.y, training_of(config), seeds=list(seeds))


# Evaluation


def _evaluated(row: str, data: Simulated, predictor: Callable[[Tensor], Categorical]) -> Rows:
    device = data.x.device
    preds = {name: predictor(pulses.inputs().to(device)).to("cpu") for name, pulses in data.groups.items()}
    known, pulses = preds["known"], data.groups["known"]
    y = pulses.targets()
    yield f"{row}: ACC known", metrics.accuracy(known, y)
    yield f"{row}: NLPD known", metrics.nlpd(known, y)
    yield f"{row}: ECE known", metrics.ece(known, y)
    yield f"{row}: ACC by noise", _by_noise(known.predict() == y, pulses)
    losses = -known.probs.gather(1, y[:, None])[:, 0].log()
    yield f"{row}: NLPD by noise", _by_noise(losses, pulses)
    for group in ("similar", "different"):
        for name in ood.SCORES:
            scores = ood.score(known, name), ood.score(preds[group], name)
            suffix = "" if name == "entropy" else f" {name}"  # the paper's measure
            yield f"{row}: AUROC {group}{suffix}", metrics.auroc(*scores)
            yield f"{row}: FPR95 {group}{suffix}", metrics.fpr95(*scores)
    edges = np.linspace(0, np.log(known.probs.shape[1]), BINS + 1)
    for group, pred in preds.items():
        entropy = pred.entropy().double().numpy().clip(0, edges[-1])
        yield f"{row}: entropy {group}", np.histogram(entropy, edges)[0]
        yield f"{row}: mean entropy {group}", entropy.mean()
        yield f"{row}: mean mutual information {group}", pred.mutual_information().mean().item()
        place = int((data.groups[group].noise <= CLEAR).argmax())
        yield f"{row}: example {group}", _example(data.groups[group], pred, place)
    yield f"{row}: edges", edges


def _by_noise(values: Tensor, pulses: Pulses) -> np.ndarray[Any, Any]:
    """Mean at each noise level."""
    numbers = values.double().numpy()
    return np.array([numbers[pulses.noise == level].mean() for level in np.unique(pulses.noise)])


def _example(pulses: Pulses, pred: Categorical, place: int) -> np.ndarray[Any, Any]:
    """Emitter, count, entropy, mutual information, five classes, their probabilities, and the arrival times."""
    top = pred.probs[place].topk(TOP)
    about = torch.stack([pred.entropy()[place], pred.mutual_information()[place]])
    numbers = torch.cat([about, top.indices.to(about), top.values]).double().numpy()
    return np.concatenate([[pulses.emitter[place], pulses.count[place]], numbers, pulses.times[place]])
