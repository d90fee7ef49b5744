"""Networks in training: one as it is, or several as one, by ``vmap`` over their stacked parameters."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.optim import Optimizer

from stationary.nn.masks import Random, active_dropouts, draw_shape, drawn, masked, noises

Named: TypeAlias = dict[str, Tensor]
Build: TypeAlias = Callable[[], nn.Module]


class Data(NamedTuple):
    """What members train on: some rows of x and y each.

    Args:
        x, y: (n, ...), of all members together.
        weight: (n,).
        rows: (1 or K, n'), those that each member sees; -1 where a member has fewer.
        counts: 1 or K, how many.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    rows: Tensor
    counts: tuple[int, ...]

    @classmethod
    def joined(cls, parts: Sequence["Data"]) -> "Data":
        """The data of several members, of one row of ``rows`` each."""
        n = max(part.rows.shape[1] for part in parts)
        starts = accumulate((len(part.x) for part in parts[:-1]), initial=0)
        rows = [
            F.pad(part.rows + s, (0, n - part.rows.shape[1]), value=-1) for part, s in zip(parts, starts, strict=True)
        ]
        x, y, weight = (torch.cat(tensors) for tensors in list(zip(*parts, strict=True))[:3])
        return cls(x, y, weight, torch.cat(rows), tuple(part.counts[0] for part in parts))

    def weights(self, rows: Tensor) -> Tensor:
        """Of these rows; 0 for those that are not there."""
        return torch.where(rows >= 0, self.weight[rows], 0.0)


class Losses(nn.Module):
    """A network with its loss: (n, ...) inputs and their targets to (n,)."""

    def __init__(self, model: nn.Module, loss: str, precision: str) -> None:
        super().__init__()
        self.model, self.loss, self.precision = model, loss, precision

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with self.autocast(x):
            if self.loss == "own":
                return self.model.losses(x, y)  # type: ignore[operator]
            outputs = self.model(x)
        return self.of_outputs(outputs, y)

    def of_outputs(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.loss == "cross_entropy":
            return F.cross_entropy(_at_least_float32(outputs), y, reduction="none")
        return (outputs - y).square().mean(-1)

    def autocast(self, x: Tensor) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False)


class Members:
    """The networks in training."""

    def __init__(
        self,
        builds: Sequence[Build],
        seeds: Sequence[int],
        device: torch.device,
        *,
        loss: str,
        precision: str = "float32",
        stacked: bool = True,
    ) -> None:
        self.models = [_build(build, seed, device) for build, seed in zip(builds, seeds, strict=True)]
        if len({id(model) for model in self.models}) < len(seeds):
            raise ValueError("build must return a fresh network on each call, it returned the same one again")
        self.stacked = stacked
        state: tuple[Named, Named] = stack_module_state(self.models) if stacked else _state(self.models[0])
        self.parameters, self.buffers = state
        self.losses = Losses(self.models[0], loss, precision)
        self.orders = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        mask_seeds = [int(torch.randint(2**62, (), generator=order, device=device)) for order in self.orders]
        self.masks = [torch.Generator(device).manual_seed(seed) for seed in mask_seeds]
        self.found: dict[torch.Size, list[tuple[str, Random, tuple[int, ...]]]] = {}

    # Data

    def check_outputs(self, data: Data) -> None:
        """Raise unless what the networks return suits the targets."""
        loss = self.losses.loss
        if loss == "own":
            return
        with torch.no_grad(), seeded(0, data.x.device):
            outputs = self.models[0].eval()(data.x[:2])
        classes = loss == "cross_entropy"
        width = int(data.y[data.rows].max()) + 1 if classes else data.y.shape[1]
        shape = outputs.shape if isinstance(outputs, Tensor) else ()
        if len(shape) != 2 or shape[1] < width or (shape[1] > width and not classes):
            got = f"a tensor {tuple(shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(
                f"build must make networks that return a tensor (n, {width}{' or more' if classes else ''}), one "
                f"column for each {'class' if classes else 'target'} in y; got {got} for {len(data.x[:2])} inputs"
            )

    def hold_out(self, data: Data, fraction: float) -> tuple[Data, Data]:
        """The data in two: for training, and a random fraction for validation, another for each member."""
        n = data.rows.shape[1]
        held_out = max(1, round(fraction * n))
        if held_out == n:
            raise ValueError(
                f"validation_fraction={fraction} of {n} rows leaves none to train on; pass validation=(x, y) instead"
            )
        rows = self.shuffled(data)
        return (
            data._replace(rows=rows[:, held_out:], counts=(n - held_out,)),
            data._replace(rows=rows[:, :held_out], counts=(held_out,)),
        )

    def shuffled(self, data: Data) -> Tensor:
        """Each member's rows in an order that its own generator draws."""
        k, device = len(self.models), data.rows.device
        rows, counts = data.rows.expand(k, -1), data.counts * (k // len(data.counts))
        orders = [torch.randperm(n, generator=g, device=device) for n, g in zip(counts, self.orders, strict=True)]
        rest = torch.arange(rows.shape[1], device=device)
        return rows.gather(1, torch.stack([torch.cat([order, rest[len(order) :]]) for order in orders]))

    # Passes

    def train(self, data: Data, size: int, optimizer: Optimizer) -> list[float]:
        """One epoch; the mean loss of each member."""
        rows = self.shuffled(data) if size < data.rows.shape[1] else data.rows
        self.set_mode(training=True)
        sums = []
        for batch in rows.split(size, dim=1):
            loss, weight = self.sums(data, batch, dropout=True)
            optimizer.zero_grad()
            (loss / weight).sum().backward()  # members share no parameter, so each gets its own gradient
            optimizer.step()
            sums.append((loss.detach(), weight))
        return _mean(sums)

    def evaluate(self, data: Data, size: int) -> list[float]:
        """The mean loss of each member, without dropout."""
        self.set_mode(training=False)
        with torch.no_grad():
            return _mean([self.sums(data, batch, dropout=False) for batch in data.rows.split(size, dim=1)])

    def sums(self, data: Data, rows: Tensor, *, dropout: bool) -> tuple[Tensor, Tensor]:
        """The weighted losses and the weights, summed over the rows: (K,) each."""
        rows = rows.expand(len(self.models), -1)
        x, y, weight = data.x[rows], data.y[rows], data.weights(rows)
        if self.stacked:
            losses = vmap(self._member)(self.parameters, self.buffers, x, y, self.draws(x[0]) if dropout else [])
        else:
            with masked(self.models[0], self._draw) if dropout else nullcontext():
                losses = self.losses(x[0], y[0])[None]
        return (losses * weight).sum(1), weight.sum(1)

    def _member(self, parameters: Named, buffers: Named, x: Tensor, y: Tensor, draws: list[Tensor]) -> Tensor:
        remaining = iter(draws)
        with masked(self.models[0], lambda *_: next(remaining)) if draws else nullcontext():
            return functional_call(self.losses, (within(parameters), within(buffers)), (x, y))

    # Randomness

    def _draw(self, module: Random, x: Tensor) -> Tensor:
        return drawn(module, draw_shape(module, x, shared=False), self.masks[0])

    def draws(self, x: Tensor) -> list[Tensor]:
        """Masks and noise of all members for one batch, in the order of the calls."""
        return [torch.stack([drawn(m, shape, generator) for generator in self.masks]) for _, m, shape in self.calls(x)]

    def calls(self, x: Tensor) -> list[tuple[str, Random, tuple[int, ...]]]:
        """Who draws, and which shape, in a pass over one member's batch: found by a pass, once for each shape."""
        if x.shape not in self.found:
            names = {module: name for name, module in self.models[0].named_modules()}
            found = self.found[x.shape] = []

            def note(module: Random, x: Tensor) -> Tensor:
                found.append((names[module], module, draw_shape(module, x, shared=False)))
                return torch.ones(found[-1][2], dtype=x.dtype, device=x.device)

            with torch.no_grad(), masked(self.models[0], note):
                self.losses(x, self._targets(x))
        return self.found[x.shape]

    def _targets(self, x: Tensor) -> Tensor:
        """Something of the form of y."""
        if self.losses.loss == "mse":
            return x.new_zeros(1, 1)
        return torch.zeros(len(x), dtype=torch.long, device=x.device)

    # State

    def run_as_one(self, x: Tensor) -> bool:
        """Whether ``vmap`` can run the networks, and a training pass leaves their buffers alone."""
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self.set_mode(training=True)
        k = len(self.models)
        try:
            with torch.no_grad():
                y = self._targets(x)
                vmap(self._member)(self.parameters, self.buffers, x.expand(k, *x.shape), y.expand(k, *y.shape), [])
        except RuntimeError:  # random numbers, control flow that depends on data, memory
            return False
        return all(torch.equal(buffer, before[name]) for name, buffer in self.buffers.items())

    def set_mode(self, *, training: bool) -> None:
        for model in self.models:
            model.train(training)
            for module in (*active_dropouts(model).values(), *noises(model)):
                module.eval()  # its masks come from outside

    def state(self, k: int) -> Named:
        """Parameters and buffers of member k, live."""
        state = self.parameters | self.buffers
        return {name: value[k] for name, value in state.items()} if self.stacked else state

    def stacked_parameters(self) -> Named:
        """Live; the first dimension is that of the members."""
        return self.parameters if self.stacked else {name: value[None] for name, value in self.parameters.items()}

    def finished(self, states: list[Named]) -> list[nn.Module]:
        """The networks with these parameters and buffers; where they are empty, with the present ones."""
        with torch.no_grad():
            for k, model in enumerate(self.models):
                parameters, buffers = _state(model)
                for name, value in (parameters | buffers).items():
                    value.copy_((states[k] or self.state(k))[name])
        return [model.eval() for model in self.models]


class Best:
    """The state of each member at its lowest validation loss, until it runs out of patience."""

    def __init__(self, n_members: int, patience: int | None) -> None:
        self.patience, self.running = patience, list(range(n_members))
        self.losses, self.waited = [math.inf] * n_members, [0] * n_members
        self.states: list[Named] = [{}] * n_members

    def mean_of_running(self, losses: list[float] | None) -> float | None:
        return None if losses is None else fmean(losses[k] for k in self.running)

    def update(self, losses: list[float], members: Members) -> bool:
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
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The global generators that networks may use here: seeded inside, afterwards as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every GPU
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _build(build: Build, seed: int, device: torch.device) -> nn.Module:
    with seeded(seed, device):
        return build().to(device)


def _state(model: nn.Module) -> tuple[Named, Named]:
    return dict(model.named_parameters()), dict(model.named_buffers())


def within(state: Named) -> Named:
    """By the names that parameters and buffers have in ``Losses``."""
    return {f"model.{name}": value for name, value in state.items()}


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _mean(sums: list[tuple[Tensor, Tensor]]) -> list[float]:
    loss, weight = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
    return (loss / weight).tolist()
