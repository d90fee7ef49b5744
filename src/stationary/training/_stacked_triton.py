"""Stacked networks on CUDA in bf16: their layers and their loss, in few kernels. ``_stacked_adam`` trains them.

Weights are float32. A layer computes with a copy in bf16, padded with zeros so that every row starts at 16 bytes, which
the fast matrix products need; the optimizer, which reads and writes every weight anyway, keeps the copy up to date.
Activations are padded alike: what one layer returns, (K, b, n), shows the first n of the columns that the next one
takes. The padding is 0 everywhere, so that gradients are 0 there too.

The gradients of weights and biases do not pass through autograd: the backward pass of a layer writes them where the
optimizer reads them, those of weights on a stream of their own.

All modules run under ``vmap`` only, which hands the tensors of all networks to one kernel.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional as F

from stationary.activations.modules import MaternTwin, twin_of
from stationary.training._piece import ALIGNED, HALF

TILE = 2048  # elements of a matrix in a program
ROWS = 256  # of a tile in the backward pass of a layer
MAX_CLASSES = 1024


@dataclass
class Layer:
    """What a linear layer of all stacked networks has in place of a gradient by autograd.

    Args:
        grad_weight: where the gradient of the padded copy of the weights goes, (K, out8, in8).
        grad_bias: where that of the padded bias goes, (K, out8).
        stream: a stream for what only the optimizer waits for.
    """

    grad_weight: Tensor
    grad_bias: Tensor
    stream: torch.cuda.Stream
    kept: list[Tensor] = field(default_factory=list)  # what the stream still reads

    @contextmanager
    def beside(self, *read: Tensor) -> Iterator[None]:
        """Launch on the stream, after all that has been launched elsewhere, what reads these tensors."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        self.kept += read

    def finish(self) -> None:
        """Have what comes next wait for the gradient."""
        if self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.kept.clear()


def fuse(model: nn.Module) -> dict[str, "Linear"]:
    """Replace plain layers and activations by those of this file, and return the linear layers by name.

    What is frozen stays plain, and so does what has two names, such as a weight that two layers share.
    """
    names = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    plain = {
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.bias is not None
        if all(names[own] == 1 and own.requires_grad for own in (module.weight, module.bias))
    }
    for module in [module for module in model.modules() if type(module) is nn.Sequential]:
        for i, (layer, after) in enumerate(pairwise(module)):
            if layer in plain and type(after) is nn.ReLU:
                module[i], module[i + 1] = Linear(layer, relu=True), nn.Identity()
    for name, module in list(model.named_modules()):
        if module in plain:
            model.set_submodule(name, Linear(module, relu=False))
        elif twin := twin_of(module):
            model.set_submodule(name, Activation(twin))
    return {name: module for name, module in model.named_modules() if isinstance(module, Linear)}


# Modules


class Linear(nn.Module):
    """A linear layer with a bias.

    Args:
        linear: the plain layer, whose parameters it takes.
        relu: whether it includes the ReLU that follows.
    """

    def __init__(self, linear: nn.Linear, relu: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.relu = linear.weight, linear.bias, relu
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.layer: Layer | None = None  # comes with the copy of its weights

    def forward(self, x: Tensor) -> Tensor:
        y = _linear(x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.relu, self.layer)
        return y.reshape(*x.shape[:-1], self.out_features)


class Activation(nn.Module):
    """A Matérn or RBF activation with fixed parameters.

    Args:
        twin: the hand-written version of the activation.
    """

    def __init__(self, twin: MaternTwin) -> None:
        super().__init__()
        self.twin = twin

    def forward(self, x: Tensor) -> Tensor:
        return _activation(x, self.twin)


class Dropout(nn.Module):
    """Dropout with its mask in the buffer ``drawn``.

    Args:
        p: probability of dropping a unit, which is a 0 in the mask.
    """

    drawn: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("drawn", torch.ones((), dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        return _dropout(x, self.drawn, 1 / (1 - self.p))


def _vmapped(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """A function of the tensors of one network, for use inside ``vmap``, made of one of stacked tensors."""

    class Vmapped(torch.autograd.Function):
        @staticmethod
        def forward(*_: Any) -> Tensor:
            raise NotImplementedError("this function runs under vmap only")

        setup_context = forward

        @staticmethod
        def vmap(_: Any, dims: Sequence[int | None], *args: Any) -> tuple[Tensor, int]:
            return function.apply(*(a if d is None else a.movedim(d, 0) for a, d in zip(args, dims, strict=True))), 0

    return Vmapped.apply


# Functions of stacked tensors


class _Linear(torch.autograd.Function):
    """From x (K, b, in), weight (K, out8, in8) and bias (K, out) to (K, b, out); 8 means padded to a multiple of 8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool, layer: Layer) -> Tensor:
        ctx.layer, ctx.n_in, ctx.n_out = layer, x.shape[-1], bias.shape[-1]
        x = _padded(x, weight.shape[-1])
        y = torch.bmm(x, weight.mT)
        k, b, width = y.shape
        grid, tile = _tiles(b, width)
        _add_bias[(*grid, k)](y, bias, bias.stride(0), b, ctx.n_out, width // 8, relu, *tile)
        ctx.save_for_backward(x, weight, *([y] if relu else []))
        return y[..., : ctx.n_out]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight, *y = ctx.saved_tensors
        grad = _padded(grad, weight.shape[1])
        k, b, width = grad.shape
        layer, masked = ctx.layer, torch.empty_like(grad) if y else grad
        again = bool(layer.kept)  # it is called more than once
        columns = 64 if width >= 256 else 16  # of a tile: few where there are few, so that many programs run
        rows = min(ROWS, triton.next_power_of_2(b))
        sums = partial(
            _reduce[triton.cdiv(width, columns), k],
            grad, y[0] if y else grad, masked, layer.grad_bias, b, width // 8, bool(y), again, rows, columns,
        )  # fmt: skip
        if y:
            sums()
        torch.cuda.current_stream().record_event()  # gives this thread the context whose lack cuBLAS warns of
        grad_x = torch.bmm(masked, weight)[..., : ctx.n_in] if ctx.needs_input_grad[0] else None
        with layer.beside(masked, x):
            if not y:
                sums()
            if again:
                layer.grad_weight.baddbmm_(masked.mT, x)
            else:
                torch.bmm(masked.mT, x, out=layer.grad_weight)
        return grad_x, None, None, None, None


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, twin: MaternTwin) -> Tensor:
        ctx.n, ctx.twin = x.shape[-1], twin
        x = _padded(x)
        ctx.save_for_backward(x)
        y = twin.on_device(x)
        if twin.offset > 0 or math.isinf(twin.nu):  # elsewhere what belongs to 0 is 0
            y[..., ctx.n :] = 0.0
        return y[..., : ctx.n]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.twin.on_device(x, _padded(grad))[..., : ctx.n], None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(keep)
        return _times_mask(x, keep, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _times_mask(grad, *ctx.saved_tensors, ctx.scale), None, None


_linear, _activation, _dropout = map(_vmapped, (_Linear, _Activation, _Dropout))


def cross_entropy(outputs: Tensor, y: Tensor, weight: Tensor, losses: Tensor) -> Tensor:
    """The slope (K, b, c) of the sum of weighted losses, which are written into ``losses`` (K, b).

    Args:
        outputs: the logits, (K, b, c).
        y, weight: the classes and the weights, (K, b).
        losses: where the losses times their weights go.
    """
    (k, b, c), outputs = outputs.shape, _padded(outputs)
    width = outputs.shape[-1]
    slopes = torch.empty_like(outputs)
    if c <= MAX_CLASSES:
        grid, tile = _tiles(k * b, width)
        _softmax[grid](outputs, y, weight, losses, slopes, k * b, c, width // 8, *tile)
        return slopes[..., :c]
    logits = outputs[..., :c].float()
    log_probs = logits.log_softmax(-1)
    slopes.zero_()
    losses.copy_(-log_probs.gather(-1, y[..., None])[..., 0] * weight)
    slopes[..., :c] = (log_probs.exp() - F.one_hot(y, c)) * weight[..., None]
    return slopes[..., :c]


def _tiles(rows: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The grid and the tile (rows, columns) of a kernel over a matrix; a tile has whole rows, or 1024 columns."""
    columns = min(1024, triton.next_power_of_2(width))
    tile = TILE // columns, columns
    return (triton.cdiv(rows, tile[0]), triton.cdiv(width, columns)), tile


def _times_mask(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    n, x = x.shape[-1], _padded(x)
    k, b, width = x.shape
    y = torch.empty_like(x)
    keep = keep.expand(k, b, n).contiguous()
    grid, tile = _tiles(k * b, width)
    _mask[grid](x, keep, y, k * b, n, width // 8, scale, *tile)
    return y[..., :n]


def _padded(x: Tensor, width: int | None = None) -> Tensor:
    """x padded to (K, b, width), in bf16 and contiguous.

    What a function of this file returned is a view of such a tensor already, and is not copied.
    """
    k, b, n = x.shape
    width = width or n + -n % ALIGNED
    same_rows = x.dtype == HALF and x.stride() == (b * width, width, 1)
    if same_rows and x.untyped_storage().nbytes() == k * b * width * x.element_size():
        return x.as_strided((k, b, width), x.stride())
    padded = torch.empty(k, b, width, dtype=HALF, device=x.device)
    grid, tile = _tiles(k * b, width)
    _pad[grid](x.contiguous(), padded, k * b, n, width // 8, *tile)
    return padded


# Kernels. A width comes as its eighth, so that the compiler sees that every row starts at 16 bytes.


@triton.jit
def _tile(total, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows and columns of a program's tile, where its elements are, and which of them there are."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return row, column, row * width + column, (row < total) & (column < width)


@triton.jit
def _add_bias(
    y_ptr, bias_ptr, stride, rows, n_out, eighth, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    member = tl.program_id(2).to(tl.int64)
    _, column, at, inside = _tile(rows, eighth * 8, ROWS, COLUMNS)
    at += member * rows * eighth * 8
    bias = tl.load(bias_ptr + member * stride + column, mask=column < n_out, other=0.0)
    y = tl.load(y_ptr + at, mask=inside).to(tl.float32) + bias
    if RELU:
        y = tl.where(y <= 0, 0.0, y)  # a NaN stays a NaN
    tl.store(y_ptr + at, y, mask=inside)


@triton.jit
def _reduce(
    grad_ptr, y_ptr, masked_ptr, grad_bias_ptr, rows, eighth,
    RELU: tl.constexpr, AGAIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient behind the ReLU, and its sum over rows, which is added to what is there where it comes AGAIN."""
    width = eighth * 8
    member = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        at = (member * rows + row)[:, None] * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
        if RELU:
            y = tl.load(y_ptr + at, mask=inside, other=0.0)
            grad = tl.where(y > 0, grad, 0.0).to(grad.dtype)
            tl.store(masked_ptr + at, grad, mask=inside)
        total += tl.sum(grad.to(tl.float32), 0)
    grad_bias_ptr += member * width + column
    if AGAIN:
        total += tl.load(grad_bias_ptr, mask=column < width)
    tl.store(grad_bias_ptr, total, mask=column < width)


@triton.jit
def _pad(x_ptr, y_ptr, total, n, eighth, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, at, inside = _tile(total, eighth * 8, ROWS, COLUMNS)
    tl.store(y_ptr + at, tl.load(x_ptr + row * n + column, mask=inside & (column < n), other=0.0), mask=inside)


@triton.jit
def _mask(x_ptr, keep_ptr, y_ptr, total, n, eighth, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, at, inside = _tile(total, eighth * 8, ROWS, COLUMNS)
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    keep = tl.load(keep_ptr + row * n + column, mask=inside & (column < n), other=0)
    tl.store(y_ptr + at, tl.where(keep != 0, x * scale, 0.0), mask=inside)


@triton.jit
def _softmax(
    x_ptr, y_ptr, weight_ptr, loss_ptr, slope_ptr, total, c, eighth, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """-log softmax at the class y, and its gradient, softmax - [k = y], both times the weight."""
    row, column, at, inside = _tile(total, eighth * 8, ROWS, COLUMNS)
    there = row < total
    x = tl.load(x_ptr + at, mask=inside & (column < c), other=-float("inf")).to(tl.float32)
    right = column == tl.load(y_ptr + row, mask=there, other=0)
    weight = tl.load(weight_ptr + row, mask=there, other=0.0)
    shifted = x - tl.max(tl.where(there, x, 0.0), 1)[:, None]
    power = tl.exp(shifted)
    sums = tl.sum(power, 1)[:, None]
    loss = tl.log(sums) - tl.sum(tl.where(right, shifted, 0.0), 1)[:, None]
    tl.store(loss_ptr + row, loss * weight, mask=there)
    slope = (power / sums - tl.where(right, 1.0, 0.0)) * weight
    tl.store(slope_ptr + at, slope, mask=inside)
