"""Stacked networks on CUDA in bf16: their layers, their loss, and the Adam that trains them, in few kernels.

Weights are float32. A layer computes with a copy in bf16, padded with zeros so that every row starts at 16 bytes, which
the fast matrix products need; the optimizer, which reads and writes every weight anyway, keeps the copy up to date.
Activations are padded alike: what one layer returns, (K, b, n), shows the first n of the columns that the next one
takes. What lies in the padding does not matter, since weights are 0 there.

All modules run under ``vmap`` only, which hands the tensors of all networks to one kernel.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from triton.language.extra import libdevice

from stationary.activations.modules import MaternTwin, twin_of

HALF = torch.bfloat16
ALIGNED = 8  # numbers of 16 bits in 16 bytes
BLOCK = 1024
TILE = 2048  # elements of a matrix in a program
ROWS, COLUMNS = 512, 16  # size of a tile in the backward pass of a layer: few columns, so that many programs run
MAX_CLASSES = 1024
BETA1, BETA2, EPS = tl.constexpr(0.9), tl.constexpr(0.999), tl.constexpr(1e-8)  # as torch.optim.Adam
LOG_BETA1, LOG_BETA2 = tl.constexpr(-0.10536051565782628), tl.constexpr(-0.0010005003335835344)


def fuse(model: nn.Module) -> list[str]:
    """Replace plain layers and activations by those of this file, and return the names of the linear layers."""
    for module in [module for module in model.modules() if type(module) is nn.Sequential]:
        for i, (layer, after) in enumerate(pairwise(module)):
            if _is_plain(layer) and type(after) is nn.ReLU:
                module[i], module[i + 1] = Linear(layer, relu=True), nn.Identity()
    for name, module in list(model.named_modules()):
        if _is_plain(module):
            model.set_submodule(name, Linear(module, relu=False))
        elif twin := twin_of(module):
            model.set_submodule(name, Activation(twin))
    return [name for name, module in model.named_modules() if isinstance(module, Linear)]


def half_copy(weight: Tensor) -> Tensor:
    """A copy in bf16 of stacked weights (K, out, in), with both widths padded to multiples of 8."""
    _, n_out, n_in = weight.shape
    return F.pad(weight.detach(), (0, -n_in % ALIGNED, 0, -n_out % ALIGNED)).to(HALF).requires_grad_()


def _is_plain(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.bias is not None


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

    def forward(self, x: Tensor) -> Tensor:
        y = _linear(x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.relu)
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
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        ctx.n_in, ctx.n_out = x.shape[-1], bias.shape[-1]
        x = _padded(x, weight.shape[-1])
        y = torch.bmm(x, weight.mT)
        k, b, width = y.shape
        grid, tile = _tiles(b, width)
        _add_bias[(*grid, k)](y, bias, b, ctx.n_out, width // 8, relu, *tile)
        ctx.save_for_backward(x, weight, *([y] if relu else []))
        return y[..., : ctx.n_out]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, *y = ctx.saved_tensors
        grad = _padded(grad, weight.shape[1])
        k, b, width = grad.shape
        grad_bias = torch.empty(k, ctx.n_out, device=grad.device)
        masked = torch.empty_like(grad) if y else grad
        grid = (triton.cdiv(width, COLUMNS), k)
        rows = min(ROWS, triton.next_power_of_2(b))
        _reduce[grid](
            grad, y[0] if y else grad, masked, grad_bias, b, ctx.n_out, width // 8, bool(y), rows, COLUMNS, num_warps=8
        )
        grad_x = torch.bmm(masked, weight)[..., : ctx.n_in] if ctx.needs_input_grad[0] else None
        return grad_x, torch.bmm(masked.mT, x), grad_bias, None


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, twin: MaternTwin) -> Tensor:
        ctx.n, ctx.twin = x.shape[-1], twin
        x = _padded(x)
        ctx.save_for_backward(x)
        return twin.on_device(x)[..., : ctx.n]

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


def cross_entropy(outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted losses (K, b) of outputs (K, b, c) and classes (K, b), and the slope (K, b, c) of their sum."""
    (k, b, c), outputs = outputs.shape, _padded(outputs)
    width = outputs.shape[-1]
    losses, slopes = torch.empty(k, b, device=y.device), torch.empty_like(outputs)
    if c <= MAX_CLASSES:
        grid, tile = _tiles(k * b, width)
        _softmax[grid](outputs, y, weight, losses, slopes, k * b, c, width // 8, *tile)
        return losses, slopes[..., :c]
    logits = outputs[..., :c].float()
    log_probs = logits.log_softmax(-1)
    losses = -log_probs.gather(-1, y[..., None])[..., 0] * weight
    slopes[..., :c] = (log_probs.exp() - F.one_hot(y, c)) * weight[..., None]
    return losses, slopes[..., :c]


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
    padded = torch.zeros(k, b, width, dtype=HALF, device=x.device)
    padded[..., :n] = x
    return padded


# Kernels. A width comes as its eighth, so that the compiler sees that every row starts at 16 bytes.


@triton.jit
def _tile(total, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows and columns of a program's tile, where its elements are, and which of them there are."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return row, column, row * width + column, (row < total) & (column < width)


@triton.jit
def _add_bias(y_ptr, bias_ptr, rows, n_out, eighth, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    member = tl.program_id(2).to(tl.int64)
    _, column, at, inside = _tile(rows, eighth * 8, ROWS, COLUMNS)
    at += member * rows * eighth * 8
    bias = tl.load(bias_ptr + member * n_out + column, mask=column < n_out, other=0.0)
    y = tl.load(y_ptr + at, mask=inside).to(tl.float32) + bias
    if RELU:
        y = tl.where(y <= 0, 0.0, y)  # a NaN stays a NaN
    tl.store(y_ptr + at, y, mask=inside)


@triton.jit
def _reduce(
    grad_ptr, y_ptr, masked_ptr, grad_bias_ptr, rows, n_out, eighth,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient behind the ReLU, and its sum over rows."""
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
    tl.store(grad_bias_ptr + member * n_out + column, total, mask=column < n_out)


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


class Adam(Optimizer):
    """Adam for float32 parameters, some of which have a bf16 copy that is the one in use.

    Args:
        groups: groups of parameters, each with its "lr" and "weight_decay".
        copies: the ``half_copy`` of some parameters, by parameter; the copy has the gradient.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], copies: dict[Tensor, Tensor]) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})
        self.copies = copies
        device = groups[0]["params"][0].device
        self.state["all"]["count"] = torch.zeros((), device=device)
        self.rates = torch.zeros(len(self.param_groups), device=device)
        self.load_rates()

    def load_rates(self) -> None:
        """Take over the learning rates of the groups, which the kernels read from the GPU's memory."""
        self.rates.copy_(torch.tensor([float(group["lr"]) for group in self.param_groups]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for copy in self.copies.values():
            copy.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["all"]["count"] += 1
        for rate, group in zip(self.rates, self.param_groups, strict=True):
            for parameter in group["params"]:
                copy = self.copies.get(parameter)
                gradient = parameter.grad if copy is None else copy.grad
                if gradient is not None:
                    self._update(parameter, gradient, copy, rate, group["weight_decay"])

    def _update(self, p: Tensor, gradient: Tensor, copy: Tensor | None, rate: Tensor, decay: float) -> None:
        state = self.state[p]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        if copy is None:
            gradient = gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)
            members, size, padded, columns = 1, p.numel(), p.numel(), (1, 1)
        else:
            gradient = gradient.contiguous()
            members, size, padded = len(p), p[0].numel(), copy[0].numel()
            columns = p.shape[2], copy.shape[2]
        _adam[(triton.cdiv(size, BLOCK), members)](
            p, gradient, state["mean"], state["square"], p if copy is None else copy.detach(),
            self.state["all"]["count"], rate, size, padded, *columns, decay,
            COPIED=copy is not None, WIDER=columns[0] < columns[1], BLOCK=BLOCK,
        )  # fmt: skip


@triton.jit
def _adam(
    p_ptr, grad_ptr, mean_ptr, square_ptr, copy_ptr, count_ptr, rate_ptr,
    size, padded_size, columns, padded_columns, decay,
    COPIED: tl.constexpr, WIDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update elements of one member; its copy and its gradient may have more rows, and longer ones (WIDER)."""
    member = tl.program_id(1).to(tl.int64)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, at, to = offset < size, member * size + offset, offset
    if WIDER:
        to = offset // columns * padded_columns + offset % columns
    to = member * padded_size + to
    count, rate = tl.load(count_ptr), tl.load(rate_ptr)
    p, mean, square = tl.load(p_ptr + at, inside), tl.load(mean_ptr + at, inside), tl.load(square_ptr + at, inside)
    grad = tl.load(grad_ptr + to, inside).to(tl.float32) + decay * p
    mean = BETA1 * mean + (1 - BETA1) * grad
    square = BETA2 * square + (1 - BETA2) * grad * grad
    step = mean / -libdevice.expm1(count * LOG_BETA1)
    root = tl.sqrt(square / -libdevice.expm1(count * LOG_BETA2))
    p -= rate * step / (root + EPS)
    tl.store(p_ptr + at, p, inside)
    tl.store(mean_ptr + at, mean, inside)
    tl.store(square_ptr + at, square, inside)
    if COPIED:
        tl.store(copy_ptr + to, p, inside)
