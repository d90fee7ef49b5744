"""Networks in training: one as it is, or several as one, by ``vmap`` over their stacked parameters.

On a GPU a training step of all of them is one CUDA graph (``Replayed``): launched as a whole, it costs what its
arithmetic costs.
"""

import copy
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

from stationary.dropout import Noise, Random, active_dropouts, apply_mask, keep_mask, mask_shape, masked, noises

Named: TypeAlias = dict[str, Tensor]
Build: TypeAlias = Callable[[], nn.Module]

WARM_UP = 3  # steps before the capture: libraries allocate and choose kernels in the first
DRAWN_BYTES = 2**26  # random numbers that lie ready, for each member: many steps of small masks, one of large ones
ALIGNED = 8  # numbers of 16 bits in 16 bytes: rows of other lengths keep matrix products from the fast kernels
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LOSS_SCALE = {"float16": 2.0**12}  # small gradients are 0 in float16; the optimizer divides by it


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


class _Losses(nn.Module):
    """A network with its loss: (n, ...) inputs and their targets to (n,)."""

    def __init__(self, model: nn.Module, loss: str, precision: str) -> None:
        super().__init__()
        self.model, self.loss, self.precision = model, loss, precision

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with self._autocast(x):
            if self.loss == "own":
                return self.model.losses(x, y)  # type: ignore[operator]
            outputs = self.model(x)
            if self.loss == "cross_entropy":
                return F.cross_entropy(outputs, y, reduction="none")
            return (outputs - y).square().mean(-1)

    def _autocast(self, x: Tensor) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(x.device.type, HALF[self.precision], cache_enabled=False)


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
        self.stacked, self.scale = stacked, LOSS_SCALE.get(precision, 1.0)
        state: tuple[Named, Named] = stack_module_state(self.models) if stacked else _state(self.models[0])
        self.parameters, self.buffers = state
        self.losses = _Losses(self.models[0], loss, precision)
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
            (loss / weight).sum().mul(self.scale).backward()  # members share no parameter: each gets its own gradient
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
            return functional_call(self.losses, (_within(parameters), _within(buffers)), (x, y))

    # Randomness

    def _draw(self, module: Random, x: Tensor) -> Tensor:
        return _drawn(module, _draw_shape(module, x), self.masks[0])

    def draws(self, x: Tensor) -> list[Tensor]:
        """Masks and noise of all members for one batch, in the order of the calls."""
        return [torch.stack([_drawn(m, shape, generator) for generator in self.masks]) for _, m, shape in self.calls(x)]

    def calls(self, x: Tensor) -> list[tuple[str, Random, tuple[int, ...]]]:
        """Who draws, and which shape, in a pass over one member's batch: found by a pass, once for each shape."""
        if x.shape not in self.found:
            names = {module: name for name, module in self.models[0].named_modules()}
            found = self.found[x.shape] = []

            def note(module: Random, x: Tensor) -> Tensor:
                found.append((names[module], module, _draw_shape(module, x)))
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


class Replayed:
    """Epochs of stacked members as replays of one step, captured as a CUDA graph.

    What differs between steps lies in tensors that stay in place: the rows of the epoch, the random numbers of the next
    steps, and the number of the step. Every batch is full: the last is filled up with rows of weight 0.

    Args:
        members: stacked.
        data: on the GPU.
        size: of a batch.
        compiled: compile the loss first: seconds of setting up, faster steps.
        capture: whether to capture; without, the same steps run one by one.
    """

    def __init__(
        self, members: Members, data: Data, size: int, *, compiled: bool = False, capture: bool = True
    ) -> None:
        k, device = len(members.models), data.x.device
        self.members, self.data, self.capture = members, data, capture
        steps = -(-data.rows.shape[1] // size)
        self.rows = torch.full((steps, k, size), -1, device=device)
        self.weight = torch.zeros(steps, k, size, dtype=data.weight.dtype, device=device)
        self.number = torch.zeros(1, dtype=torch.long, device=device)
        self.sums = torch.zeros(2, k, dtype=data.weight.dtype, device=device)
        members.set_mode(training=True)
        calls = members.calls(data.x[:1].expand(size, *data.x.shape[1:]))
        bytes_a_step = sum(math.prod(shape) * (4 if isinstance(m, Noise) else 1) for _, m, shape in calls)
        self.ahead = min(steps, max(1, DRAWN_BYTES // max(1, bytes_a_step)))
        self.drawn = [
            torch.ones(
                self.ahead, k, *shape, dtype=torch.float32 if isinstance(m, Noise) else torch.bool, device=device
            )
            for _, m, shape in calls
        ]
        self.calls, self.base = calls, _prepared(members.losses, calls)
        self.loss: Callable[[Named], tuple[Tensor, Tensor]] = self._loss_of
        _lay_out_like_gradients(members.parameters, lambda: self._loss()[0])
        if compiled:
            self.loss = torch.compile(self._loss_of, fullgraph=True, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rates: list[float] = []
        self.stream = torch.cuda.Stream() if capture else None
        self.done = 0

    def train(self, optimizer: Optimizer) -> list[float]:
        """One epoch; the mean loss of each member."""
        steps, k, size = self.rows.shape
        rows = self.members.shuffled(self.data)
        rows = F.pad(rows, (0, steps * size - rows.shape[1]), value=-1)
        self.rows.copy_(rows.view(k, steps, size).transpose(0, 1))
        self.weight.copy_(self.data.weights(self.rows))
        self.number.zero_()
        self.sums.zero_()
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if rates != self.rates:  # they are constants in the graph
            self.graph, self.rates = None, rates
        for step in range(steps):
            if step % self.ahead == 0:
                self._draw()
            self._run(optimizer)
        loss, weight = self.sums
        return (loss / weight).tolist()

    def _draw(self) -> None:
        for buffer, (_, module, shape) in zip(self.drawn, self.calls, strict=True):
            for k, generator in enumerate(self.members.masks):
                buffer[:, k] = _drawn(module, (self.ahead, *shape), generator)

    def _run(self, optimizer: Optimizer) -> None:
        if self.stream is None:
            self._step(optimizer)
        elif self.done < WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._step(optimizer)
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.graph is None:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self._step(optimizer)
            self.graph.replay()
        self.done += 1

    def _step(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        loss, sums = self._loss()
        loss.backward()
        optimizer.step()
        self.sums += sums
        self.number += 1

    def _loss(self) -> tuple[Tensor, Tensor]:
        """What to minimise in the present step, and the members' sums of losses and of weights."""
        return self.loss(self.members.parameters)

    def _loss_of(self, parameters: Named) -> tuple[Tensor, Tensor]:
        rows, weight = (part.index_select(0, self.number)[0] for part in (self.rows, self.weight))
        drawn = [buffer.index_select(0, self.number % self.ahead)[0] for buffer in self.drawn]
        named = {f"{name}.drawn": draw for (name, _, _), draw in zip(self.calls, drawn, strict=True)}
        buffers = self.members.buffers | named
        losses = vmap(self._member)(parameters, buffers, self.data.x[rows], self.data.y[rows]) * weight
        sums = torch.stack([losses.sum(1), weight.sum(1)])
        return (sums[0] / sums[1]).sum() * self.members.scale, sums.detach()

    def _member(self, parameters: Named, buffers: Named, x: Tensor, y: Tensor) -> Tensor:
        return functional_call(self.base, (_within(parameters), _within(buffers)), (x, y))


def can_be_replayed(members: Members, x: Tensor) -> bool:
    """Whether the steps of these stacked members can be captured, x being a batch of one."""
    if not members.run_as_one(x):
        return False
    names = [name for name, _, _ in members.calls(x)]
    return len(set(names)) == len(names)  # each draws once in a pass


class _Drawn(nn.Module):
    """A dropout with its mask, or a noise with its numbers, in a buffer."""

    drawn: Tensor

    def __init__(self, module: Random) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("drawn", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.drawn if isinstance(self.module, Noise) else apply_mask(self.module, x, self.drawn)


class _Aligned(nn.Module):
    """A linear layer in half precision, with zeros beside its weights so that every row starts at 16 bytes."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias, self.dtype = linear.weight, linear.bias, dtype
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        right, below = -self.in_features % ALIGNED, -self.out_features % ALIGNED
        weight = F.pad(self.weight.to(self.dtype), (0, right, 0, below))  # in this order the gradients come out dense
        bias = None if self.bias is None else F.pad(self.bias.to(self.dtype), (0, below))
        return F.linear(F.pad(x.to(self.dtype), (0, right)), weight, bias)[..., : self.out_features]


def _prepared(losses: _Losses, calls: list[tuple[str, Random, tuple[int, ...]]]) -> _Losses:
    """A copy that takes its random numbers from buffers, and in half precision aligns its products."""
    base = copy.deepcopy(losses)
    for name, module, _ in calls:
        base.set_submodule(f"model.{name}".rstrip("."), _Drawn(module))
    if base.precision in HALF:
        for name, module in list(base.named_modules()):
            if type(module) is nn.Linear:
                base.set_submodule(name, _Aligned(module, HALF[base.precision]))
    return base


def _lay_out_like_gradients(parameters: Named, loss: Callable[[], Tensor]) -> None:
    """Store stacked parameters in the order in memory in which their gradients come, which saves a copy of these."""
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss(), list(trained.values()), allow_unused=True)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None and torch.empty_like(gradient).stride() == gradient.stride():  # dense
            laid_out = torch.empty_like(gradient, dtype=parameter.dtype).copy_(parameter.detach())
            parameters[name] = laid_out.requires_grad_()


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


def _within(state: Named) -> Named:
    """By the names that parameters and buffers have in ``_Losses``."""
    return {f"model.{name}": value for name, value in state.items()}


def _draw_shape(module: Random, x: Tensor) -> tuple[int, ...]:
    return (module.n, *x.shape) if isinstance(module, Noise) else mask_shape(module, x, shared=False)


def _drawn(module: Random, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if isinstance(module, Noise):
        return torch.randn(shape, generator=generator, device=generator.device)
    return keep_mask(shape, module.p, generator)


def _mean(sums: list[tuple[Tensor, Tensor]]) -> list[float]:
    loss, weight = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
    return (loss / weight).tolist()
