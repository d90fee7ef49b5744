"""The run store: one folder for each run, with its configuration, its result and where it was computed.

No file in it is ever half written.
"""

import hashlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from zipfile import is_zipfile

from stationary._files import write_atomically, write_text
from stationary.lab.runs.inside import CHECKPOINT, PROGRESS, forget

if TYPE_CHECKING:  # what only looks whether a result is there does without NumPy
    import numpy as np

State = Literal["done", "running", "failed", "missing", "corrupt"]
T = TypeVar("T")
Arrays: TypeAlias = dict[str, "np.ndarray[Any, Any]"]  # what a run computes, by name

FILES = CONFIG, ENVIRONMENT, RESULT = "config.json", "environment.json", "result.npz"
ERROR = "error.txt"
RUNNING = "running.json"


def write_json(path: Path, content: Any) -> Path:
    return write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


class CorruptRunError(Exception):
    """A file or folder of the run store that is not part of a whole run.

    Args:
        path: the file or folder.
        problem: what is wrong with it, as the rest of a sentence that begins with the path.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


@dataclass(frozen=True)
class Run:
    """A finished run as it is stored.

    Args:
        folder: the folder of the run.
        experiment: name of the experiment.
        version: version of the experiment that computed it.
        config: the configuration as it is in config.json: a dictionary, with lists for tuples.
        environment: where and when it was computed, as ``provenance.environment`` gives it.
        arrays: what was computed, by name.
    """

    folder: Path
    experiment: str
    version: int
    config: dict[str, Any]
    environment: dict[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Running:
    """The process that runs something.

    Args:
        host: name of its machine.
        pid: its process number.
        born: when it started, in the operating system's count, which tells it from other processes that had its number.
        since: when it began the run, as an ISO date and time.
    """

    host: str
    pid: int
    born: str | None
    since: str

    @property
    def here(self) -> bool:
        """Whether the process is on this machine."""
        return self.host == socket.gethostname()

    @property
    def age_s(self) -> float:
        """Seconds since it began the run."""
        return (datetime.now(timezone.utc) - datetime.fromisoformat(self.since)).total_seconds()


class RunStore:
    """Results of runs, each in the folder ``<root>/<experiment>/<hash of experiment, version and configuration>``.

    A run is finished when its folder has a result.npz: that is written last, and every file is either whole or absent.
    What cannot be read is reported as a ``CorruptRunError`` and never deleted.

    The methods know a run by three arguments: the name of its experiment, the experiment's version and the
    configuration, which is a dataclass of plain values and tuples.

    Args:
        root: the folder of the store; it is created when something is saved.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, experiment: str, version: int, config: Any) -> Path:
        """Return the folder in which the run of this configuration is stored, or will be."""
        return self.root / experiment / _digest(experiment, version, _plain(config))

    def load(self, experiment: str, version: int, config: Any) -> Run | None:
        """Return a finished run, or None if there is no result.

        Raises:
            CorruptRunError: if there is a result that cannot be read, or whose config.json is that of another run.
        """
        folder = self.folder(experiment, version, config)
        return _read(folder) if (folder / RESULT).exists() else None

    def save(self, experiment: str, version: int, config: Any, arrays: Arrays, environment: dict[str, Any]) -> Path:
        """Store a finished run and return the path of its result.npz.

        Args:
            experiment: name of the experiment; the folder of its runs has this name.
            version: version of the experiment; ``load`` finds results of the same version only.
            config: the configuration, a dataclass of plain values and tuples.
            arrays: what was computed, by name: arrays of numbers or strings, since nothing is pickled.
            environment: where it was computed, as ``provenance.environment`` gives it.
        """
        folder = self._named(experiment, version, config)
        write_json(folder / ENVIRONMENT, environment)
        path = write_atomically(folder / RESULT, partial(_write_arrays, arrays))
        for name in (ERROR, RUNNING):
            (folder / name).unlink(missing_ok=True)
        forget(folder, checkpoints=True)
        _remove_leftovers(folder)
        return path

    def save_error(self, experiment: str, version: int, config: Any, error: str) -> Path:
        """Note why a run failed; the note is removed when the run is saved."""
        folder = self._named(experiment, version, config)
        path = write_atomically(folder / ERROR, lambda file: file.write(error.encode()))
        (folder / RUNNING).unlink(missing_ok=True)
        forget(folder, checkpoints=True)  # the next try starts anew
        return path

    def mark_running(self, experiment: str, version: int, config: Any) -> Path:
        """Note that this process runs it; the note is removed when it is saved, has failed or is unmarked."""
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        marker = Running(socket.gethostname(), os.getpid(), _born(os.getpid()), since)
        return write_json(self.folder(experiment, version, config) / RUNNING, vars(marker))

    def unmark_running(self, experiment: str, version: int, config: Any) -> None:
        """Remove the notes that a process runs it and how far it is, and the folder if nothing else is in it."""
        folder = self.folder(experiment, version, config)
        (folder / RUNNING).unlink(missing_ok=True)
        forget(folder, checkpoints=False)
        with suppress(OSError):
            folder.rmdir()

    def set_aside(self, experiment: str, version: int, config: Any) -> list[Path]:
        """Rename the files of a corrupt run to ``<name>.corrupt-<n>``, so that it can run again, and return them."""
        folder, moved = self.folder(experiment, version, config), []
        for name in FILES:
            if (folder / name).exists():
                free = next(path for n in count(1) if not (path := folder / f"{name}.corrupt-{n}").exists())
                moved.append((folder / name).rename(free))
        return moved

    def state(self, experiment: str, version: int, config: Any) -> State:
        """Return whether the run of this configuration is done, running, failed, missing or corrupt."""
        try:
            run = self.load(experiment, version, config)
        except CorruptRunError:
            run = None
        return state_of(self.folder(experiment, version, config), [run.folder] if run else [])

    def environment(self, experiment: str, version: int, config: Any) -> dict[str, Any] | None:
        """Return where a finished run was computed, without reading its arrays; None if there is no such run."""
        folder = self.folder(experiment, version, config)
        if not (folder / RESULT).exists():
            return None
        try:
            found = json.loads((folder / ENVIRONMENT).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def runs(self, experiment: str, on_problem: Callable[[CorruptRunError], object]) -> Iterator[Run]:
        """Yield every finished run of an experiment, of any version and configuration, by the name of its folder.

        Args:
            experiment: name of the experiment.
            on_problem: function that is called with the error for anything that is corrupt, or no run at all; the
                iteration goes on.
        """
        return self._found(experiment, on_problem, _read)

    def finished(self, experiment: str, on_problem: Callable[[CorruptRunError], object]) -> Iterator[Path]:
        """Yield the folder of every run that ``runs`` yields, and of runs whose damage only their arrays would show.

        The arrays are not read, which is fast. The arguments are those of ``runs``.
        """
        return self._found(experiment, on_problem, _whole)

    def _found(
        self, experiment: str, on_problem: Callable[[CorruptRunError], object], read: Callable[[Path], T]
    ) -> Iterator[T]:
        for folder in sorted((self.root / experiment).glob("[!.]*")):
            if not folder.is_dir() or not re.fullmatch("[0-9a-f]{16}", folder.name):
                on_problem(CorruptRunError(folder, "is not the folder of a run; left alone"))
                continue
            for path in sorted(folder.glob("[!.]*")):
                known = path.name in (*FILES, ERROR, RUNNING, PROGRESS) or path.name.startswith(CHECKPOINT)
                if not known and ".corrupt-" not in path.name:
                    on_problem(CorruptRunError(path, "is not a file of a run; left alone"))
            if (folder / RESULT).exists():
                try:
                    yield read(folder)
                except CorruptRunError as problem:
                    on_problem(problem)

    def _named(self, experiment: str, version: int, config: Any) -> Path:
        """Write the config.json of a run and return the run's folder."""
        folder = self.folder(experiment, version, config)
        write_json(folder / CONFIG, {"experiment": experiment, "version": version, "config": _plain(config)})
        return folder


def state_of(folder: Path, readable: Container[Path]) -> State:
    """Return whether the run in a folder is done, running, failed, missing or corrupt.

    Args:
        folder: the folder of the run.
        readable: the folders of all finished runs that are not corrupt, as ``RunStore.finished`` yields them.
    """
    if folder in readable:
        return "done"
    if not folder.exists():
        return "missing"
    if (folder / RESULT).exists():
        return "corrupt"
    return "running" if running(folder) else "failed" if (folder / ERROR).exists() else "missing"


def running(folder: Path) -> Running | None:
    """Return the process that runs what is stored in a folder; None if there is none, or if it has ended.

    A process on another machine cannot be seen from here and is taken to be alive.
    """
    try:
        marker = Running(**json.loads((folder / RUNNING).read_bytes()))
        return marker if not marker.here or (marker.born is not None and _born(marker.pid) == marker.born) else None
    except (OSError, ValueError, TypeError):
        return None


def _write_arrays(arrays: dict[str, Any], file: IO[bytes]) -> None:
    import numpy as np

    if objects := [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]:
        raise TypeError(
            f"arrays must hold numbers or strings, since nothing is pickled; {', '.join(objects)} do not; convert them"
        )
    np.savez_compressed(file, **arrays, sha256=np.array(_checksum(arrays)))


def _remove_leftovers(folder: Path) -> None:
    """Delete temporary files that killed writers left; one younger than an hour may belong to a writer that lives."""
    for path in (path for name in (*FILES, ERROR, RUNNING, PROGRESS) for path in folder.glob(f".{name}.*")):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink()


def _read(folder: Path) -> Run:
    return Run(folder, **_about(folder), arrays=_parsed(folder / RESULT, _parse_arrays))


def _about(folder: Path) -> dict[str, Any]:
    """Return all that is stored of a finished run but its arrays, after a look at whether their file is whole."""
    named, environment = (_parsed(folder / name, json.loads) for name in (CONFIG, ENVIRONMENT))
    try:
        named = {key: named[key] for key in ("experiment", "version", "config")}
        right = (folder.parent.name, folder.name) == (named["experiment"], _digest(**named))
    except (KeyError, TypeError):
        right = False
    if not right:
        raise CorruptRunError(folder / CONFIG, "is not the configuration that its folder is named after")
    if not isinstance(environment, dict):
        raise CorruptRunError(folder / ENVIRONMENT, "cannot be read (it is no object of JSON)")
    if not is_zipfile(folder / RESULT):  # it looks at the end of the file alone
        raise CorruptRunError(folder / RESULT, "cannot be read (it is no whole archive)")
    return named | {"environment": environment}


def _whole(folder: Path) -> Path:
    _about(folder)
    return folder


def _parsed(path: Path, parse: Callable[[bytes], Any]) -> Any:
    if not path.is_file():
        raise CorruptRunError(path, "is missing")
    try:
        return parse(path.read_bytes())
    except Exception as error:  # which error damaged bytes raise depends on the damage
        raise CorruptRunError(path, f"cannot be read ({type(error).__name__}: {error})") from error


def _parse_arrays(content: bytes) -> Arrays:
    import numpy as np

    with np.load(BytesIO(content)) as archive:
        arrays = dict(archive)
    if arrays.pop("sha256") != _checksum(arrays):
        raise ValueError("its checksum differs")
    return arrays


def _checksum(arrays: Arrays) -> str:
    """Return a checksum of all arrays and their names: a changed byte in an npz file's directory can hide an array."""
    import numpy as np

    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.asarray(array)
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def _digest(experiment: str, version: int, config: dict[str, Any]) -> str:
    """Return a hash that is the same in every process and version of Python.

    It is that of JSON text in ASCII, with sorted keys and the shortest digits that identify each float.
    """
    text = json.dumps([experiment, version, config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON takes it: tuples as lists; infinities, which JSON lacks, as strings."""
    return {field.name: _plain_value(field.name, getattr(config, field.name)) for field in fields(config)}


def _plain_value(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(name, v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} must be a number, a string, None or a tuple of such, to be stored; got {value!r}")


def _born(pid: int) -> str | None:
    """Return when a process of this machine started, as Linux counts it, or "" on other systems; None if it ended."""
    if os.path.exists("/proc/self/stat"):
        try:
            state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in "ZX" else others[18]
    if os.name == "posix":
        try:
            os.kill(pid, 0)  # signal 0 only asks whether the process is there
        except ProcessLookupError:
            return None
        except PermissionError:  # the process is there and belongs to another user
            pass
    return ""
