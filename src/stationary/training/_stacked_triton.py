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
ROWS, COLUMNS = 128, 32  # size of a tile in the backward pass of a layer
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
        block = min(BLOCK, triton.next_power_of_2(width))
        _add_bias[(k * b, triton.cdiv(width, block))](y, bias, b, ctx.n_out, width // 8, RELU=relu, BLOCK=block)
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
        _reduce[grid](grad, y[0] if y else grad, masked, grad_bias, b, ctx.n_out, width // 8, bool(y), ROWS, COLUMNS)
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


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, y: Tensor) -> Tensor:
        (k, b, c), outputs = outputs.shape, _padded(outputs)
        width = outputs.shape[-1]
        losses, slopes = torch.empty(k, b, device=y.device), torch.empty(k, b, width, device=y.device)
        _softmax[(k * b,)](outputs, y, losses, slopes, c, width, BLOCK=triton.next_power_of_2(width))
        ctx.save_for_backward(slopes)
        ctx.c = c
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return torch.mul(slopes, grad[..., None], out=torch.empty_like(slopes, dtype=HALF))[..., : ctx.c], None


_linear, _activation, _dropout = map(_vmapped, (_Linear, _Activation, _Dropout))


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The losses (K, b) of outputs (K, b, c) and classes (K, b); to be called outside of ``vmap``."""
    if outputs.shape[-1] > MAX_CLASSES:
        return F.cross_entropy(outputs.float().movedim(-1, 1), y, reduction="none")
    return _CrossEntropy.apply(outputs, y)


def _times_mask(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    n, x = x.shape[-1], _padded(x)
    k, b, width = x.shape
    y = torch.empty_like(x)
    keep = keep.expand(k, b, n).contiguous()
    _mask[(k * b,)](x, keep, y, n, width, scale, BLOCK=triton.next_power_of_2(width))
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
def _add_bias(y_ptr, bias_ptr, rows, n_out, eighth, RELU: tl.constexpr, BLOCK: tl.constexpr):
    width = eighth * 8
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = y_ptr + row * width + column
    bias = tl.load(bias_ptr + row // rows * n_out + column, mask=column < n_out, other=0.0)
    y = tl.load(at, mask=column < width).to(tl.float32) + bias
    if RELU:
        y = tl.where(y <= 0, 0.0, y)  # a NaN stays a NaN
    tl.store(at, y, mask=column < width)


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
def _mask(x_ptr, keep_ptr, y_ptr, n, width, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + column, mask=column < width).to(tl.float32)
    keep = tl.load(keep_ptr + row * n + column, mask=column < n, other=0)
    tl.store(y_ptr + row * width + column, tl.where(keep != 0, x * scale, 0.0), mask=column < width)


@triton.jit
def _softmax(x_ptr, y_ptr, loss_ptr, slope_ptr, c, width, BLOCK: tl.constexpr):
    """-log softmax at the class y, and its gradient, softmax - [k = y]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + column, mask=column < c, other=-float("inf")).to(tl.float32)
    right = column == tl.load(y_ptr + row)
    shifted = x - tl.max(x, 0)
    power = tl.exp(shifted)
    total = tl.sum(power, 0)
    tl.store(loss_ptr + row, tl.log(total) - tl.sum(tl.where(right, shifted, 0.0), 0))
    tl.store(slope_ptr + row * width + column, power / total - tl.where(right, 1.0, 0.0), mask=column < width)


class Adam(Optimizer):
    """Adam for float32 parameters, some of which have a bf16 copy that is the one in use.

    Args:
        groups: groups of parameters, each with its "lr" and "weight_decay".
        copies: the ``half_copy`` of some parameters, by parameter; the copy has the gradient.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], copies: dict[Tensor, Tensor]) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})
        self.copies = copies
        self.state["all"]["count"] = torch.zeros((), device=groups[0]["params"][0].device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for copy in self.copies.values():
            copy.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["all"]["count"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                copy = self.copies.get(parameter)
                gradient = parameter.grad if copy is None else copy.grad
                if gradient is not None:
                    self._update(parameter, gradient, copy, group["lr"], group["weight_decay"])

    def _update(self, p: Tensor, gradient: Tensor, copy: Tensor | None, rate: float, decay: float) -> None:
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
            self.state["all"]["count"], size, padded, *columns, rate, decay,
            COPIED=copy is not None, WIDER=columns[0] < columns[1], BLOCK=BLOCK,
        )  # fmt: skip


@triton.jit
def _adam(
    p_ptr, grad_ptr, mean_ptr, square_ptr, copy_ptr, count_ptr,
    size, padded_size, columns, padded_columns, rate, decay,
    COPIED: tl.constexpr, WIDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update elements of one member; its copy and its gradient may have more rows, and longer ones (WIDER)."""
    member = tl.program_id(1).to(tl.int64)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, at, to = offset < size, member * size + offset, offset
    if WIDER:
        to = offset // columns * padded_columns + offset % columns
    to = member * padded_size + to
    count = tl.load(count_ptr)
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
