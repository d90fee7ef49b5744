"""Unknown images: Fashion-MNIST is known, MNIST and notMNIST are unknown, behind a ResNet-20 for each seed.

``trunks`` has written the features; they are looked for in the folder arena-fashion-mnist of ``$STATIONARY_DATA`` or of
the cache folder.
"""

import json
import os
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary._files import cache_folder
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.experiments.arena.trunks import ABOUT
from stationary.training.data import Pair

FOLDER = "arena-fashion-mnist"
UNKNOWN = {"mnist": "MNIST", "notmnist": "notMNIST"}


def missing() -> str | None:
    """Say why the event cannot run here, or None if it can."""
    try:
        find()
    except FileNotFoundError as problem:
        return str(problem)
    return None


def find() -> Path:
    """Return the folder of the features."""
    folders = [
        Path(folder).expanduser() / FOLDER for folder in (os.environ.get("STATIONARY_DATA"), cache_folder()) if folder
    ]
    for folder in folders:
        if (folder / ABOUT).is_file():
            return folder
    raise FileNotFoundError(
        f"no {ABOUT} in {' or '.join(map(str, folders))}; compute the features, on a GPU: "
        f"python -m stationary.lab.experiments.arena.trunks --data DIR --out {folders[0]}"
    )


@lru_cache(maxsize=1)
def task(seed: int) -> Task:
    """Return the task of one trunk."""
    found, digest = _read(seed)
    return _task([found], digest)


def ensemble() -> Task:
    """Return the task of all trunks, with their features side by side."""
    trunks = json.loads((find() / ABOUT).read_text())["trunks"]
    found, digests = zip(*(_read(seed) for seed in range(len(trunks))), strict=True)
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
    """Return the arrays of a trunk and their digest, which must be the one that was noted when they were written."""
    folder = find()
    path = folder / f"seed-{seed}.npz"
    wanted = {trunk["file"]: trunk["sha256"] for trunk in json.loads((folder / ABOUT).read_text())["trunks"]}
    content = path.read_bytes() if path.is_file() else b""
    if (digest := sha256(content).hexdigest()) != wanted.get(path.name):
        raise ValueError(f"{path} must have the SHA-256 {wanted.get(path.name)} of {ABOUT}; got {digest}; restore both")
    with np.load(BytesIO(content)) as arrays:
        return dict(arrays), digest
