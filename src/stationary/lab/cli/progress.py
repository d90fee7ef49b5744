"""The progress of ``stationary run``: a bar on a terminal, one line for each finished run in a pipe."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from statistics import fmean
from typing import Any

from stationary._extras import extra
from stationary.lab.runs.inside import Progress as Inside
from stationary.lab.runs.inside import progress_of
from stationary.lab.runs.provenance import duration, seconds_of
from stationary.lab.runs.store import RunStore, running
from stationary.lab.runs.units import Outcome, Task

with extra("experiments"):
    import typer
    from rich.console import Console, RenderableType
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )


LOOK_S = 1.0  # seconds between two looks at how far the running tasks are
AT_ONCE = 64  # tasks that are looked at: those that run come first, and no machine runs more


class _Looking(Progress):
    """A bar that looks how far the runs are whenever it is drawn, which happens by itself."""

    def __init__(self, watch: "Watch", *columns: ProgressColumn, console: Console) -> None:
        self.watch = watch
        super().__init__(*columns, console=console)

    def get_renderables(self) -> Iterable[RenderableType]:
        self.watch.look()
        return super().get_renderables()


class Watch:
    """Shows how many tasks are finished and about how long the others take.

    Args:
        tasks: all tasks of the command; call ``done`` with each when it is finished.
        durations: by name of the experiment, how long it takes, in words. They are shown until one of its runs has
            been timed.
        store: where the runs that are running say how far they are.
    """

    def __init__(self, tasks: Sequence[Task], durations: Mapping[str, str], store: RunStore) -> None:
        self.durations = durations
        self.store = store
        self.looked = 0.0  # when it was last looked how far the runs are
        self.inside: dict[Task, tuple[Inside, float]] = {}  # how far each running task is, after how many seconds
        self.tasks = list(tasks)
        self.left = list(tasks)
        self.seconds: dict[str, list[float]] = {}  # by experiment, how long each finished run took
        self.differing = {
            name: differing(task.config for task in tasks if task.experiment.name == name)
            for name in {task.experiment.name for task in tasks}
        }
        self.worked = 0.0  # seconds of finished runs, summed over all processes
        self.start = time.monotonic()
        self.console = Console()
        self.bar: Progress | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block runs; without a terminal there is no bar."""
        if not self.console.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        times = TimeElapsedColumn(), TextColumn("{task.fields[left]}")
        with _Looking(self, *columns, *times, console=self.console) as self.bar:
            self.bar.add_task(self._current(), total=len(self.tasks), left=self._left())
            yield

    def done(self, task: Task, outcome: Outcome) -> None:
        """Move the bar, or print a line, for a task that is finished."""
        self.left.remove(task)
        self.inside.pop(task, None)
        seconds = seconds_of(outcome.environment)
        if seconds is not None:
            self.seconds.setdefault(task.experiment.name, []).append(seconds)
            self.worked += 0 if outcome.reused else seconds
        left = "" if outcome.reused else self._left()  # among the tasks left, some more may be reused
        if self.bar:
            self.show(left)
            return
        what = "failed" if outcome.error else "reused" if outcome.reused else "done"
        took = "" if outcome.reused else _took(outcome.environment)
        number = f"{len(self.tasks) - len(self.left)}/{len(self.tasks)}"
        typer.echo(", ".join(filter(None, (f"{number} {self.label(task)} {what}{took}", left))))

    def look(self) -> None:
        """Move the bar by the epochs that the running tasks have done; each drawing calls this, and it looks rarely."""
        now = time.monotonic()
        if self.bar is None or now - self.looked < LOOK_S:
            return
        self.looked = now
        found: dict[Task, tuple[Inside, float]] = {}
        for task in self.left[:AT_ONCE]:
            folder = self.store.folder(*task.key)
            if (mark := running(folder)) and (inside := progress_of(folder)):
                found[task] = inside, mark.age_s
        self.inside = found
        if found:
            self.show(self._left())

    def show(self, left: str) -> None:
        assert self.bar is not None
        begun = sum(inside.share for task, (inside, _) in self.inside.items() if task in self.left)
        done = len(self.tasks) - len(self.left) + begun
        self.bar.update(self.bar.task_ids[0], completed=done, description=self._current(), left=left)

    def label(self, task: Task) -> str:
        """Name a task by its experiment and the settings in which the experiment's tasks differ."""
        return in_words(task.experiment.name, task.config, self.differing[task.experiment.name])

    def _current(self) -> str:
        """Name the experiment at work, and the epoch of the first run that says so."""
        if not self.left:
            return "done"
        inside = next((f", {inside.words}" for inside, _ in self.inside.values()), "")
        return f"{self.left[0].experiment.name}{inside}"

    def _left(self) -> str:
        """Estimate the time to go from runs of the same experiments, or quote the next one's duration.

        A run that is not finished counts too once a twentieth of it is done: its time so far, over the share done.
        """
        if not self.left:
            return ""
        seconds = {name: list(times) for name, times in self.seconds.items()}
        for task, (inside, age) in self.inside.items():
            if inside.share >= 0.05:
                seconds.setdefault(task.experiment.name, []).append(age / inside.share)
        current, known = (
            self.left[0].experiment.name,
            seconds.keys() >= {task.experiment.name for task in self.left},
        )
        if current not in seconds:
            words = self.durations.get(current)
            return f"{current} takes {words}" if words else ""
        left = [task for task in self.left if known or task.experiment.name == current]
        shares = [1 - self.inside[task][0].share if task in self.inside else 1.0 for task in left]
        work = sum(fmean(seconds[task.experiment.name]) * share for task, share in zip(left, shares, strict=True))
        at_once = max(1.0, self.worked / (time.monotonic() - self.start))
        return f"about {duration(work / at_once)} left" + ("" if known else f" of {current}")


def differing(configs: Iterable[Any]) -> list[str]:
    """Return the names of the settings that are not the same in all configurations."""
    configs = list(configs)
    names = [field.name for field in fields(configs[0])] if configs else []
    return [name for name in names if len({getattr(config, name) for config in configs}) > 1]


def in_words(what: str, config: Any, settings: Iterable[str]) -> str:
    return " ".join([what, *(f"{name}={getattr(config, name)}" for name in settings)])


def _took(environment: dict[str, Any]) -> str:
    if "wall_s" not in environment:
        return ""
    together = f", {environment['lockstep']} in lockstep" if "lockstep" in environment else ""
    return f" in {duration(environment['wall_s'])}{together}"
