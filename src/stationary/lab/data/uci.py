"""The paper's UCI benchmarks: Diabetes, Adult, Connect-4 and Covtype."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary._extras import extra
from stationary.lab.data.cache import Array, cached
from stationary.lab.data.files import FOLDER, REPAIR, read, read_table
from stationary.lab.data.split import Split

with extra("experiments"):
    import pandas as pd
    from sklearn.datasets import fetch_covtype, get_data_home
    from sklearn.model_selection import KFold, StratifiedKFold

DATASETS = ("diabetes", "adult", "adult-scaled", "connect-4", "connect-4-codes", "connect-4-onehot", "covtype")
CONNECT_4 = {"connect-4": {"o": -1.0, "b": 0.0, "x": 1.0}, "connect-4-codes": {"b": 0.0, "o": 1.0, "x": 2.0}}

EXPECTED: dict[str, tuple[int, dict[Any, int]]] = {  # number of features in the file, and of rows of each class
    "diabetes": (8, {"tested_negative": 500, "tested_positive": 268}),
    "adult": (14, {"<=50K": 34_014, ">50K": 11_208}),
    "connect-4": (42, {"draw": 6_449, "loss": 16_635, "win": 44_473}),
    "covtype": (54, {1: 211_840, 2: 283_301, 3: 35_754, 4: 2_747, 5: 9_493, 6: 17_367, 7: 20_510}),
}

COVTYPE_FILE = "covtype.csv.xz"
COVTYPE_FEATURES = (
    *("Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology"),
    *("Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm"),
    "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)),
)
COVTYPE_REPAIR = f"put the whole {COVTYPE_FILE} into a folder and give that as --data-dir or as STATIONARY_DATA"


@dataclass(frozen=True)
class Tabular:
    """A whole data set, encoded but not yet standardised.

    Args:
        x: inputs, (n, d): numeric columns as they are, and for each category one column that is 0 or 1.
        y: class indices, (n,).
        numeric: whether a column is to be standardised, (d,), boolean.
        feature_names: the d names of the columns of x.
        class_names: the names of the classes, in the order of their indices.
    """

    x: Tensor
    y: Tensor
    numeric: Tensor
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]

    @property
    def n_features(self) -> int:
        return self.x.shape[1]

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    def to(self, device: str | torch.device) -> "Tabular":
        """Return the same data on another device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device), numeric=self.numeric.to(device))

    def fold_rows(self, n_folds: int = 10, *, seed: int = 0, stratified: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Return the training and the test rows of each fold of a cross-validation; every row is tested once.

        Args:
            n_folds: number of folds.
            seed: seed of the random assignment of rows to folds.
            stratified: whether each fold has about the same share of each class.
        """
        kind = StratifiedKFold if stratified else KFold
        y = self.y.cpu().numpy()
        folds = kind(n_folds, shuffle=True, random_state=seed).split(y, y)
        device = self.x.device
        return [(torch.from_numpy(train).to(device), torch.from_numpy(test).to(device)) for train, test in folds]

    def scaling(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation, (d,) each, of the numeric columns over the given rows.

        They are 0 and 1 for the other columns. A constant column has the standard deviation 1.
        """
        x = self.x[rows]
        x = x.cpu() if x.device.type == "mps" else x  # the device mps has no float64
        pieces = x.split(2**20 if x.is_cuda else 8192)  # pieces that stay in a processor's cache in float64
        mean = torch.stack([piece.sum(0, dtype=torch.float64) for piece in pieces]).sum(0) / len(x)
        std = (torch.stack([(piece - mean).square().sum(0) for piece in pieces]).sum(0) / len(x)).sqrt()
        numeric = self.numeric.to(x.device)
        mean, std = mean.where(numeric, 0.0), std.where(numeric & (std > 0), 1.0)
        return mean.float().to(self.x.device), std.float().to(self.x.device)

    def folds(self, n_folds: int = 10, *, seed: int = 0, stratified: bool = False) -> Iterator[Split]:
        """Yield the split of each fold of ``fold_rows``, standardised by its own training rows."""
        for train, test in self.fold_rows(n_folds, seed=seed, stratified=stratified):
            yield self.split(train, test)

    def split(self, train: Any, test: Any) -> Split:
        """Return the given training and test rows as a ``Split``; both are standardised by the training rows."""
        mean, std = self.scaling(train)
        x_train, x_test = (self.x[train] - mean) / std, (self.x[test] - mean) / std
        return Split(x_train, self.y[train], x_test, self.y[test], self.feature_names, self.class_names)


def load(name: str, data_dir: str | Path | None = None) -> Tabular:
    """Load a benchmark by name.

    - "adult" has no rows with a missing value; there are 3,620 in the file. In "adult-scaled" the columns of the
      categories are standardised as well.
    - In "connect-4" a square is one number: o, b and x are -1, 0 and 1, so that the empty square, b, is between the
      players. In "connect-4-codes" b, o and x are 0, 1 and 2, in the order of the alphabet. In "connect-4-onehot" a
      square has three columns.
    - All 54 columns of "covtype" are standardised, also the 44 that are 0 or 1, as in the paper's code.

    Args:
        name: name of the benchmark, one of ``DATASETS``; all but "covtype" are bundled.
        data_dir: the folder of covtype.csv.xz. A file that is not there is looked for in ``$STATIONARY_DATA``. If it is
            in neither, scikit-learn downloads it, into the first of these folders that is given, or else to where
            scikit-learn keeps its data.
    """
    if name not in DATASETS:
        raise ValueError(f"name must be one of {', '.join(DATASETS)}; got {name!r}")
    return _covtype(data_dir) if name == "covtype" else _bundled(name)


def find_covtype(data_dir: str | Path | None = None) -> Path | None:
    """Return the file of Covtype that ``load`` would read, None if it would have to download one."""
    folders = _folders(data_dir)
    copies = (folders[0] if folders else Path(get_data_home())) / "covertype" / "samples_py3"  # scikit-learn's
    return next((path for path in (*(folder / COVTYPE_FILE for folder in folders), copies) if path.is_file()), None)


def _folders(data_dir: str | Path | None) -> list[Path]:
    return [Path(folder).expanduser() for folder in (data_dir, os.environ.get("STATIONARY_DATA")) if folder]


def _bundled(name: str) -> Tabular:
    file = next(file for file in EXPECTED if name.startswith(file))
    table = read(file, dtype="category" if file == "connect-4" else None)  # categories are much faster than strings
    table = table[(table != "?").all(axis=1)].reset_index(drop=True)
    labels = table.pop("class")
    _verify(file, table.shape[1], labels, FOLDER / f"{file}.csv.xz", REPAIR)
    classes = pd.Categorical(labels)
    if name in CONNECT_4:
        table = table.apply(lambda square: square.map(CONNECT_4[name]).astype(float))
    encoded = pd.get_dummies(table, dtype=float)  # it puts numeric columns first
    numeric = torch.tensor([column in table.columns or name == "adult-scaled" for column in encoded.columns])
    x = torch.tensor(encoded.to_numpy(np.float32)).contiguous()
    y = torch.from_numpy(classes.codes.astype(np.int64))
    return Tabular(x, y, numeric, tuple(encoded.columns), tuple(classes.categories))


def _covtype(data_dir: str | Path | None) -> Tabular:
    folders = _folders(data_dir)
    path = next((folder / COVTYPE_FILE for folder in folders if (folder / COVTYPE_FILE).is_file()), None)
    x, labels = cached(path, _read_covtype) if path else _download_covtype(folders)
    y = torch.from_numpy(labels.astype(np.int64)) - 1
    classes = tuple(str(label) for label in EXPECTED["covtype"][1])
    numeric = torch.ones(x.shape[1], dtype=torch.bool)
    return Tabular(torch.from_numpy(x.astype(np.float32, order="C")), y, numeric, COVTYPE_FEATURES, classes)


def _read_covtype(path: Path) -> tuple[Array, Array]:
    table = read_table(path, columns=(*COVTYPE_FEATURES, "class"), dtype=np.int16, repair=COVTYPE_REPAIR)
    labels = table.pop("class")
    _verify("covtype", table.shape[1], labels, path, COVTYPE_REPAIR)
    return table[list(COVTYPE_FEATURES)].to_numpy(), labels.to_numpy()


def _download_covtype(folders: list[Path]) -> tuple[Array, Array]:
    home = folders[0] if folders else None
    try:
        found = fetch_covtype(data_home=home)
    except Exception as error:  # whether network, disk or file is to blame, the way out is the same
        looked = " or ".join(str(folder) for folder in folders) or "--data-dir or STATIONARY_DATA, which are not given"
        raise FileNotFoundError(
            f"no {COVTYPE_FILE} in {looked}, and scikit-learn could not download it ({error!r}); {COVTYPE_REPAIR}"
        ) from error
    source = f"scikit-learn's copy of Covtype in {get_data_home(home)}"
    repair = f"delete it to have it downloaded again, or {COVTYPE_REPAIR}"
    _verify("covtype", found.data.shape[1], pd.Series(found.target), source, repair)
    return found.data, found.target


def _verify(name: str, n_features: int, labels: pd.Series, source: object, repair: str) -> None:
    expected, classes = EXPECTED[name]
    found = labels.value_counts().sort_index()
    if n_features != expected or found.to_dict() != classes:
        raise ValueError(
            f"{source} must have {expected} features and {sum(classes.values()):,} rows, of the classes {classes}; got "
            f"{n_features} features and {len(labels):,} rows, of the classes {found.head(10).to_dict()}; {repair}"
        )
