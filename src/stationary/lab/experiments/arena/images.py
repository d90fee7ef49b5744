"""Unknown images: features that ``trunks`` and ``frozen`` have written, and which of them are known.

They are looked for in a folder of ``$STATIONARY_DATA`` or of the cache folder, which ``SOURCES`` names.
"""

import logging
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
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
from stationary.lab.experiments.arena.config import FROZEN, SEEDS
from stationary.lab.experiments.arena.digests import FEATURES
from stationary.lab.experiments.arena.methods.classifiers import linear_layer
from stationary.lab.experiments.arena.protocol import RECIPES
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.experiments.arena.trunks import file_name
from stationary.lab.experiments.networks import held_out
from stationary.training.data import Pair

logger = logging.getLogger(__name__)
GREY = {"mnist": "MNIST", "notmnist": "notMNIST"}
LEFT_OUT = "other classes"
VALIDATION = 1 / 5  # share of the rows of a frozen trunk that validate


@dataclass(frozen=True)
class Source:
    """Where the features of a data set are.

    Args:
        folder: name of their folder.
        command: module that writes them, and its arguments.
        unknown: by name in the file, what unknown images are called in tables; empty if they are test images of the
            classes that are not known.
        known: number of known classes, the first ones.
    """

    folder: str
    command: str
    unknown: dict[str, str]
    known: int = 10


SOURCES = {
    "fashion-mnist": Source("arena-fashion-mnist", "trunks --data DIR", GREY),
    "cifar10": Source("arena-cifar10", "trunks --dataset cifar10 --data DIR", GREY | {"noise": "noise"}),
    "cifar10-five": Source("arena-cifar10", "trunks --dataset cifar10 --data DIR", {}, 5),
    **{name: Source(f"arena-{name}", f"trunks --dataset {name} --data DIR", {}, 5) for name in RECIPES},
    "cifar10-imagenet": Source("arena-cifar10-imagenet", "frozen --data DIR", GREY | {"noise": "noise"}),
    "cifar10-imagenet-five": Source("arena-cifar10-imagenet", "frozen --data DIR", {}, 5),
}
Found = dict[str, Any]  # the arrays of a file, by name


def missing(needed: Iterable[tuple[str, int]]) -> str | None:
    """Say why these data sets and seeds cannot run here, or None if they can."""
    absent = {dataset for dataset, seed in dict.fromkeys(needed) if not any(map(Path.is_file, _paths(dataset, seed)))}
    return "; ".join(_how_to_get(dataset) for dataset in sorted(absent)) or None


def find(dataset: str, seed: int) -> Path:
    """Return the file of the features of a trunk; a frozen trunk has one for all seeds."""
    paths = _paths(dataset, seed)
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(f"there is no {' or '.join(map(str, paths))}; {_how_to_get(dataset)}")


def _paths(dataset: str, seed: int) -> list[Path]:
    given = (os.environ.get("STATIONARY_DATA"), cache_folder())
    name = file_name(0 if dataset in FROZEN else seed)
    return [Path(folder).expanduser() / SOURCES[dataset].folder / name for folder in given if folder]


def _how_to_get(dataset: str) -> str:
    folder = _paths(dataset, 0)[0].parent
    command = f"python -m stationary.lab.experiments.arena.{SOURCES[dataset].command} --out {folder}"
    return f"features of {dataset} are not in {folder}; compute them, on a GPU: {command}"


@lru_cache(maxsize=5)
def task(dataset: str, seed: int) -> Task:
    """Return the task of one trunk. Behind a frozen one, the seed draws which rows train and which validate."""
    found, digest = _read(find(dataset, seed))
    if dataset not in FROZEN:
        return _task(SOURCES[dataset], [found], digest)
    parts = Parts(SOURCES[dataset], [found])
    train, validation = held_out(parts.pair("train"), VALIDATION, seed)
    network = linear_layer(train, validation, SOURCES[dataset].known, seed)
    return Task(train, validation, parts.pair("test"), parts.unknown(), network, digest=digest)


def ensemble(dataset: str) -> Task:
    """Return the task of all trunks, with their features side by side."""
    found, digests = zip(*(_read(find(dataset, seed)) for seed in range(SEEDS)), strict=True)
    return _task(SOURCES[dataset], list(found), sha256("".join(digests).encode()).hexdigest())


def _task(source: Source, trunks: list[Found], digest: str) -> Task:
    parts = Parts(source, trunks)
    layers = tuple(_layer(found["weight"][: source.known], found["bias"][: source.known]) for found in trunks)
    shifted = {name[2:]: parts.pair(name[2:]) for name in trunks[0] if name.startswith("x severity") and source.unknown}
    return Task(
        parts.pair("train"),
        parts.pair("validation"),
        parts.pair("test"),
        parts.unknown(),
        layers[0],
        layers if len(layers) > 1 else (),
        digest,
        shifted,
    )


@dataclass(frozen=True)
class Parts:
    """The parts of files, with the features of several trunks side by side.

    Args:
        source: which images are known.
        trunks: the arrays of each trunk.
    """

    source: Source
    trunks: list[Found]

    def x(self, part: str) -> Tensor:
        return torch.from_numpy(np.concatenate([found[f"x {part}"] for found in self.trunks], 1).astype(np.float32))

    def y(self, part: str) -> Tensor:
        return torch.from_numpy(self.trunks[0][f"y {part}"].astype(np.int64))

    def pair(self, part: str) -> Pair:
        """Return features and classes of the known images of a part."""
        y = self.y(part)
        known = y < self.source.known
        return self.x(part)[known], y[known]

    def unknown(self) -> dict[str, Tensor]:
        if self.source.unknown:
            return {label: self.x(name) for name, label in self.source.unknown.items()}
        return {LEFT_OUT: self.x("test")[self.y("test") >= self.source.known]}


def _layer(weight: Any, bias: Any) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer.eval().requires_grad_(False)


def _read(path: Path) -> tuple[Found, str]:
    """Return the arrays of a file and its SHA-256; say so where it is not the file behind the stored results."""
    content = path.read_bytes()
    try:
        with np.load(BytesIO(content)) as arrays:
            found = dict(arrays)
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error!r}); restore it, or delete it and compute it again") from error
    digest = sha256(content).hexdigest()
    if digest not in FEATURES[path.parent.name]:
        logger.warning(
            f"{path} is not a file behind the stored results: its SHA-256 {digest} is not in digests.py. A trunk that "
            "is trained again differs, and so do all numbers behind it."
        )
    return found, digest
