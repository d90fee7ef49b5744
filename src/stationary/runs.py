"""What every stored result needs: where it came from, and a write that cannot be half done."""

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch

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


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Call ``write`` on a temporary file beside path, then rename it: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_json(path: Path, content: Any) -> Path:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return write_atomically(path, lambda file: file.write(text.encode()))


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
