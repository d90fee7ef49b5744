"""The bundled tables; README.md in this folder says where each comes from."""

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


def read(name: str, dtype: Any = None, *, columns: Iterable[str] = ("class",)) -> pd.DataFrame:
    """Read a bundled table.

    Args:
        name: name of its file without the ending, such as "diabetes".
        dtype: type of all columns; None lets pandas infer the type of each.
        columns: names of columns that the table must have; it may have others.
    """
    with as_file(FOLDER / f"{name}.csv.xz") as path:
        return read_table(path, columns=columns, dtype=dtype, repair=REPAIR)


def read_table(path: Path, *, columns: Iterable[str] = ("class",), dtype: Any = None, repair: str) -> pd.DataFrame:
    """Read a table of comma-separated values that is compressed with xz.

    Args:
        path: the file.
        columns: names of columns that the table must have; it may have others.
        dtype: type of all columns; None lets pandas infer the type of each.
        repair: what the user can do about a damaged file; error messages end with it.
    """
    try:  # low_memory would read in pieces, on which types and the order of categories may depend
        table = pd.read_csv(path, na_values=[], keep_default_na=False, dtype=dtype, low_memory=False)
    except (ValueError, OverflowError, EOFError, lzma.LZMAError) as error:
        raise ValueError(
            f"{path} must be a CSV file compressed with xz, but reading it gave {error!r}; {repair}"
        ) from error
    if missing := [name for name in columns if name not in table]:
        raise ValueError(f"{path} must have the columns {missing}; got {list(table)}; {repair}")
    return table
