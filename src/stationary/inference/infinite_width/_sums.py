"""Sums over the machines that share the training rows."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch import distributed as dist

Total: TypeAlias = Callable[[Tensor], Tensor]


def alone(value: Tensor) -> Tensor:
    """The value itself, where one process has all rows."""
    return value


def over_processes(value: Tensor) -> Tensor:
    """The sum of the values of all processes of ``torch.distributed``."""
    value = value.clone()
    dist.all_reduce(value)
    return value


def gathered(rows: Tensor) -> Tensor:
    """The rows (n, ...) of all processes, in the order of their ranks; they may differ in number."""
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    largest = int(max(counts))
    padded = torch.cat([rows, rows.new_zeros(largest - len(rows), *rows.shape[1:])])
    parts = [torch.zeros_like(padded) for _ in counts]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])
