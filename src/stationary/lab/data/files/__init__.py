"""The bundled tables; README.md beside this file says where each comes from."""

import lzma
from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from stationary._extras import extra

with extra("experiments"):
    import pandas as pd

FOLDER = files(__name__)
REPAIR = "install stationary again"


def read(name: str, dtype: Any = None) -> pd.DataFrame:
    """A bundled table by name, its columns of the given dtype or of the one that they look like."""
    with as_file(FOLDER / f"{name}.csv.xz") as path:
        return read_table(path, dtype=dtype, repair=REPAIR)


def read_table(path: Path, *, columns: Iterable[str] = ("class",), dtype: Any = None, repair: str) -> pd.DataFrame:
    """A table of comma-separated values, compressed with xz.

    Args:
        path: of the file.
        columns: some that it must have.
        dtype: of all columns; without, each gets the one that it looks like.
        repair: what to do about another file, for the error.
    """
    try:  # read in pieces (low_memory), dtypes and the order of categories may depend on the pieces
        table = pd.read_csv(path, na_values=[], keep_default_na=False, dtype=dtype, low_memory=False)
    except (ValueError, OverflowError, EOFError, lzma.LZMAError) as error:
        raise ValueError(
            f"{path} must be a CSV file compressed with xz, but reading it gave {error!r}; {repair}"
        ) from error
    if missing := [name for name in columns if name not in table]:
        raise ValueError(f"{path} must have the columns {missing}; got {list(table)}; {repair}")
    return table
