"""Rounds of asking and learning, and how long they take."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stationary import metrics
from stationary.active import acquire
from stationary.inference import Posterior, predict
from stationary.inference.infinite_width import InfiniteWidthPosterior
from stationary.lab.experiments.active import learners, problems
from stationary.lab.experiments.active.config import SECONDS, WAYS, Config, Way
from stationary.lab.experiments.active.problems import Problem
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays

missing = problems.missing
Result = TypeVar("Result")


def run(config: Config, device: str = "cpu") -> Arrays:
    """Return arrays whose first axis is that of the seeds: errors by number of labels, or the seconds of each round."""
    found = []
    for seed in inside.parts(config.seeds, "seed"):
        problem = problems.load(config, seed)
        problem = problem._replace(
            **{name: getattr(problem, name).to(device) for name in ("x", "y", "x_test", "y_test")}
        )
        found.append(seconds(config, seed, problem) if config.method == SECONDS else curve(config, seed, problem))
    return {name: np.stack([arrays[name] for arrays in found]) for name in found[0]}


def curve(config: Config, seed: int, problem: Problem) -> Arrays:
    """Ask and learn until all labels are there; return the errors after each round, and the rows in their order."""
    way = WAYS[config.method]
    learn = Infinite(config, way) if way.learner == "infinite width" else learners.finite(way.learner, config, seed)
    labelled = torch.arange(config.start)
    posterior = learn(problem, labelled)
    errors = [tested(problem, posterior)]
    for count in inside.parts(config.counts[1:], "round"):
        new = asked(config, seed, way, problem, posterior, labelled, count - len(labelled))
        labelled = torch.cat([labelled, new])
        posterior = learn(problem, labelled)
        errors.append(tested(problem, posterior))
    return {name: np.array([each[name] for each in errors]) for name in errors[0]} | {"asked": labelled.numpy()}


class Infinite:
    """Infinite width that learns what is new by ``update``, and makes a new fit whenever the labels have grown."""

    def __init__(self, config: Config, way: Way) -> None:
        self.growth = 1.0 if way.always_new else config.growth
        self.posterior: InfiniteWidthPosterior | None = None
        self.known = self.fitted = 0

    def __call__(self, problem: Problem, labelled: Tensor) -> Posterior:
        if self.posterior is None or len(labelled) >= self.growth * self.fitted:
            self.posterior, self.fitted = learners.infinite_width(problem, labelled), len(labelled)
        else:
            self.posterior = self.posterior.update(learners.rows_of(problem, labelled[self.known :]))
        self.known = len(labelled)
        return self.posterior


def asked(
    config: Config, seed: int, way: Way, problem: Problem, posterior: Posterior, labelled: Tensor, n: int
) -> Tensor:
    """(n,) rows of the pool to label next; random ones are the next in its order, the same for every learner."""
    free = torch.ones(len(problem.x), dtype=torch.bool)
    free[labelled] = False
    rest = free.nonzero()[:, 0]
    if way.score is None:
        return rest[:n]
    chosen = acquire(
        posterior,
        problem.x[rest].to(dtype_of(posterior)),
        n,
        way.score,
        batch=way.batch,
        family=learners.family_of(problem),
        candidates=config.candidates,
        seed=seed,
    )
    return rest[chosen]


def dtype_of(posterior: Posterior) -> torch.dtype:
    return next(posterior.networks[0].parameters()).dtype


def tested(problem: Problem, posterior: Posterior) -> dict[str, float]:
    """The errors on the test rows, in the units of the data."""
    pred: Any = predict(posterior, problem.x_test.to(dtype_of(posterior)), family=learners.family_of(problem))
    if problem.n_classes is not None:
        return {"accuracy": metrics.accuracy(pred, problem.y_test), "NLPD": metrics.nlpd(pred, problem.y_test)}
    rmse, nlpd = metrics.rmse(pred, problem.y_test), metrics.nlpd(pred, problem.y_test)
    return {"RMSE": rmse * problem.scale, "NLPD": nlpd + float(np.log(problem.scale))}


def seconds(config: Config, seed: int, problem: Problem) -> Arrays:
    """Return the processor's seconds of each round but the first: every learner in turn, on the same random rows.

    What else the machine does hardly changes them; several threads add up.
    In a round, infinite width learns the new rows by ``update``, or is fitted again; networks are trained. Then each
    asks, by "bald", for the next batch: jointly, but the ensemble for the best one by one. A run that was stopped keeps
    its seconds, and only learns again by ``update`` what it knew.
    """
    kept = inside.kept()
    limit = learners.infinite_width(problem, torch.arange(config.start))
    taken: dict[str, list[float]] = {name: values.tolist() for name, values in kept.state.items()}
    measured = len(next(iter(taken.values()), []))
    for number, (known, count) in enumerate(inside.parts(pairwise(config.counts), "round")):
        labelled, new = torch.arange(count), learners.rows_of(problem, torch.arange(known, count))
        if number < measured:
            limit = limit.update(new)
            continue
        limit = timed(taken, "learn, infinite width, update", limit.update, new)
        timed(taken, "learn, infinite width, new fit", learners.infinite_width, problem, labelled)
        posteriors: dict[str, Posterior] = {"infinite width": limit}
        for name in ("dropout", "ensemble"):
            learn = learners.finite(name, config, seed)
            posteriors[name] = timed(taken, f"learn, {name}", learn, problem, labelled)
        for name, posterior in posteriors.items():
            way = WAYS[f"{name} bald"]
            timed(taken, f"ask, {name}", asked, config, seed, way, problem, posterior, labelled, config.batch)
        kept.keep(taken)
    return {f"seconds: {name}": np.array(values) for name, values in taken.items()}


def timed(taken: dict[str, list[float]], name: str, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do some work, and note under a name how many seconds the processor took."""
    start = time.process_time()
    result = work(*arguments)
    taken.setdefault(name, []).append(time.process_time() - start)
    return result
