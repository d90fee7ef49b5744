"""Where a result was computed: the machine, the versions and the commit, which are stored beside it."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

PACKAGES = ("stationary", "torch", "numpy", "scipy", "triton", "gpytorch", "scikit-learn", "matplotlib")
PEERS = ("pytorch-ood", "laplace-torch", "vbll", "transformers", "catboost", "tabpfn", "botorch")  # of the arena and bo


def environment(device: str = "cpu") -> dict[str, Any]:
    """Describe this process, to be stored beside its results: the time, the machine, the versions and the commit.

    Args:
        device: the device that computes, "cpu" or "cuda"; on "cuda" the name of the GPU is noted.
    """
    import torch

    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: v for name in (*PACKAGES, *PEERS) if (v := _version(name))},
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
    }


def seconds_of(environment: dict[str, Any]) -> float | None:
    """Return the seconds that a stored run took, or None if they are not known.

    Runs that ran together each have an equal share of their wall time, so that a sum over runs counts it once.
    """
    seconds = environment.get("wall_s")
    return None if seconds is None else float(seconds) / environment.get("lockstep", 1)


def duration(seconds: float) -> str:
    """Write a time with about three digits: "0.25 s", "99.4 s", "12 min", "2.5 h", "1,200 h"."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    if minutes < 99.5:
        return f"{minutes:.0f} min"
    return f"{hours:.3g} h" if hours < 99.5 else f"{hours:,.0f} h"


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the source tree, or the variable STATIONARY_COMMIT, for a copy without git's history."""
    return os.environ.get("STATIONARY_COMMIT") or commit_of_source()


@cache
def commit_of_source() -> str | None:
    """Ask git, once in a process: files that change later are not those that it has loaded."""
    here = Path(__file__)

    def told(*words: str) -> str:
        return subprocess.run(["git", "-C", here.parent, *words], capture_output=True, text=True, check=True).stdout

    try:
        told("ls-files", "--error-unmatch", here.name)  # an installed copy may lie in a repository that is not ours
        return told("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
