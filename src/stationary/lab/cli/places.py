"""Where results are: the folder that was last written to, and what to do where a folder cannot be written."""

import errno
from contextlib import suppress
from pathlib import Path

from stationary._files import cache_folder, write_text

REFUSED = {  # errors of a folder that the user chose, and what to do about them
    errno.EACCES: "choose a folder that you may read and write",
    errno.EPERM: "choose a folder that you may read and write",
    errno.EROFS: "choose a folder that you may read and write",
    errno.ENOSPC: "make room there, or choose a folder on another disk",
    errno.EDQUOT: "make room there, or choose a folder on another disk",
    errno.ENOTDIR: "choose a folder, or a place that does not exist yet",
    errno.EEXIST: "choose a folder, or a place that does not exist yet",
    errno.EISDIR: "choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def advice(error: OSError) -> str | None:
    """Say what is wrong with the place that a command reads or writes, and what to do; None if it is another error."""
    if error.errno not in REFUSED:
        return None
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror}; {REFUSED[error.errno]}."


def remember(out: Path) -> None:
    """Note, for ``last``, that results are written to this folder; where that cannot be noted, it is not."""
    with suppress(OSError):
        write_text(cache_folder() / "last-out.txt", f"{out.resolve()}\n")


def last() -> Path | None:
    """Return the folder that results were last written to, if it is still there."""
    try:
        path = Path((cache_folder() / "last-out.txt").read_text(encoding="utf-8").strip())
        return path if (path / "runs").is_dir() else None
    except (OSError, ValueError):
        return None
