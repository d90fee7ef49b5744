"""What happens inside a run: the epochs of its training, which ``stationary run`` shows and continues from.

An experiment asks ``watched`` for what ``fit`` takes as ``progress`` and ``checkpoint``, ``of_fit`` for what
``InfiniteWidth`` takes as ``checkpoint`` and ``verbose``, and ``kept`` for a place for the state of a loop of its own.
``part`` and ``parts`` say that all this is one part of several. Where nobody runs it through the command line, as in a
test, they do nothing.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from stationary._files import Pace, write_atomically

PROGRESS = "progress.json"  # in the folder of a run that is running
CHECKPOINT = "checkpoint"  # how the files begin from which a run continues
EVERY_S = 0.5  # seconds between two notes of the progress
USUAL_STEPS = 15  # of a fit of infinite width, which does not know how many it will take
T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Args:
        share: share of the run that is done, from 0 to 1.
        words: the same in words, such as "epoch 812 of 2000".
    """

    share: float
    words: str


@dataclass
class Inside:
    """A run that is running: where it notes its progress, and where it keeps its checkpoints."""

    notes: Sequence[Path]
    checkpoints: Path
    trainings: int = 0  # number of trainings that have begun
    fits: int = 0  # number of fits of infinite width that have begun
    loops: int = 0  # number of loops that have begun
    resumed: bool = False  # whether one of them continues one that was stopped
    noted: float = field(default=-EVERY_S)
    begin: float = 0.0  # of the part that goes on, as a share of the run
    width: float = 1.0  # of this part
    words: str = ""  # about this part
    before: int = 0  # number of trainings that had begun when it began

    def note(self, share: float, words: str) -> None:
        """Write how far the part is into the folders of the run, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self.noted < EVERY_S:
            return
        self.noted = now
        progress = Progress(self.begin + self.width * share, ", ".join(filter(None, (self.words, words))))
        for folder in self.notes:
            with suppress(OSError):  # it is only shown: no reason to stop
                temporary = folder / f".{PROGRESS}.{os.getpid()}"
                temporary.write_text(json.dumps(vars(progress)))
                temporary.replace(folder / PROGRESS)


_current: ContextVar[Inside | None] = ContextVar("inside", default=None)


@contextmanager
def a_run(notes: Sequence[Path], checkpoints: Path) -> Iterator[None]:
    """Let trainings inside the block note their progress in these folders, and keep checkpoints in the last one."""
    token = _current.set(Inside(notes, checkpoints))
    try:
        yield
    finally:
        _current.reset(token)


class Watched:
    """One training of a run.

    Args:
        epochs: number of its epochs.
        of: number of trainings of the run, all as long as this one.
        checkpoint: path of the file from which it continues, or None.
    """

    def __init__(self, epochs: int, of: int, checkpoint: Path | None) -> None:
        self.epochs, self.of, self.checkpoint = epochs, of, checkpoint
        self.run = _current.get()
        self.before = 0
        if self.run is not None:
            self.before = self.run.trainings - self.run.before
            self.run.trainings += 1

    def epoch(self, number: int, *losses: float | None) -> None:
        """Note the end of an epoch; ``fit`` calls this."""
        if self.run is not None:
            training = f"training {self.before + 1} of {self.of}, " if self.of > 1 else ""
            share = (self.before + number / self.epochs) / max(self.of, self.before + 1)
            self.run.note(share, f"{training}epoch {number} of {self.epochs}")


@contextmanager
def part(number: int, of: int, what: str = "") -> Iterator[None]:
    """Let what is noted inside the block be the progress of one part of several, which count as equally long.

    Args:
        number: number of the part, from 0.
        of: number of the parts.
        what: what a part is, such as "round"; without it the words do not mention it.
    """
    run = _current.get()
    if run is None:
        yield
        return
    outer = run.begin, run.width, run.words
    run.begin, run.width, run.before = run.begin + run.width * number / of, run.width / of, run.trainings
    if what and of > 1:
        run.words = ", ".join(filter(None, (run.words, f"{what} {number + 1} of {of}")))
    run.note(0.0, "")
    try:
        yield
    finally:
        run.begin, run.width, run.words = outer
        run.before = run.trainings


def parts(items: Iterable[T], what: str) -> Iterator[T]:
    """Yield the items; what is noted until the next one is the progress of one part of several, as by ``part``."""
    items = list(items)
    for number, item in enumerate(items):
        with part(number, len(items), what):
            yield item


def watched(epochs: int, *, of: int = 1) -> Watched:
    """Watch a training that begins now.

    Args:
        epochs: number of its epochs.
        of: number of trainings of the run.
    """
    run = _current.get()
    if run is None:
        return Watched(epochs, of, None)
    run.resumed |= any(run.checkpoints.glob(f"{CHECKPOINT}-{run.trainings}.*"))
    return Watched(epochs, of, run.checkpoints / f"{CHECKPOINT}-{run.trainings}.npz")


def of_fit() -> dict[str, Any]:
    """Return the ``checkpoint`` and ``verbose`` of ``InfiniteWidth`` for the next fit; nothing outside a run.

    How many steps a fit takes is not known: after a usual number of them half of it counts as done.
    """
    run = _current.get()
    if run is None:
        return {}
    path = run.checkpoints / f"{CHECKPOINT}-fit-{run.fits}.safetensors"
    run.fits, run.resumed = run.fits + 1, run.resumed or path.exists()
    steps = count(1)

    def step(line: str) -> None:
        number = next(steps)
        run.note(number / (number + USUAL_STEPS), f"step {number} of the fit")

    return {"checkpoint": path, "verbose": step}


class Kept:
    """The state of a long loop in a file, from which a run that was stopped goes on.

    Args:
        path: path of the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.pace = path, Pace()
        self.state: dict[str, Any] = {}  # the arrays by name that were kept last; empty where there are none
        if path is not None and path.exists():
            import numpy as np

            with np.load(path, allow_pickle=False) as archive:
                self.state = dict(archive)

    def keep(self, state: dict[str, Any]) -> None:
        """Write the state, arrays by name, if half a minute has passed."""
        if self.path is None or not self.pace.due(last=False):
            return
        import numpy as np

        arrays = {name: np.asarray(value) for name, value in state.items()}
        if self.pace.affords(arrays.values()):
            write_atomically(self.path, lambda file: np.savez(file, allow_pickle=False, **arrays))
            self.pace.restart()


def kept() -> Kept:
    """Keep the state of a loop that begins now."""
    run = _current.get()
    if run is None:
        return Kept(None)
    path = run.checkpoints / f"{CHECKPOINT}-loop-{run.loops}.npz"
    run.loops, run.resumed = run.loops + 1, run.resumed or path.exists()
    return Kept(path)


def resumed() -> bool:
    """Whether the run continues one that was stopped, so that the seconds it takes are not those of all its work."""
    run = _current.get()
    return run is not None and run.resumed


def progress_of(folder: Path) -> Progress | None:
    """Return how far the run in a folder is, or None if it has not said so."""
    try:
        return Progress(**json.loads((folder / PROGRESS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def forget(folder: Path, *, checkpoints: bool) -> None:
    """Remove the note of the progress from the folder of a run, and its checkpoints if they are needed no more."""
    (folder / PROGRESS).unlink(missing_ok=True)
    for path in (*folder.glob(f"{CHECKPOINT}*"), *folder.glob(f".{CHECKPOINT}*")) if checkpoints else ():
        path.unlink(missing_ok=True)
