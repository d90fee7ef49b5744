"""Results as small text files, to be kept in a repository: one for each configuration, with where they came from."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stationary.runs import Run, write_json


def archive(runs: Iterable[Run], folder: Path, lockstep: str | None = None) -> list[Path]:
    """Write finished runs as JSON; those that differ only in the setting ``lockstep``, as folds do, into one file.

    Args:
        runs: of one experiment.
        folder: where the files go, named after data set, method and prior where the configurations have those.
        lockstep: a tuple among the settings; its values are joined, in their order.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        shared = {key: value for key, value in run.config.items() if key != lockstep}
        groups.setdefault(json.dumps([run.version, shared], sort_keys=True), []).append(run)
    paths = []
    for group in groups.values():
        if lockstep:
            group.sort(key=lambda run: run.config[lockstep])
        first = group[0]
        config = dict(first.config)
        if lockstep:
            config[lockstep] = [value for run in group for value in run.config[lockstep]]
        content = {
            "experiment": first.experiment,
            "version": first.version,
            "config": config,
            "environments": _environments(group),
            "numbers": {name: _joined([run.arrays[name] for run in group]) for name in first.arrays},
        }
        paths.append(write_json(folder / f"{_name(first)}.json", content))
    return paths


def _name(run: Run) -> str:
    """Diabetes-nn-surrogate-matern12, or the name of the run's folder."""
    parts = [str(run.config[key]) for key in ("dataset", "method", "prior") if key in run.config]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()) if len(parts) == 3 else run.folder.name


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
