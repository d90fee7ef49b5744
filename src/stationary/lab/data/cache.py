"""A cache on disk for arrays that are slow to parse or to compute."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from stationary._files import cache_folder, write_atomically

VERSION = 1  # of the format of the cached files; another number makes everything be computed again
Array = np.ndarray[Any, Any]


def cached(source: Path, parse: Callable[[Path], tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the arrays x and y of ``parse(source)``, from the cache while the content of the file is the same."""

    def arrays() -> dict[str, Array]:
        x, y = parse(source)
        return {"x": x, "y": y}

    found = remembered(f"{source.name}-{sha256(source.read_bytes()).hexdigest()}", ("x", "y"), arrays)
    return found["x"], found["y"]


def remembered(name: str, keys: Sequence[str], compute: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Return the arrays that ``compute`` gives, from the cache if they are there.

    A damaged or incomplete file is written again. Where the folder cannot be written to, nothing is cached.

    Args:
        name: name of the cached file; it should contain a digest of all that the arrays depend on.
        keys: names of the arrays.
        compute: function that computes the arrays by name; it is called if they are not in the cache.
    """
    path = cache_folder() / f"{name}-v{VERSION}.npz"
    # Which error a damaged file raises depends on the damaged byte. The file is opened here since np.load would leave
    # it open after an error.
    with suppress(Exception), path.open("rb") as file, np.load(file) as stored:
        return {key: stored[key] for key in keys}
    arrays = compute()
    with suppress(OSError):
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    return arrays
