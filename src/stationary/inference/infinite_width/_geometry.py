"""Where features are far from each other: the map from the features of a trunk to the space of the kernel."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from stationary.inference.infinite_width._sums import Total

GEOMETRIES = ("polar", "euclidean", "l2")
LENGTH = 0.3  # weight of the length beside the direction
SMALLEST = 1e-12  # length below which a feature vector counts as of this length
SPREAD = 0.01  # smallest standard deviation of the logarithm of the length
LARGEST = 1e30  # a place beyond counts as there; ONNX holds the number in 32 bits
LONGEST = 1e3  # the same for the length: a feature vector of 0 must not be so far that rounding moves the others

Weighted: TypeAlias = Iterable[tuple[Tensor, Tensor]]  # features (n, d) and weights (n,) of some rows at a time


@dataclass(frozen=True)
class Geometry:
    """A map of features z (n, d) to the space in which the kernel measures distances.

    - "polar": (z / |z|, 0.3 sinh(log|z| - shift) / scale). The meaning of a trunk's features is in their direction and
      in their length. sinh makes the length count in proportion once it is unlike that of the training features, so
      that every ray leaves the data.
    - "euclidean": (z - shift) / scale, for the columns of a table.
    - "l2": z / |z|. It does not see the length at all, so that no ray leaves the data: for comparison only.

    Args:
        name: one of "polar", "euclidean" and "l2".
        shift, scale: mean and standard deviation over the training rows: of log|z| for "polar", of each column for
            "euclidean"; without a meaning for "l2".
    """

    name: str
    shift: Tensor
    scale: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """(n, d') the place of each feature vector, in float64."""
        z = z.to(self.shift)
        if self.name == "euclidean":
            return ((z - self.shift) / self.scale).clamp(-LARGEST, LARGEST)
        length = _length(z)
        direction = z / length
        if self.name == "l2":
            return direction
        log_length = (length.log() - self.shift).clamp(-300, 300)
        reach = (log_length.exp() - (-log_length).exp()) / (
            2 * self.scale
        )  # sinh, for onnxruntime, which has it in 32 bits
        return torch.cat([direction, (LENGTH * reach).clamp(-LONGEST, LONGEST)], -1)

    @classmethod
    def of(cls, name: str, rows: Callable[[], Iterator[tuple[Tensor, Tensor]]], total: Total) -> "Geometry":
        """The geometry of training rows.

        Args:
            name: name of the geometry.
            rows: function that gives the features (n, d) and weights (n,) of the rows, some at a time; it is called
                twice.
            total: sum over the machines.
        """
        if name == "l2":
            z, _ = next(rows())
            return cls(name, z.new_zeros((), dtype=torch.float64), z.new_ones((), dtype=torch.float64))
        measured = (lambda z: _length(z).log()[:, 0]) if name == "polar" else (lambda z: z)
        shift = _mean(((measured(z.double()), w) for z, w in rows()), total)
        variance = _mean((((measured(z.double()) - shift).square(), w) for z, w in rows()), total)
        scale = variance.sqrt()
        if name == "polar":
            return cls(name, shift, scale.clamp(min=SPREAD))
        return cls(name, shift, torch.where(scale > 1e-9 * shift.abs().clamp(min=1e-30), scale, 1.0))


def _length(z: Tensor) -> Tensor:
    """(n, 1) the length of each row, at least ``SMALLEST``, without overflow."""
    largest = z.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    return (largest * torch.linalg.vector_norm(z / largest, dim=-1, keepdim=True)).clamp(min=SMALLEST)


def _mean(rows: Weighted, total: Total) -> Tensor:
    sums = None
    for values, weight in rows:
        weight = weight.to(values)
        new = torch.cat([(weight @ values).reshape(-1), weight.sum()[None]])
        sums = new if sums is None else sums + new
    assert sums is not None
    sums = total(sums)
    mean = sums[:-1] / sums[-1]
    return mean[0] if values.ndim == 1 else mean
