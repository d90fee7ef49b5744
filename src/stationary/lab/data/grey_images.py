"""Grey images of 28 by 28 pixels in idx files: Fashion-MNIST, MNIST and notMNIST."""

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor

from stationary._files import cache_folder, write_atomically

FILES: dict[tuple[str, str], dict[str, str]] = {  # by data set and part, the file and the MD5 of its plain content
    ("fashion-mnist", "train"): {
        "fashion-mnist/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "fashion-mnist/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    },
    ("fashion-mnist", "test"): {
        "fashion-mnist/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "fashion-mnist/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    ("mnist", "test"): {"mnist/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea"},
    ("notmnist", "test"): {"notmnist-test-images": "1e78b07d677d6e4de2c8857bafff012e"},
}
URLS = {  # by data set, the folder of files that have the same names there, and end in .gz
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
}
NOTMNIST = (
    "notMNIST has no download here, since it states no licence: take t10k-images-idx3-ubyte.gz of "
    "github.com/davidflanagan/notMNIST-to-MNIST and put it as notmnist-test-images.gz into --data-dir or "
    f"STATIONARY_DATA; unpacked, it must have the MD5 {FILES['notmnist', 'test']['notmnist-test-images']}"
)
DEBIAN = "/usr/share/datasets"  # of the Debian package dataset-fashion-mnist
REPAIR = "put {} there yourself, or give its folder as --data-dir or as STATIONARY_DATA"
OPEN: dict[str, Callable[[Path], IO[bytes]]] = {"": lambda path: path.open("rb"), ".gz": gzip.open, ".xz": lzma.open}  # type: ignore[dict-item]


class Images(NamedTuple):
    """Some images.

    Args:
        x: pixels, (n, 1, 28, 28), uint8.
        y: class indices, (n,); None for images that are only used as unknown ones.
    """

    x: Tensor
    y: Tensor | None


def load(name: str, part: str = "test", data_dir: str | Path | None = None) -> Images:
    """Load images; the files' checksums are verified.

    Args:
        name: "fashion-mnist", "mnist" or "notmnist".
        part: "test", or "train" of "fashion-mnist".
        data_dir: the folder of the files of ``FILES``, plain, or with the endings .gz or .xz. Files that are not there
            are looked for in ``$STATIONARY_DATA``, the cache folder, and where Debian has its data sets.
    """
    if (name, part) not in FILES:
        known = ", ".join(" ".join(key) for key in FILES)
        raise ValueError(f"name and part must be one of {known}; got {name!r} and {part!r}")
    arrays = [_read(file, md5, data_dir) for file, md5 in FILES[name, part].items()]
    x = torch.from_numpy(arrays[0]).unsqueeze(1)
    return Images(x, torch.from_numpy(arrays[1]).long() if len(arrays) > 1 else None)


def download(name: str, folder: str | Path | None = None, url: str | None = None) -> Path:
    """Download all files of a data set of ``URLS``, verify them, and return the folder that they are in.

    Args:
        name: name of the data set.
        folder: folder to put them into, as ``load`` looks for them; None for the cache folder.
        url: address of the folder of the files, without a slash at the end; None for that of ``URLS``.
    """
    place = Path(folder or cache_folder()).expanduser()
    for file, md5 in [pair for (of, _), files in FILES.items() if of == name for pair in files.items()]:
        address = f"{url or URLS[name]}/{Path(file).name}.gz"
        try:
            with urlopen(address, timeout=60) as response:
                packed = response.read()
            content = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error) as error:
            raise OSError(f"{address} could not be downloaded ({error!r}); {REPAIR.format(file)}") from error
        _verify(content, md5, address)
        write_atomically(place / f"{file}.gz", lambda stream, packed=packed: stream.write(packed))  # type: ignore[misc]
    return place


def find(file: str, data_dir: str | Path | None = None) -> Path:
    """Return the path from which ``load`` would read a file of ``FILES``.

    Raises:
        FileNotFoundError: if none of the folders has it.
    """
    given = (data_dir, os.environ.get("STATIONARY_DATA"), cache_folder(), DEBIAN)
    folders = [Path(folder).expanduser() for folder in given if folder]
    for path in (folder / f"{file}{ending}" for folder in folders for ending in OPEN):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"there is no {file}, plain, .gz or .xz, in {' or '.join(map(str, folders))}; {REPAIR.format(file)}"
    )


def _read(file: str, md5: str, data_dir: str | Path | None) -> np.ndarray[Any, Any]:
    path = find(file, data_dir)
    try:
        with OPEN[path.suffix if path.suffix in OPEN else ""](path) as stream:
            content = stream.read()
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}); put a whole copy there") from error
    _verify(content, md5, path)
    shape = np.frombuffer(content, ">i4", content[3], 4)  # the fourth byte is the number of dimensions
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()


def _verify(content: bytes, md5: str, source: object) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"{source} must have the MD5 {md5} when unpacked; got {found}; put a whole copy there")
