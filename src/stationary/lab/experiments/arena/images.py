"""Unknown images: Fashion-MNIST is known, MNIST and notMNIST are unknown, behind a ResNet-20 for each seed.

``trunks`` has written the features; they are looked for in the folder arena-fashion-mnist of ``$STATIONARY_DATA`` or of
the cache folder.
"""

import os
import zlib
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from stationary._files import cache_folder
from stationary.lab.experiments.arena.config import SEEDS
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.experiments.arena.trunks import file_name
from stationary.training.data import Pair

FOLDER = "arena-fashion-mnist"
UNKNOWN = {"mnist": "MNIST", "notmnist": "notMNIST"}


def missing(seeds: Iterable[int] = (0,)) -> str | None:
    """Say why the event cannot run here, or None if it can."""
    try:
        for seed in seeds:
            find(seed)
    except FileNotFoundError as problem:
        return str(problem)
    return None


def find(seed: int) -> Path:
    """Return the file of the features of a trunk."""
    given = (os.environ.get("STATIONARY_DATA"), cache_folder())
    paths = [Path(folder).expanduser() / FOLDER / file_name(seed) for folder in given if folder]
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no {' or '.join(map(str, paths))}; compute the features, on a GPU: "
        f"python -m stationary.lab.experiments.arena.trunks --data DIR --out {paths[0].parent}"
    )


@lru_cache(maxsize=5)
def task(seed: int) -> Task:
    """Return the task of one trunk."""
    found, digest = _read(seed)
    return _task([found], digest)


def ensemble() -> Task:
    """Return the task of all trunks, with their features side by side."""
    found, digests = zip(*map(_read, range(SEEDS)), strict=True)
    return _task(list(found), sha256("".join(digests).encode()).hexdigest())


def _task(trunks: list[dict[str, Any]], digest: str) -> Task:
    def x(part: str) -> Tensor:
        return torch.from_numpy(np.concatenate([found[f"x {part}"] for found in trunks], 1).astype(np.float32))

    def pair(part: str) -> Pair:
        return x(part), torch.from_numpy(trunks[0][f"y {part}"].astype(np.int64))

    layers = tuple(_layer(found["weight"], found["bias"]) for found in trunks)
    unknown = {label: x(name) for name, label in UNKNOWN.items()}
    members = layers if len(layers) > 1 else ()
    return Task(pair("train"), pair("validation"), pair("test"), unknown, layers[0], members, digest)


def _layer(weight: Any, bias: Any) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer.eval().requires_grad_(False)


def _read(seed: int) -> tuple[dict[str, Any], str]:
    """Return the arrays of a trunk and the SHA-256 of their file."""
    path = find(seed)
    content = path.read_bytes()
    try:
        with np.load(BytesIO(content)) as arrays:
            return dict(arrays), sha256(content).hexdigest()
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error!r}); restore it, or delete it and compute it again") from error
