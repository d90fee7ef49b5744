"""What noise that depends on the input is worth, where it does and where it does not.

    python benchmarks/noise.py --json results/benchmarks/noise.json

300 rows of sin(2 x) for x between -2 and 2, with a noise whose standard deviation goes from 0.1 on the left to 0.5 on
the right, or is 0.3 everywhere. For regressors with constant noise and with noise by input: NLPD, and for each half the
mean aleatoric standard deviation over the true one and the share of new targets in intervals of 90 %. The time of a fit
is relative to that of the same regressor with constant noise. Means over five seeds.
"""

import argparse
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import stationary as st
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

SEEDS = 5
REGRESSORS: dict[str, dict[str, Any]] = {
    "InfiniteWidth()": {},
    "ExactDropout(), 300 units": {"hidden_layer_sizes": (300,)},
    "Ensemble(5), 300 units": {"method": st.Ensemble(5)},
}


def noise_std(x: np.ndarray, varies: bool) -> np.ndarray:
    return 0.1 + 0.4 / (1 + np.exp(-6 * x)) if varies else np.full_like(x, 0.3)


def simulated(n: int, seed: int, varies: bool) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, (n, 1))
    return x, np.sin(2 * x[:, 0]) + noise_std(x[:, 0], varies) * random.normal(size=n)


def measure(settings: dict[str, Any], noise: str, varies: bool, seed: int) -> dict[str, float]:
    data, (new, target) = simulated(300, seed, varies), simulated(4000, 1000 + seed, varies)
    start = time.perf_counter()
    fitted = st.StationaryRegressor(noise=noise, random_state=seed, **settings).fit(*data)
    row = {"seconds": time.perf_counter() - start}
    pred = fitted.predictive(new)
    row["NLPD"] = st.metrics.nlpd(pred, torch.as_tensor(target))
    lower, upper = (ends.numpy()[:, 0] for ends in pred.interval(0.9))
    inside = (lower < target) & (target < upper)
    found = pred.aleatoric_variance.sqrt().numpy()[:, 0]
    for half, rows in {"left": new[:, 0] < 0, "right": new[:, 0] > 0}.items():
        row[f"aleatoric / true, {half}"] = float(found[rows].mean() / noise_std(new[rows, 0], varies).mean())
        row[f"coverage, {half}"] = float(inside[rows].mean())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    tables: dict[str, Any] = {}
    for truth, varies in {"noise varies": True, "noise is constant": False}.items():
        for name, settings in REGRESSORS.items():
            seconds = {}
            for noise in ("constant", "input"):
                rows = [measure(settings, noise, varies, seed) for seed in range(SEEDS)]
                mean = {key: fmean(row[key] for row in rows) for key in rows[0]}
                seconds[noise] = mean["seconds"]
                mean["time / constant"] = mean.pop("seconds") / seconds["constant"]
                tables[f"{truth}, {name}, {noise}"] = {"mean": mean, "seeds": rows}
                print(
                    f"{truth:18}{name:26}{noise:9}", *(f"{k} {v:.2f}" for k, v in mean.items()), sep=" | ", flush=True
                )
    if arguments.json:
        content = {"command": "benchmarks/noise.py", "environment": environment(), "tables": tables}
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
