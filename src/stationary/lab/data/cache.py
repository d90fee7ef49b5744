"""What is slow to parse is parsed once."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from stationary._files import write_atomically

VERSION = 1  # of what the cached files hold; with another number everything is parsed again
Array = np.ndarray[Any, Any]


def folder() -> Path:
    """``$STATIONARY_CACHE``, else ``$XDG_CACHE_HOME/stationary``, else ``~/.cache/stationary``."""
    if own := os.environ.get("STATIONARY_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stationary"


def cached(source: Path, parse: Callable[[Path], tuple[Array, Array]]) -> tuple[Array, Array]:
    """``parse(source)``, its x and y, remembered for as long as the content of source stays the same."""

    def arrays() -> dict[str, Array]:
        x, y = parse(source)
        return {"x": x, "y": y}

    found = remembered(f"{source.name}-{sha256(source.read_bytes()).hexdigest()}", ("x", "y"), arrays)
    return found["x"], found["y"]


def remembered(name: str, keys: Sequence[str], compute: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """What ``compute`` gives, arrays with these keys, kept under this name.

    A damaged or incomplete cache is written again; one that cannot be written is done without.

    Args:
        name: of the file; it should have a digest of all that the arrays depend on.
        keys: of the arrays.
        compute: called if they are not there.
    """
    path = folder() / f"{name}-v{VERSION}.npz"
    # What a damaged file raises depends on the damaged byte; NumPy leaves it open if it opened it.
    with suppress(Exception), path.open("rb") as file, np.load(file) as stored:
        return {key: stored[key] for key in keys}
    arrays = compute()
    with suppress(OSError):
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    return arrays
