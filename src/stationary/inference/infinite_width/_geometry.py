"""Where features are far from each other: the map from the features of a trunk to the space of the kernel."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from stationary.inference.infinite_width._sums import Total

GEOMETRIES = ("polar", "euclidean", "whitened", "l2")
LENGTH = 0.3  # weight of the length beside the direction
SMALLEST = 1e-12  # length below which a feature vector counts as of this length
SPREAD = 0.01  # smallest standard deviation of the logarithm of the length
LARGEST = 1e30  # a place beyond counts as there; ONNX holds the number in 32 bits
OVERFLOW = 3e38  # a feature beyond, or one that is not a number, counts as this
LONGEST = 1e3  # the same for the length: a feature vector of 0 must not be so far that rounding moves the others

Weighted: TypeAlias = Iterable[tuple[Tensor, Tensor]]  # values (n, d) or (n,) and weights (n,) of some rows at a time
Labelled: TypeAlias = Iterator[tuple[Tensor, Tensor, Tensor]]  # features (n, d), weights (n,) and targets, the same


@dataclass(frozen=True)
class Geometry:
    """A map of features z (n, d) to the space in which the kernel measures distances.

    - "polar": (z / |z|, 0.3 sinh(log|z| - shift) / scale). The meaning of a trunk's features is in their direction and
      in their length. sinh makes the length count in proportion once it is unlike that of the training features, so
      that every ray leaves the data.
    - "euclidean": (z - shift) / scale, for the columns of a table.
    - "whitened": (z - shift) scale, where scale (d, d) is S^(-1/2) and S the covariance of features around the mean of
      their class: a direction in which the rows of a class hardly differ counts as much as any other.
    - "l2": z / |z|. It does not see the length at all, so that no ray leaves the data: for comparison only.

    Args:
        name: one of "polar", "euclidean", "whitened" and "l2".
        shift, scale: mean and standard deviation over the training rows: of log|z| for "polar", of each column for
            "euclidean"; the mean (d,) and S^(-1/2) for "whitened"; without a meaning for "l2".
    """

    name: str
    shift: Tensor
    scale: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """(n, d') the place of each feature vector, in float64; what overflowed in the network, also to NaN, is far."""
        z = z.to(self.shift)
        z = torch.where(z.abs() < OVERFLOW, z, OVERFLOW)
        if self.name == "euclidean":
            return ((z - self.shift) / self.scale).clamp(-LARGEST, LARGEST)
        if self.name == "whitened":
            return ((z - self.shift) @ self.scale).clamp(-LARGEST, LARGEST)
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
    def of(cls, name: str, rows: Callable[[], Labelled], n_classes: int, total: Total) -> "Geometry":
        """The geometry of training rows.

        Args:
            name: name of the geometry.
            rows: function that gives the features (n, d), the weights (n,) and the targets of the rows, some at a time;
                it is called twice.
            n_classes: number of classes, if the targets are class indices; else 0.
            total: sum over the machines.
        """
        if name == "l2":
            z, *_ = next(rows())
            return cls(name, z.new_zeros((), dtype=torch.float64), z.new_ones((), dtype=torch.float64))
        if name == "whitened":
            return cls(name, *_whitening(rows, n_classes, total))
        measured = (lambda z: _length(z).log()[:, 0]) if name == "polar" else (lambda z: z)
        shift = _mean(((measured(z.double()), w) for z, w, _ in rows()), total)
        variance = _mean((((measured(z.double()) - shift).square(), w) for z, w, _ in rows()), total)
        scale = variance.sqrt()
        if name == "polar":
            return cls(name, shift, scale.clamp(min=SPREAD))
        return cls(name, shift, torch.where(scale > 1e-9 * shift.abs().clamp(min=1e-30), scale, 1.0))


def _length(z: Tensor) -> Tensor:
    """(n, 1) the length of each row, at least ``SMALLEST``, without overflow."""
    largest = z.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    return (largest * torch.linalg.vector_norm(z / largest, dim=-1, keepdim=True)).clamp(min=SMALLEST)


def _whitening(rows: Callable[[], Labelled], n_classes: int, total: Total) -> tuple[Tensor, Tensor]:
    """The mean (d,) of all rows and the symmetric S^(-1/2) (d, d); without classes, S is the covariance of all rows.

    S is shrunk towards the average variance as Chen, Wiesel, Eldar and Hero (2010) do it for many columns, by the share
    (tr S^2 + tr^2 S) / ((n + 1) (tr S^2 - tr^2 S / d)), at most 1, where n is the sum of the weights.
    """
    classes = max(n_classes, 1)
    of_class = lambda y: y if n_classes else torch.zeros(len(y), dtype=torch.long, device=y.device)  # noqa: E731
    sums = counts = None
    for z, weight, y in rows():
        z, weight = z.double(), weight.double()
        if sums is None or counts is None:
            sums, counts = z.new_zeros(classes, z.shape[1]), z.new_zeros(classes)
        sums.index_add_(0, of_class(y), weight[:, None] * z)
        counts.index_add_(0, of_class(y), weight)
    assert sums is not None and counts is not None
    sums, counts = total(sums), total(counts)
    means, n = sums / counts.clamp(min=1e-30)[:, None], counts.sum()
    square = sums.new_zeros(sums.shape[1], sums.shape[1])
    for z, weight, y in rows():
        rest = z.double() - means[of_class(y)]
        square += (weight.double()[:, None] * rest).mT @ rest
    values, vectors = torch.linalg.eigh(total(square) / n)
    values, d = values.clamp(min=0), len(values)
    trace, trace_of_square = values.sum(), values.square().sum()
    most, least = trace_of_square + trace**2, (n + 1) * (trace_of_square - trace**2 / d)
    share = torch.where(least > most, most / least, 1.0)
    shrunk = (1 - share) * values + share * trace / d
    return sums.sum(0) / n, (vectors * torch.where(shrunk > 0, shrunk, 1.0).rsqrt()) @ vectors.mT


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
