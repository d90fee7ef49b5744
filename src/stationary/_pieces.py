"""Element-wise functions that keep nothing but their inputs for the backward pass.

Plain autograd keeps every intermediate of a formula: six tensors for a Matérn activation where ``F.gelu`` keeps one,
hundreds for a quadrature. Here the backward pass computes them again, in pieces that fit the cache, so the peak memory
is that of the inputs and the result.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

PIECE = 2**16  # elements of a piece: 256 KiB in float32, which stay in the L2 cache of one core


class Twin(Protocol):
    """A hand-written version of a function of one tensor: the same values and slopes, in fewer passes over memory."""

    def value(self, x: Tensor) -> Tensor:
        """sigma(x)."""

    def slope(self, x: Tensor) -> Tensor:
        """sigma'(x)."""

    def on_device(self, x: Tensor, *grad: Tensor) -> Tensor | None:
        """sigma(x), or grad sigma'(x) if grad is given, by one kernel on the device of x; None without a kernel."""


def in_pieces(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    parameters: Sequence[Any] = (),
    *,
    size: int = PIECE,
    backward_size: int | None = None,
) -> Tensor:
    """function(*tensors, *parameters), element by element, a piece at a time, keeping only its arguments for backward.

    Args:
        function: element-wise function, built from differentiable PyTorch operations.
        tensors: tensors to cut into pieces, all of one shape, which is also the shape of the result.
        parameters: further arguments, which are passed whole with every piece: numbers or tensors. If one of them is a
            tensor with dimensions, which broadcasts, nothing is cut.
        size: number of elements in a piece.
        backward_size: number of elements in a piece of the backward pass, where autograd keeps the intermediates of the
            piece; by default ``size``.
    """
    if any(isinstance(p, Tensor) and p.dim() for p in parameters):
        size = backward_size = max(1, tensors[0].numel())
    sizes = size, backward_size or size
    return _InPieces.apply(function, sizes, len(tensors), *tensors, *parameters)


def by_twin(twin: Twin, function: Callable[[Tensor], Tensor], x: Tensor, *, size: int = PIECE) -> Tensor:
    """twin(x), keeping only x for backward: by its kernel for the device of x, else a piece at a time.

    Args:
        twin: the function, fast.
        function: the same function, built from differentiable PyTorch operations, for second derivatives.
        x: tensor of any shape.
        size: number of elements in a piece.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return _ByTwin.apply(x, twin, function, size)
    return _values(twin, x, size)  # autograd, even where it does nothing, takes as long as several operations


def cut(size: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors, all of one shape, cut alike into views of about ``size`` elements each."""
    first = tensors[0]
    if first.numel() <= size:
        return [tensors]
    if all(t.is_contiguous() for t in tensors):
        return zip(*(t.view(-1).split(size) for t in tensors), strict=True)
    rows = max(1, size * len(first) // first.numel())
    return zip(*(t.split(rows) for t in tensors), strict=True)


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], sizes: tuple[int, int], n: int, *inputs: Any) -> Tensor:
        ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))
        ctx.numbers = [None if isinstance(i, Tensor) else i for i in inputs]
        ctx.function, ctx.size, ctx.n = function, sizes[1], n
        result = torch.empty_like(inputs[0])
        for *pieces, out in cut(sizes[0], *inputs[:n], result):
            out.copy_(function(*pieces, *inputs[n:]))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if number is None else number for number in ctx.numbers]
        needed, n = ctx.needs_input_grad[3:], ctx.n
        if torch.is_grad_enabled():
            grads = _gradients(ctx.function, inputs, needed, grad)
        elif _is_batched(grad) and not any(needed[1:]):
            (slope, *others) = _gradients(ctx.function, inputs, needed, torch.ones_like(inputs[0]))
            grads = [None if slope is None else grad * slope, *others]
        else:
            grads = [torch.zeros_like(i) if needs else None for i, needs in zip(inputs, needed, strict=True)]
            outputs = [g for g in grads[:n] if g is not None]
            for group in cut(ctx.size, *inputs[:n], grad, *outputs):
                terms = _gradients(ctx.function, [*group[:n], *inputs[n:]], needed, group[n])
                of_pieces = (term for term, needs in zip(terms[:n], needed[:n], strict=True) if needs)
                for out, term in zip(group[n + 1 :], of_pieces, strict=True):
                    if term is not None:
                        out.copy_(term)
                for total, term in zip(grads[n:], terms[n:], strict=True):
                    if total is not None and term is not None:
                        total += term
        return None, None, None, *grads


class _ByTwin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, twin: Twin, function: Callable[[Tensor], Tensor], size: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.constants = twin, function, size
        return _values(twin, x, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        twin, function, size = ctx.constants
        if torch.is_grad_enabled():
            (result,) = _gradients(function, [x], [True], grad)
        elif _is_batched(grad):
            (slope,) = _gradients(function, [x], [True], torch.ones_like(x))
            result = None if slope is None else grad * slope
        else:
            result = _times_slope(twin, x, grad, size)
        return result, None, None, None


def _values(twin: Twin, x: Tensor, size: int) -> Tensor:
    if (whole := twin.on_device(x)) is not None:
        return whole
    result = torch.empty_like(x)
    for piece, out in cut(size, x, result):
        out.copy_(twin.value(piece))
    return result


def _times_slope(twin: Twin, x: Tensor, grad: Tensor, size: int) -> Tensor:
    if (whole := twin.on_device(x, grad)) is not None:
        return whole
    result = torch.empty_like(x)
    for x_piece, grad_piece, out in cut(size, x, grad, result):
        out.copy_(twin.slope(x_piece).mul_(grad_piece))
    return result


def _is_batched(grad: Tensor) -> bool:
    """Whether ``torch.autograd.grad(is_grads_batched=True)`` made this gradient: only operations on it are batched."""
    return torch._C._functorch.is_legacy_batchedtensor(grad)


def _gradients(
    function: Callable[..., Tensor], inputs: Sequence[Any], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradient of the function in the inputs that need one; it is differentiable itself when grad mode is on."""
    create_graph = torch.is_grad_enabled()
    if not create_graph:
        inputs = [i.detach().requires_grad_() if needs else i for i, needs in zip(inputs, needed, strict=True)]
    with torch.enable_grad():
        y = function(*inputs)
        wanted = [i for i, needs in zip(inputs, needed, strict=True) if needs]
        found = iter(torch.autograd.grad(y, wanted, grad, create_graph=create_graph, allow_unused=True))
    return [next(found) if needs else None for needs in needed]
