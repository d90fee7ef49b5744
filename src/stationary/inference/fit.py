"""The only way to train a method: networks are built, trained and made into a posterior."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from stationary.inference.base import Method, Posterior, check_method
from stationary.inference.unsure import first_rows, warn_if_far_too_unsure
from stationary.training import Build, Data, Progress, Remembering, Training, train_folds


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
        method: how to predict with the networks: ``Point()``, ``MCDropout(100)``, ``ExactDropout()``, ``Ensemble(5)``,
            ``SWAG()``, ``Laplace()``, ...
        build: function without arguments that returns a fresh network; it is called once for each network, under the
            seed of that network. A module that it returns in eval mode, such as a frozen trunk, stays in it.
        data: training data: two tensors or arrays (x, y), or an iterable of batches (x, y) such as a DataLoader.
        training: how the networks are trained.
        sample_weight: (n,) the weight of each row in the loss, where the data are tensors; all rows weigh the same by
            default.
        validation: data whose loss decides when to stop (``training.patience``), and by which a method chooses where
            it has something to choose. Where its first rows show a classifier to be far too unsure, a warning says so.
        seeds: one seed for each network; by default ``training.seed``, ``training.seed`` + 1, ...
        progress: function that is called after each epoch with its number, the training loss and the validation loss.
        keep_diverged: whether to keep networks whose loss is no longer finite, instead of raising an error.
        checkpoint: path of a file that holds the state of the training, which is written every 30 seconds; a training
            that was stopped continues from it.
        device: device to train on; by default that of the tensors, or that on which ``build`` puts the network.
    """
    [posterior] = fit_folds(
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
    )
    if training.loss == "cross_entropy" and validation is not None and not isinstance(validation, Iterator):
        warn_if_far_too_unsure(
            *first_rows(posterior, validation),
            "train it longer (epochs, learning_rate), lower weight_decay or dropout, or correct its probabilities with "
            "stationary.calibrate",
        )
    return posterior


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
        method: how to predict with the networks, the same for all folds.
        build: function without arguments that returns a fresh network; or one such function for each fold, where the
            networks depend on their data.
        folds: the training data of each posterior.
        training: how the networks are trained, the same for all folds.
        seeds: one seed for each network, those of a fold next to each other. By default each fold has the seeds that
            ``fit`` would give it alone.
        sample_weight, validation, progress, keep_diverged, checkpoint, device: as for ``fit``, the same for all folds.
    """
    k, builds = len(folds), [build] * len(folds) if callable(build) else list(build)
    _check_kinds(method, builds, training)
    n = method.n_networks
    if not k or len(builds) != k:
        raise ValueError(
            f"build must be one function, or one for each of at least one fold; got {len(builds)} for {k} folds"
        )
    seeds = list(range(training.seed, training.seed + n)) * k if seeds is None else seeds
    if len(seeds) != n * k:
        raise ValueError(
            f"seeds must have one entry for each network, {n} for each of {k} sets of data; got {len(seeds)}"
        )
    observers = [method.observer(training) for _ in range(n * k)]
    if checkpoint is not None and observers[0] is not None and not isinstance(observers[0], Remembering):
        raise ValueError(
            f"checkpoint must be None for {type(method).__name__}, whose observer has no state_dict and "
            f"load_state_dict, so that what it has seen would not be in the file; got {checkpoint}"
        )
    networks = train_folds(
        [partial(_checked, method, each, sample_weight) for each in builds for _ in range(n)],
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
        needed=method.trains,
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


def _check_kinds(method: Method, builds: Sequence[Build], training: object) -> None:
    """Raise an error where something was passed that is near to what is meant, and would fail much later."""
    check_method(method)
    if not isinstance(training, Training):
        raise TypeError(f"training must be a stationary.Training, got {training!r}; write Training(epochs=100)")
    for build in builds:
        if isinstance(build, nn.Module):
            name = type(build).__name__
            raise TypeError(
                f"build must be a function that returns a fresh network at each call, got a network, {name}; write "
                f"lambda: {name}(...), or lambda: deepcopy(network) to start from this one"
            )


def _checked(method: Method, build: Build, sample_weight: Tensor | None) -> nn.Module:
    network = build()
    method.check(network, sample_weight=sample_weight)
    return network
