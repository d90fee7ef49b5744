"""Results as small JSON files that a repository can keep: one for each configuration, with where it was computed."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stationary.lab.runs.store import Run, write_json

if TYPE_CHECKING:
    import numpy as np

LARGEST = 1000  # numbers in an array; larger arrays are left out


def archive(runs: Iterable[Run], folder: Path, lockstep: str | None = None) -> list[Path]:
    """Write finished runs as JSON files and return their paths.

    Runs that differ only in the setting ``lockstep``, such as the folds of a cross-validation, go into one file.
    Arrays of more than ``LARGEST`` numbers in a run, such as images, are left out; the file lists their names.

    Args:
        runs: finished runs of one experiment.
        folder: the folder for the files. A file is named after the run's setting, data set, method and prior if those
            identify it, else after the folder of the run.
        lockstep: name of a setting that is a tuple, or None. The file has the values of all its runs, in their order.
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
    """Name a run, for example "diabetes-nn-surrogate-matern12", or after its folder."""
    parts = [str(run.config[key]) for key in ("setting", "dataset", "method", "prior") if key in run.config]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()) if parts else run.folder.name


def _environments(group: list[Run]) -> list[dict[str, Any]]:
    """Return the environments of the runs, equal ones once."""
    return [json.loads(text) for text in dict.fromkeys(json.dumps(run.environment) for run in group)]


def _joined(arrays: "list[np.ndarray[Any, Any]]") -> Any:
    """Join arrays along the first axis, as lists; NaN and infinities, which JSON lacks, become None."""
    import numpy as np

    joined = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    if joined.dtype.kind == "f":
        joined = joined.astype(object)
        joined[~np.isfinite(joined.astype(float))] = None
    return joined.tolist()
