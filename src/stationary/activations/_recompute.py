"""How an activation runs: its plain definition as it is for compilers and transformations, else in pieces.

In eager mode only the input is kept for the backward pass, as by ``F.gelu``, and a faster twin of the plain definition
computes where there is one.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stationary._pieces import PIECE, Twin, by_twin, in_pieces
from stationary.theory.spectral import Number

CUDA_PIECE = 2**26  # elements: a GPU wants few large launches

Plain = Callable[..., Tensor]


def elementwise(plain: Plain, x: Tensor, *parameters: Number, twin: Callable[[], Twin | None] | None = None) -> Tensor:
    """Apply ``plain(x, *parameters)``, in float32 for half precision, keeping only the inputs for backward.

    The compiler, ``torch.export``, ``torch.jit.trace``, ``torch.func`` and forward-mode differentiation get the plain
    definition.

    Args:
        plain: an element-wise function of a float32 or float64 tensor; the definition of record.
        x: any floating-point tensor.
        parameters: numbers, or tensors that broadcast against x and get gradients too.
        twin: makes a faster version of ``plain`` with just these parameters for x, or None where there is none.
    """
    _check_floating(x)
    if torch.compiler.is_compiling() or _is_transformed(x, *parameters):
        return _in_compute_dtype(plain, x, *parameters)
    size = CUDA_PIECE if x.is_cuda else PIECE
    if twin and (fast := twin()):
        return by_twin(fast, lambda x: _in_compute_dtype(plain, x, *parameters), x, size=size)
    return in_pieces(partial(_in_compute_dtype, plain), [x], parameters, size=size)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which functions of x are computed: float32 for half precision, else that of x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def bound_of(x: Tensor) -> float:
    """The bound on values and slopes of steep functions of x: 65504, the largest number, for float16, else infinity.

    All other dtypes reach about as far as the one they are computed in.
    """
    _check_floating(x)
    return torch.finfo(x.dtype).max if x.dtype == torch.float16 else math.inf


def _in_compute_dtype(plain: Plain, x: Tensor, *parameters: Number) -> Tensor:
    return plain(x.to(compute_dtype(x)), *parameters).to(x.dtype)


def _is_transformed(*inputs: Number) -> bool:
    """Whether torch.func, torch.jit.trace or forward-mode differentiation is looking at these tensors."""
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return True
    if forward_ad._current_level < 0:  # as nearly always: no tensor is dual
        return False
    return any(forward_ad.unpack_dual(i).tangent is not None for i in inputs if isinstance(i, Tensor))


def _check_floating(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"{x.dtype} tensor" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating-point tensor, got {got}; convert it with torch.as_tensor(x).float()")
