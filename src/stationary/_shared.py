"""Settings of the whole process that last as long as somebody is inside, and how many threads little work takes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from threadpoolctl import threadpool_limits


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


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Several threads wait for each other after every operation, and so for a busy neighbour.
ONE_THREAD = Shared(_one_thread)
# SciPy's BLAS waits in a loop for its next small product, on a core that PyTorch's threads would compute on.
ONE_THREAD_OF_SCIPY = Shared(lambda: threadpool_limits(1, user_api="blas"))


def threads_for(work: int, enough: int) -> AbstractContextManager[None]:
    """Inside, PyTorch computes with one thread where there is less work than enough for several."""
    return ONE_THREAD if work < enough else nullcontext()
