"""Runs what is missing: in this process, in several, or on a Ray cluster. Only the calling process writes results."""

import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from stationary.extras import extra
from stationary.runs import Arrays, CorruptRunError, RunStore, environment

RETRIES = 3  # of a run whose process died

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Task:
    """One configuration of one experiment.

    Args:
        experiment: its name, as in the run store.
        module: the path of its module, to be imported where the task runs.
        config: one of its configurations.
        num_cpus: what Ray reserves for it, and the threads it gets there.
        num_gpus: the same, on device "cuda"; 0.5 lets two tasks share a GPU.
    """

    experiment: str
    module: str
    config: Any
    num_cpus: int = 1
    num_gpus: float = 1.0

    @property
    def key(self) -> tuple[str, int, Any]:
        """How the run store knows it: experiment, version, configuration."""
        return self.experiment, import_module(self.module).VERSION, self.config


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its arrays and where they were computed, or the error as text."""

    arrays: Arrays = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    reused: bool = False


@dataclass
class Summary:
    """What ``run_missing`` did; ``problems`` are corrupt results, which were moved aside and run again."""

    done: int = 0
    reused: int = 0
    failures: list[tuple[Task, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


Outcomes = Generator[tuple[Task, Outcome], None, None]


def run_missing(
    tasks: Sequence[Task],
    store: RunStore,
    *,
    engine: str = "local",
    jobs: int = 1,
    device: str = "cpu",
    address: str | None = None,
    on_done: Callable[[Task, Outcome], object] = lambda task, outcome: None,
) -> Summary:
    """Run every task that has no result in the store, and store each result as it comes.

    A task that raises is noted, and the others still run. Stopped at any moment, the next call continues.

    Args:
        tasks: what to run; what is there twice runs once.
        store: where results are, and go.
        engine: "local", or "ray" for a Ray cluster.
        jobs: local processes; 1 runs the tasks in this one.
        device: "cpu", "cuda", or "auto" for "cuda" where there is a GPU.
        address: of a running Ray cluster; without, Ray looks for one here, or starts one.
        on_done: called after each task.
    """
    check(engine, jobs, device, address)
    summary, missing = Summary(), []
    for task in {store.folder(*task.key): task for task in tasks}.values():
        try:
            run = store.load(*task.key)
        except CorruptRunError as problem:
            moved = ", ".join(path.name for path in store.set_aside(*task.key))
            summary.problems.append(f"{problem}; moved to {moved}, and run again")
            run = None
        if run:
            summary.reused += 1
            on_done(task, Outcome(run.arrays, run.environment, reused=True))
        else:
            missing.append(task)
    if not missing:
        return summary
    if engine == "ray":
        outcomes = _on_ray(missing, device, address)
    elif jobs > 1:
        outcomes = _in_processes(missing, jobs, choose_device(device))
    else:
        outcomes = _here(missing, choose_device(device))
    with closing(outcomes):
        for task, outcome in outcomes:
            outcome = _stored(task, outcome, store)
            if outcome.error:
                summary.failures.append((task, outcome.error))
            else:
                summary.done += 1
            on_done(task, outcome)
    return summary


def check(engine: str, jobs: int, device: str, address: str | None) -> None:
    """Raise a ValueError where these arguments of ``run_missing`` do not fit together."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1; got {jobs}")
    if engine == "ray" and jobs > 1:
        raise ValueError(f"jobs is for the engine local; on ray, the cluster's CPUs and GPUs decide. Got jobs={jobs}")
    if engine == "local" and address:
        raise ValueError(f"address is for the engine ray; got {address!r} with the engine local")
    if engine == "local":
        choose_device(device)


def choose_device(device: str) -> str:
    """The device of a local run; "auto" is "cuda" where there is a GPU, else "cpu"."""
    found = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if found else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda; got {device!r}")
    if device == "cuda" and not found:
        raise ValueError("device is cuda, but PyTorch finds no GPU here; use cpu or auto")
    return device


def work(task: Task, device: str, threads: int | None = None) -> Outcome:
    """Run one task, wherever this is called; what it raises is returned as text."""
    if threads:
        torch.set_num_threads(threads)
    start = time.perf_counter()
    try:
        arrays = import_module(task.module).run(task.config, device)
        seconds = round(time.perf_counter() - start, 3)
        return Outcome(arrays, environment(device) | {"wall_s": seconds})
    except Exception:
        return Outcome(error=traceback.format_exc())


def _stored(task: Task, outcome: Outcome, store: RunStore) -> Outcome:
    if not outcome.error:
        try:
            store.save(*task.key, outcome.arrays, outcome.environment)
            return outcome
        except (TypeError, ValueError):  # run returned something that is not a dictionary of arrays
            outcome = Outcome(error=traceback.format_exc())
    store.save_error(*task.key, outcome.error or "")
    return outcome


def _here(tasks: list[Task], device: str) -> Outcomes:
    for task in tasks:
        yield task, work(task, device)


def _in_processes(tasks: list[Task], jobs: int, device: str) -> Outcomes:
    threads = max(1, torch.get_num_threads() // jobs)
    # A dead process takes its pool along. One by one then: it shows which task did it, and leaves each all the memory.
    for task in (yield from _pool(tasks, jobs, device, threads)):
        for _ in range(RETRIES):
            if not (yield from _pool([task], 1, device, threads)):
                break
        else:
            yield task, Outcome(error=f"its process died each of the {RETRIES} times it ran alone; out of memory?")


def _pool(tasks: list[Task], jobs: int, device: str, threads: int) -> Generator[tuple[Task, Outcome], None, list[Task]]:
    """Yields outcomes; returns the tasks that have none because a process died."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare_process)
    left, futures = list(tasks), {}
    try:
        with suppress(BrokenProcessPool):
            for task in tasks:
                futures[pool.submit(work, task, device, threads)] = task
        for future in as_completed(futures):
            task = futures.pop(future)
            try:
                outcome = future.result()
            except BrokenProcessPool:
                continue
            except Exception:  # it could not be sent there or back
                outcome = Outcome(error=traceback.format_exc())
            left.remove(task)
            yield task, outcome
    except BaseException:  # stopped: nobody waits for what is still running
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return left


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _on_ray(tasks: list[Task], device: str, address: str | None) -> Outcomes:
    with extra("ray"):
        import ray
    mine = not ray.is_initialized()
    if mine:
        _check_address(address)
        ray.init(address=address, log_to_driver=False)
    if device == "auto":
        device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
    remote: Any = ray.remote(work)
    waiting: dict[Any, Task] = {}
    try:
        for task in tasks:
            gpus = task.num_gpus if device == "cuda" else 0
            on = remote.options(num_cpus=task.num_cpus, num_gpus=gpus, max_retries=RETRIES)
            waiting[on.remote(task, device, task.num_cpus)] = task
        while waiting:
            (ready,), _ = ray.wait(list(waiting))
            task = waiting.pop(ready)
            try:
                outcome = ray.get(ready)
            except ray.exceptions.RayError:  # its process died too often, or it could not be sent
                outcome = Outcome(error=traceback.format_exc())
            yield task, outcome
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        if mine:
            ray.shutdown()


def _check_address(address: str | None) -> None:
    """Ray itself keeps trying for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ConnectionError(
                f"no Ray cluster answers at {address} ({error}); start one: ray start --head"
            ) from error
