"""The scikit-learn estimators with their default parameters beside scikit-learn's MLP of the same size, on 8 tables.

    python benchmarks/estimators.py                    # about 3 minutes on one core
    python benchmarks/estimators.py --markdown         # the table of docs/estimators.md
    python benchmarks/estimators.py --json results/benchmarks/estimators.json

Five-fold cross-validation (stratified for classes), twice: every fold is one test of all models, with its own seed. All
have one hidden layer of 100 units and at most 200 epochs. Beside our estimator stand ``MLPClassifier`` or
``MLPRegressor`` behind a ``StandardScaler`` (targets standardised as well), three times: as they come, which is without
early stopping; with our policy, early stopping on 10 % of the training rows after 30 epochs without progress; and with
our learning rate and batch size on top. The predictive distribution of ``MLPRegressor`` is normal, with the standard
deviation of its training residuals.

NLPD is the mean negative log probability (density) of the test targets. Regression targets are divided by the standard
deviation of the whole table first, so RMSE 1 is no better than the mean. The defaults were chosen on other tables: see
docs/estimators.md.
"""

import argparse
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_friedman1,
    make_moons,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import stationary as st
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

Array = NDArray[Any]
FOLDS, REPEATS = 5, 2
SIZE = {"hidden_layer_sizes": (100,), "max_iter": 200}
STOPPING = {"early_stopping": True, "validation_fraction": 0.1, "n_iter_no_change": 30}
MLPS: dict[str, dict[str, Any]] = {
    "MLP": SIZE,
    "MLP, early stopping": SIZE | STOPPING,
    "MLP, our training": SIZE | STOPPING | {"learning_rate_init": 3e-3, "batch_size": 64},
}
CLASSES = ("iris", "wine", "breast_cancer", "digits", "moons")


def houses(n: int = 1500, seed: int = 0) -> tuple[Array, Array]:
    """A table like California's houses, made here: prices are skewed, and less certain near the two cities.

    Columns: longitude, latitude, median income, house age, rooms, people in a household, population (which does not
    matter). log price = 0.7 log income + 0.8 e^(-3 d) + 0.1 log rooms - 0.2 log people + 0.003 age + noise, where d is
    the distance to the nearer city, and the noise is normal with the standard deviation 0.1 + 0.3 e^(-3 d).
    """
    random = np.random.default_rng(seed)
    place = random.uniform(0, 1, (n, 2))
    cities = np.array([[0.3, 0.2], [0.6, 0.8]])
    near = np.exp(-3 * np.linalg.norm(place[:, None] - cities, axis=2).min(1))
    income, rooms, people = random.lognormal([1.2, 1.6, 1.0], [0.5, 0.3, 0.3], (n, 3)).T
    age, population = random.integers(1, 53, n), random.lognormal(7, 0.7, n)
    log_price = 0.7 * np.log(income) + 0.8 * near + 0.1 * np.log(rooms) - 0.2 * np.log(people) + 0.003 * age
    price = np.exp(log_price + (0.1 + 0.3 * near) * random.standard_normal(n))
    return np.column_stack([place, income, age, rooms, people, population]), price


def tables() -> dict[str, tuple[Array, Array]]:
    return {
        "iris": load_iris(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "breast_cancer": load_breast_cancer(return_X_y=True),
        "digits": load_digits(return_X_y=True),
        "moons": make_moons(500, noise=0.3, random_state=0),
        "diabetes": load_diabetes(return_X_y=True),
        "friedman1": make_friedman1(500, noise=1.0, random_state=0),
        "houses": houses(),
    }


def models(name: str, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if name in CLASSES:
        found["stationary"] = st.StationaryClassifier(random_state=seed)
        for key, settings in MLPS.items():
            found[key] = make_pipeline(StandardScaler(), MLPClassifier(**settings, random_state=seed))
    else:
        found["stationary"] = st.StationaryRegressor(random_state=seed)
        for key, settings in MLPS.items():
            mlp = make_pipeline(StandardScaler(), MLPRegressor(**settings, random_state=seed))
            found[key] = TransformedTargetRegressor(mlp, transformer=StandardScaler())
    return found


def folds(name: str, X: Array, y: Array) -> Iterator[tuple[int, Array, Array]]:
    kind = StratifiedKFold if name in CLASSES else KFold
    for repeat in range(REPEATS):
        for k, (train, test) in enumerate(kind(FOLDS, shuffle=True, random_state=repeat).split(X, y)):
            yield FOLDS * repeat + k, train, test


def scores(model: Any, X: Array, y: Array, X_test: Array, y_test: Array) -> dict[str, float]:
    """Accuracy or RMSE, NLPD, and the seconds that training took."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 epochs are the policy
        model.fit(X, y)
    seconds = time.perf_counter() - started
    if is_classifier(model):
        probs = model.predict_proba(X_test)
        accuracy = accuracy_score(y_test, model.classes_[probs.argmax(1)])
        return {"accuracy": accuracy, "nlpd": log_loss(y_test, probs, labels=model.classes_), "seconds": seconds}
    if isinstance(model, st.StationaryRegressor):
        mean, std = model.predict(X_test, return_std=True)
    else:
        mean, std = model.predict(X_test), np.std(y - model.predict(X))
    nlpd = np.mean(0.5 * ((y_test - mean) / std) ** 2 + np.log(std) + 0.5 * math.log(2 * math.pi))
    return {"rmse": float(np.sqrt(np.mean((y_test - mean) ** 2))), "nlpd": float(nlpd), "seconds": seconds}


def measure(name: str, X: Array, y: Array) -> dict[str, Any]:
    if name not in CLASSES:
        y = (y - y.mean()) / y.std()
    results: dict[str, dict[str, list[float]]] = {}
    for seed, train, test in folds(name, X, y):
        for key, model in models(name, seed).items():
            for metric, value in scores(model, X[train], y[train], X[test], y[test]).items():
                results.setdefault(key, {}).setdefault(metric, []).append(float(value))
    return {"table": name, "rows": len(X), "columns": X.shape[1], "folds": results}


def cell(results: dict[str, dict[str, list[float]]], key: str, metric: str) -> str:
    """Mean ± standard deviation over the folds; bold if no other mean is better."""
    sign = -1 if metric == "accuracy" else 1
    best = min(sign * fmean(model[metric]) for model in results.values())
    values = results[key][metric]
    text = f"{fmean(values):.3f} ± {stdev(values):.3f}"
    return f"**{text}**" if sign * fmean(values) == best else text


def markdown(measured: list[dict[str, Any]]) -> str:
    names = list(measured[0]["folds"])
    lines = [f"| table (rows x columns) | | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for table in measured:
        for metric in [key for key in next(iter(table["folds"].values())) if key != "seconds"]:
            cells = " | ".join(cell(table["folds"], key, metric) for key in table["folds"])
            name = f"{table['table']} ({table['rows']} x {table['columns']})" if metric != "nlpd" else ""
            lines.append(f"| {name} | {metric.upper() if metric != 'accuracy' else metric} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of docs/estimators.md and nothing else"
    )
    parser.add_argument("--json", type=Path, help="write the numbers of every fold and where they came from here")
    arguments = parser.parse_args()
    measured = []
    for name, (X, y) in tables().items():
        measured.append(measure(name, X, y))
        if not arguments.markdown:
            seconds = {key: fmean(model["seconds"]) for key, model in measured[-1]["folds"].items()}
            print(f"{name:15}" + ", ".join(f"{key} {value:.2f} s a fit" for key, value in seconds.items()), flush=True)
    print(markdown(measured))
    if arguments.json:
        content = {"command": "benchmarks/estimators.py", "environment": environment(), "tables": measured}
        written = write_json(arguments.json, content)
        if not arguments.markdown:
            print(f"\nwrote {written}")


if __name__ == "__main__":
    main()
