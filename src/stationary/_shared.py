"""Settings of the whole process that last as long as somebody is inside, such as the number of threads."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

GRAIN = 2**15  # numbers that one thread takes at least
WINDOW = 0.005  # seconds in which a number of threads shows its speed
PATIENCE = 0.15  # seconds in which a core that is busy may become idle


class Shared:
    """A context that several threads are in at once: the first one to come sets it up, the last one to go ends it.

    Args:
        make: makes the context.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self.make, self.lock, self.inside = make, Lock(), 0
        self.context: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.context = self.make()
                self.context.__enter__()
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.context.__exit__(None, None, None)


class Threads:
    """Inside, PyTorch computes with so many threads; that holds for the process, so the last one to go ends it.

    Args:
        count: gives the number of threads.
    """

    lock, inside, before = Lock(), 0, 1

    def __init__(self, count: Callable[[], int]) -> None:
        self.count = count

    def __enter__(self) -> None:
        with self.lock:
            if not Threads.inside:
                Threads.before = torch.get_num_threads()
            Threads.inside += 1
            torch.set_num_threads(self.count())

    def __exit__(self, *_: object) -> None:
        with self.lock:
            Threads.inside -= 1
            if not Threads.inside:
                torch.set_num_threads(Threads.before)


def free_threads() -> int:
    """The number of threads that are faster than one now: all of them, or half, a quarter, ... of them.

    Threads meet after every operation. Where somebody else computes on the core of one, all wait for it, milliseconds
    for an operation of microseconds. Threads on idle cores are known by that within some milliseconds. Those of NumPy,
    which wait in a loop after its last product, are given time to leave theirs.
    """
    threads, most, end = 0, torch.get_num_threads(), time.perf_counter() + PATIENCE
    while most > 1 and threads < most:
        numbers, threads = torch.zeros(most * GRAIN, dtype=torch.float64), most
        alone = _rate(numbers, 1)
        while threads > 1 and _rate(numbers, threads) < alone:
            threads //= 2
        if time.perf_counter() > end:
            break
    return max(1, threads)


def _rate(numbers: Tensor, threads: int) -> float:
    """The operations in a second, on so many threads."""
    torch.set_num_threads(threads)
    numbers.sin_()  # which makes the threads
    done, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + WINDOW:
        numbers.sin_()
        done += 1
    return done / (now - start)


ONE_THREAD, FREE_THREADS = Threads(lambda: 1), Threads(free_threads)
# SciPy's BLAS waits in a loop for its next small product, on a core that PyTorch's threads would compute on.
ONE_THREAD_OF_SCIPY = Shared(lambda: threadpool_limits(1, user_api="blas"))
