"""CIFAR-10: 60,000 colour photographs of 32 by 32 pixels, of ten classes (Krizhevsky, 2009).

The experiment takes the first five classes as known, and the others as unknown ones that a network should be unsure
of.
"""

import hashlib
import math
import os
import shlex
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from stationary._files import cache_folder, write_atomically

CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KNOWN = (0, 1, 2, 3, 4)  # class indices; the other classes are unknown

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
URL_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = "cifar-10-batches-bin"
MD5 = {  # checksum of each file; the last file has the test images
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
IMAGES_PER_FILE = 10_000
RECORD = 1 + 3 * 32 * 32  # bytes: the label, then all of red, of green and of blue, row by row
ELSEWHERE = "unpack a copy of it from elsewhere and give its folder as --data-dir"
OnBytes = Callable[
    [int, int | None], object
]  # called with the number of bytes that have arrived, and their total or None


@dataclass(frozen=True)
class Part:
    """Some images and their classes.

    Args:
        x: pixels in red, green and blue, (n, 3, 32, 32), uint8.
        y: class indices, (n,).
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Images:
    """Training and test images, as ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    The pixels that ``load`` gives stay on the disk until they are used: ``x_test[rows]`` reads these rows. Those of
    ``x_train`` come from several files and are put together, in 150 MB of memory, when they are first asked for.

    Args:
        train: the training images, in one part or several.
        test: the test images.
    """

    train: tuple[Part, ...]
    test: Part

    @cached_property
    def x_train(self) -> Tensor:
        return torch.cat([part.x for part in self.train])

    @cached_property
    def y_train(self) -> Tensor:
        return torch.cat([part.y for part in self.train])

    @property
    def x_test(self) -> Tensor:
        return self.test.x

    @property
    def y_test(self) -> Tensor:
        return self.test.y


def load(data_dir: str | Path | None = None) -> Images:
    """Load CIFAR-10 from the six files of its binary version, whose checksums are verified each time.

    Args:
        data_dir: the folder of the files, or the folder above it. Files that are not there are looked for in the
            folder ``$STATIONARY_DATA``, and then in the cache folder, into which ``download`` writes.
    """
    place = find(data_dir)
    parts = [_read(place / name) for name in MD5]
    return Images(tuple(parts[:-1]), parts[-1])


def find(data_dir: str | Path | None = None) -> Path:
    """Return the folder from which ``load`` would read the files; they are not verified.

    Args:
        data_dir: the folder to look into first, as for ``load``.

    Raises:
        FileNotFoundError: if none of the folders has any of the files.
    """
    given = (data_dir, os.environ.get("STATIONARY_DATA"), cache_folder())
    folders = [Path(folder).expanduser() for folder in given if folder]
    places = [place for folder in folders for place in _places(folder)]
    if not places:
        raise FileNotFoundError(
            f"there is no CIFAR-10 in {' or '.join(map(str, folders))}, nor in a folder {FOLDER} there; "
            "`stationary data cifar10` downloads it; or give the folder of data_batch_1.bin and the other files as "
            "--data-dir or as STATIONARY_DATA"
        )
    return places[0]


def verified(folder: str | Path) -> Path | None:
    """Return where in the folder the files are, or None if one of them is missing or damaged."""
    try:
        place = _places(Path(folder).expanduser())[0]
        for name in MD5:
            _verify_file(place / name)
    except (IndexError, OSError, ValueError):
        return None
    return place


def download(folder: str | Path | None = None, url: str = URL, progress: OnBytes = lambda done, total: None) -> Path:
    """Download the files, unless they are there, and return the folder in which they are.

    An interrupted download keeps what has arrived, and the next one continues there.

    Args:
        folder: folder in which the files get a folder cifar-10-batches-bin of their own; None for the cache folder.
        url: address of the archive.
        progress: function that is called from time to time with the number of bytes that have arrived, and with their
            total, or None if that is not known.
    """
    folder = Path(folder or cache_folder()).expanduser()
    if found := verified(folder):
        return found
    place = next(iter(_places(folder)), folder / FOLDER)  # damaged files are replaced in their place
    place.mkdir(parents=True, exist_ok=True)
    archive = place / "cifar-10-binary.tar.gz.part"
    if not archive.exists() or _digest(archive)[1] != URL_MD5:
        _fetch(url, archive, progress)
        size, md5 = _digest(archive)
        if md5 != URL_MD5:
            archive.unlink()
            raise ValueError(
                f"{url} must have the MD5 {URL_MD5}; got {size:,} bytes with the MD5 {md5}, which are deleted; "
                f"download it again, or {ELSEWHERE}"
            )
    _extract(archive, place)
    archive.unlink()
    return place


def generated(n_train: int, n_test: int, seed: int) -> Images:
    """Generate images for trials without CIFAR-10: stripes with noise, each class with its own colour and direction.

    The classes overlap a little, so that no network is right about all images.

    Args:
        n_train: number of training images.
        n_test: number of test images.
        seed: seed of the random numbers.
    """
    for name, value, least in (("n_train", n_train, 1), ("n_test", n_test, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"{name} must be an integer of at least {least}, got {value!r}; try generated(1000, 200, 0)"
            )
    generator = torch.Generator().manual_seed(seed)
    return Images((_draw(n_train, generator),), _draw(n_test, generator))


def _draw(n: int, generator: torch.Generator) -> Part:
    def normal(*shape: int) -> Tensor:
        return torch.randn(n, *shape, generator=generator)

    y = torch.randperm(n, generator=generator) % 10
    angle = math.pi / 10 * (y[:, None, None] + 0.3 * normal(1, 1))  # half a turn covers all directions of stripes
    at = torch.arange(32) / 32
    along = at[:, None] * angle.cos() + at * angle.sin()
    stripes = (2 * math.pi * (4 * along + normal(1, 1))).sin()
    colour = (2 * math.pi * (y[:, None] / 10 + torch.arange(3) / 3)).cos() + 0.5 * normal(3)
    x = 128 + 40 * stripes[:, None] + 30 * colour[:, :, None, None] + 30 * normal(3, 32, 32)
    return Part(x.clamp(0, 255).to(torch.uint8), y)


# Files


def _places(folder: Path) -> list[Path]:
    """Return those of the folder and its cifar-10-batches-bin that have any of the files."""
    return [place for place in (folder, folder / FOLDER) if any((place / name).is_file() for name in MD5)]


def _read(path: Path) -> Part:
    _verify_file(path)
    # The file is mapped privately: a change of the tensor does not change the file.
    size = IMAGES_PER_FILE * RECORD
    records = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(-1, RECORD)
    return Part(records[:, 1:].unflatten(1, (3, 32, 32)), records[:, 0].long())


def _verify_file(path: Path) -> None:
    repair = f"`stationary data cifar10 --data-dir {shlex.quote(str(path.parent))}` downloads it again"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, though other files of CIFAR-10 are there; {repair}")
    _verify(path, *_digest(path), repair)


def _verify(path: Path, size: int, md5: str, repair: str) -> None:
    if (size, md5) != (IMAGES_PER_FILE * RECORD, MD5[path.name]):
        raise ValueError(
            f"{path} must have {IMAGES_PER_FILE * RECORD:,} bytes with the MD5 {MD5[path.name]}; "
            f"got {size:,} bytes with the MD5 {md5}; {repair}"
        )


def _digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return _copy(file)


def _copy(source: IO[bytes], *to: IO[bytes]) -> tuple[int, str]:
    """Copy a file to any number of others, and return its size and MD5."""
    size, md5 = 0, hashlib.md5(usedforsecurity=False)
    while piece := source.read(2**20):
        size += len(piece)
        md5.update(piece)
        for file in to:
            file.write(piece)
    return size, md5.hexdigest()


# Download


def _fetch(url: str, path: Path, progress: OnBytes) -> None:
    """Download what is missing of a file, which may be all of it."""
    try:
        with _open(url, path) as response, path.open("ab" if response.status == 206 else "wb") as file:
            length = response.headers["Content-Length"]
            total = file.tell() + int(length) if length else None
            progress(file.tell(), total)
            while piece := response.read(2**16):
                file.write(piece)
                progress(file.tell(), total)
            if total and file.tell() < total:
                raise ConnectionError(f"the connection was closed after {file.tell():,} of {total:,} bytes")
    except (OSError, HTTPException) as error:
        raise OSError(
            f"{url} could not be downloaded ({error!r}); download it again, which continues where this ended, "
            f"or {ELSEWHERE}"
        ) from error


def _open(url: str, path: Path) -> Any:
    """Request what is missing of a file; the answer has status 206, or 200 if it has everything from the start."""
    start = path.stat().st_size if path.exists() else 0
    try:
        return urlopen(Request(url, headers={"Range": f"bytes={start}-"} if start else {}), timeout=60)
    except HTTPError as error:
        error.close()
        if error.code != 416 or not start:
            raise
        path.unlink()  # the file has the length of the archive or more, but not its content
        return _open(url, path)


def _extract(archive: Path, place: Path) -> None:
    """Unpack the six files.

    Names in the archive are only compared with the expected ones and never used as paths, so that none leads elsewhere.
    """
    missing = {f"{FOLDER}/{name}": place / name for name in MD5}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if path := missing.pop(member.name, None):
                source = tar.extractfile(member) if member.isreg() else None  # extractfile would follow a link
                if not source:
                    raise ValueError(f"{member.name} in {archive} must be a file, not a link or device; {ELSEWHERE}")
                write_atomically(path, partial(_unpack, source, path))
    if missing:
        raise ValueError(
            f"{archive} must have the files {', '.join(MD5)}; {', '.join(missing)} are missing; {ELSEWHERE}"
        )


def _unpack(source: IO[bytes], path: Path, file: IO[bytes]) -> None:
    _verify(path, *_copy(source, file), ELSEWHERE)  # before write_atomically gives the file its name
