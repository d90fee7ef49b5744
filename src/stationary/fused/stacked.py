"""Stacked networks on CUDA in half precision: their linear layers with bias and ReLU, and the Adam that trains them.

Weights are float32. A layer computes with a copy in half precision, padded with zeros so that every row starts at 16
bytes, which the fast matrix products need. The optimizer keeps the copies up to date: it reads and writes every weight
anyway. Between two layers, the output of the first, padding included, is the input of the second.
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

from stationary.activations import RBF, Matern

ALIGNED = 8  # numbers of 16 bits in 16 bytes
BLOCK = 1024
ROWS, COLUMNS = 128, 32  # of a tile in the backward pass
BETA1, BETA2, EPS = tl.constexpr(0.9), tl.constexpr(0.999), tl.constexpr(1e-8)  # as torch.optim.Adam
LOG_BETA1, LOG_BETA2 = tl.constexpr(-0.10536051565782628), tl.constexpr(-0.0010005003335835344)


class Linear(nn.Module):
    """A linear layer of one network; under ``vmap``, of all of them at once.

    Args:
        linear: the plain layer, with a bias.
        relu: whether a ReLU follows it.
    """

    def __init__(self, linear: nn.Linear, relu: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.relu = linear.weight, linear.bias, relu
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        y = _Vmapped.apply(x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.relu)
        return y.reshape(*x.shape[:-1], self.out_features)


class OnAll(nn.Module):
    """An element-wise module without parameters, applied to all networks at once: outside of ``vmap``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return _VmappedElementwise.apply(x, self.module)


def fuse(model: nn.Module) -> list[str]:
    """Put these layers and activations in the place of plain ones; the names of the linear layers."""
    for module in [module for module in model.modules() if type(module) is nn.Sequential]:
        for i, (layer, after) in enumerate(pairwise(module)):
            if _is_plain(layer) and type(after) is nn.ReLU:
                module[i], module[i + 1] = Linear(layer, relu=True), nn.Identity()
    for name, module in list(model.named_modules()):
        if _is_plain(module):
            model.set_submodule(name, Linear(module, relu=False))
        elif isinstance(module, Matern | RBF) and not module.learnable:
            model.set_submodule(name, OnAll(module))
    return [name for name, module in model.named_modules() if isinstance(module, Linear)]


def _is_plain(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.bias is not None


def half_copy(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Of stacked weights (K, out, in), with both widths padded to multiples of 8."""
    _, n_out, n_in = weight.shape
    padded = F.pad(weight.detach(), (0, -n_in % ALIGNED, 0, -n_out % ALIGNED))
    return padded.to(dtype).requires_grad_()


class _Vmapped(torch.autograd.Function):
    @staticmethod
    def forward(*_: Any) -> Tensor:
        raise NotImplementedError("this layer runs under vmap only")

    setup_context = forward

    @staticmethod
    def vmap(_: Any, dims: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> tuple[Tensor, int]:
        stacked = (tensor.movedim(dim, 0) for tensor, dim in zip((x, weight, bias), dims, strict=False))
        return _Stacked.apply(*stacked, relu), 0


class _VmappedElementwise(torch.autograd.Function):
    @staticmethod
    def forward(*_: Any) -> Tensor:
        raise NotImplementedError("this module runs under vmap only")

    setup_context = forward

    @staticmethod
    def vmap(_: Any, dims: Any, x: Tensor, module: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        return module(x), dims[0]


class _Stacked(torch.autograd.Function):
    """x (K, b, in), weight (K, out8, in8), bias (K, out) to (K, b, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        ctx.n_in, n_out = x.shape[-1], bias.shape[-1]
        x = _padded(x, weight.shape[-1], weight.dtype)
        y = torch.bmm(x, weight.mT)
        k, b, width = y.shape
        block = min(BLOCK, triton.next_power_of_2(width))
        _add_bias[(k * b, triton.cdiv(width, block))](y, bias, b, n_out, width, RELU=relu, BLOCK=block)
        ctx.save_for_backward(x, weight, *([y] if relu else []))
        ctx.n_out = n_out
        return y[..., :n_out]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, *y = ctx.saved_tensors
        grad = _padded(grad, weight.shape[1], weight.dtype)
        k, b, width = grad.shape
        grad_bias = torch.empty(k, ctx.n_out, device=grad.device)
        masked = torch.empty_like(grad) if y else grad
        grid = (triton.cdiv(width, COLUMNS), k)
        _reduce[grid](grad, y[0] if y else grad, masked, grad_bias, b, ctx.n_out, width, bool(y), ROWS, COLUMNS)
        grad_x = torch.bmm(masked, weight)[..., : ctx.n_in] if ctx.needs_input_grad[0] else None
        return grad_x, torch.bmm(masked.mT, x), grad_bias, None


def _padded(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(K, b, width) and contiguous: what an own layer made is so already, behind the part that it shows."""
    k, b, n = x.shape
    same_rows = x.dtype == dtype and x.stride() == (b * width, width, 1)
    if same_rows and x.untyped_storage().nbytes() == k * b * width * x.element_size():
        return x.as_strided((k, b, width), x.stride())
    padded = torch.zeros(k, b, width, dtype=dtype, device=x.device)
    padded[..., :n] = x
    return padded


@triton.jit
def _add_bias(y_ptr, bias_ptr, rows, n_out, width, RELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = y_ptr + row * width + column
    bias = tl.load(bias_ptr + row // rows * n_out + column, mask=column < n_out, other=0.0)
    y = tl.load(at, mask=column < width).to(tl.float32) + bias
    if RELU:
        y = tl.where(y <= 0, 0.0, y)  # NaN stays
    tl.store(at, y, mask=column < width)


@triton.jit
def _reduce(
    grad_ptr, y_ptr, masked_ptr, grad_bias_ptr, rows, n_out, width,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient behind the ReLU, and its sum over rows."""
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


class Adam(Optimizer):
    """Adam for float32 parameters, some of which have a half-precision copy that is the one in use.

    Args:
        groups: of parameters, with "lr" and "weight_decay".
        copies: of ``half_copy``, by parameter; gradients are theirs.
        scale: of the loss; gradients are divided by it.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], copies: dict[Tensor, Tensor], scale: float = 1.0) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})
        self.copies, self.scale = copies, scale
        self.count = torch.zeros((), device=groups[0]["params"][0].device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for copy in self.copies.values():
            copy.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                copy = self.copies.get(parameter)
                gradient = parameter.grad if copy is None else copy.grad
                if gradient is not None:
                    self._update(parameter, gradient, copy, group["lr"], group["weight_decay"])

    def _update(self, p: Tensor, gradient: Tensor, copy: Tensor | None, rate: float, decay: float) -> None:
        """Row by row, since rows of a copy have another length and another number than those of its parameter."""
        state = self.state[p]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        if copy is None:
            gradient = gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)
            rows, columns, padded = 1, p.numel(), (1, p.numel())
        else:
            gradient = gradient.contiguous()
            rows, columns, padded = p.shape[1], p.shape[2], tuple(copy.shape[1:])
        block = min(BLOCK, triton.next_power_of_2(columns))
        _adam[(p.numel() // columns, triton.cdiv(columns, block))](
            p, gradient, state["mean"], state["square"], p if copy is None else copy.detach(), self.count,
            rows, columns, *padded, rate, decay, 1 / self.scale, COPIED=copy is not None, BLOCK=block,
        )  # fmt: skip


@triton.jit
def _adam(
    p_ptr, grad_ptr, mean_ptr, square_ptr, copy_ptr, count_ptr,
    rows, columns, padded_rows, padded_columns, rate, decay, unscale,
    COPIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = column < columns, row * columns + column
    to = (row // rows * padded_rows + row % rows) * padded_columns + column
    count = tl.load(count_ptr)
    p, mean, square = tl.load(p_ptr + at, inside), tl.load(mean_ptr + at, inside), tl.load(square_ptr + at, inside)
    grad = tl.load(grad_ptr + to, inside).to(tl.float32) * unscale + decay * p
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
