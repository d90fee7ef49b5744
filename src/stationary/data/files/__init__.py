"""The bundled tables; README.md beside this file says where each comes from."""

from importlib.resources import as_file, files

from stationary.extras import extra

with extra("experiments"):
    import pandas as pd


def read(name: str) -> pd.DataFrame:
    """A bundled table by name."""
    with as_file(files(__name__) / f"{name}.csv.xz") as path:
        return pd.read_csv(path, na_values=[], keep_default_na=False)
