"""Running tasks that have no result yet: in this process, in several processes, or on a Ray cluster.

Only the calling process writes results.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from stationary._extras import extra
from stationary._files import write_text
from stationary.lab.experiments.base import Experiment
from stationary.lab.runs.inside import a_run, forget
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import Arrays, CorruptRunError, RunStore, running

RETRIES = 3  # how often a run is tried again whose process died
ENDING_S = 5.0  # seconds that a process with nothing more to do may take to end

ENGINES = ("local", "ray")
PASSED_ON = (
    "STATIONARY_DATA",
    "STATIONARY_CACHE",
    "STATIONARY_NATIVE",
    "STATIONARY_COMMIT",
)  # on Ray, whose processes inherit nothing


@dataclass(frozen=True)
class Task:
    """One configuration of one experiment, to be run.

    Args:
        experiment: the experiment. Its modules are imported in the process that runs the task.
        config: the configuration to run, an instance of the experiment's ``Config``.
        num_cpus: number of CPUs that Ray reserves for the task, and number of threads the task may use there.
        num_gpus: number of GPUs that Ray reserves for the task on the device "cuda"; 0.5 lets two tasks share one.
    """

    experiment: Experiment
    config: Any
    num_cpus: int = 1
    num_gpus: float = 1.0

    @property
    def key(self) -> tuple[str, int, Any]:
        """Name of the experiment, its version and the configuration, as the methods of ``RunStore`` take them."""
        return self.experiment.name, self.experiment.config.VERSION, self.config


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Args:
        arrays: what the experiment computed, by name; empty if the task failed.
        environment: where and when it was computed, as ``provenance.environment`` gives it.
        error: the traceback or message if the task failed, else None.
        reused: whether the result was in the store already.
    """

    arrays: Arrays = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    reused: bool = False


@dataclass
class Summary:
    """What ``run_missing`` did.

    Args:
        done: number of tasks that were computed and stored.
        reused: number of tasks that had a result in the store.
        failures: the tasks that failed, each with its error.
        problems: messages about corrupt results, which were moved aside and computed again.
    """

    done: int = 0
    reused: int = 0
    failures: list[tuple[Task, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


Unit: TypeAlias = tuple[Task, ...]  # tasks that run together, by one call of the experiment
Event: TypeAlias = tuple[Unit, list[Outcome] | None]  # None when the unit starts; at its end, an outcome for each task
Events: TypeAlias = Generator[Event, None, None]


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

    The error of a task that raises is stored, and the others still run. After an interruption the next call continues
    with what is missing. On "cuda", tasks that differ only in the setting that their experiment names as ``LOCKSTEP``
    run together.

    Args:
        tasks: what to run; a task that is in it twice runs once.
        store: the run store that is searched for results and gets the new ones.
        engine: "local" for this machine, or "ray" for a Ray cluster.
        jobs: number of processes of the local engine; 1 runs the tasks in this process.
        device: "cpu", "cuda", or "auto" for "cuda" where there is a GPU.
        address: address of a running Ray cluster; None lets Ray look for one on this machine, or start one.
        on_done: function that is called with each finished task and its outcome.
    """
    check(engine, jobs, device, address)
    summary, missing = Summary(), []
    for task in {store.folder(*task.key): task for task in tasks}.values():
        if not running(store.folder(*task.key)):
            store.unmark_running(*task.key)  # a killed process leaves its mark behind
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
        events = _on_ray(missing, store, device, address)
    elif jobs > 1:
        events = _in_processes(missing, store, jobs, choose_device(device))
    else:
        events = _here(missing, store, choose_device(device))
    marked: set[Task] = set()
    try:
        with closing(events):
            for unit, outcomes in events:
                if outcomes is None:
                    marked.update(unit)
                    for task in unit:
                        store.mark_running(*task.key)
                    continue
                if len(unit) > 1:
                    _forget_together(unit, store)
                for task, outcome in zip(unit, outcomes, strict=True):
                    outcome = _stored(task, outcome, store)
                    marked.discard(task)
                    if outcome.error:
                        summary.failures.append((task, outcome.error))
                    else:
                        summary.done += 1
                    on_done(task, outcome)
    finally:
        for task in marked:
            with suppress(OSError):  # what stopped the runs is said, not that this fails too
                store.unmark_running(*task.key)
    return summary


def check(engine: str, jobs: int, device: str, address: str | None) -> None:
    """Raise a ValueError if these arguments of ``run_missing`` are wrong or do not fit together."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1; got {jobs}; use 1 to run everything in this process")
    if engine == "ray" and jobs > 1:
        raise ValueError(
            "jobs must be 1 for the engine ray, where the cluster's CPUs and GPUs decide how many tasks run at once; "
            f"got jobs={jobs}; leave it out"
        )
    if engine == "local" and address:
        raise ValueError(
            f"address must be None for the engine local; got {address!r}; use the engine ray, or leave it out"
        )
    if engine == "local":
        choose_device(device)


def choose_device(device: str) -> str:
    """Return the device of a local run; "auto" becomes "cuda" where there is a GPU, else "cpu"."""
    import torch

    found = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if found else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda; got {device!r}")
    if device == "cuda" and not found:
        raise ValueError("device is cuda, but PyTorch finds no GPU here; use cpu or auto")
    return device


def grouped(tasks: Sequence[Task], device: str) -> list[Unit]:
    """Group tasks into those that run together.

    On "cuda" they are those that differ only in the setting ``LOCKSTEP`` of their experiment. On other devices each
    task runs alone, so that an interruption loses little.
    """
    groups: dict[Any, list[Task]] = {}
    for number, task in enumerate(tasks):
        key: Any = number
        name, config = _lockstep(task), task.config
        if device == "cuda" and name and len(getattr(config, name)) == 1:
            same = tuple(getattr(config, field.name) for field in fields(config) if field.name != name)
            key = (task.experiment, task.num_cpus, task.num_gpus, same)
        groups.setdefault(key, []).append(task)
    return [tuple(group) for group in groups.values()]


def _lockstep(task: Task) -> str | None:
    """Return the name of the setting in which tasks that run together may differ, or None."""
    name = task.experiment.config.LOCKSTEP
    if name is not None and not isinstance(getattr(task.config, name, None), tuple):
        raise ValueError(f"LOCKSTEP of {task.experiment.package} must name a tuple of its Config; got {name!r}")
    return name


def work(unit: Unit, device: str, threads: int | None = None, root: Path | None = None) -> list[Outcome]:
    """Run the tasks of a unit in this process and return an outcome for each.

    An exception does not leave this function: its traceback is the error of each outcome.

    Args:
        unit: one task, or several that run together.
        device: "cpu" or "cuda".
        threads: number of threads that PyTorch may use; None leaves its setting as it is.
        root: folder of the run store, where the run notes its progress and keeps checkpoints; None where this process
            cannot reach it, as on a machine of a Ray cluster without a common disk.
    """
    start = time.perf_counter()
    try:
        if threads:
            import torch

            torch.set_num_threads(threads)
        task, several = unit[0], len(unit) > 1
        config = _merged(unit) if several else task.config
        with _inside(unit, RunStore(root)) if root else nullcontext():
            arrays = task.experiment.run.run(config, device)
        seconds = round(time.perf_counter() - start, 3)
        where = environment(device) | {"wall_s": seconds}
        if not several:
            return [Outcome(arrays, where)]
        return [Outcome(part, where | {"lockstep": len(unit)}) for part in _cut(arrays, unit)]
    except Exception:
        return _failed(unit, traceback.format_exc())


def _inside(unit: Unit, store: RunStore) -> AbstractContextManager[None]:
    """Let the unit note its progress in the folder of each of its runs, and keep its checkpoints."""
    return a_run([store.folder(*task.key) for task in unit], _together(unit, store))


def _together(unit: Unit, store: RunStore) -> Path:
    """Return the folder that the unit would have as one run; runs in lockstep keep their checkpoints there."""
    name, version, config = unit[0].key
    return store.folder(name, version, _merged(unit) if len(unit) > 1 else config)


def _forget_together(unit: Unit, store: RunStore) -> None:
    """Remove the checkpoints of runs in lockstep, and their folder, which has nothing else."""
    folder = _together(unit, store)
    forget(folder, checkpoints=True)
    with suppress(OSError):
        folder.rmdir()


def _merged(unit: Unit) -> Any:
    name = _lockstep(unit[0]) or ""
    return replace(unit[0].config, **{name: tuple(getattr(task.config, name)[0] for task in unit)})


def _cut(arrays: Arrays, unit: Unit) -> list[Arrays]:
    import numpy as np

    for name, array in arrays.items():
        if np.shape(array)[:1] != (len(unit),):
            raise ValueError(
                f"the first axis of {name!r} must have length {len(unit)}, one entry for each of {_lockstep(unit[0])}, "
                f"since {unit[0].experiment.package} has LOCKSTEP; got the shape {np.shape(array)}"
            )
    return [{name: array[k : k + 1] for name, array in arrays.items()} for k in range(len(unit))]


def _failed(unit: Unit, error: str) -> list[Outcome]:
    return [Outcome(error=error)] * len(unit)


def _stored(task: Task, outcome: Outcome, store: RunStore) -> Outcome:
    if not outcome.error:
        try:
            store.save(*task.key, outcome.arrays, outcome.environment)
            return outcome
        except (TypeError, ValueError):  # the experiment returned something else than a dictionary of arrays
            outcome = Outcome(error=traceback.format_exc())
    store.save_error(*task.key, outcome.error or "")
    return outcome


def _here(tasks: list[Task], store: RunStore, device: str) -> Events:
    for unit in grouped(tasks, device):
        yield unit, None
        yield unit, work(unit, device, root=store.root)


def _in_processes(tasks: list[Task], store: RunStore, jobs: int, device: str) -> Events:
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
                _failed(unit, f"its process died each of the {RETRIES} times it ran alone; perhaps out of memory"),
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
                    outcomes = _failed(unit, traceback.format_exc())
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


def _on_ray(tasks: list[Task], store: RunStore, device: str, address: str | None) -> Events:
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
                outcomes = _failed(unit, traceback.format_exc())
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
