"""Training steps of stacked networks as one CUDA graph: launched as a whole, they cost what their arithmetic costs."""

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from stationary.nn.masks import Noise, Random, apply_mask, drawn
from stationary.training._members import Losses, Named, Trainees, within
from stationary.training._piece import ALIGNED
from stationary.training.data import Rows

if TYPE_CHECKING:
    from stationary.training._stacked_adam import Fused

STEPS = 8  # in a graph: what is done between graphs then hardly counts, and a capture is still quick
STAGED_BYTES = 2**28  # of inputs that a graph reads, which may make it shorter
DRAWN_BYTES = 2**26  # of random numbers drawn ahead for each member: many steps of small masks, or one of large ones


class Replayed:
    """Epochs of stacked members as replays of a few steps, captured as a CUDA graph.

    What differs between replays is copied into tensors that stay in place: the inputs, the targets, the weights and the
    random numbers of the next steps. Every batch is full: the last is filled up with rows of weight 0.

    Args:
        members: the networks to train, stacked.
        data: the rows to train on, on the GPU.
        size: number of rows in a batch.
        fused: whether linear layers use the kernels of ``_stacked_triton``, and ``_stacked_adam`` trains them.
        capture: whether to capture the steps as a graph; otherwise their operations are launched one by one.
    """

    def __init__(self, members: Trainees, data: Rows, size: int, *, fused: bool = False, capture: bool = True) -> None:
        k, device = len(members.models), data.x.device
        self.members, self.data, self.size = members, data, size
        self.steps = -(-data.rows.shape[1] // size)
        dtype = torch.promote_types(data.weight.dtype, data.x.dtype)
        members.set_mode(training=True)
        self.calls = members.calls(data.x[:1].expand(size, *data.x.shape[1:]))
        bytes_a_step = sum(math.prod(shape) * (4 if isinstance(m, Noise) else 1) for _, m, shape in self.calls)
        staged = k * size * data.x[0].numel() * data.x.element_size()
        self.ahead = min(self.steps, max(1, DRAWN_BYTES // max(1, bytes_a_step)))
        self.at_once = min(STEPS, self.ahead, max(1, STAGED_BYTES // staged))
        if self.ahead < self.steps:
            self.ahead -= self.ahead % self.at_once
        self.drawn = [_buffer(m, (self.ahead, k, *shape), device) for _, m, shape in self.calls]
        n = self.at_once
        self.x, self.y = (
            data.x.new_zeros(n, k, size, *data.x.shape[1:]),
            data.y.new_zeros(n, k, size, *data.y.shape[1:]),
        )
        self.weight = torch.zeros(n, k, size, dtype=dtype, device=device)
        self.draws = [_buffer(m, (n, k, *shape), device) for _, m, shape in self.calls]
        self.losses = torch.zeros(n, k, size, dtype=dtype, device=device)
        self.base = _prepared(members.losses, self.calls, fused)
        self.fused: Fused | None = None
        if fused:
            from stationary.training._stacked_adam import laid_out
            from stationary.training._stacked_triton import fuse

            if linears := {name.removeprefix("model."): linear for name, linear in fuse(self.base).items()}:
                self.fused = laid_out(members.parameters, linears)
        elif self.base.precision == "bfloat16":
            _align(self.base)
        self.copies: Named = {} if self.fused is None else self.fused.copies
        _lay_out_like_gradients(members.parameters, self.copies, lambda: self._loss_and_slope(0))
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of steps
        self.rates: list[float] = []
        self.stream = torch.cuda.Stream() if capture else None
        self.warm = False

    def __len__(self) -> int:
        return self.steps

    def train(self, epoch: int, optimizer: Optimizer, after_step: object = None) -> list[float]:
        """Train for one epoch, and return the mean loss of each member; ``after_step`` cannot be called in a graph."""
        rows = self.members.shuffled(self.data)
        rows = F.pad(rows, (0, self.steps * self.size - rows.shape[1]), value=-1)
        rows = rows.view(len(rows), self.steps, self.size).transpose(0, 1)
        weight = self.data.weights(rows).to(self.weight)
        totals = weight.sum(2)
        weight = weight / totals[..., None]
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if self.fused:
            optimizer.load_rates()  # type: ignore[attr-defined]
        elif rates != self.rates:  # the graphs hold them as constants
            self.graphs, self.rates = {}, rates
        means = torch.zeros_like(totals)
        for start in range(0, self.steps, self.at_once):
            if start % self.ahead == 0:
                self._draw()
            now = slice(start, min(start + self.at_once, self.steps))
            n = now.stop - start
            self.x[:n], self.y[:n], self.weight[:n] = self.data.x[rows[now]], self.data.y[rows[now]], weight[now]
            for buffer, drawn_ahead in zip(self.draws, self.drawn, strict=True):
                buffer[:n] = drawn_ahead[start % self.ahead :][:n]
            self._run(n, optimizer)
            means[now] = self.losses[:n].sum(2)
        if self.fused:
            optimizer.settle()  # type: ignore[attr-defined]
        return ((means * totals).sum(0) / totals.sum(0)).tolist()

    def _draw(self) -> None:
        for buffer, (_, module, shape) in zip(self.drawn, self.calls, strict=True):
            for k, generator in enumerate(self.members.masks):
                buffer[:, k] = drawn(module, (self.ahead, *shape), generator)

    def _run(self, n: int, optimizer: Optimizer) -> None:
        """Run n steps: the first ones as they are, while libraries allocate memory and choose kernels."""
        if self.stream is None:
            self._several(n, optimizer)
        elif not self.warm:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._several(n, optimizer)
            torch.cuda.current_stream().wait_stream(self.stream)
            self.warm = True
        else:
            if n not in self.graphs:
                self.graphs[n] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[n], stream=self.stream):
                    self._several(n, optimizer)
            self.graphs[n].replay()

    def _several(self, n: int, optimizer: Optimizer) -> None:
        for i in range(n):
            optimizer.zero_grad()
            outputs, slope = self._loss_and_slope(i)
            outputs.backward(slope)
            optimizer.step()

    def _loss_and_slope(self, i: int) -> tuple[Tensor, Tensor | None]:
        """Note the (K, b) losses of step i, weighted so that their sums are the mean losses of the members.

        Returns:
            A tensor that depends on the parameters, and the slope of the sum of all losses in it, which is None where
            the tensor is that sum.
        """
        y, weight = self.y[i], self.weight[i]
        named = {f"{name}.drawn": draw[i] for (name, _, _), draw in zip(self.calls, self.draws, strict=True)}
        parameters, buffers = self.members.parameters | self.copies, self.members.buffers | named
        if self.base.loss == "own":
            losses = vmap(self._own_losses)(parameters, buffers, self.x[i], y) * weight
        else:
            outputs = vmap(self._outputs)(parameters, buffers, self.x[i])
            if self.copies and self.base.loss == "cross_entropy" and not self.base.smoothing:
                from stationary.training._stacked_triton import cross_entropy

                return outputs, cross_entropy(outputs.detach(), y, weight, self.losses[i])
            flat, y = tree_map(lambda part: part.flatten(0, 1), (outputs, y))
            losses = self.base.of_outputs(flat, y).view_as(weight) * weight
        self.losses[i] = losses.detach()
        return losses.sum(), None

    def _own_losses(self, parameters: Named, buffers: Named, x: Tensor, y: Tensor) -> Tensor:
        return functional_call(self.base, (within(parameters), within(buffers)), (x, y))

    def _outputs(self, parameters: Named, buffers: Named, x: Tensor) -> Any:
        with self.base.autocast(x.device):
            return functional_call(self.base.model, (parameters, buffers), (x,))


def _buffer(module: Random, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Ones that can hold what the module draws: numbers, or a mask."""
    return torch.ones(shape, dtype=torch.float32 if isinstance(module, Noise) else torch.bool, device=device)


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


def _lay_out_like_gradients(
    parameters: Named, copies: Named, sloped: Callable[[], tuple[Tensor, Tensor | None]]
) -> None:
    """Store stacked parameters, but those with copies, in the order of their gradients, which saves a copy of these."""
    trained = {n: parameter for n, parameter in parameters.items() if parameter.requires_grad and n not in copies}
    if not trained:
        return
    outputs, slope = sloped()
    gradients = torch.autograd.grad(outputs, list(trained.values()), slope, allow_unused=True)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None and torch.empty_like(gradient).stride() == gradient.stride():  # dense
            laid_out = torch.empty_like(gradient, dtype=parameter.dtype).copy_(parameter.detach())
            parameters[name] = laid_out.requires_grad_()
