"""Nine regression tables of the UCI repository, with the splits that others use.

Standard splits are random, a tenth for testing (Hernández-Lobato and Adams, 2015). In a gap split the middle third of
one feature is for testing (Foong et al., 2019), in a tail split the outer sixths are. There is a gap and a tail split
for each feature.
"""

import os
import tarfile
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stationary._files import cache_folder

FOLDER = "uci-regression"
ARCHIVE = f"{FOLDER}.tar.xz"
SHA256 = {  # of data.txt
    "boston": "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
    "concrete": "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
    "energy": "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
    "kin8nm": "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",
    "naval": "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
    "power": "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
    "protein": "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
    "wine": "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
    "yacht": "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
}
REPAIR = f"put the whole {ARCHIVE}, or what is in it as a folder {FOLDER}, into --data-dir or STATIONARY_DATA"
ELSEWHERE = (
    f"the nine tables of {FOLDER} have no download here: they and their splits are the folders standard and gap of the "
    f"UCI data of github.com/cambridge-mlg/DUN; {REPAIR}. The SHA-256 of each standard/NAME/data/data.txt must be: "
    f"{', '.join(f'{name} {digest}' for name, digest in SHA256.items())}"
)
Read = Callable[[str], bytes | None]  # from a name within the archive to its content, None if there is none


class Rows(NamedTuple):
    """The rows of one split, (n,) and (m,)."""

    train: Tensor
    test: Tensor


class Regression(NamedTuple):
    """A table.

    Args:
        x: inputs as they are in the file, (n, d), float64.
        y: targets, (n, 1), float64.
        splits: by kind, "standard", "gap" or "tail", the rows of each split.
    """

    x: Tensor
    y: Tensor
    splits: dict[str, tuple[Rows, ...]]


def load(name: str, data_dir: str | Path | None = None) -> Regression:
    """Load a table by name, one of ``SHA256``, with its splits.

    Args:
        name: name of the table.
        data_dir: the folder of uci-regression.tar.xz, or of a folder uci-regression with its content. What is not
            there is looked for in ``$STATIONARY_DATA``, and then in the cache folder.
    """
    if name not in SHA256:
        raise ValueError(f"name must be one of {', '.join(SHA256)}; got {name!r}")
    place = find(data_dir)
    read = _from_folder(place) if place.is_dir() else _from_archive(place, name)
    content = read(f"standard/{name}/data/data.txt") or b""
    if (found := sha256(content).hexdigest()) != SHA256[name]:
        raise ValueError(f"data.txt of {name} in {place} must have the SHA-256 {SHA256[name]}; got {found}; {REPAIR}")
    table = np.loadtxt(BytesIO(content))
    columns, target = (
        _numbers(read, f"standard/{name}/data/index_{part}.txt").astype(int) for part in ("features", "target")
    )
    x, y = torch.from_numpy(table[:, columns]), torch.from_numpy(table[:, target.reshape(-1)])
    given = {kind: tuple(_given(read, f"{kind}/{name}/data", len(table))) for kind in ("standard", "gap")}
    return Regression(x, y, given | {"tail": tuple(tail(column) for column in x.T)})


def tail(column: Tensor) -> Rows:
    """Split by one feature: the sixth with its smallest values and the sixth with its largest are for testing."""
    order = column.argsort(stable=True)
    sixth = len(order) // 6
    outer = torch.cat([order[:sixth], order[len(order) - sixth :]])
    return Rows(order[sixth : len(order) - sixth].sort().values, outer.sort().values)


def find(data_dir: str | Path | None = None) -> Path:
    """Return the folder or the archive that ``load`` would read.

    Raises:
        FileNotFoundError: if there is neither.
    """
    given = (data_dir, os.environ.get("STATIONARY_DATA"), cache_folder())
    folders = [Path(folder).expanduser() for folder in given if folder]
    for path in (folder / name for folder in folders for name in (FOLDER, ARCHIVE)):
        if path.exists():
            return path
    raise FileNotFoundError(f"there is no {FOLDER} nor {ARCHIVE} in {' or '.join(map(str, folders))}; {REPAIR}")


def _from_folder(place: Path) -> Read:
    return lambda name: (place / name).read_bytes() if (place / name).is_file() else None


def _from_archive(place: Path, table: str) -> Read:
    """Read all files of one table at once, since each look into the archive would unpack all of it."""
    contents = {}
    with tarfile.open(place, "r:xz") as archive:
        for member in archive:
            if member.isreg() and f"/{table}/data/" in member.name and (file := archive.extractfile(member)):
                contents[member.name.removeprefix("./")] = file.read()
    return contents.get


def _numbers(read: Read, name: str) -> np.ndarray[Any, Any]:
    content = read(name)
    if content is None:
        raise ValueError(f"there is no {name} beside the others; {REPAIR}")
    return np.loadtxt(BytesIO(content))


def _given(read: Read, folder: str, n: int) -> list[Rows]:
    """Return the splits of files index_train_0.txt, index_test_0.txt, and so on, in which every row is once."""
    splits: list[Rows] = []
    while read(f"{folder}/index_train_{len(splits)}.txt") is not None:
        parts = (_numbers(read, f"{folder}/index_{part}_{len(splits)}.txt") for part in ("train", "test"))
        rows = Rows(*(torch.from_numpy(part.astype(np.int64)) for part in parts))
        if not torch.cat(rows).sort().values.equal(torch.arange(n)):
            raise ValueError(f"split {len(splits)} of {folder} must have each of the {n} rows once; {REPAIR}")
        splits.append(rows)
    return splits
