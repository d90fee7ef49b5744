"""How long the estimators take beside scikit-learn's own networks: fit, prediction, the first fit, a busy neighbour.

    python benchmarks/estimators.py --json results/benchmarks/estimators.json

Tables: eight of 1,000 to 10,000 rows, five of classes and three of values, bundled or generated, a fifth to test.
Each model is fitted to each table in turn; ratios are to ``MLPClassifier`` and ``MLPRegressor`` as they come, behind a
``StandardScaler``, in the same run. NLPD is that of the test rows, for values in units of their standard deviation; the
regressor of scikit-learn has no variance, and gets that of its residuals on the training rows.

Processes: seconds of the first and of the second fit in a new process, and of a fit beside another process that
multiplies matrices all the while, relative to one alone, with all threads.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sklearn.datasets import (
    load_digits,
    make_classification,
    make_friedman1,
    make_friedman2,
    make_friedman3,
    make_moons,
)
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import stationary as st
from stationary.lab.data import uci
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

Arrays = tuple[Any, Any]


def bundled(name: str, rows: int) -> Arrays:
    table = uci.load(name)
    chosen = np.random.default_rng(0).permutation(len(table.x))[:rows]
    return table.x.numpy()[chosen].astype(float), table.y.numpy()[chosen]


CLASSES: dict[str, Callable[[], Arrays]] = {
    "digits": lambda: load_digits(return_X_y=True),
    "moons": lambda: make_moons(2000, noise=0.3, random_state=0),
    "classification": lambda: make_classification(5000, n_informative=10, n_classes=5, random_state=0),
    "adult": lambda: bundled("adult", 10_000),
    "connect-4": lambda: bundled("connect-4", 10_000),
}
VALUES: dict[str, Callable[[], Arrays]] = {
    "friedman1": lambda: make_friedman1(2000, noise=1.0, random_state=0),
    "friedman2": lambda: make_friedman2(5000, noise=100.0, random_state=0),
    "friedman3": lambda: make_friedman3(10_000, noise=0.1, random_state=0),
}


def models(classes: bool) -> dict[str, Any]:
    theirs = MLPClassifier(random_state=0) if classes else MLPRegressor(random_state=0)
    ours = st.StationaryClassifier if classes else st.StationaryRegressor
    return {
        "MLP": make_pipeline(StandardScaler(), theirs),
        "finite, 300 units": ours(hidden_layer_sizes=(300,), random_state=0),
        "infinite width": ours(random_state=0),
    }


def nlpd(model: Any, data: list[Any], classes: bool) -> float:
    x, x_test, y, y_test = data
    if classes:
        return float(log_loss(y_test, model.predict_proba(x_test), labels=model.classes_))
    if isinstance(model, st.StationaryRegressor):
        mean, std = model.predict(x_test, return_std=True)
    else:
        mean, std = model.predict(x_test), np.full(len(y_test), (model.predict(x) - y).std())
    scores = 0.5 * ((y_test - mean) / std) ** 2 + np.log(std / y.std() * np.sqrt(2 * np.pi))
    return float(scores.mean())


def measure(load: Callable[[], Arrays], classes: bool) -> dict[str, dict[str, float]]:
    data = train_test_split(*load(), test_size=0.2, random_state=0)
    rows = {}
    for name, model in models(classes).items():
        start = time.perf_counter()
        model.fit(data[0], data[2])
        fitted = time.perf_counter()
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            model.predict_proba(data[1]) if classes else model.predict(data[1])
            times.append(time.perf_counter() - begin)
        rows[name] = {"fit_s": fitted - start, "predict_s": median(times), "nlpd": nlpd(model, data, classes)}
    return rows


FITS = """
import sys, time, warnings
warnings.simplefilter("ignore")
from sklearn.datasets import make_moons
import stationary as st
x, y = make_moons(2000, noise=0.3, random_state=0)
for _ in range(2):
    start = time.perf_counter()
    st.StationaryClassifier(hidden_layer_sizes=(300,), max_iter=30, random_state=0).fit(x, y)
    print(time.perf_counter() - start)
"""
NEIGHBOUR = "import torch; x = torch.randn(500, 500)\nwhile True: x @ x"


def fits() -> list[float]:
    """Seconds of the first and of the second fit in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", FITS], capture_output=True, text=True, check=True)
    return [float(line) for line in ran.stdout.split()]


def processes() -> dict[str, float]:
    first, second = fits()
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        time.sleep(5)
        _, busy = fits()
    finally:
        neighbour.kill()
    return {"first_s": first, "second_s": second, "beside_a_busy_process": busy / second}


def show(content: dict[str, Any]) -> None:
    for name, rows in content["tables"].items():
        base = rows["MLP"]
        for model, row in rows.items():
            ratios = row["fit_s"] / base["fit_s"], row["predict_s"] / base["predict_s"]
            print(f"{name:16}{model:20}fit {ratios[0]:6.2f}  predict {ratios[1]:7.2f}  NLPD {row['nlpd']:7.3f}")
    for model in ("finite, 300 units", "infinite width"):
        for key in ("fit_s", "predict_s"):
            each = [rows[model][key] / rows["MLP"][key] for rows in content["tables"].values()]
            print(f"median ratio, {model}, {key.removesuffix('_s')}: {median(each):.2f}")
    print(content["processes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    content: dict[str, Any] = {"command": "benchmarks/estimators.py", "environment": environment("cpu")}
    content["processes"] = processes()
    content["tables"] = {name: measure(load, True) for name, load in CLASSES.items()}
    content["tables"] |= {name: measure(load, False) for name, load in VALUES.items()}
    show(content)
    if arguments.json:
        print(f"wrote {write_json(arguments.json, json.loads(json.dumps(content)))}")


if __name__ == "__main__":
    main()
