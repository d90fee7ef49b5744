"""How long the estimators take beside scikit-learn's own networks: fit, prediction, the first fit, a busy neighbour.

    python benchmarks/estimators.py --json results/benchmarks/estimators.json

Tables: eight of 1,800 to 20,000 rows, five of classes and three of values, bundled or generated, a fifth to test. The
models are fitted to each table in turn, ``--rounds`` times (infinite width once), and predict its test rows in turn,
20 times, infinite width after the others, since its matrices empty the caches; times are medians. Ratios are to
``MLPClassifier`` and ``MLPRegressor`` as they come, 100 units, behind a ``StandardScaler``, in the same run. NLPD is
that of the test rows, for values in units of their standard deviation; the regressor of scikit-learn has no variance,
and gets that of its residuals on the training rows. ``bare_s`` is for scale, and no lower bound: scikit-learn's check
of the rows, two matrix products and an exponential of each hidden unit, or inducing input, in NumPy.

Processes: seconds to import the estimators, of the first and of the second fit in a new process, and of a fit beside
another process that multiplies matrices all the while, relative to one alone; of a finite network and of the default.

Threads: the time of 100 predictions of a finite network with all threads relative to that with one, which it takes of
itself, alone and beside such a process.

``load`` is that of the machine before: more than 0 says that other work ran beside all of this.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
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
from sklearn.utils import check_array

import stationary as st
from stationary.lab.data import uci
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

Arrays = tuple[Any, Any]
SIZES = {  # hidden units, or inducing inputs
    "finite, 100 units": 100,
    "finite, 300 units": 300,
    "infinite width": 1000,
    "infinite width, 200 inducing inputs": 200,
}


def bundled(name: str, rows: int) -> Arrays:
    table = uci.load(name)
    chosen = np.random.default_rng(0).permutation(len(table.x))[:rows]
    return table.x.numpy()[chosen].astype(float), table.y.numpy()[chosen]


CLASSES: dict[str, Callable[[], Arrays]] = {
    "digits": lambda: load_digits(return_X_y=True),
    "moons": lambda: make_moons(2000, noise=0.3, random_state=0),
    "classification": lambda: make_classification(5000, n_informative=10, n_classes=5, random_state=0),
    "adult": lambda: bundled("adult", 20_000),
    "connect-4": lambda: bundled("connect-4", 10_000),
}
VALUES: dict[str, Callable[[], Arrays]] = {
    "friedman1": lambda: make_friedman1(2000, noise=1.0, random_state=0),
    "friedman2": lambda: make_friedman2(5000, noise=100.0, random_state=0),
    "friedman3": lambda: make_friedman3(20_000, noise=0.1, random_state=0),
}


def models(classes: bool) -> dict[str, Any]:
    theirs = MLPClassifier(random_state=0) if classes else MLPRegressor(random_state=0)
    ours = st.StationaryClassifier if classes else st.StationaryRegressor
    return {
        "MLP": make_pipeline(StandardScaler(), theirs),
        "finite, 100 units": ours(hidden_layer_sizes=(100,), random_state=0),
        "finite, 300 units": ours(hidden_layer_sizes=(300,), random_state=0),
        "infinite width": ours(random_state=0),
        "infinite width, 200 inducing inputs": ours(method=st.InfiniteWidth(n_inducing=200), random_state=0),
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


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bare(x: Any, units: int, outputs: int) -> Callable[[], Any]:
    """A prediction by one hidden layer, or by kernel rows without variances, and nothing else, in NumPy."""
    first, second = np.random.default_rng(0).normal(size=(x.shape[1], units)), np.ones((units, outputs))
    return lambda: np.exp(-((check_array(x) @ first) ** 2)) @ second


def measure(load: Callable[[], Arrays], classes: bool, rounds: int) -> dict[str, dict[str, float]]:
    data = train_test_split(*load(), test_size=0.2, random_state=0)
    chosen = models(classes)
    fits: dict[str, list[float]] = {name: [] for name in chosen}
    for k in range(rounds):
        for name, model in chosen.items():
            if not k or not name.startswith("infinite width"):
                fits[name].append(timed(lambda model=model: model.fit(data[0], data[2])))  # type: ignore[misc]
    outputs = len(np.unique(data[2])) if classes else 1
    calls: dict[str, Callable[[], Any]] = {
        name: partial(model.predict_proba if classes else model.predict, data[1]) for name, model in chosen.items()
    }
    calls |= {f"bare {name}": bare(data[1], size, outputs) for name, size in SIZES.items()}
    predictions: dict[str, list[float]] = {name: [] for name in calls}
    limits = {name for name in calls if name.startswith("infinite width")}
    for some in (calls.keys() - limits, limits):
        for _ in range(20):
            for name in (name for name in calls if name in some):
                predictions[name].append(timed(calls[name]))
    rows = {
        name: {
            "fit_s": median(fits[name]),
            "predict_s": median(predictions[name]),
            "nlpd": nlpd(model, data, classes),
        }
        for name, model in chosen.items()
    }
    for name in SIZES:
        rows[name]["bare_s"] = median(predictions[f"bare {name}"])
    return rows


FITS = """
import sys, time, warnings
warnings.simplefilter("ignore")
from sklearn.datasets import make_moons
x, y = make_moons(2000, noise=0.3, random_state=0)
start = time.perf_counter()
from stationary import StationaryClassifier
print(time.perf_counter() - start)
for _ in range(2):
    start = time.perf_counter()
    StationaryClassifier(ARGUMENTS).fit(x, y)
    print(time.perf_counter() - start)
"""
PREDICTIONS = """
import time, warnings
warnings.simplefilter("ignore")
from sklearn.datasets import make_classification
from stationary import StationaryClassifier
from stationary.estimators import _network
x, y = make_classification(4000, 50, n_informative=10, random_state=0)
model = StationaryClassifier((300,), max_iter=3, random_state=0).fit(x, y)
for _network.BULK in (float("inf"), 0):  # one thread, all threads
    model.predict_proba(x)
    start = time.perf_counter()
    for _ in range(100):
        model.predict_proba(x)
    print(time.perf_counter() - start)
"""
NEIGHBOUR = "import torch; x = torch.randn(500, 500)\nwhile True: x @ x"


SETTINGS = {
    "finite, 300 units": "hidden_layer_sizes=(300,), max_iter=30, random_state=0",
    "infinite width": "random_state=0",
}


def printed(script: str) -> list[float]:
    """What a script prints in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [float(line) for line in ran.stdout.split()]


def alone_and_busy(script: str) -> tuple[list[float], list[float]]:
    """What a script prints alone, and beside a busy process."""
    alone = printed(script)
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        time.sleep(5)
        return alone, printed(script)
    finally:
        neighbour.kill()


def processes(arguments: str) -> dict[str, float]:
    (imported, first, second), busy = alone_and_busy(FITS.replace("ARGUMENTS", arguments))
    return {"import_s": imported, "first_s": first, "second_s": second, "beside_a_busy_process": busy[2] / second}


def threads() -> dict[str, float]:
    alone, busy = alone_and_busy(PREDICTIONS)
    return {"all_to_one": alone[1] / alone[0], "all_to_one_beside_a_busy_process": busy[1] / busy[0]}


def show(content: dict[str, Any]) -> None:
    for name, rows in content["tables"].items():
        base = rows["MLP"]
        for model, row in rows.items():
            ratios = row["fit_s"] / base["fit_s"], row["predict_s"] / base["predict_s"]
            print(f"{name:16}{model:36}fit {ratios[0]:6.2f}  predict {ratios[1]:7.2f}  NLPD {row['nlpd']:7.3f}")
    for model in SIZES:
        for key in ("fit_s", "predict_s", "bare_s"):
            of = "predict_s" if key == "bare_s" else key
            each = [rows[model][key] / rows["MLP"][of] for rows in content["tables"].values()]
            print(f"median ratio, {model}, {key.removesuffix('_s')}: {median(each):.2f}")
    print(
        "predictions with all threads and with one", {key: round(value, 2) for key, value in content["threads"].items()}
    )
    for name, seconds in content["processes"].items():
        print(name, {key: round(value, 2) for key, value in seconds.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    parser.add_argument("--rounds", type=int, default=3, help="number of fits whose median counts")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    content: dict[str, Any] = {"command": "benchmarks/estimators.py", "environment": environment("cpu")}
    content |= {"rounds": arguments.rounds, "load": os.getloadavg()[0]}
    content["processes"] = {name: processes(setting) for name, setting in SETTINGS.items()}
    content["threads"] = threads()
    content["tables"] = {name: measure(load, True, arguments.rounds) for name, load in CLASSES.items()}
    content["tables"] |= {name: measure(load, False, arguments.rounds) for name, load in VALUES.items()}
    show(content)
    if arguments.json:
        print(f"wrote {write_json(arguments.json, json.loads(json.dumps(content)))}")


if __name__ == "__main__":
    main()
