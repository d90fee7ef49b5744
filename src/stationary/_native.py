"""Functions on the CPU in one pass over memory: ``_native.c``, compiled at its first use, then kept.

PyTorch has no operation for activations, kernels and means over dropout masks, and a chain of its operations reads
and writes memory once for each. Where there is gcc, on Linux with AVX2 or AVX-512, the C functions are compiled when an
activation first meets a float32 tensor, or one of float64 for a nu of 3/2, 5/2 and so on; that takes a second, once for
a user and a machine. Everywhere else, and with the environment variable ``STATIONARY_NATIVE=0``, the chains of
operations remain, a few units in the last place apart.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stationary._files import cache_folder

SOURCE = Path(__file__).with_suffix(".c")
PARTS = SOURCE, SOURCE.with_name("_native_dropout.c")  # which it includes
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")  # none of which drops NaN or infinity
VECTORS = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
}
COUNT, POINTER = ctypes.c_int64, ctypes.c_void_p
ARGUMENTS: dict[str, tuple[Any, ...]] = {  # but for the last one, the number of threads
    **dict.fromkeys(("matern", "matern_wide", "periodic"), (ctypes.c_int, COUNT, *(POINTER,) * 4)),
    **dict.fromkeys(("power_sums", "power_sums_single"), (*(COUNT,) * 3, *(POINTER,) * 3)),
    "kernel": (COUNT, COUNT, POINTER),
    "layer_sums": (*(COUNT,) * 7, *(POINTER,) * 8),
    "node_sums": (*(COUNT,) * 5, ctypes.c_double, *(POINTER,) * 10),
    "softmax_of_gaussian": (*(COUNT,) * 3, ctypes.c_double, *(POINTER,) * 5),
}
DTYPES = torch.float32, torch.float64, torch.int64
PLAIN = (Tensor, torch.nn.Parameter)  # other subclasses have operations of their own


def launch(name: str, kind: int, parameters: "array[float]", x: Tensor, grad: Tensor | None = None) -> Tensor | None:
    """sigma(x), or grad sigma'(x), laid out in memory like x; None for what the C functions do not cover.

    Args:
        name: name of the C function, "matern" or "periodic".
        kind: which function of that family it is.
        parameters: its constants, in the order of the C function, as doubles.
        x: any tensor.
        grad: gradient of the result.
    """
    functions, wide = compiled(), x.dtype is torch.float64
    if wide and (name != "matern" or kind <= 0):
        return None
    if functions is None or not _covers(x, x.dtype) or (grad is not None and not _covers(grad, x.dtype)):
        return None
    if torch._C._len_torch_dispatch_stack():  # a mode that records or replaces operations, and would not see C
        return None
    out = torch.empty_like(x)
    strides = out.stride()
    x = x if x.stride() == strides else torch.empty_like(out).copy_(x)
    if grad is not None and grad.stride() != strides:
        grad = torch.empty_like(out).copy_(grad)
    pointers = x.data_ptr(), None if grad is None else grad.data_ptr(), out.data_ptr(), parameters.buffer_info()[0]
    functions["matern_wide" if wide else name](kind, out.numel(), *pointers, torch.get_num_threads())
    return out


def in_c(name: str, numbers: tuple[float, ...], *tensors: Tensor) -> bool:
    """Run a C function that writes its results into the last of these tensors; False where it cannot, and has not.

    Args:
        name: name of the C function.
        numbers: its numbers, the count of rows first.
        tensors: its contiguous tensors, in the order of the C function.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    functions = compiled()
    if functions is None or torch._C._len_torch_dispatch_stack():
        return False
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if differentiable or not all(x.is_contiguous() and _covers(x, x.dtype) for x in tensors):
        return False
    functions[name](*numbers, *(x.data_ptr() for x in tensors), torch.get_num_threads())
    return True


def _covers(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether x is a plain tensor of this dtype, one that C functions take, in the memory of the CPU."""
    is_plain = x.dtype is dtype and dtype in DTYPES and x.is_cpu and type(x) in PLAIN
    return is_plain and x.layout is torch.strided and not x.is_neg()


@cache
def compiled() -> dict[str, Callable[..., Any]] | None:
    """The C functions by name, compiled now if they have not been; None where that is switched off or does not work."""
    vectors = VECTORS.get(torch.backends.cpu.get_cpu_capability())
    compiler = shutil.which("gcc")
    if os.environ.get("STATIONARY_NATIVE") == "0" or sys.platform != "linux" or vectors is None or compiler is None:
        return None
    try:
        library = ctypes.CDLL(str(_shared_object(compiler, (*FLAGS, *vectors))))
    except (OSError, subprocess.SubprocessError):  # no folder to keep it in, a compiler that fails, no OpenMP, ...
        return None
    functions = {name: getattr(library, name) for name in ARGUMENTS}
    for name, function in functions.items():
        function.argtypes, function.restype = (*ARGUMENTS[name], ctypes.c_int), None
    return functions


def _shared_object(compiler: str, flags: tuple[str, ...]) -> Path:
    """Where the C functions are, compiled; another source or other flags make another file."""
    content = hashlib.sha256(b"".join(part.read_bytes() for part in PARTS) + " ".join(flags).encode()).hexdigest()[:16]
    path = cache_folder() / f"native-{content}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            compile_, link = ["-c", str(SOURCE), *flags, "-o", "native.o"], ["-shared", "native.o", "-o", "native.so"]
            for arguments in (compile_, link):  # linked without OpenMP, to run in the threads of PyTorch's own
                subprocess.run([compiler, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
            os.replace(Path(folder) / "native.so", path)  # at once, so that no other process sees half of it
    return path
