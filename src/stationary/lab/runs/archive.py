"""Results as small text files, to be kept in a repository: one for each configuration, with where they came from."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stationary.lab.runs.store import Run, write_json

LARGEST = 1000


def archive(runs: Iterable[Run], folder: Path, lockstep: str | None = None) -> list[Path]:
    """Write finished runs as JSON; those that differ only in the setting ``lockstep``, as folds do, into one file.

    Args:
        runs: of one experiment.
        folder: where the files go, named after setting, data set, method and prior where those tell them apart.
        lockstep: a tuple among the settings; its values are joined, in their order.

    Arrays of more than ``LARGEST`` numbers in a run, such as images, are left out, and named.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        shared = {key: value for key, value in run.config.items() if key != lockstep}
        groups.setdefault(json.dumps([run.version, shared], sort_keys=True), []).append(run)
    names = [_name(group[0]) for group in groups.values()]
    paths = []
    for group, name in zip(groups.values(), names, strict=True):
        if lockstep:
            group.sort(key=lambda run: run.config[lockstep])
        first = group[0]
        config = dict(first.config)
        if lockstep:
            config[lockstep] = [value for run in group for value in run.config[lockstep]]
        large = [key for key, array in first.arrays.items() if array.size > LARGEST]
        content: dict[str, Any] = {
            "experiment": first.experiment,
            "version": first.version,
            "config": config,
            "environments": _environments(group),
            "numbers": {key: _joined([run.arrays[key] for run in group]) for key in first.arrays if key not in large},
        }
        if large:
            content["left out"] = large
        unique = name if names.count(name) == 1 else first.folder.name
        paths.append(write_json(folder / f"{unique}.json", content))
    return paths


def _name(run: Run) -> str:
    """Diabetes-nn-surrogate-matern12, for example, or the name of the run's folder."""
    parts = [str(run.config[key]) for key in ("setting", "dataset", "method", "prior") if key in run.config]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()) if parts else run.folder.name


def _environments(group: list[Run]) -> list[dict[str, Any]]:
    """Each once."""
    return [json.loads(text) for text in dict.fromkeys(json.dumps(run.environment) for run in group)]


def _joined(arrays: list[np.ndarray[Any, Any]]) -> Any:
    """NaN, which JSON does not have, as None."""
    joined = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    if joined.dtype.kind == "f":
        joined = joined.astype(object)
        joined[~np.isfinite(joined.astype(float))] = None
    return joined.tolist()
