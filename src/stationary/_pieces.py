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
    twin: Twin | None = None,
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
        twin: faster version of the function with these parameters, for a function of one tensor; None without one.
    """
    if any(isinstance(p, Tensor) and p.dim() for p in parameters):
        size = backward_size = max(1, tensors[0].numel())
    sizes = size, backward_size or size
    return _InPieces.apply(function, twin, sizes, len(tensors), *tensors, *parameters)


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
    def forward(
        ctx: Any, function: Callable[..., Tensor], twin: Twin | None, sizes: tuple[int, int], n: int, *inputs: Any
    ) -> Tensor:
        ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))
        ctx.numbers = [None if isinstance(i, Tensor) else i for i in inputs]
        ctx.function, ctx.twin, ctx.size, ctx.n = function, twin, sizes[1], n
        if twin is not None and (whole := twin.on_device(inputs[0])) is not None:
            return whole
        result = torch.empty_like(inputs[0])
        for *pieces, out in cut(sizes[0], *inputs[:n], result):
            out.copy_(function(*pieces, *inputs[n:]) if twin is None else twin.value(pieces[0]))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if number is None else number for number in ctx.numbers]
        needed, n = ctx.needs_input_grad[4:], ctx.n
        first, *others = inputs
        if torch.is_grad_enabled():
            grads = _gradients(ctx.function, inputs, needed, grad)
        elif torch._C._functorch.is_legacy_batchedtensor(grad) and not any(
            needed[1:]
        ):  # as torch.autograd.grad(is_grads_batched=True) gives it
            (slope, *_) = _gradients(ctx.function, inputs, needed, torch.ones_like(first))
            grads = [None if slope is None else grad * slope, *(None for _ in others)]
        elif ctx.twin is not None:
            grads = [_times_slope(ctx.twin, ctx.size, first, grad), *(None for _ in others)]
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
        return None, None, None, None, *grads


def _times_slope(twin: Twin, size: int, x: Tensor, grad: Tensor) -> Tensor:
    whole = twin.on_device(x, grad)
    if whole is not None:
        return whole
    result = torch.empty_like(x)
    for x_piece, grad_piece, out in cut(size, x, grad, result):
        out.copy_(twin.slope(x_piece).mul_(grad_piece))
    return result


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
