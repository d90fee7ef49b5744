"""Adam for the fused layers of stacked networks: one kernel updates the parameters of all layers and networks.

They lie in one piece of memory, and so do their gradients and moments: an update is the same for every number. It is
bound by memory, so nothing is there twice: a parameter of 32 bits is its copy in bf16, which the layers use, and the 16
bits that the copy lacks. The moments are in bf16, as the gradients are. Rounding to the nearest would lose the small
changes of the mean square, a thousandth at a time; it is rounded up or down at random, so that it is right on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.optim import Optimizer
from triton.language.extra import libdevice

from stationary.training._members import Named
from stationary.training._piece import Piece, joined
from stationary.training._stacked_triton import Layer, Linear

BLOCK = 1024
BETA1, BETA2, EPS = tl.constexpr(0.9), tl.constexpr(0.999), tl.constexpr(1e-8)  # as torch.optim.Adam
LOG_BETA1, LOG_BETA2 = tl.constexpr(-0.10536051565782628), tl.constexpr(-0.0010005003335835344)


@dataclass(frozen=True)
class Fused:
    """What the optimizer has to know of fused layers.

    Args:
        piece: their parameters.
        copies: the copies of their padded weights and of their biases in bf16, by name.
        layers: the layers.
    """

    piece: Piece
    copies: Named
    layers: tuple[Layer, ...]


def laid_out(parameters: Named, linears: dict[str, Linear]) -> Fused:
    """Put the parameters of linear layers into a piece, and tell the layers where their gradients go."""
    weights, biases = ([f"{name}.{kind}" for name in linears] for kind in ("weight", "bias"))
    piece, n = Piece([parameters[name] for name in (*weights, *biases)]), len(linears)
    parameters.update(zip((*weights, *biases), piece.parameters, strict=True))
    copies = piece.whole(piece.copy)[:n] + piece.parts(piece.copy)[n:]
    copies = [copy.requires_grad_() for copy in copies]  # which has the backward pass visit the layers
    stream, gradients = torch.cuda.Stream(piece.copy.device), piece.whole(piece.grad)
    layers = tuple(Layer(*pair, stream) for pair in zip(gradients[:n], gradients[n:], strict=True))
    for linear, layer in zip(linears.values(), layers, strict=True):
        linear.layer = layer
    return Fused(piece, dict(zip((*weights, *biases), copies, strict=True)), layers)


class Adam(Optimizer):
    """Adam for float32 parameters, most of them of fused layers.

    Args:
        groups: groups of parameters, each with its "lr" and "weight_decay".
        fused: the fused layers, whose parameters are in the groups too.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], fused: Fused) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})
        self.fused = fused
        self.state["all"]["count"] = torch.zeros((), device=groups[0]["params"][0].device)
        self.rates = torch.zeros(len(self.param_groups), device=self.state["all"]["count"].device)
        self.load_rates()
        self.group_of = {p: i for i, group in enumerate(self.param_groups) for p in group["params"]}
        self.continued = False

    def load_rates(self) -> None:
        """Take over the learning rates of the groups, which the kernels read from the GPU's memory."""
        self.rates.copy_(torch.tensor([float(group["lr"]) for group in self.param_groups]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for layer in self.fused.layers:
            layer.finish()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        piece = self.fused.piece
        self.state["all"]["count"] += 1
        if not self.continued:
            self._continue()
        for layer in self.fused.layers:
            layer.finish()
        start = 0
        sized = zip(piece.parameters, piece.sizes, strict=True)
        for group, some in groupby(sized, lambda each: self.group_of[each[0]]):
            these = slice(start, start + sum(size for _, size in some))
            numbers = piece.copy.view(torch.int16), piece.low, piece.grad, piece.mean, piece.square
            self._update(_adam_of_halves, *(part[these] for part in numbers), group=group)
            start = these.stop
        for parameter, group in self.group_of.items():
            if parameter.grad is not None:  # it is in no fused layer
                same = parameter.grad.stride() == parameter.stride()
                gradient = parameter.grad if same else torch.empty_like(parameter).copy_(parameter.grad)
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self._update(_adam, parameter, gradient, state["mean"], state["square"], group=group)

    def settle(self) -> None:
        """Give the parameters the values that training has come to."""
        piece = self.fused.piece
        piece.numbers.copy_(joined(piece.copy, piece.low))

    def _continue(self) -> None:
        """Take over the moments of a training that is continued, and have the state show those of the piece."""
        piece = self.fused.piece
        for name, numbers in (("mean", piece.mean), ("square", piece.square)):
            for parameter, part in zip(piece.parameters, piece.parts(numbers), strict=True):
                if name in self.state[parameter]:
                    part.copy_(self.state[parameter][name])
                self.state[parameter][name] = part
        self.continued = True

    def _update(self, kernel: Any, *numbers: Tensor, group: int) -> None:
        size, decay = numbers[0].numel(), self.param_groups[group]["weight_decay"]
        count, rate = self.state["all"]["count"], self.rates[group]
        kernel[(triton.cdiv(size, BLOCK),)](*numbers, count, rate, size, decay, BLOCK)


@triton.jit
def _moved(p, grad, mean, square, count, rate, decay):
    """The parameter and its moments after a step."""
    grad += decay * p
    mean = BETA1 * mean + (1 - BETA1) * grad
    square = BETA2 * square + (1 - BETA2) * grad * grad
    step = mean / -libdevice.expm1(count * LOG_BETA1)
    root = tl.sqrt(square / -libdevice.expm1(count * LOG_BETA2))
    return p - rate * step / (root + EPS), mean, square


@triton.jit
def _adam(p_ptr, grad_ptr, mean_ptr, square_ptr, count_ptr, rate_ptr, size, decay, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    p, grad = tl.load(p_ptr + at, inside), tl.load(grad_ptr + at, inside)
    mean, square = tl.load(mean_ptr + at, inside), tl.load(square_ptr + at, inside)
    p, mean, square = _moved(p, grad, mean, square, tl.load(count_ptr), tl.load(rate_ptr), decay)
    tl.store(p_ptr + at, p, inside)
    tl.store(mean_ptr + at, mean, inside)
    tl.store(square_ptr + at, square, inside)


@triton.jit
def _adam_of_halves(
    high_ptr, low_ptr, grad_ptr, mean_ptr, square_ptr, count_ptr, rate_ptr, size, decay, BLOCK: tl.constexpr
):
    """The same for parameters that are split, with moments in bf16."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    high, low = tl.load(high_ptr + at, inside).to(tl.int32), tl.load(low_ptr + at, inside).to(tl.int32)
    p, grad = ((high << 16) + low).to(tl.float32, bitcast=True), tl.load(grad_ptr + at, inside).to(tl.float32)
    mean, square = tl.load(mean_ptr + at, inside).to(tl.float32), tl.load(square_ptr + at, inside).to(tl.float32)
    count = tl.load(count_ptr)
    p, mean, square = _moved(p, grad, mean, square, count, tl.load(rate_ptr), decay)
    bits = p.to(tl.int32, bitcast=True)
    high = (bits + 32768) >> 16
    tl.store(high_ptr + at, high.to(tl.int16), inside)
    tl.store(low_ptr + at, (bits - (high << 16)).to(tl.int16), inside)
    tl.store(mean_ptr + at, mean, inside)
    tl.store(square_ptr + at, _rounded(square, at, count), inside)


@triton.jit
def _rounded(x, at, count):
    """Numbers x >= 0 with 16 of 32 bits, rounded up as often as is right on average."""
    noise = (at.to(tl.uint32) + count.to(tl.uint32) * 0x85EBCA77) * 0x9E3779B1
    noise = (noise ^ (noise >> 16)) * 0x7FEB352D
    bits = x.to(tl.uint32, bitcast=True) + (noise >> 16)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
