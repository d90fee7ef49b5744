"""The progress of ``stationary run``: a bar on a terminal, one line for each finished run in a pipe."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from statistics import fmean
from typing import Any

from stationary._extras import extra
from stationary.lab.runs.execute import Outcome, Task
from stationary.lab.runs.provenance import duration, seconds_of

with extra("experiments"):
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Watch:
    """Shows how many tasks are finished and about how long the others take.

    Args:
        tasks: all tasks of the command; call ``done`` with each when it is finished.
        durations: by name of the experiment, how long it takes, in words. They are shown until one of its runs has
            been timed.
    """

    def __init__(self, tasks: Sequence[Task], durations: Mapping[str, str]) -> None:
        self.durations = durations
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
        with Progress(*columns, *times, console=self.console) as self.bar:
            self.bar.add_task(self._current(), total=len(self.tasks), left=self._left())
            yield

    def done(self, task: Task, outcome: Outcome) -> None:
        """Move the bar, or print a line, for a task that is finished."""
        self.left.remove(task)
        seconds = seconds_of(outcome.environment)
        if seconds is not None:
            self.seconds.setdefault(task.experiment.name, []).append(seconds)
            self.worked += 0 if outcome.reused else seconds
        left = "" if outcome.reused else self._left()  # among the tasks left, some more may be reused
        if self.bar:
            self.bar.update(self.bar.task_ids[0], advance=1, description=self._current(), left=left)
            return
        what = "failed" if outcome.error else "reused" if outcome.reused else "done"
        took = "" if outcome.reused else _took(outcome.environment)
        number = f"{len(self.tasks) - len(self.left)}/{len(self.tasks)}"
        typer.echo(", ".join(filter(None, (f"{number} {self.label(task)} {what}{took}", left))))

    def label(self, task: Task) -> str:
        """Name a task by its experiment and the settings in which the experiment's tasks differ."""
        return in_words(task.experiment.name, task.config, self.differing[task.experiment.name])

    def _current(self) -> str:
        return self.left[0].experiment.name if self.left else "done"

    def _left(self) -> str:
        """Estimate the time to go from finished runs of the same experiments, or quote the next one's duration."""
        if not self.left:
            return ""
        current, known = self._current(), self.seconds.keys() >= {task.experiment.name for task in self.left}
        if current not in self.seconds:
            words = self.durations.get(current)
            return f"{current} takes {words}" if words else ""
        counts = Counter(task.experiment.name for task in self.left if known or task.experiment.name == current)
        work = sum(fmean(self.seconds[experiment]) * count for experiment, count in counts.items())
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
