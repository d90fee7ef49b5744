"""A training step of stacked networks as one CUDA graph: launched as a whole, it costs what its arithmetic costs."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from stationary.nn.masks import Noise, Random, apply_mask, drawn
from stationary.training._members import Losses, Named, Trainees, within
from stationary.training.data import Rows

WARM_UP = 3  # steps before the capture, in the first of which libraries allocate memory and choose kernels
DRAWN_BYTES = 2**26  # of random numbers drawn ahead for each member: many steps of small masks, or one of large ones
ALIGNED = 8  # numbers of 16 bits in 16 bytes; for rows of other lengths, matrix products use slow kernels


class Replayed:
    """Epochs of stacked members as replays of one step, captured as a CUDA graph.

    What differs between steps lies in tensors that stay in place: the rows of the epoch, the random numbers of the next
    steps, and the number of the step. Every batch is full: the last is filled up with rows of weight 0.

    Args:
        members: the networks to train, stacked.
        data: the rows to train on, on the GPU.
        size: number of rows in a batch.
        fused: whether linear layers use the kernels of ``_stacked_triton``, and its Adam trains them.
        capture: whether to capture the step as a graph; otherwise its operations are launched one by one.
    """

    def __init__(self, members: Trainees, data: Rows, size: int, *, fused: bool = False, capture: bool = True) -> None:
        k, device = len(members.models), data.x.device
        self.members, self.data, self.capture = members, data, capture
        steps = -(-data.rows.shape[1] // size)
        self.rows = torch.full((steps, k, size), -1, device=device)
        self.y = data.y[self.rows]
        dtype = torch.promote_types(data.weight.dtype, data.x.dtype)
        self.weight = torch.zeros(steps, k, size, dtype=dtype, device=device)
        self.number = torch.zeros(1, dtype=torch.long, device=device)
        self.means = torch.zeros(steps, k, dtype=dtype, device=device)
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
        self.calls, self.base = calls, _prepared(members.losses, calls, fused)
        self.copies: Named = {}
        if fused:
            from stationary.training._stacked_triton import fuse, half_copy

            names = [f"{name.removeprefix('model.')}.weight" for name in fuse(self.base)]
            self.copies = {name: half_copy(members.parameters[name]) for name in names}
        elif self.base.precision == "bfloat16":
            _align(self.base)
        _lay_out_like_gradients(members.parameters, self.copies, lambda: self._losses().sum())
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rates: list[float] = []
        self.stream = torch.cuda.Stream() if capture else None
        self.done = 0

    def __len__(self) -> int:
        return len(self.rows)

    def train(self, epoch: int, optimizer: Optimizer, after_step: object = None) -> list[float]:
        """Train for one epoch, and return the mean loss of each member; ``after_step`` cannot be called in a graph."""
        steps, k, size = self.rows.shape
        rows = self.members.shuffled(self.data)
        rows = F.pad(rows, (0, steps * size - rows.shape[1]), value=-1)
        self.rows.copy_(rows.view(k, steps, size).transpose(0, 1))
        self.y.copy_(self.data.y[self.rows])
        weight = self.data.weights(self.rows).to(self.weight)
        totals = weight.sum(2)
        self.weight.copy_(weight / totals[..., None])
        self.number.zero_()
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if rates != self.rates:  # the graph holds them as constants
            self.graph, self.rates = None, rates
        for step in range(steps):
            if step % self.ahead == 0:
                self._draw()
            self._run(optimizer)
        return ((self.means * totals).sum(0) / totals.sum(0)).tolist()

    def _draw(self) -> None:
        for buffer, (_, module, shape) in zip(self.drawn, self.calls, strict=True):
            for k, generator in enumerate(self.members.masks):
                buffer[:, k] = drawn(module, (self.ahead, *shape), generator)

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
        losses = self._losses()
        losses.sum().backward()
        optimizer.step()
        self.means.index_copy_(0, self.number, losses.detach().sum(1)[None].to(self.means))
        self.number += 1

    def _losses(self) -> Tensor:
        """(K, b) losses of the present step, weighted so that their sums are the mean losses of the members."""
        rows, y, weight = (part.index_select(0, self.number)[0] for part in (self.rows, self.y, self.weight))
        draws = [buffer.index_select(0, self.number % self.ahead)[0] for buffer in self.drawn]
        named = {f"{name}.drawn": draw for (name, _, _), draw in zip(self.calls, draws, strict=True)}
        parameters, buffers = self.members.parameters | self.copies, self.members.buffers | named
        x = self.data.x[rows]
        if self.base.loss == "own":
            return vmap(self._own_losses)(parameters, buffers, x, y) * weight
        outputs = vmap(self._outputs)(parameters, buffers, x)
        if self.copies and self.base.loss == "cross_entropy" and not self.base.smoothing:
            from stationary.training._stacked_triton import cross_entropy

            return cross_entropy(outputs, y) * weight
        outputs, y = tree_map(lambda part: part.flatten(0, 1), (outputs, y))
        return self.base.of_outputs(outputs, y).view_as(weight) * weight

    def _own_losses(self, parameters: Named, buffers: Named, x: Tensor, y: Tensor) -> Tensor:
        return functional_call(self.base, (within(parameters), within(buffers)), (x, y))

    def _outputs(self, parameters: Named, buffers: Named, x: Tensor) -> Any:
        with self.base.autocast(x.device):
            return functional_call(self.base.model, (parameters, buffers), (x,))


def can_be_replayed(members: Trainees, x: Tensor) -> bool:
    """Whether the step of these stacked members can be captured; x is a batch of one member."""
    if not members.run_as_one(x):
        return False
    names = [name for name, _, _ in members.calls(x)]
    return len(set(names)) == len(names)  # each module draws once in a pass


class _Drawn(nn.Module):
    """A dropout or noise module that takes its mask or its numbers from a buffer."""

    drawn: Tensor

    def __init__(self, module: Random) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("drawn", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.drawn if isinstance(self.module, Noise) else apply_mask(self.module, x, self.drawn)


class _Aligned(nn.Module):
    """A linear layer in bf16, its weights padded with zeros so that every row starts at a multiple of 16 bytes."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight, self.bias, self.dtype = linear.weight, linear.bias, dtype
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        right, below = -self.in_features % ALIGNED, -self.out_features % ALIGNED
        weight = F.pad(self.weight.to(self.dtype), (0, right, 0, below))  # cast first: gradients are dense then
        bias = None if self.bias is None else F.pad(self.bias.to(self.dtype), (0, below))
        return F.linear(F.pad(x.to(self.dtype), (0, right)), weight, bias)[..., : self.out_features]


def _prepared(losses: Losses, calls: list[tuple[str, Random, tuple[int, ...]]], fused: bool) -> Losses:
    """A copy of the losses whose modules take their random numbers from buffers."""
    base = copy.deepcopy(losses)
    for name, module, shape in calls:
        drawn: nn.Module = _Drawn(module)
        if fused and type(module) is nn.Dropout and len(shape) == 2:
            from stationary.training._stacked_triton import Dropout

            drawn = Dropout(module.p)
        base.set_submodule(f"model.{name}".rstrip("."), drawn)
    return base


def _align(base: Losses) -> None:
    for name, module in list(base.named_modules()):
        if type(module) is nn.Linear:
            base.set_submodule(name, _Aligned(module))


def _lay_out_like_gradients(parameters: Named, copies: Named, loss: Callable[[], Tensor]) -> None:
    """Store stacked parameters in the memory order of their gradients, which saves a copy of the gradients."""
    trained = {n: parameter for n, parameter in parameters.items() if parameter.requires_grad and n not in copies}
    gradients = torch.autograd.grad(loss(), list(trained.values()), allow_unused=True)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None and torch.empty_like(gradient).stride() == gradient.stride():  # dense
            laid_out = torch.empty_like(gradient, dtype=parameter.dtype).copy_(parameter.detach())
            parameters[name] = laid_out.requires_grad_()
