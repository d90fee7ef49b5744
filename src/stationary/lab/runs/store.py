"""The run store: one folder for each configuration, with where its result came from, never half written."""

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
from typing import IO, Any, Literal, TypeAlias

import numpy as np

from stationary._files import write_atomically, write_text

State = Literal["done", "running", "failed", "missing", "corrupt"]
Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]  # what an experiment computes, by name

FILES = CONFIG, ENVIRONMENT, RESULT = "config.json", "environment.json", "result.npz"
ERROR = "error.txt"
RUNNING = "running.json"


def write_json(path: Path, content: Any) -> Path:
    return write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


class CorruptRunError(Exception):
    """Something below the run store that is not a whole run: what it is, and why."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


@dataclass(frozen=True)
class Run:
    """A finished run as it is stored; ``config`` is plain, as in its config.json."""

    folder: Path
    experiment: str
    version: int
    config: dict[str, Any]
    environment: dict[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class Running:
    """Who runs something, and since when; ``born`` tells a process from others that had its number."""

    host: str
    pid: int
    born: str | None
    since: str

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def age_s(self) -> float:
        return (datetime.now(timezone.utc) - datetime.fromisoformat(self.since)).total_seconds()


class RunStore:
    """Results below a folder, each in ``<root>/<experiment>/<hash of experiment, version and configuration>``.

    A run is finished when its folder has a result.npz: it is written last, and each file is whole or not there. What
    cannot be read is reported as a CorruptRunError and never deleted.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, experiment: str, version: int, config: Any) -> Path:
        """Where the run of this configuration is, or will be."""
        return self.root / experiment / _digest(experiment, version, _plain(config))

    def load(self, experiment: str, version: int, config: Any) -> Run | None:
        """A finished run, or None.

        Raises:
            CorruptRunError: there is a result, but it cannot be read, or the files beside it say that it is another's.
        """
        folder = self.folder(experiment, version, config)
        return _read(folder) if (folder / RESULT).exists() else None

    def save(self, experiment: str, version: int, config: Any, arrays: Arrays, environment: dict[str, Any]) -> Path:
        """Store a finished run.

        Args:
            experiment: the name of the folder.
            version: of the experiment; results of another version are not found.
            config: a dataclass of plain values and tuples.
            arrays: by name; of numbers or strings, since nothing is pickled.
            environment: where they were computed, as ``environment(device)`` says it.
        """
        folder = self._named(experiment, version, config)
        write_json(folder / ENVIRONMENT, environment)
        path = write_atomically(folder / RESULT, partial(_write_arrays, arrays))
        for name in (ERROR, RUNNING):
            (folder / name).unlink(missing_ok=True)
        _remove_leftovers(folder)
        return path

    def save_error(self, experiment: str, version: int, config: Any, error: str) -> Path:
        """Note why a run failed, until it is saved."""
        folder = self._named(experiment, version, config)
        path = write_atomically(folder / ERROR, lambda file: file.write(error.encode()))
        (folder / RUNNING).unlink(missing_ok=True)
        return path

    def mark_running(self, experiment: str, version: int, config: Any) -> Path:
        """Note that this process runs it, until it is saved, has failed or is unmarked."""
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        marker = Running(socket.gethostname(), os.getpid(), _born(os.getpid()), since)
        return write_json(self.folder(experiment, version, config) / RUNNING, vars(marker))

    def unmark_running(self, experiment: str, version: int, config: Any) -> None:
        """Forget that it runs; a folder with nothing else in it goes too."""
        folder = self.folder(experiment, version, config)
        (folder / RUNNING).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()

    def set_aside(self, experiment: str, version: int, config: Any) -> list[Path]:
        """Rename the files of a corrupt run, to ``<name>.corrupt-<n>``, so that it can be run again."""
        folder, moved = self.folder(experiment, version, config), []
        for name in FILES:
            if (folder / name).exists():
                free = next(path for n in count(1) if not (path := folder / f"{name}.corrupt-{n}").exists())
                moved.append((folder / name).rename(free))
        return moved

    def state(self, experiment: str, version: int, config: Any) -> State:
        """What is known of the run of this configuration."""
        try:
            run = self.load(experiment, version, config)
        except CorruptRunError:
            run = None
        return state_of(self.folder(experiment, version, config), [run.folder] if run else [])

    def environment(self, experiment: str, version: int, config: Any) -> dict[str, Any] | None:
        """Where a finished run was computed, without reading its arrays; None if there is no such run."""
        folder = self.folder(experiment, version, config)
        if not (folder / RESULT).exists():
            return None
        try:
            return json.loads((folder / ENVIRONMENT).read_bytes())
        except (OSError, ValueError):
            return None

    def runs(self, experiment: str, on_problem: Callable[[CorruptRunError], object]) -> Iterator[Run]:
        """Every finished run of an experiment, of any version and configuration, in the order of their folders' names.

        Args:
            experiment: its name.
            on_problem: called with what is corrupt, or not a run at all; the iteration goes on.
        """
        for folder in sorted((self.root / experiment).glob("[!.]*")):
            if not folder.is_dir() or not re.fullmatch("[0-9a-f]{16}", folder.name):
                on_problem(CorruptRunError(folder, "is not the folder of a run; left alone"))
                continue
            for path in sorted(folder.glob("[!.]*")):
                if path.name not in (*FILES, ERROR, RUNNING) and ".corrupt-" not in path.name:
                    on_problem(CorruptRunError(path, "is not a file of a run; left alone"))
            if (folder / RESULT).exists():
                try:
                    yield _read(folder)
                except CorruptRunError as problem:
                    on_problem(problem)

    def _named(self, experiment: str, version: int, config: Any) -> Path:
        """The folder of a run, with its config.json."""
        folder = self.folder(experiment, version, config)
        write_json(folder / CONFIG, {"experiment": experiment, "version": version, "config": _plain(config)})
        return folder


def state_of(folder: Path, readable: Container[Path]) -> State:
    """What is known of the run in a folder.

    Args:
        folder: of the run.
        readable: the folders of all finished runs that could be read, as ``RunStore.runs`` gives them.
    """
    if folder in readable:
        return "done"
    if not folder.exists():
        return "missing"
    if (folder / RESULT).exists():
        return "corrupt"
    return "running" if running(folder) else "failed" if (folder / ERROR).exists() else "missing"


def running(folder: Path) -> Running | None:
    """Who runs what is stored in a folder; None if nobody does, or if its process has ended.

    Of a process on another host nothing can be seen from here: it is taken to run.
    """
    try:
        marker = Running(**json.loads((folder / RUNNING).read_bytes()))
        return marker if not marker.here or (marker.born is not None and _born(marker.pid) == marker.born) else None
    except (OSError, ValueError, TypeError):
        return None


def _write_arrays(arrays: dict[str, Any], file: IO[bytes]) -> None:
    if objects := [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]:
        raise TypeError(f"arrays must hold numbers or strings, since nothing is pickled; {', '.join(objects)} do not")
    np.savez_compressed(file, **arrays, sha256=np.array(_checksum(arrays)))


def _remove_leftovers(folder: Path) -> None:
    """Temporary files of writers that were killed; a young one may belong to a writer that lives."""
    for path in (path for name in (*FILES, ERROR, RUNNING) for path in folder.glob(f".{name}.*")):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink()


def _read(folder: Path) -> Run:
    contents: dict[str, Any] = {}
    for name in FILES:
        path = folder / name
        if not path.is_file():
            raise CorruptRunError(path, "is missing")
        content = path.read_bytes()
        try:
            contents[name] = _parse_arrays(content) if name == RESULT else json.loads(content)
        except Exception as error:  # bytes that are not what was written can raise anything
            raise CorruptRunError(path, f"cannot be read ({type(error).__name__}: {error})") from error
    try:
        named = {key: contents[CONFIG][key] for key in ("experiment", "version", "config")}
        right = (folder.parent.name, folder.name) == (named["experiment"], _digest(**named))
    except (KeyError, TypeError):
        right = False
    if not right:
        raise CorruptRunError(folder / CONFIG, "is not the configuration that its folder is named after")
    return Run(folder, **named, environment=contents[ENVIRONMENT], arrays=contents[RESULT])


def _parse_arrays(content: bytes) -> Arrays:
    with np.load(BytesIO(content)) as archive:
        arrays = dict(archive)
    if arrays.pop("sha256") != _checksum(arrays):
        raise ValueError("its checksum differs")
    return arrays


def _checksum(arrays: Arrays) -> str:
    """Of all arrays and their names: one changed byte in the list of contents of an npz can hide an array."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.asarray(array)
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def _digest(experiment: str, version: int, config: dict[str, Any]) -> str:
    """The same in every process and version of Python: JSON in ASCII, keys sorted, floats by their shortest repr."""
    text = json.dumps([experiment, version, config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(config: Any) -> dict[str, Any]:
    """A configuration as JSON takes it: tuples as lists; infinities as strings, since JSON has none."""
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
    """When a process of this machine started, in Linux' own count; elsewhere empty. None if it has ended."""
    if os.path.exists("/proc/self/stat"):
        try:
            state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in "ZX" else others[18]
    if os.name == "posix":
        try:
            os.kill(pid, 0)  # asks, and kills nobody
        except ProcessLookupError:
            return None
        except PermissionError:  # it is there, and another user's
            pass
    return ""
