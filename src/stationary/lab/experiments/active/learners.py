"""The learners: from labelled rows of a problem to a posterior."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from stationary.calibration import calibrate
from stationary.inference import Ensemble, InfiniteWidth, MCDropout, Method, Posterior, fit
from stationary.inference.infinite_width import InfiniteWidthPosterior
from stationary.lab.experiments.active.config import Config
from stationary.lab.experiments.active.problems import Problem
from stationary.nn import MLP
from stationary.predictive import Categorical, Gaussian
from stationary.training import Training
from stationary.training.data import Pair

HELD_OUT = 4  # every fourth labelled row chooses what there is to choose


def family_of(problem: Problem) -> type[Categorical] | type[Gaussian]:
    return Gaussian if problem.n_classes is None else Categorical


def rows_of(problem: Problem, rows: Tensor, dtype: torch.dtype = torch.float64) -> Pair:
    """Inputs and targets of some rows of the pool."""
    y = problem.y[rows]
    return problem.x[rows].to(dtype), y.to(dtype) if y.is_floating_point() else y


def divided(labelled: Tensor) -> tuple[Tensor, Tensor]:
    """The labelled rows to train on, and every fourth, which is held out."""
    held = torch.arange(len(labelled)) % HELD_OUT == 0
    return labelled[~held], labelled[held]


def infinite_width(problem: Problem, labelled: Tensor) -> InfiniteWidthPosterior:
    """A new fit, without a trunk: of classes, the held-out rows choose the numbers and are then learnt as well.

    The columns of images are pixels, more of them than there are labels, and share one length-scale.
    """
    with torch.random.fork_rng(devices=[]):
        network = nn.Linear(problem.x.shape[1], problem.n_outputs, dtype=torch.float64).to(problem.x.device)
    if problem.n_classes is None:
        return InfiniteWidth().posterior(network, rows_of(problem, labelled))
    train, held = (rows_of(problem, rows) for rows in divided(labelled))
    return InfiniteWidth(per_column=False).posterior(network, train, validation=held).update(held)


def trained(method: Method, config: Config, seed: int, problem: Problem, labelled: Tensor) -> Posterior:
    """Networks with ReLU that are trained from scratch; of real values, the held-out rows show the noise."""
    values = problem.n_classes is None
    train, held = (rows_of(problem, rows, torch.float32) for rows in divided(labelled))
    shape = {"hidden": config.hidden, "activation": "relu", "dropout": config.dropout}
    training = Training(
        loss="mse" if values else "cross_entropy",
        epochs=config.epochs,
        batch_size=None,
        learning_rate=config.learning_rate,
        seed=1000 * seed,  # the members of an ensemble have the seeds that follow
    )
    posterior = fit(
        method,
        partial(MLP, problem.x.shape[1], problem.n_outputs, **shape),  # type: ignore[arg-type]
        train if values else rows_of(problem, labelled, torch.float32),
        training,
        device=problem.x.device,
    )
    return calibrate(posterior, held, family=Gaussian) if values else posterior


def finite(name: str, config: Config, seed: int) -> Callable[[Problem, Tensor], Posterior]:
    """The learner "dropout" or "ensemble"."""
    method = {"dropout": MCDropout(config.n_samples, seed=seed), "ensemble": Ensemble(config.members)}[name]
    return partial(trained, method, config, seed)
