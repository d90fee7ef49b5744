"""Where units run: in this process, in several, or on a Ray cluster.

An engine yields each unit when it starts, and again with its outcomes when it ends. It writes no results.
"""

import multiprocessing
import os
import signal
import socket
import threading
import traceback
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from stationary._extras import extra
from stationary._files import write_text
from stationary.lab.runs.store import RunStore
from stationary.lab.runs.units import Outcome, Task, Unit, failed, grouped, work

RETRIES = 3  # how often a run is tried again whose process died
ENDING_S = 5.0  # seconds that a process with nothing more to do may take to end

PASSED_ON = (
    "STATIONARY_DATA",
    "STATIONARY_CACHE",
    "STATIONARY_NATIVE",
    "STATIONARY_COMMIT",
)  # on Ray, whose processes inherit nothing

Event: TypeAlias = tuple[Unit, list[Outcome] | None]  # None when the unit starts; at its end, an outcome for each task
Events: TypeAlias = Generator[Event, None, None]


def here(tasks: list[Task], store: RunStore, device: str) -> Events:
    for unit in grouped(tasks, device):
        yield unit, None
        yield unit, work(unit, device, root=store.root)


def in_processes(tasks: list[Task], store: RunStore, jobs: int, device: str) -> Events:
    import torch

    threads = max(1, torch.get_num_threads() // jobs)
    # A process that dies breaks its whole pool. The units left then run one by one: this shows which of them is to
    # blame, and leaves each all the memory.
    for unit in (yield from _pool(grouped(tasks, device), store, jobs, device, threads)):
        for _ in range(RETRIES):
            if not (yield from _pool([unit], store, 1, device, threads)):
                break
        else:
            yield (
                unit,
                failed(unit, f"its process died each of the {RETRIES} times it ran alone; perhaps out of memory"),
            )


def _pool(
    units: list[Unit], store: RunStore, jobs: int, device: str, threads: int
) -> Generator[Event, None, list[Unit]]:
    """Run units in a pool of processes: yields events, and returns the units without outcome because a process died."""
    others = set(multiprocessing.active_children())
    workers: set[multiprocessing.process.BaseProcess] = set()
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare_process)
    waiting, left = iter(units), list(units)
    futures: dict[Future[list[Outcome]], Unit] = {}
    finished: list[tuple[Unit, Future[list[Outcome]]]] = []
    try:
        while True:
            with suppress(BrokenProcessPool):
                for unit in islice(waiting, jobs - len(futures)):  # no more than can run: they are marked as running
                    futures[pool.submit(work, unit, device, threads, store.root)] = unit
                    yield unit, None
            for unit, future in finished:
                try:
                    outcomes = future.result()
                except BrokenProcessPool:
                    continue
                except Exception:  # the unit or its outcome could not be pickled
                    outcomes = failed(unit, traceback.format_exc())
                left.remove(unit)
                yield unit, outcomes
            if not futures:
                break
            done: set[Future[list[Outcome]]] = set()
            while not done:
                workers |= set(multiprocessing.active_children()) - others
                ended = any(not worker.is_alive() for worker in workers)
                done, _ = wait(futures, ENDING_S, return_when=FIRST_COMPLETED)
                if ended and not done:  # the pool has not noticed: it waits for the dead one's result, or lock
                    return left
            finished = [(futures.pop(future), future) for future in done]
    except BaseException:  # stopped by Ctrl-C, or by the caller: do not wait for what is still running
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        workers |= set(multiprocessing.active_children()) - others
        results: Any = pool._result_queue
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # one that was killed while it held the queue's lock leaves the others waiting for it
            worker.join(ENDING_S)
            if worker.is_alive():
                worker.kill()
                worker.join()
        # The pool's thread may wait for the rest of a result whose writer was killed, and Python would wait for the
        # thread when it ends. This is the last writer: now the thread reads the end, and ends too.
        results._writer.close()
    return left


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def on_ray(tasks: list[Task], store: RunStore, device: str, address: str | None) -> Events:
    with extra("ray"):
        import ray
    mine = not ray.is_initialized()
    if mine:
        _check_address(address)
        ray.init(address=address, log_to_driver=False)
    if device == "auto":
        device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
    remote: Any = ray.remote(_announced)
    variables = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
    waiting: dict[Any, Unit] = {}
    sign = write_text(store.root.resolve() / f".{uuid4().hex}", "Who sees this file shares the disk of the results.")
    try:
        for unit in grouped(tasks, device):
            cpus, gpus = unit[0].num_cpus, unit[0].num_gpus if device == "cuda" else 0
            on = remote.options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, runtime_env={"env_vars": variables})
            waiting[on.remote(unit, device, cpus, sign)] = unit
        while waiting:
            ready: Any = ray.wait(list(waiting))[0][0]
            unit = waiting[ready]
            try:
                outcomes = ray.get(next(ready))
            except ray.exceptions.RayError:  # its process died too often, or it could not be pickled
                outcomes = failed(unit, traceback.format_exc())
            if outcomes is not None:
                del waiting[ready]
            yield unit, outcomes
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        sign.unlink(missing_ok=True)
        if mine:
            ray.shutdown()


def _announced(unit: Unit, device: str, threads: int, sign: Path) -> Iterator[list[Outcome] | None]:
    yield None  # tells the caller that the unit has started
    yield work(unit, device, threads, sign.parent if sign.exists() else None)


def _check_address(address: str | None) -> None:
    """Raise a ConnectionError if nothing answers at the address; Ray itself would keep trying for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ConnectionError(
                f"no Ray cluster answers at {address} ({error}); start one: ray start --head"
            ) from error
