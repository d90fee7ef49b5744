"""The only training loop: one network or many, in lockstep where that is possible, each as if it were alone."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stationary._checks import is_count
from stationary._extras import has_triton
from stationary.nn.init import seeded
from stationary.nn.inputs import device_of, suited
from stationary.training._checkpoint import Checkpoint, Keeper
from stationary.training._cuda_graph import Replayed, can_be_replayed
from stationary.training._epochs import Epochs, InMemory, Streamed, check_outputs, evaluate
from stationary.training._members import Best, Named, Trainees
from stationary.training._optimizer import nothing, optimizer_of, schedule_of
from stationary.training.config import Training
from stationary.training.data import Data, Rows, checked, is_pair, tensors_of

Build: TypeAlias = Callable[[], nn.Module]
Progress: TypeAlias = Callable[[int, float, float | None], None]
Observer: TypeAlias = Callable[[int, Named, Optimizer], object]


def train(
    build: Build,
    data: Data,
    training: Training,
    *,
    n_members: int = 1,
    seeds: Sequence[int] | None = None,
    sample_weight: Tensor | None = None,
    validation: Data | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer | None] | None = None,
    keep_diverged: bool = False,
    checkpoint: str | Path | None = None,
    device: str | torch.device | None = None,
) -> list[nn.Module]:
    """Train networks that differ in their seed alone.

    Member k is, up to rounding, the network that ``train`` gives alone for seed + k. Several members run as one, by
    ``vmap`` over stacked parameters. Where that is impossible, because BatchNorm keeps statistics, a network draws
    random numbers of its own, or the data are batches, the members are trained one after the other. On a GPU a step is
    one CUDA graph. The global random state is left as it was.

    Args:
        build: function without arguments that returns a fresh network from (n, ...) to (n, c). The network is copied,
            so that parts that several networks share, such as an activation given to ``functools.partial``, are trained
            by each on its own. A module that it returns in eval mode stays in eval mode, so that the BatchNorm of a
            frozen trunk keeps its statistics; dropout drops in either mode.
        data: two tensors or arrays (x, y), or an iterable of batches (x, y) that can be read once for each epoch, such
            as a DataLoader. y are class indices (n,) for the cross entropy, real targets (n, m) for the squared error.
            Real inputs get the floating-point type of the network.
        training: the configuration of the training.
        n_members: number of networks to train.
        seeds: one seed for each member, instead of ``training.seed`` + k.
        sample_weight: (n,) weight of each row, at least 0, where the data are tensors. The loss of a batch is the
            weighted mean, and rows of weight 0 are left out.
        validation: data whose loss decides when to stop, or is only reported if ``training.patience`` is None.
        progress: function that is called after each epoch with its number (from 1), the training loss and the
            validation loss (None without validation), which are means over the members still in training. Members that
            are trained one after the other are reported one after the other. A training that continues from a
            checkpoint first reports the epochs before.
        observers: one function for each member, or None for a member without one. It is called after each epoch with
            the number of the epoch, the member's live parameters by name, and the optimizer, whose learning rate is
            already that of the next epoch. A checkpoint holds what an observer has seen if it has ``state_dict`` and
            ``load_state_dict``, with tensors by name, as an optimizer has them; of a plain function it holds nothing.
        keep_diverged: whether to return networks whose loss is no longer finite, as they are, instead of raising an
            error.
        checkpoint: path of a file that holds the state after an epoch, from which a training that was stopped
            continues, to the same end. It is written every 30 seconds, or less often where that would take more than a
            twentieth of the time. Members that are trained one after the other have one file each, with their number
            before the suffix. The file stays when training is done, and another training must not use it.
        device: device to train on; by default that of the tensors, and for batches that on which ``build`` puts the
            network.

    Returns:
        The trained networks, in eval mode, on the device they were trained on.
    """
    if not is_count(n_members):
        raise ValueError(f"n_members must be a positive integer, got {n_members!r}")
    k = n_members if seeds is None else len(seeds)
    if n_members not in (1, k):
        raise ValueError(f"seeds must have one entry for each of the {n_members} members, got {k}")
    return train_folds(
        [build] * k,
        [data] * k,
        training,
        seeds=range(training.seed, training.seed + k) if seeds is None else seeds,
        sample_weight=sample_weight,
        validation=validation,
        progress=progress,
        observers=observers,
        keep_diverged=keep_diverged,
        checkpoint=checkpoint,
        device=device,
    )


def train_folds(
    builds: Sequence[Build],
    folds: Sequence[Data],
    training: Training,
    *,
    seeds: Sequence[int],
    sample_weight: Tensor | None = None,
    validation: Data | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer | None] | None = None,
    keep_diverged: bool = False,
    checkpoint: str | Path | None = None,
    device: str | torch.device | None = None,
    needed: Callable[[nn.Module], bool] = lambda network: True,
) -> list[nn.Module]:
    """Train networks that may differ in everything but the training: how they are built, their data, their seeds.

    They run in lockstep where all have the same data, and on a GPU also where each has its own, as the folds of a
    cross-validation; a CPU gains nothing from more work at a time, and trains those one after the other.

    Args:
        builds, folds, seeds: the function that builds each network, its data and its seed. The same tensors several
            times count as one set of data.
        training, sample_weight, validation, progress, observers, keep_diverged, checkpoint, device: as for ``train``;
            they hold for all networks.
        needed: whether a network has to be trained at all; where none has to, they are returned as they were built.
    """
    k, observers = len(builds), observers or [None] * len(builds)
    if not k or not k == len(folds) == len(seeds) == len(observers):
        raise ValueError(
            f"builds, folds and seeds must be of one length, at least 1, one for each network; got {k} builds, "
            f"{len(folds)} folds, {len(seeds)} seeds and {len(observers)} observers"
        )
    path = None if checkpoint is None else Path(checkpoint)
    parts = _checked_folds(folds, training, sample_weight, device)
    networks = _built(builds, seeds, parts[0].x.device if parts else device)
    parts = None if parts is None else _suited(parts, networks)
    if not any(map(needed, networks)):
        return networks
    watch = partial(_watched, validation=validation, training=training)
    run = partial(_run, progress=progress, keep_diverged=keep_diverged)
    if parts is not None:
        _resume(path, training, seeds, networks)
        together = _together(networks, parts, seeds, training, watch)
        if together is not None:
            return run(*together, training, observers=observers, checkpoint=path)
        if path is not None and k > 1 and path.exists():
            raise ValueError(
                f"checkpoint {path} was written by networks that train in lockstep, and here they train one after the "
                "other; delete it, or continue where it was written"
            )
    trained = []
    for i, (network, seed, observer) in enumerate(zip(networks, seeds, observers, strict=True)):
        own = replace(training, seed=seed)  # what the network draws by itself is that of its own seed
        mine = path and path.with_suffix(f".{i}{path.suffix}" if k > 1 else path.suffix)
        _resume(mine, own, [seed], [network])
        alone = Trainees([network], [seed], device_of(network) or torch.device("cpu"), own, stacked=False)
        way, watched = _alone(alone, folds[i], None if parts is None else parts[i], own, watch)
        trained += run(way, watched, own, observers=[observer], checkpoint=mine)
    return trained


def _run(
    way: Epochs,
    watched: Rows | Data | None,
    training: Training,
    *,
    progress: Progress | None,
    observers: Sequence[Observer | None],
    keep_diverged: bool,
    checkpoint: Path | None,
) -> list[nn.Module]:
    """Run the epochs: each trains, computes the validation loss, calls the observers, and is stored."""
    members = way.members
    optimizer = optimizer_of(training, members.parameters, way.fused)
    schedule, after_step, after_epoch = schedule_of(training, optimizer, way)
    best, report = Best(len(members.models), training.patience), progress or nothing
    keeper = Keeper(checkpoint, training, type(way).__name__, members, optimizer, schedule, best, observers)
    with seeded(training.seed, members.device), torch.enable_grad():
        history = keeper.resume()
        for before in history:
            report(*before)
        for epoch in range(len(history) + 1, training.epochs + 1) if best.running else ():
            losses = way.train(epoch, optimizer, after_step)
            watched_losses = None if watched is None else evaluate(members, watched, training.batch_size)
            loss, watched_loss = best.mean_of_running(losses), best.mean_of_running(watched_losses)
            if loss is None or not (keep_diverged or math.isfinite(loss + (watched_loss or 0.0))):
                raise RuntimeError(
                    f"the loss is no longer finite in epoch {epoch} of {training.epochs}; try a learning_rate below "
                    f"{schedule.get_last_lr()[0]:g}, and look at the scale of x and y"
                )
            history.append((epoch, loss, watched_loss))
            after_epoch()
            for k, observer in enumerate(observers):
                if observer is not None:
                    observer(epoch, members.parameters_of(k), optimizer)
            going_on = watched_losses is None or best.update(watched_losses, members)
            keeper.keep(history, last=epoch == training.epochs or not going_on)
            report(*history[-1])
            if not going_on:
                break
    optimizer.zero_grad()
    return members.finished(best.states)


# Choosing a way to train

HoldOut: TypeAlias = Callable[[Trainees, Rows | None], tuple[Rows | None, Rows | Data | None]]
Way: TypeAlias = tuple[Epochs, Rows | Data | None]  # the epochs, and the validation data


def _together(
    networks: list[nn.Module], parts: list[Rows], seeds: Sequence[int], training: Training, watch: HoldOut
) -> Way | None:
    """The way to train all networks as one, by ``vmap`` or a CUDA graph; None where each has to train alone."""
    k, device = len(networks), parts[0].x.device
    on_gpu, shared, n = device.type == "cuda", len({id(part) for part in parts}) == 1, max(p.counts[0] for p in parts)
    size = min(training.batch_size or n, n)
    if (k == 1 and not on_gpu) or not _alike(networks):
        return None
    same_steps = len({-(-part.counts[0] // size) for part in parts}) == 1
    data = parts[0] if shared else Rows.joined(parts) if on_gpu and same_steps else None
    if data is None:
        return None
    members = Trainees(networks, seeds, device, training)
    for part in {id(part): part for part in parts}.values():
        check_outputs(members, *part.some())
    graphed = on_gpu and training.schedule == "steps" and can_be_replayed(members, parts[0].x[:size])
    if not graphed and (k == 1 or not shared or not members.run_as_one(parts[0].x[:size])):
        return None
    if not shared and training.patience is not None and watch(members, None)[1] is None:
        return None  # held-out rows would leave members with different numbers of steps
    left, watched = watch(members, data)
    assert left is not None
    if not graphed:
        return InMemory(members, left, training.batch_size), watched
    single = all(parameter.dtype == torch.float32 for parameter in members.parameters.values())
    fused = has_triton() and single and training.precision == "bfloat16" and training.optimizer == "adam"
    n = left.rows.shape[1]
    return Replayed(members, left, min(training.batch_size or n, n), fused=fused), watched


def _alike(networks: list[nn.Module]) -> bool:
    """Whether the networks differ in the values of their tensors alone, so that one can stand for all."""

    def form(network: nn.Module) -> tuple[str, list[bool], dict[str, tuple[torch.Size, torch.dtype]]]:
        tensors = (*network.named_parameters(), *network.named_buffers())
        modes = [module.training for module in network.modules()]
        return repr(network), modes, {name: (value.shape, value.dtype) for name, value in tensors}

    first = form(networks[0])
    return all(form(network) == first for network in networks[1:])


def _alone(members: Trainees, fold: Data, part: Rows | None, training: Training, watch: HoldOut) -> Way:
    """The way to train one network by itself."""
    if part is None:
        if training.patience is not None and watch(members, None)[1] is None:
            raise ValueError(
                f"validation must be given for patience={training.patience} where data are batches, of which no rows "
                "can be held out; got None: pass validation data, or set patience=None"
            )
        return Streamed(members, fold), watch(members, None)[1]
    check_outputs(members, *part.some())
    left, watched = watch(members, part)
    assert left is not None
    return InMemory(members, left, training.batch_size), watched


def _watched(
    members: Trainees, data: Rows | None, validation: Data | None, training: Training
) -> tuple[Rows | None, Rows | Data | None]:
    """The rows to train on and the validation data: those that are given, or rows held out for ``patience``."""
    if validation is not None:
        if not is_pair(validation):
            return data, validation
        x, y = tensors_of(validation)
        x, y = (suited(part, members.models[0]) for part in (x.to(members.device), y))
        rows = checked(x, y, training.loss, name="validation ")
        check_outputs(members, *rows.some())
        return data, rows
    if training.patience is None or data is None:
        return data, None
    return members.hold_out(data, training.validation_fraction)


def _checked_folds(
    folds: Sequence[Data], training: Training, weight: Tensor | None, device: str | torch.device | None
) -> list[Rows] | None:
    """The tensors of each fold, checked; the same object where folds share them. None if they are batches."""
    pairs = [fold for fold in folds if is_pair(fold)]
    if pairs and len(pairs) < len(folds):
        raise ValueError(
            f"folds must all be pairs of tensors, or all iterables of batches; got {len(pairs)} pairs of "
            f"tensors among {len(folds)} folds: make DataLoaders of those"
        )
    if not pairs:
        if weight is not None:
            raise ValueError(
                "sample_weight must be None where data are an iterable of batches, got weights; leave it out, or "
                "pass tensors"
            )
        return None
    found: dict[tuple[int, int], Rows] = {}
    for pair in pairs:
        if (key := (id(pair[0]), id(pair[1]))) not in found:
            x, y = tensors_of(pair)
            found[key] = checked(x if device is None else x.to(device), y, training.loss, weight)
    return [found[id(x), id(y)] for x, y in pairs]


def _suited(parts: list[Rows], networks: Sequence[nn.Module]) -> list[Rows]:
    """The rows in the floating-point type of the networks; what several share stays one object."""
    each = dict(zip(map(id, parts), zip(parts, networks, strict=True), strict=True))
    changed = {
        key: part._replace(x=suited(part.x, network), y=suited(part.y, network))
        for key, (part, network) in each.items()
    }
    return [changed[id(part)] for part in parts]


def _built(builds: Sequence[Build], seeds: Sequence[int], device: str | torch.device | None) -> list[nn.Module]:
    """Fresh networks, each a copy of what its build returns, on this device; None leaves them where they are."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))  # where they may be initialised
    networks: list[nn.Module] = []
    returned: list[nn.Module] = []
    for build, seed in zip(builds, seeds, strict=True):
        with seeded(seed, place):
            network = build()
        if any(network is other for other in returned):
            raise ValueError(
                "build must return a fresh network on each call, got the same one again; create it inside of build"
            )
        returned.append(network)
        networks.append(deepcopy(network) if device is None else deepcopy(network).to(device))
    return networks


def _resume(path: Path | None, training: Training, seeds: Sequence[int], networks: list[nn.Module]) -> None:
    if path is not None and (saved := Checkpoint.read(path, training, seeds)):
        saved.load_networks(networks)
