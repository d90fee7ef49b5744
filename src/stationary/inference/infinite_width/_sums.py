"""Sums over the machines that share the training rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    total = _sent(value.clone())
    dist.all_reduce(total)
    return total.to(value.device)


def of_first(value: Tensor) -> Tensor:
    """The value of the process of rank 0."""
    first = _sent(value.clone())
    dist.broadcast(first, 0)
    return first.to(value.device)


def gathered(rows: Tensor) -> Tensor:
    """The rows (n, ...) of all processes, in the order of their ranks; they may differ in number."""
    count = _sent(torch.tensor([len(rows)]))
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    largest = int(max(counts))
    padded = _sent(torch.cat([rows, rows.new_zeros(largest - len(rows), *rows.shape[1:])]))
    parts = [torch.zeros_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)]).to(rows.device)


def _sent(value: Tensor) -> Tensor:
    """The value where the processes can send it: NCCL takes it from a GPU, Gloo and MPI from the CPU."""
    return value.to("cuda" if dist.get_backend() == "nccl" else "cpu").contiguous()


@contextmanager
def together(distributed: bool) -> Iterator[None]:
    """Where a process raises an error inside, the others raise one too, and do not wait for it for ever."""
    try:
        yield
    except Exception:
        if distributed:
            over_processes(torch.ones(1))
        raise
    if distributed and over_processes(torch.zeros(1)) > 0:
        raise ValueError("the rows of every process must be good, and another process found a fault; see its error")
