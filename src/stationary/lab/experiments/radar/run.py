"""Simulation of the data, training, and how well the networks tell unknown emitters from known ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stationary import metrics
from stationary.inference import SWAG, Ensemble, InfiniteWidth, MCDropout, Method, Point, Posterior, fit_folds, predict
from stationary.lab.data.radar import EmitterLibrary, Pulses
from stationary.lab.experiments import networks
from stationary.lab.experiments.paper import TRAINABLE, Prior, look_up
from stationary.lab.experiments.radar.config import TOP, Averaged, Config
from stationary.lab.experiments.scores import as_is, scored
from stationary.lab.models.radar_cnn import RadarCNN
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.nn.restored_prior import calibrate_prior
from stationary.predictive import Categorical
from stationary.training import Training

# Seeds of the simulations of known emitters; VALIDATION chose spread and error, and the numbers of infinite width.
TRAINING, VALIDATION, TEST = 1, 2, 3
SIMILAR, DIFFERENT = 4, 5  # seeds of the simulations of unknown emitters
ENSEMBLE = 5  # number of networks of an ensemble
BINS = 40  # number of bins of the histograms
CLEAR = 2  # highest noise level of an example


class Simulated(NamedTuple):
    """The data of a run.

    Args:
        x: training inputs, on the device.
        y: numbers of their emitters, on the device.
        validation: more samples of known emitters, which are not trained on.
        groups: the test data of the groups "known", "similar" and "different".
    """

    x: Tensor
    y: Tensor
    validation: Pulses
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
    validation = library.draw(n_test, seed=VALIDATION)
    return Simulated(training.inputs().to(device), training.targets().to(device), validation, groups)


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train and evaluate networks, and return arrays with names "row: quantity".

    A row is a prior and a method to average; the first axis of an array is that of the seeds.
    """
    data = simulated(
        config.n_emitters,
        config.n_modes,
        config.samples_per_mode,
        config.n_test,
        config.spread,
        config.error,
        device,
    )
    found = [dict(_rows(config, data, posterior)) for posterior in fitted(config, data)]
    return {name: np.stack([arrays[name] for arrays in found]) for name in found[0]}


# Training


def prior_of(config: Config) -> Prior:
    return look_up(TRAINABLE, config.prior, "prior")


def build(config: Config) -> RadarCNN:
    activation = networks.activation(prior_of(config), config.lengthscale, code_scale=True)
    return RadarCNN(config.n_emitters, activation=activation, dropout=config.dropout)


def training_of(config: Config) -> Training:
    return Training(epochs=config.epochs, batch_size=config.batch_size, learning_rate=config.learning_rate)


Quantities: TypeAlias = Iterator[tuple[str, Any]]  # pairs of a name "row: quantity" and its value


METHODS: dict[str, Callable[[Config], Method]] = {
    "NN": lambda config: MCDropout(config.n_samples),
    "ensemble": lambda config: Ensemble(ENSEMBLE),
    "SWAG": lambda config: SWAG(start=0.5),  # weights are collected in the second half of training
    "infinite width": lambda config: InfiniteWidth(config.prior),
}


def fitted(config: Config, data: Simulated) -> list[Posterior]:
    """Fit a posterior for each seed."""
    method = METHODS[config.method](config)
    seeds = [seed + 1000 * k for seed in config.seeds for k in range(method.n_networks)]
    folds = [(data.x, data.y)] * len(config.seeds)
    held = None
    if config.method == "infinite width":
        held = data.validation.inputs().to(data.x), data.validation.targets().to(data.y)
    with inside.part(0, 2 if isinstance(method, InfiniteWidth) else 1):
        watch = inside.watched(config.epochs)
        posteriors = fit_folds(
            Point() if isinstance(method, InfiniteWidth) else method,
            partial(build, config),
            folds,
            training_of(config),
            seeds=seeds,
            validation=held,
            progress=watch.epoch,
            checkpoint=watch.checkpoint,
        )
    if not isinstance(method, InfiniteWidth):
        return posteriors
    with inside.part(1, 2):
        return [
            replace(method, **inside.of_fit()).posterior(trained.networks, fold, validation=held)
            for trained, fold in zip(inside.parts(posteriors, "fit"), folds, strict=True)
        ]


def _rows(config: Config, data: Simulated, posterior: Posterior) -> Quantities:
    row = Averaged(prior_of(config), config.method)
    yield from _evaluated(row, data, posterior)
    if row.prior.restorable and config.method == "NN":
        calibrate_prior(posterior.networks[0], data.x)
        restored = replace(row, prior=replace(row.prior, restored=True))
        yield from _evaluated(restored, data, posterior)


# Evaluation


def _predicted(posterior: Posterior, data: Simulated) -> dict[str, Categorical]:
    inputs = {name: pulses.inputs().to(data.x.device) for name, pulses in data.groups.items()}
    return {name: as_is(predict(posterior, x).to("cpu")) for name, x in inputs.items()}


def _evaluated(row: Averaged, data: Simulated, posterior: Posterior) -> Quantities:
    preds = _predicted(posterior, data)
    known, pulses = preds["known"], data.groups["known"]
    y = pulses.targets()
    yield f"{row.key}: ACC known", metrics.accuracy(known, y)
    yield f"{row.key}: NLPD known", metrics.nlpd(known, y)
    yield f"{row.key}: ECE known", metrics.ece(known, y)
    yield f"{row.key}: ACC by noise", _by_noise(known.predict() == y, pulses)
    losses = -known.probs.gather(1, y[:, None])[:, 0].log()
    yield f"{row.key}: NLPD by noise", _by_noise(losses, pulses)
    judged, measures = scored(posterior)
    of_judged = preds if judged is posterior else _predicted(judged, data)
    for group in ("similar", "different"):
        for name, score in measures.items():
            scores = score(of_judged["known"]), score(of_judged[group])
            suffix = "" if name == "entropy" else f" {name}"  # the paper's measure needs no name
            yield f"{row.key}: AUROC {group}{suffix}", metrics.auroc(*scores)
            yield f"{row.key}: FPR95 {group}{suffix}", metrics.fpr95(*scores)
    edges = np.linspace(0, np.log(known.probs.shape[1]), BINS + 1)
    for group, pred in preds.items():
        entropy = pred.entropy().double().numpy().clip(0, edges[-1])
        yield f"{row.key}: entropy {group}", np.histogram(entropy, edges)[0]
        yield f"{row.key}: mean entropy {group}", entropy.mean()
        yield f"{row.key}: mean mutual information {group}", pred.mutual_information().mean().item()
        place = int((data.groups[group].noise <= CLEAR).argmax())
        yield f"{row.key}: example {group}", _example(data.groups[group], pred, place)
    yield f"{row.key}: edges", edges


def _by_noise(values: Tensor, pulses: Pulses) -> np.ndarray[Any, Any]:
    """Return the mean of the values at each noise level."""
    numbers = values.double().numpy()
    return np.array([numbers[pulses.noise == level].mean() for level in np.unique(pulses.noise)])


def _example(pulses: Pulses, pred: Categorical, place: int) -> np.ndarray[Any, Any]:
    """Describe one sample by a row of numbers.

    They are its emitter, its number of pulses, the entropy and the mutual information of its prediction, the five most
    probable classes, their probabilities, and the arrival times.
    """
    top = pred.probs[place].topk(TOP)
    about = torch.stack([pred.entropy()[place], pred.mutual_information()[place]])
    numbers = torch.cat([about, top.indices.to(about), top.values]).double().numpy()
    return np.concatenate([[pulses.emitter[place], pulses.count[place]], numbers, pulses.times[place]])
