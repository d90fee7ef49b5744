"""Element-wise functions that keep nothing but their input for the backward pass.

Plain autograd keeps every intermediate of a formula: six tensors for a Matérn activation where ``F.gelu`` keeps one.
Here the backward pass computes them again, in pieces that fit the cache, so the peak memory is that of ``F.gelu``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stationary.theory.spectral import Number

PIECE = 2**16  # elements: 256 KiB of float32, which stays in the L2 cache of one core
CUDA_PIECE = 2**26  # a GPU wants few large launches

Plain = Callable[..., Tensor]


class Twin(Protocol):
    """A hand-written version of a plain function: the same values and slopes, in fewer passes over memory."""

    def value(self, x: Tensor) -> Tensor: ...

    def slope(self, x: Tensor) -> Tensor: ...

    def on_device(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        """sigma(x), or grad sigma'(x) if grad is given, by one kernel on the device of x; None if there is none."""


def elementwise(plain: Plain, x: Tensor, *parameters: Number, twin: Callable[[], Twin] | None = None) -> Tensor:
    """Apply ``plain(x, *parameters)``, in float32 for half precision, keeping only the inputs for backward.

    The compiler, ``torch.export``, ``torch.func`` and forward-mode differentiation get the plain definition.

    Args:
        plain: an element-wise function of a float32 or float64 tensor; the definition of record.
        x: any floating-point tensor.
        parameters: numbers, or tensors that broadcast against x and get gradients too.
        twin: makes a faster version of ``plain`` with just these parameters, where there is one.
    """
    _check_floating(x)
    if torch.compiler.is_compiling() or _is_transformed(x, *parameters):
        return _in_compute_dtype(plain, x, *parameters)
    return _Elementwise.apply(plain, twin() if twin else None, x, *parameters)


def largest(x: Tensor) -> float:
    """Where values and slopes of steep functions end: at 65504, the largest number, for float16, else nowhere.

    All other dtypes reach about as far as the one they are computed in.
    """
    _check_floating(x)
    return torch.finfo(x.dtype).max if x.dtype == torch.float16 else math.inf


def _check_floating(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"{x.dtype} tensor" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating-point tensor, got {got}; convert it with torch.as_tensor(x).float()")


def _is_transformed(*inputs: Number) -> bool:
    """Whether torch.func or forward-mode differentiation is looking at these tensors."""
    return torch._C._are_functorch_transforms_active() or any(
        forward_ad.unpack_dual(i).tangent is not None for i in inputs if isinstance(i, Tensor)
    )


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _bounded(y: Tensor, x: Tensor) -> Tensor:
    """The new tensor y, of values or slopes at x, within the range of the dtype of x."""
    return y if math.isinf(end := largest(x)) else y.clamp_(-end, end)


def _in_compute_dtype(plain: Plain, x: Tensor, *parameters: Number) -> Tensor:
    return plain(x.to(_compute_dtype(x)), *parameters).to(x.dtype)


def _pieces(whole: bool, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors (all of one shape) as they are, or cut alike into views of at most about one piece each."""
    first = tensors[0]
    if whole or first.numel() == 0:
        return [tensors]
    size = CUDA_PIECE if first.is_cuda else PIECE
    if all(t.is_contiguous() for t in tensors):
        return zip(*(t.view(-1).split(size) for t in tensors), strict=True)
    rows = max(1, size * len(first) // first.numel())
    return zip(*(t.split(rows) for t in tensors), strict=True)


class _Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Plain, twin: Twin | None, x: Tensor, *parameters: Number) -> Tensor:
        ctx.save_for_backward(x, *(p for p in parameters if isinstance(p, Tensor)))
        ctx.numbers = [None if isinstance(p, Tensor) else p for p in parameters]
        ctx.whole = any(isinstance(p, Tensor) and p.dim() for p in parameters)  # they broadcast, so x stays whole
        ctx.plain, ctx.twin = plain, twin
        if twin is not None and (whole := twin.on_device(x)) is not None:
            return whole
        y = torch.empty_like(x)
        for x_piece, y_piece in _pieces(ctx.whole, x, y):
            compute = x_piece.to(_compute_dtype(x))
            y_piece.copy_(plain(compute, *parameters) if twin is None else _bounded(twin.value(compute), x))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *tensors = ctx.saved_tensors
        remaining = iter(tensors)
        inputs = [x, *(next(remaining) if n is None else n for n in ctx.numbers)]
        needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_gradients(ctx.plain, inputs, needed, grad)
        if torch._C._functorch.is_legacy_batchedtensor(grad) and not any(needed[1:]):  # is_grads_batched=True
            slope, *others = _gradients(ctx.plain, inputs, needed, torch.ones_like(x))
            return None, None, None if slope is None else grad * slope, *others
        if ctx.twin is not None:
            grad_x = ctx.twin.on_device(x, grad)
            if grad_x is not None:
                return None, None, grad_x, *(None for _ in ctx.numbers)
            grad_x = torch.empty_like(x)
            for x_piece, grad_piece, out in _pieces(False, x, grad, grad_x):
                out.copy_(_bounded(ctx.twin.slope(x_piece.to(_compute_dtype(x))), x).mul_(grad_piece))
            return None, None, grad_x, *(None for _ in ctx.numbers)
        grads = [torch.zeros_like(i) if n else None for i, n in zip(inputs, needed, strict=True)]
        for x_piece, grad_piece, out in _pieces(ctx.whole, x, grad, x if grads[0] is None else grads[0]):
            of_x, *of_parameters = _gradients(ctx.plain, [x_piece, *inputs[1:]], needed, grad_piece)
            if of_x is not None:
                out.copy_(of_x)
            for total, term in zip(grads[1:], of_parameters, strict=True):
                if total is not None and term is not None:
                    total += term
        return None, None, *grads


def _gradients(plain: Plain, inputs: list[Any], needed: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
    """The gradient of the plain definition in the inputs that need one; differentiable itself when grad mode is on."""
    create_graph = torch.is_grad_enabled()
    if not create_graph:
        inputs = [i.detach().requires_grad_() if n else i for i, n in zip(inputs, needed, strict=True)]
    with torch.enable_grad():
        y = _in_compute_dtype(plain, *inputs)
        wanted = [i for i, n in zip(inputs, needed, strict=True) if n]
        found = iter(torch.autograd.grad(y, wanted, grad, create_graph=create_graph, allow_unused=True))
    return [next(found) if n else None for n in needed]
