"""One method of the arena, fitted and judged."""

import math
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch

from stationary import metrics
from stationary.lab.experiments.arena import images, questions, tables, values
from stationary.lab.experiments.arena.config import SEEDS, Config, one_ensemble
from stationary.lab.experiments.arena.methods import METHODS, Judged
from stationary.lab.experiments.arena.methods.classifiers import linear_layer
from stationary.lab.experiments.arena.protocol import NETWORK_METHOD, PROTOCOL, Entry
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT, TABLES_EVENT, VALUES, VALUES_EVENT
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.experiments.arena.words import listed
from stationary.lab.experiments.paper import look_up
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.predictive import Categorical, Members


def missing(configs: Sequence[Config]) -> str | None:
    """Say why these configurations cannot run here and what to do about it; None if they can run."""
    needed = {_entry(config).needs: _entry(config).code for config in configs}
    if absent := sorted(code for module, code in needed.items() if module and find_spec(module) is None):
        are = f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
        return f"{are}; make arena sets up an environment with every peer, or pip install '.[arena]' in a clone"
    if any(config.dataset == "clinc150" for config in configs) and (problem := questions.missing()):
        return problem
    if any(config.event == VALUES_EVENT and config.dataset in VALUES for config in configs) and (
        problem := values.missing()
    ):
        return problem
    if problem := tables.missing([config.dataset for config in configs if config.event == TABLES_EVENT]):
        return problem
    of_images = (config for config in configs if config.dataset in images.SOURCES)
    return images.missing((config.dataset, seed) for config in of_images for seed in _seeds(config))


def run(config: Config, device: str = "cpu") -> Arrays:
    """Fit and judge a method for each seed; the arrays have one entry for each."""
    if config.event in OF_EVENT:
        look_up(OF_EVENT[config.event], config.method, "method")
        return (values if config.event == VALUES_EVENT else tables).run(config)
    fit = look_up(METHODS, config.method, "method")
    found = []
    for seed in inside.parts(config.seeds, "seed"):
        task = _task(config, seed)
        start = time.perf_counter()
        fitted = fit(task, seed)
        between = time.perf_counter()
        known, unknown = fitted(task.test[0]), {name: fitted(x) for name, x in task.unknown.items()}
        rows = len(task.test[0]) + sum(map(len, task.unknown.values()))
        fitting = math.nan if inside.resumed() else between - start
        seconds = {"seconds fit": fitting, "seconds a row": (time.perf_counter() - between) / rows}
        chosen = {f"chosen {name}": value for name, value in fitted.chosen.items()}
        numbers = judged(known, task.test[1], unknown)
        if PROTOCOL[config.method].probabilities == "own" or config.method == NETWORK_METHOD:
            for name, (x, y) in task.shifted.items():
                of_shifted = on_known(fitted(x), y)
                numbers |= {f"{metric}: {name}": value for metric, value in of_shifted.items()}
        found.append(numbers | chosen | seconds)
    arrays = {name: np.array([one[name] for one in found]) for name in found[0]}
    return arrays | {"features": np.array([_task(config, seed).digest for seed in config.seeds])}


def judged(known: Judged, y: torch.Tensor, unknown: dict[str, Judged]) -> dict[str, float]:
    """Return the metrics by name; those of unknown inputs are named "metric: unknown" and by other scores say so."""
    numbers = on_known(known, y)
    for name, other in unknown.items():
        scores = known.scores, other.scores
        numbers[f"AUROC: {name}"] = metrics.auroc(*scores)
        numbers[f"FPR95: {name}"] = metrics.fpr95(*scores)
        numbers[f"AUPR: {name}"] = metrics.aupr(*scores)
        for kind in known.others:
            numbers[f"AUROC by the {kind}: {name}"] = metrics.auroc(known.others[kind], other.others[kind])
    return numbers


def _entry(config: Config) -> Entry:
    return OF_EVENT.get(config.event, PROTOCOL)[config.method]


def on_known(known: Judged, y: torch.Tensor) -> dict[str, float]:
    """Return the metrics of the probabilities by name."""
    pred = Categorical.from_members([Members(known.probs.log()[None])], 1)
    return {"accuracy": metrics.accuracy(pred, y), "NLPD": metrics.nlpd(pred, y), "ECE": metrics.ece(pred, y)}


def _seeds(config: Config) -> Sequence[int]:
    """Return the seeds of the trunks that a configuration needs."""
    return range(SEEDS) if one_ensemble(config.dataset, config.method) else config.seeds


def _task(config: Config, seed: int) -> Task:
    if config.dataset == "clinc150":
        return questions.task(seed)
    if config.dataset in images.SOURCES:
        of_all = one_ensemble(config.dataset, config.method)
        return images.ensemble(config.dataset) if of_all else images.task(config.dataset, seed)
    return generated(seed)


@lru_cache(maxsize=1)
def generated(seed: int, n: int = 300, d: int = 8, c: int = 4) -> Task:
    """Return a small task: a cloud of points for each class, all at the same distance from 0, and two unknown clouds.

    Args:
        seed: seed of the random numbers.
        n: number of rows for training; there are half as many for validation, for testing and of each unknown cloud.
        d: number of features.
        c: number of classes.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.eye(d)[: c + 1]

    def cloud(labels: torch.Tensor) -> torch.Tensor:
        return centres[labels] + torch.randn(len(labels), d, generator=generator)

    known = [torch.arange(rows) % c for rows in (n, n // 2, n // 2)]
    train, validation, test = ((cloud(labels), labels) for labels in known)
    between = cloud(torch.full((n // 2,), c))
    far = 10 * torch.randn(n // 2, d, generator=generator)
    network = linear_layer(train, validation, c, seed)
    return Task(train, validation, test, {"another cloud": between, "far away": far}, network, digest="generated")
