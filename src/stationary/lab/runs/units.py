"""What runs at once: a task, or several in lockstep; and the work on it, in whichever process."""

import time
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from stationary.lab.experiments.base import Experiment
from stationary.lab.runs.inside import a_run, forget
from stationary.lab.runs.provenance import commit, environment
from stationary.lab.runs.store import Arrays, RunStore


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
        refused: the error of the store itself, where it took no checkpoint: no fault of the task.
    """

    arrays: Arrays = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    reused: bool = False
    refused: OSError | None = None


Unit: TypeAlias = tuple[Task, ...]  # tasks that run together, by one call of the experiment


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
    commit()  # of the files as they are now, while the process loads them
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
    except Exception as error:
        of_store = isinstance(error, OSError) and root and Path(str(error.filename)).is_relative_to(root)
        return failed(unit, traceback.format_exc(), error if of_store else None)  # type: ignore[arg-type]


def failed(unit: Unit, error: str, refused: OSError | None = None) -> list[Outcome]:
    return [Outcome(error=error, refused=refused)] * len(unit)


def forget_together(unit: Unit, store: RunStore) -> None:
    """Remove the checkpoints of runs in lockstep, and their folder, which has nothing else."""
    folder = _together(unit, store)
    forget(folder, checkpoints=True)
    with suppress(OSError):
        folder.rmdir()


def _inside(unit: Unit, store: RunStore) -> AbstractContextManager[None]:
    """Let the unit note its progress in the folder of each of its runs, and keep its checkpoints."""
    return a_run([store.folder(*task.key) for task in unit], _together(unit, store))


def _together(unit: Unit, store: RunStore) -> Path:
    """Return the folder that the unit would have as one run; runs in lockstep keep their checkpoints there."""
    name, version, config = unit[0].key
    return store.folder(name, version, _merged(unit) if len(unit) > 1 else config)


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
