"""Files that are never half written, and the folder of those that may be deleted at any time."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def cache_folder() -> Path:
    """Return the folder: ``$STATIONARY_CACHE``, else ``$XDG_CACHE_HOME/stationary``, else ``~/.cache/stationary``."""
    if own := os.environ.get("STATIONARY_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stationary"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Call ``write`` on a temporary file beside path, then rename it: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a text in UTF-8 as ``write_atomically`` does."""
    return write_atomically(path, lambda file: file.write(text.encode()))
