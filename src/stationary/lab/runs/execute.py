"""Running tasks that have no result yet: in this process, in several processes, or on a Ray cluster.

Only the calling process writes results.
"""

import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from stationary.lab.runs.engines import here, in_processes, on_ray
from stationary.lab.runs.store import CorruptRunError, RunStore, running
from stationary.lab.runs.units import Outcome, Task, forget_together

ENGINES = ("local", "ray")


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
            with suppress(OSError):  # results can be used where nothing can be written
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
        events = on_ray(missing, store, device, address)
    elif jobs > 1:
        events = in_processes(missing, store, jobs, choose_device(device))
    else:
        events = here(missing, store, choose_device(device))
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
                    forget_together(unit, store)
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


def _stored(task: Task, outcome: Outcome, store: RunStore) -> Outcome:
    if outcome.refused:
        raise outcome.refused
    if not outcome.error:
        try:
            store.save(*task.key, outcome.arrays, outcome.environment)
            return outcome
        except (TypeError, ValueError):  # the experiment returned something else than a dictionary of arrays
            outcome = Outcome(error=traceback.format_exc())
    store.save_error(*task.key, outcome.error or "")
    return outcome
