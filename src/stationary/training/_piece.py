"""Parameters of stacked networks in one piece of memory, each as a number in bf16 and the bits that this one lacks."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

HALF = torch.bfloat16
ALIGNED = 8  # numbers of 16 bits in 16 bytes, where the rows of matrices have to start for the fast products


def split(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of 32 bits as the nearest ones in bf16, and the rest of the bits, in 16 bits."""
    bits = numbers.view(torch.int32)
    high = (bits + 2**15) >> 16
    return high.to(torch.int16).view(HALF), (bits - (high << 16)).to(torch.int16)


def joined(high: Tensor, low: Tensor) -> Tensor:
    """The numbers that were split."""
    return ((high.view(torch.int16).int() << 16) + low).view(torch.float32)


class Piece:
    """Parameters in one piece of memory, with what belongs to each number in others that are laid out alike.

    All but the first width of a parameter, the number of networks, are padded with zeros to multiples of 8.

    Args:
        parameters: the parameters in float32, of which the attribute ``parameters`` has those that lie in the piece.
            While they are trained, ``copy`` and ``low`` have their values.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.padded = [(shape[0], *(n + -n % ALIGNED for n in shape[1:])) for shape in self.shapes]
        self.sizes = [*map(prod, self.padded)]
        self.numbers = torch.zeros(sum(self.sizes), device=parameters[0].device)
        self.parameters = self.parts(self.numbers)
        for part, parameter in zip(self.parameters, parameters, strict=True):
            part.copy_(parameter.detach()).requires_grad_()
        self.copy, self.low = split(self.numbers)
        self.grad, self.mean, self.square = (torch.zeros_like(self.copy) for _ in range(3))

    def whole(self, numbers: Tensor) -> list[Tensor]:
        """The part of each parameter in numbers that are laid out like the piece, with its padding."""
        return [part.view(shape) for part, shape in zip(numbers.split(self.sizes), self.padded, strict=True)]

    def parts(self, numbers: Tensor) -> list[Tensor]:
        """The same without the padding."""
        return [part[tuple(map(slice, shape))] for part, shape in zip(self.whole(numbers), self.shapes, strict=True)]
