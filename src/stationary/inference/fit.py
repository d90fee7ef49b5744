"""The only way to train a method: networks are built, trained and made into a posterior."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from stationary.inference.base import Method, Posterior
from stationary.training import Build, Data, Progress, Training, train_folds


def fit(
    method: Method,
    build: Build,
    data: Data,
    training: Training,
    *,
    sample_weight: Tensor | None = None,
    validation: Data | None = None,
    seeds: Sequence[int] | None = None,
    progress: Progress | None = None,
    keep_diverged: bool = False,
    checkpoint: str | Path | None = None,
    device: str | torch.device | None = None,
) -> Posterior:
    """Train the networks that a method needs, and make its posterior of them.

    Examples:
        >>> posterior = st.fit(st.Ensemble(5), build, (x, y), st.Training(epochs=50))
        >>> pred = st.predict(posterior, x_new)

    Args:
        method: ``Point()``, ``MCDropout(100)``, ``ExactDropout()``, ``Ensemble(5)``, ``SWAG()``, ``Laplace()``, ...
        build: makes a fresh network, without arguments; called once for each network, under its own seed.
        data: (x, y), two tensors, or an iterable of batches (x, y) such as a DataLoader.
        training: how the networks are trained.
        sample_weight: (n,), what each row weighs; for data that are tensors.
        validation: data to stop on (``training.patience``), and to choose by where a method chooses something.
        seeds: one for each network; by default ``training.seed``, ``training.seed`` + 1, ...
        progress: called after each epoch with its number, the training loss and the validation loss.
        keep_diverged: keep networks whose loss is no longer finite, instead of raising an error.
        checkpoint: a file from which a training that was stopped goes on.
        device: where to train; by default where the tensors are, or where ``build`` puts the network.
    """
    return fit_folds(
        method,
        build,
        [data],
        training,
        sample_weight=sample_weight,
        validation=validation,
        seeds=seeds,
        progress=progress,
        keep_diverged=keep_diverged,
        checkpoint=checkpoint,
        device=device,
    )[0]


def fit_folds(
    method: Method,
    build: Build | Sequence[Build],
    folds: Sequence[Data],
    training: Training,
    *,
    sample_weight: Tensor | None = None,
    validation: Data | None = None,
    seeds: Sequence[int] | None = None,
    progress: Progress | None = None,
    keep_diverged: bool = False,
    checkpoint: str | Path | None = None,
    device: str | torch.device | None = None,
) -> list[Posterior]:
    """A posterior for each set of data, as ``fit`` gives it, up to rounding; on a GPU all train in lockstep.

    The sets may be the folds of a cross-validation, or the same data several times with other seeds.

    Args:
        method: one for all.
        build: makes a fresh network; or one such function for each fold, where networks depend on their data.
        folds: the data of each posterior.
        training: one for all.
        seeds: one for each network, those of a fold next to each other. By default each fold has the seeds that ``fit``
            would give it alone.
        sample_weight, validation, progress, keep_diverged, checkpoint, device: as for ``fit``; one for all.
    """
    n, k = method.n_networks, len(folds)
    builds = [build] * k if callable(build) else list(build)
    if not k or len(builds) != k:
        raise ValueError(f"build and folds must be of one length, at least 1; got {len(builds)} and {k}")
    seeds = list(range(training.seed, training.seed + n)) * k if seeds is None else seeds
    if len(seeds) != n * k:
        raise ValueError(
            f"seeds must have one entry for each network, {n} for each of {k} sets of data; got {len(seeds)}"
        )
    observers = [method.observer(training) for _ in range(n * k)]
    if checkpoint is not None and observers[0] is not None:
        raise ValueError(
            f"checkpoint must be None for {type(method).__name__}, which watches the whole training, got {checkpoint}; "
            "what it has seen is not in the file"
        )
    networks = train_folds(
        [partial(_checked, method, each) for each in builds for _ in range(n)],
        [fold for fold in folds for _ in range(n)],
        training,
        seeds=seeds,
        sample_weight=sample_weight,
        validation=validation,
        progress=progress,
        observers=observers,
        keep_diverged=keep_diverged,
        checkpoint=checkpoint,
        device=device,
    )
    return [
        method.posterior(
            networks[i * n : (i + 1) * n],
            fold,
            sample_weight=sample_weight,
            validation=validation,
            observed=observers[i * n : (i + 1) * n],
        )
        for i, fold in enumerate(folds)
    ]


def _checked(method: Method, build: Build) -> nn.Module:
    network = build()
    method.check(network)
    return network
