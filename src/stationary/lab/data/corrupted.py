"""Corrupted test images of CIFAR-10: 15 corruptions, each at five severities (Hendrycks and Dietterich, 2019).

They are our own images, not those of CIFAR-10-C: ``interop/corrupt_cifar10.py`` makes them with the package
imagecorruptions, whose severities are those of larger photographs.
"""

import os
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from stationary._files import cache_folder
from stationary.lab.data.cifar10 import Part

FILE = "cifar-10-corrupted.npz"
SEVERITIES = 5


def load(data_dir: str | Path | None = None) -> dict[str, Part]:
    """Return the images of all corruptions by "severity 1" to "severity 5".

    Args:
        data_dir: the folder of the file; if it is not there, ``$STATIONARY_DATA`` and the cache folder.

    Raises:
        FileNotFoundError: if none of the folders has it.
    """
    given = (data_dir, os.environ.get("STATIONARY_DATA"), cache_folder())
    paths = [Path(folder).expanduser() / FILE for folder in given if folder]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"no {' or '.join(map(str, paths))}; interop/corrupt_cifar10.py makes it")
    try:
        with np.load(path) as arrays:
            x, y = arrays["x"], arrays["y"]  # (corruptions, severities, n, 32, 32, 3) and (n,)
    except (ValueError, OSError, EOFError, KeyError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error!r}); make it again by interop/corrupt_cifar10.py") from error
    labels = torch.from_numpy(np.tile(y.astype(np.int64), len(x)))
    pixels = [np.ascontiguousarray(x[:, k].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)) for k in range(SEVERITIES)]
    return {f"severity {k + 1}": Part(torch.from_numpy(some), labels) for k, some in enumerate(pixels)}
