"""Element-wise Triton kernels, launched with as little Python as possible where a tensor is small.

Triton looks at every argument of a launch anew, which takes longer than a small tensor does. A kernel that assumes
nothing of its arguments needs no such look: once compiled for a dtype and its constants, it is launched directly.
"""

from typing import Any

import torch
import triton
from torch import Tensor

SHAPE = 1024, 4  # elements and warps of a program, the fastest of eight choices on an H200: two 16-byte loads a thread
SMALL = 2**20  # elements up to which the time of a launch counts more than that of wide loads


class Elementwise:
    """A kernel with the arguments (*inputs, out, size, *numbers, *constants, BLOCK).

    Args:
        function: the kernel, before ``triton.jit``.
        pointers: names of its inputs and of its output.
        half: elements and warps of a program for large tensors of half precision.
    """

    def __init__(self, function: Any, pointers: list[str], half: tuple[int, int] = SHAPE) -> None:
        self.half = half
        self.wide = triton.jit(function)
        self.any = triton.jit(function, do_not_specialize=["size"], do_not_specialize_on_alignment=pointers)
        self.compiled: dict[Any, Any] = {}

    def __call__(self, inputs: tuple[Tensor, ...], numbers: tuple[float, ...], constants: tuple[Any, ...]) -> Tensor:
        """The result, laid out in memory like the first input."""
        out = torch.empty_like(inputs[0])
        strides, size = out.stride(), out.numel()
        inputs = tuple(t if t.stride() == strides else torch.empty_like(out).copy_(t) for t in inputs)
        if size:
            if out.get_device() == torch.cuda.current_device():
                self._launch(inputs, out, size, numbers, constants)
            else:
                with torch.cuda.device(out.device):
                    self._launch(inputs, out, size, numbers, constants)
        return out

    def _launch(self, inputs: tuple[Tensor, ...], out: Tensor, size: int, numbers: Any, constants: Any) -> None:
        if size > SMALL:
            block, warps = self.half if out.element_size() == 2 else SHAPE
            self.wide[-(-size // block),](*inputs, out, size, *numbers, *constants, block, num_warps=warps)
            return
        block, warps = SHAPE
        grid = -(-size // block), 1, 1
        key = out.dtype, out.get_device(), constants
        compiled = self.compiled.get(key)
        if compiled is None:
            self.compiled[key] = self.any[grid](*inputs, out, size, *numbers, *constants, block, num_warps=warps)
        else:
            compiled[grid](*inputs, out, size, *numbers, *constants, block)
