"""Files that are never half written, and the folder of those that may be deleted at any time."""

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Protocol

EVERY_S = 30.0  # seconds between two writes of a state, so that what is stopped loses these and the step it is in
SHARE = 0.05  # of the time, at most, that writing takes: a state that takes longer to write is written less often
BYTES_A_SECOND = 2e8  # that a disk writes


def cache_folder() -> Path:
    """Return the folder: ``$STATIONARY_CACHE``, else ``$XDG_CACHE_HOME/stationary``, else ``~/.cache/stationary``."""
    if own := os.environ.get("STATIONARY_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stationary"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Call ``write`` on a temporary file beside path, then rename it: readers see the old file or the whole new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # in /proc and the like nobody makes a folder
        raise PermissionError(errno.EPERM, "no folder can be made there", str(path.parent)) from error
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0o077)  # the only way to read it
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno is None:  # what is written may have such an error of its own
            raise
        # A full disk's error names no file, and others the temporary one.
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a text in UTF-8 as ``write_atomically`` does."""
    return write_atomically(path, lambda file: file.write(text.encode()))


class Sized(Protocol):
    """Something that takes bytes in a file, such as a tensor."""

    @property
    def nbytes(self) -> int: ...


class Pace:
    """When to write the state of something long: every half minute, and less often where that would take too long."""

    written: float

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on, since the state has just been written."""
        self.written = time.monotonic()

    def due(self, *, last: bool) -> bool:
        """Whether half a minute has passed; the last state need not wait for it."""
        return last or time.monotonic() - self.written >= EVERY_S

    def affords(self, state: Iterable[Sized]) -> bool:
        """Whether writing this takes at most a twentieth of the time since the last write."""
        seconds = sum(part.nbytes for part in state) / BYTES_A_SECOND
        return seconds <= SHARE * (time.monotonic() - self.written)
