"""The training configuration and the only training loop: members train in lockstep, each as if it were alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from stationary._extras import has_triton
from stationary.training._cuda_graph import Replayed, can_be_replayed
from stationary.training._members import Best, Build, Data, Members, Named, seeded
from stationary.training.config import Group, Training

Progress: TypeAlias = Callable[[int, float, float | None], None]
OnEpoch: TypeAlias = Callable[[int, Named, Optimizer], None]


def train(
    build: Build | Sequence[Build],
    x: Tensor | Sequence[Tensor],
    y: Tensor | Sequence[Tensor],
    training: Training,
    *,
    n_members: int = 1,
    seeds: Sequence[int] | None = None,
    sample_weight: Tensor | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
    keep_diverged: bool = False,
) -> list[nn.Module]:
    """Train networks that differ in their seed, or in their data too; they come back on the device of x, in eval mode.

    Member k is, up to rounding, the network that ``train`` gives alone for seed + k. Several members run as one, by
    ``vmap`` over stacked parameters; where that cannot be (BatchNorm keeps statistics, a network draws random numbers
    of its own), they are trained one after the other, and so are members with data of their own on a CPU, which gains
    nothing from more work at a time. On a GPU a step is one CUDA graph. The global random state is left as it was.

    Args:
        build: makes a fresh network, (n, ...) to (n, c); or a list of such functions, one for each member.
        x: (n, ...) inputs; or a list of them, one for each member: the folds of a cross-validation.
        y: (n,) class indices for the cross entropy, (n, m) real targets for the squared error; or a list, like x.
        training: the configuration.
        n_members: how many networks, where neither build nor x is a list.
        seeds: one for each member, instead of ``training.seed`` + k.
        sample_weight: (n,), at least 0; a batch's loss is the weighted mean. Rows of weight 0 are left out.
        validation: (x, y) to stop on, or just to watch if ``training.patience`` is None.
        progress: called after each epoch with its number (from 1), the training loss and the validation loss (None
            without validation), means over the members still in training.
        on_epoch: called after each epoch with its number, the live parameters by name (their first dimension is that of
            the members that run as one) and the optimizer, whose learning rate is already that of the next epoch.
        keep_diverged: return networks whose loss is no longer finite, as they are, instead of raising an error.
    """
    builds, sets, seeds = _members(build, x, y, n_members, seeds, training.seed)
    parts = [_checked(*one, training.loss, sample_weight) for one in sets]
    device, n = parts[0].x.device, max(part.counts[0] for part in parts)
    watched = None
    if validation is not None:
        watched = _checked(validation[0].to(device), validation[1], training.loss, name="validation ")
    k, folds, on_gpu, size = len(builds), len(sets) > 1, device.type == "cuda", min(training.batch_size or n, n)

    def one_by_one() -> list[nn.Module]:
        return [
            train(
                builds[i],
                *sets[i if folds else 0],
                replace(training, seed=seeds[i]),
                sample_weight=sample_weight,
                validation=validation,
                progress=progress,
                on_epoch=on_epoch,
                keep_diverged=keep_diverged,
            )[0]
            for i in range(k)
        ]

    def members_of(*, stacked: bool) -> Members:
        return Members(builds, seeds, device, loss=training.loss, precision=training.precision, stacked=stacked)

    same_steps = len({-(-part.counts[0] // size) for part in parts}) == 1
    if folds and not (on_gpu and same_steps and (watched or training.patience is None)):
        return one_by_one()
    members, batch = members_of(stacked=on_gpu or k > 1), parts[0].x[:size]
    for part in (*parts, *filter(None, [watched])):
        members.check_outputs(part)
    replayed = on_gpu and can_be_replayed(members, batch)
    if not replayed and k > 1 and (folds or not members.run_as_one(batch)):
        return one_by_one()
    if not replayed and k == 1:
        members = members_of(stacked=False)
    data = Data.joined(parts) if folds else parts[0]
    if watched is None and training.patience is not None:
        data, watched = members.hold_out(data, training.validation_fraction)
    single = all(parameter.dtype == torch.float32 for parameter in members.parameters.values())
    fused = has_triton() and single and training.precision == "bfloat16" and training.optimizer == "adam"
    graph = Replayed(members, data, size, fused=fused) if replayed else None
    optimizer = _optimizer(training, members.parameters, graph.copies if graph else {})
    schedule = MultiStepLR(optimizer, training.milestones, gamma=0.1)
    best = Best(k, training.patience)
    with seeded(training.seed, device):
        for epoch in range(1, training.epochs + 1):
            losses = graph.train(optimizer) if graph else members.train(data, size, optimizer)
            watched_losses = None if watched is None else members.evaluate(watched, size)
            loss, watched_loss = best.mean_of_running(losses), best.mean_of_running(watched_losses)
            if loss is None or not (keep_diverged or math.isfinite(loss + (watched_loss or 0.0))):
                raise RuntimeError(
                    f"the loss is no longer finite in epoch {epoch} of {training.epochs}; try a learning_rate below "
                    f"{schedule.get_last_lr()[0]:g}, and look at the scale of x and y"
                )
            if progress is not None:
                progress(epoch, loss, watched_loss)
            schedule.step()
            if on_epoch is not None:
                on_epoch(epoch, members.stacked_parameters(), optimizer)
            if watched_losses is not None and not best.update(watched_losses, members):
                break
    optimizer.zero_grad()
    return members.finished(best.states)


def _members(
    build: Build | Sequence[Build],
    x: Tensor | Sequence[Tensor],
    y: Tensor | Sequence[Tensor],
    n_members: int,
    seeds: Sequence[int] | None,
    seed: int,
) -> tuple[list[Build], list[tuple[Tensor, Tensor]], list[int]]:
    """How each member is built, what it trains on (one set for all, or one each), and its seed."""
    if not _is_count(n_members):
        raise ValueError(f"n_members must be a positive integer, got {n_members!r}")
    if isinstance(x, Tensor) != isinstance(y, Tensor):
        raise ValueError(f"x and y must both be tensors, or both lists; got {type(x).__name__} and {type(y).__name__}")
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(
            f"x and y must have the same number of rows or, if lists, of tensors, at least one; got {len(x)} and "
            f"{len(y)}"
        )
    sets = [(x, y)] if isinstance(x, Tensor) and isinstance(y, Tensor) else list(zip(x, y, strict=True))
    k = max(n_members, len(sets), 1 if callable(build) else len(build), 1 if seeds is None else len(seeds))
    builds = [build] * k if callable(build) else list(build)
    seeds = list(range(seed, seed + k)) if seeds is None else list(seeds)
    if len(sets) not in (1, k) or len(builds) != k or len(seeds) != k or n_members not in (1, k):
        raise ValueError(
            f"build, x, y and seeds must be of one length where they are lists, one for each member; got {len(builds)} "
            f"networks to build, {len(sets)} sets of data, {len(seeds)} seeds and n_members={n_members}"
        )
    return builds, sets, seeds


def _optimizer(training: Training, parameters: Named, copies: Named | None = None) -> Optimizer:
    """For float32 parameters; ``copies`` are those in half precision that the fused layers use instead of some."""
    rate, decay = training.learning_rate, training.weight_decay
    groups = []
    left = dict(parameters)
    for group in (*training.groups, Group("")):
        named = {name: parameter for name, parameter in left.items() if name.startswith(group.prefix)}
        if not named and group.prefix:
            raise ValueError(f"groups: no parameter's name starts with {group.prefix!r}; there are {', '.join(left)}")
        left = {name: parameter for name, parameter in left.items() if name not in named}
        groups.append({"params": list(named.values()), "lr": rate * group.rate, "weight_decay": decay * group.decay})
    groups = [group for group in groups if group["params"]]
    if copies:
        from stationary.training import _stacked_triton as stacked

        return stacked.Adam(groups, {parameters[name]: copy for name, copy in copies.items()})
    if training.optimizer != "sgd":  # fused: ten times faster, on a CPU too
        kind = Adam if training.optimizer == "adam" else AdamW
        return kind(groups, rate, fused=True, capturable=next(iter(parameters.values())).is_cuda)
    return SGD(groups, rate, training.momentum, nesterov=training.nesterov, fused=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _checked(x: Tensor, y: Tensor, loss: str, weight: Tensor | None = None, name: str = "") -> Data:
    """The data on the device of x; rows of weight 0 are not looked at, now or later."""
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"{name}x and y must have the same number of rows, at least one; got {len(x)} and {len(y)}")
    if loss == "cross_entropy" and (y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool):
        raise ValueError(
            f"{name}y must be class indices (n,), integers, for loss='cross_entropy'; got {tuple(y.shape)} {y.dtype}: "
            "use y.long(), or loss='mse' for real targets"
        )
    if loss == "mse" and (y.ndim != 2 or not y.is_floating_point()):
        raise ValueError(
            f"{name}y must be real targets (n, m) for loss='mse'; got {tuple(y.shape)} {y.dtype}: use y.float() and, "
            "for a single target, y[:, None]"
        )
    weight = torch.ones(len(x)) if weight is None else weight
    if weight.shape != (len(x),) or not (weight.isfinite() & (weight >= 0)).all() or not weight.any():
        raise ValueError(
            f"sample_weight must be finite, at least 0, not all 0, and of shape ({len(x)},); got shape "
            f"{tuple(weight.shape)}, from {weight.min().item():g} to {weight.max().item():g}"
        )
    y, weight = y.to(x.device), weight.to(x.device)
    rows = weight.nonzero().T
    for letter, values in (("x", x), ("y", y)):
        bad = rows[0, ~values.reshape(len(x), -1).isfinite().all(1)[rows[0]]]
        if len(bad):
            raise ValueError(
                f"{name}{letter} must be finite, got NaN or infinity in row {bad[0].item()}; drop such rows"
            )
    if loss == "cross_entropy" and y[rows].min() < 0:
        raise ValueError(f"{name}y must be class indices from 0, got {y.min().item()}; map the labels to 0, 1, ...")
    return Data(x, y.long() if loss == "cross_entropy" else y, weight, rows, (rows.shape[1],))
