"""The run store: one folder for each configuration, with where its result came from, never half written."""

import hashlib
import json
import math
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from stationary.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = dict[str, np.ndarray[Any, Any]]

PACKAGES = ("stationary", "torch", "numpy", "scipy", "triton", "matplotlib")


def environment(device: str = "cpu") -> dict[str, Any]:
    """The machine, the versions and the commit of this run, to be stored beside its results."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: v for name in PACKAGES if (v := _version(name))},
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
    }


def write_json(path: Path, content: Any) -> Path:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return write_atomically(path, lambda file: file.write(text.encode()))


class RunStore:
    """Results below a folder, each named by its experiment, the experiment's version and the configuration's hash."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, experiment: str, version: int, config: Any) -> Path:
        text = json.dumps([experiment, version, _plain(config)], sort_keys=True)
        return self.root / experiment / hashlib.sha256(text.encode()).hexdigest()[:16]

    def load(self, experiment: str, version: int, config: Any) -> Arrays | None:
        """The arrays of a finished run, or None."""
        path = self.folder(experiment, version, config) / "result.npz"
        if not path.exists():
            return None
        with np.load(path) as archive:
            return dict(archive)

    def save(self, experiment: str, version: int, config: Any, arrays: Arrays) -> Path:
        """Store a finished run; the result is written last, so a run with a result is whole."""
        folder = self.folder(experiment, version, config)
        write_json(folder / "config.json", {"experiment": experiment, "version": version, "config": _plain(config)})
        write_json(folder / "environment.json", environment())
        return write_atomically(folder / "result.npz", partial(_write_arrays, arrays))


def save_figure(path: Path, figure: "Figure") -> list[Path]:
    """Write a matplotlib figure as PNG and SVG."""
    return [
        write_atomically(path.with_suffix(f".{kind}"), partial(figure.savefig, format=kind, dpi=160))
        for kind in ("png", "svg")
    ]


def _write_arrays(arrays: Arrays, file: IO[bytes]) -> None:
    np.savez_compressed(file, allow_pickle=False, **arrays)


def _plain(config: Any) -> dict[str, Any]:
    """A configuration as JSON takes it; infinity becomes a string, since JSON has none."""
    return {
        name: [str(v) if v == math.inf else v for v in value] if isinstance(value, tuple) else value
        for name, value in asdict(config).items()
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, or STATIONARY_COMMIT where the tree was copied without its history."""
    if given := os.environ.get("STATIONARY_COMMIT"):
        return given
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
