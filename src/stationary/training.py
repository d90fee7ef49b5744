"""The training configuration and the only training loop: members train in lockstep, each as if it were alone."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import MultiStepLR

from stationary.checks import check_finite
from stationary.dropout import active_dropouts, keep_mask, mask_shape, masked

Named: TypeAlias = dict[str, Tensor]
Progress: TypeAlias = Callable[[int, float, float | None], None]
OnEpoch: TypeAlias = Callable[[int, Named, Optimizer], None]


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    Args:
        loss: "cross_entropy" (targets are class indices) or "mse".
        epochs: passes over the data, at most.
        batch_size: None for full batches; a smaller last batch is kept.
        optimizer: "adam" or "sgd".
        learning_rate: at the start.
        momentum, nesterov: of SGD; Adam has its own.
        weight_decay: times the weights is added to the gradient, as in ``torch.optim``.
        milestones: after so many epochs the learning rate is divided by 10.
        patience: stop a member after so many epochs without a lower validation loss, and go back to its best weights.
        validation_fraction: of the data, held out for ``patience`` when no validation data are given.
        seed: of initialisation, order and masks; member k uses seed + k.
    """

    loss: str = "cross_entropy"
    epochs: int = 100
    batch_size: int | None = 200
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    patience: int | None = None
    validation_fraction: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_finite("learning_rate", self.learning_rate, "0.001 is usual for Adam, 0.1 for SGD")
        steps, momentum_sgd = self.milestones, self.optimizer == "sgd" and self.momentum > 0
        rules = {
            "loss": (self.loss in ("cross_entropy", "mse"), "'cross_entropy' or 'mse'"),
            "epochs": (_is_count(self.epochs), "a positive integer"),
            "batch_size": (
                self.batch_size is None or _is_count(self.batch_size),
                "a positive integer or None, for all",
            ),
            "optimizer": (self.optimizer in ("adam", "sgd"), "'adam' or 'sgd'"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "nesterov": (momentum_sgd or not self.nesterov, "False unless optimizer='sgd' with momentum > 0"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a finite number, at least 0"),
            "milestones": (isinstance(steps, tuple) and all(map(_is_count, steps)), "a tuple such as (150, 225)"),
            "patience": (self.patience is None or _is_count(self.patience), "a positive integer or None, for no stop"),
            "validation_fraction": (0 < self.validation_fraction < 1, "in (0, 1)"),
            "seed": (self.seed == 0 or _is_count(self.seed), "an integer, at least 0"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{name} must be {rule}; got {getattr(self, name)!r}")


def train(
    build: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    training: Training,
    *,
    n_members: int = 1,
    sample_weight: Tensor | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
) -> list[nn.Module]:
    """Train networks that differ in their seed only; they come back on the device of x, in eval mode.

    Member k is, up to rounding, the network that ``train`` gives alone for seed + k. Several members run as one, by
    ``vmap`` over stacked parameters; where that cannot be (BatchNorm keeps statistics, a network draws random numbers
    of its own), they are trained one after the other. The global random state is left as it was.

    Args:
        build: makes a fresh network, (n, ...) to (n, c).
        x: (n, ...) inputs.
        y: (n,) class indices for the cross entropy, (n, m) real targets for the squared error.
        training: the configuration.
        n_members: how many networks.
        sample_weight: (n,), at least 0; a batch's loss is the weighted mean. Rows of weight 0 are left out.
        validation: (x, y) to stop on, or just to watch if ``training.patience`` is None.
        progress: called after each epoch with its number (from 1), the training loss and the validation loss (None
            without validation), means over the members still in training.
        on_epoch: called after each epoch with its number, the live parameters by name (stacked when members run as
            one) and the optimizer, whose learning rate is already that of the next epoch.
    """
    if not _is_count(n_members):
        raise ValueError(f"n_members must be a positive integer, got {n_members!r}")
    data = _checked(x, y, training.loss, sample_weight)
    watched = None
    if validation is not None:
        watched = _checked(validation[0].to(x.device), validation[1], training.loss, name="validation ")
    seeds = [training.seed + k for k in range(n_members)]
    members = _Members(build, seeds, training.loss, x.device)
    for part in filter(None, (data, watched)):
        members.check_outputs(part)
    size = training.batch_size or len(x)
    if n_members > 1 and not members.run_as_one(x[:size]):
        alone = partial(train, build, x, y, sample_weight=sample_weight, validation=validation, progress=progress)
        return [alone(training=replace(training, seed=seed), on_epoch=on_epoch)[0] for seed in seeds]
    if watched is None and training.patience is not None:
        data, watched = members.hold_out(data, training.validation_fraction)
    optimizer = _optimizer(training, members.parameters.values())
    schedule = MultiStepLR(optimizer, training.milestones, gamma=0.1)
    best = _Best(n_members, training.patience)
    with _seeded(training.seed, x.device):
        for epoch in range(1, training.epochs + 1):
            losses = members.train(data, size, optimizer)
            watched_losses = None if watched is None else members.evaluate(watched, size)
            loss, watched_loss = best.mean_of_running(losses), best.mean_of_running(watched_losses)
            if loss is None or not math.isfinite(loss + (watched_loss or 0.0)):
                raise RuntimeError(
                    f"the loss is no longer finite in epoch {epoch} of {training.epochs}; try a learning_rate below "
                    f"{schedule.get_last_lr()[0]:g}, and look at the scale of x and y"
                )
            if progress is not None:
                progress(epoch, loss, watched_loss)
            schedule.step()
            if on_epoch is not None:
                on_epoch(epoch, members.parameters, optimizer)
            if watched_losses is not None and not best.update(watched_losses, members):
                break
    optimizer.zero_grad()
    return members.finished(best.states)


class _Data(NamedTuple):
    x: Tensor
    y: Tensor
    weight: Tensor  # (n,)
    rows: Tensor  # (1 or K, n'), those that each member sees


class _Members:
    """The networks in training: one as it is, several as stacked parameters that ``vmap`` runs at once."""

    def __init__(self, build: Callable[[], nn.Module], seeds: list[int], loss: str, device: torch.device) -> None:
        self.models = [_build(build, seed, device) for seed in seeds]
        if len({id(model) for model in self.models}) < len(seeds):
            raise ValueError("build must return a fresh network on each call, it returned the same one again")
        self.alone, self.loss = len(seeds) == 1, loss
        state: tuple[Named, Named] = _state(self.models[0]) if self.alone else stack_module_state(self.models)
        self.parameters, self.buffers = state
        self.orders = [torch.Generator().manual_seed(seed) for seed in seeds]
        mask_seeds = [int(torch.randint(2**62, (), generator=order)) for order in self.orders]
        self.masks = [torch.Generator(device).manual_seed(seed) for seed in mask_seeds]
        self.mask_shapes: dict[torch.Size, list[tuple[tuple[int, ...], float]]] = {}

    # Data

    def check_outputs(self, data: _Data) -> None:
        """Raise unless what the networks return suits the targets."""
        with torch.no_grad(), _seeded(0, data.x.device):
            outputs = self.models[0].eval()(data.x[:2])
        classes = self.loss == "cross_entropy"
        width = int(data.y[data.rows].max()) + 1 if classes else data.y.shape[1]
        shape = outputs.shape if isinstance(outputs, Tensor) else ()
        if len(shape) != 2 or shape[1] < width or (shape[1] > width and not classes):
            got = f"a tensor {tuple(shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(
                f"build must make networks that return a tensor (n, {width}{' or more' if classes else ''}), one "
                f"column for each {'class' if classes else 'target'} in y; got {got} for {len(data.x[:2])} inputs"
            )

    def hold_out(self, data: _Data, fraction: float) -> tuple[_Data, _Data]:
        """The data in two: for training, and a random fraction for validation, another for each member."""
        n = data.rows.shape[1]
        held_out = max(1, round(fraction * n))
        if held_out == n:
            raise ValueError(
                f"validation_fraction={fraction} of {n} rows leaves none to train on; pass validation=(x, y) instead"
            )
        rows = self.shuffled(data.rows)
        return data._replace(rows=rows[:, held_out:]), data._replace(rows=rows[:, :held_out])

    def shuffled(self, rows: Tensor) -> Tensor:
        """Each member's rows in an order that its own generator draws."""
        orders = torch.stack([torch.randperm(rows.shape[1], generator=order) for order in self.orders])
        return rows.expand(len(orders), -1).gather(1, orders.to(rows.device))

    # Passes

    def train(self, data: _Data, size: int, optimizer: Optimizer) -> list[float]:
        """One epoch; the mean loss of each member."""
        rows = self.shuffled(data.rows) if size < data.rows.shape[1] else data.rows
        self.set_mode(training=True)
        sums = []
        for batch in rows.split(size, dim=1):
            loss, weight = self.sums(data, batch, dropout=True)
            optimizer.zero_grad()
            (loss / weight).sum().backward()  # members share no parameter, so each gets its own gradient
            optimizer.step()
            sums.append((loss.detach(), weight))
        return _mean(sums)

    def evaluate(self, data: _Data, size: int) -> list[float]:
        """The mean loss of each member, without dropout."""
        self.set_mode(training=False)
        with torch.no_grad():
            return _mean([self.sums(data, batch, dropout=False) for batch in data.rows.split(size, dim=1)])

    def sums(self, data: _Data, rows: Tensor, *, dropout: bool) -> tuple[Tensor, Tensor]:
        """The weighted losses and the weights, summed over the rows: (K,) each."""
        rows = rows.expand(len(self.models), -1)
        outputs, y, weight = self.outputs(data.x[rows], dropout=dropout), data.y[rows], data.weight[rows]
        if self.loss == "cross_entropy":
            losses = F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        else:
            losses = (outputs - y).square().mean(-1)
        return (losses * weight).sum(1), weight.sum(1)

    def outputs(self, x: Tensor, *, dropout: bool) -> Tensor:
        """(K, b, c) from (K, b, ...)."""
        if self.alone:
            with masked(self.models[0], self._draw) if dropout else nullcontext():
                return self.models[0](x[0])[None]
        return vmap(self._member)(self.parameters, self.buffers, x, self._drawn(x) if dropout else [])

    def _member(self, parameters: Named, buffers: Named, x: Tensor, masks: list[Tensor]) -> Tensor:
        remaining = iter(masks)
        with masked(self.models[0], lambda *_: next(remaining)) if masks else nullcontext():
            return functional_call(self.models[0], (parameters, buffers), (x,))

    def _draw(self, module: _DropoutNd, x: Tensor) -> Tensor:
        return keep_mask(mask_shape(module, x, shared=False), module.p, self.masks[0])

    def _drawn(self, x: Tensor) -> list[Tensor]:
        """The masks of all members, in the order of the dropouts' calls: a plain pass finds it, once for each shape."""
        if x.shape not in self.mask_shapes:
            found = self.mask_shapes[x.shape] = []

            def note(module: _DropoutNd, x: Tensor) -> Tensor:
                found.append((mask_shape(module, x, shared=False), module.p))
                return x.new_ones(())

            with torch.no_grad(), masked(self.models[0], note):
                self.models[0](x[0])
        return [torch.stack([keep_mask(*one, masks) for masks in self.masks]) for one in self.mask_shapes[x.shape]]

    # State

    def run_as_one(self, x: Tensor) -> bool:
        """Whether ``vmap`` can run the networks, and a training pass leaves their buffers alone."""
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.set_mode(training=True)
        try:
            with torch.no_grad():
                self.outputs(x.expand(len(self.models), *x.shape), dropout=False)
        except RuntimeError:  # random numbers, control flow that depends on data, memory
            return False
        return all(torch.equal(buffer, before[name]) for name, buffer in self.buffers.items())

    def set_mode(self, *, training: bool) -> None:
        for model in self.models:
            model.train(training)
            for module in active_dropouts(model).values():
                module.eval()  # its masks come from outside

    def state(self, k: int) -> Named:
        """Parameters and buffers of member k, live."""
        state = self.parameters | self.buffers
        return state if self.alone else {name: value[k] for name, value in state.items()}

    def finished(self, states: list[Named]) -> list[nn.Module]:
        """The networks with these parameters and buffers; where they are empty, with the present ones."""
        with torch.no_grad():
            for k, model in enumerate(self.models):
                parameters, buffers = _state(model)
                for name, value in (parameters | buffers).items():
                    value.copy_((states[k] or self.state(k))[name])
        return [model.eval() for model in self.models]


class _Best:
    """The state of each member at its lowest validation loss, until it runs out of patience."""

    def __init__(self, n_members: int, patience: int | None) -> None:
        self.patience, self.running = patience, list(range(n_members))
        self.losses, self.waited = [math.inf] * n_members, [0] * n_members
        self.states: list[Named] = [{}] * n_members

    def mean_of_running(self, losses: list[float] | None) -> float | None:
        return None if losses is None else fmean(losses[k] for k in self.running)

    def update(self, losses: list[float], members: _Members) -> bool:
        """Note an epoch's validation losses; whether any member goes on."""
        if self.patience is None:
            return True
        for k in self.running:
            self.waited[k] += 1
            if losses[k] < self.losses[k]:
                self.losses[k], self.waited[k] = losses[k], 0
                self.states[k] = {name: value.detach().clone() for name, value in members.state(k).items()}
        self.running = [k for k in self.running if self.waited[k] < self.patience]
        return bool(self.running)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The global generators that networks may use here: seeded inside, afterwards as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every GPU
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _build(build: Callable[[], nn.Module], seed: int, device: torch.device) -> nn.Module:
    with _seeded(seed, device):
        return build().to(device)


def _state(model: nn.Module) -> tuple[Named, Named]:
    return dict(model.named_parameters()), dict(model.named_buffers())


def _mean(sums: list[tuple[Tensor, Tensor]]) -> list[float]:
    loss, weight = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
    return (loss / weight).tolist()


def _optimizer(training: Training, parameters: Iterable[Tensor]) -> Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        return Adam(parameters, rate, weight_decay=decay, fused=True)  # fused: ten times faster, on a CPU too
    return SGD(parameters, rate, training.momentum, weight_decay=decay, nesterov=training.nesterov, fused=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _checked(x: Tensor, y: Tensor, loss: str, weight: Tensor | None = None, name: str = "") -> _Data:
    """The data on the device of x; rows of weight 0 are not looked at, now or later."""
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"{name}x and y must have the same number of rows, at least one; got {len(x)} and {len(y)}")
    classes = loss == "cross_entropy"
    if classes and (y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool):
        raise ValueError(
            f"{name}y must be class indices (n,), integers, for loss='cross_entropy'; got {tuple(y.shape)} {y.dtype}: "
            "use y.long(), or loss='mse' for real targets"
        )
    if not classes and (y.ndim != 2 or not y.is_floating_point()):
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
    if classes and y[rows].min() < 0:
        raise ValueError(f"{name}y must be class indices from 0, got {y.min().item()}; map the labels to 0, 1, ...")
    return _Data(x, y.long() if classes else y, weight, rows)
