"""What the restored prior does through a trunk: measured, not promised.

    python benchmarks/restored_prior.py --json results/benchmarks/restored_prior.json

Networks learn the digits 0 to 4 of scikit-learn's digits, standardised, or its breast cancer table. They are asked for
the test set, the test set scaled by 5 and by 100, and (digits) the unseen digits 5 to 9. For each: the share of inputs
with v > 0.9 s^2, the ratio of the median output std to the prior's, and the area under the ROC curve with which each
measure tells these inputs from the test set, with and without the restored prior. Five seeds.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import stationary as st
from stationary.inference.base import run
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.training import Training, train

MEASURES = ("entropy", "mutual_information", "std")
SEEDS = 5
TRAINING = Training(epochs=60, learning_rate=1e-2, batch_size=200)


def networks(d: int, c: int) -> dict[str, Callable[[], nn.Module]]:
    def head(width: int) -> st.StationaryHead:
        return st.StationaryHead(width, c, hidden=50, activation="matern52")

    return {
        "raw features": lambda: head(d),
        "ReLU trunk": lambda: st.MLP(d, c, hidden=(200, 100, 50)),
        "ReLU trunk, LayerNorm": lambda: nn.Sequential(
            nn.Linear(d, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.LayerNorm(100), head(100)
        ),
    }


def load(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Training inputs and classes, test inputs, and inputs of unseen classes where there are any."""
    x, y = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    known = y < 5
    train_rows, test_rows = train_test_split(known.nonzero()[0], random_state=0)
    mean, scale = x[train_rows].mean(0), x[train_rows].std(0) + 1e-9
    inputs = torch.tensor((x - mean) / scale, dtype=torch.float32)
    unseen = inputs[~known] if (~known).any() else None
    return inputs[train_rows], torch.tensor(y[train_rows]), inputs[test_rows], unseen


def measure(model: nn.Module, test: Tensor, other: Tensor) -> dict[str, float]:
    head = next(module for module in model.modules() if isinstance(module, st.StationaryHead))
    assert head.restored_prior.variance is not None
    with torch.no_grad():
        missing = run(model, other, restore_prior=True).prior
    assert missing is not None
    row = {"share v > 0.9 s^2": (missing[0, :, 0] > 0.9 * head.restored_prior.variance[0]).float().mean().item()}
    for label, restore in (("restored", True), ("plain", False)):
        method = st.ExactDropout(restore_prior=restore)
        inside = st.predict(model, test, method)
        outside = st.predict(model, other, method)
        row[f"std / prior std, {label}"] = (outside.std().median() / head.restored_prior.variance[0].sqrt()).item()
        for name in MEASURES:
            row[f"AUROC {name}, {label}"] = st.metrics.auroc(getattr(inside, name)(), getattr(outside, name)())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    tables: dict[str, Any] = {}
    for name in ("digits", "breast cancer"):
        x, y, test, unseen = load(name)
        others = {"test set x 5": 5 * test, "test set x 100": 100 * test}
        if unseen is not None:
            others["unseen classes"] = unseen
        for network, build in networks(x.shape[1], int(y.max()) + 1).items():
            models = train(build, (x, y), TRAINING, n_members=SEEDS)
            for model in models:
                st.calibrate_prior(model, x)
            for label, other in others.items():
                rows = [measure(model, test, other) for model in models]
                mean = {key: fmean(row[key] for row in rows) for key in rows[0]}
                tables[f"{name}, {network}, {label}"] = {"mean": mean, "seeds": rows}
                print(
                    f"{name:14}{network:22}{label:15}",
                    *(f"{key} {value:.2f}" for key, value in mean.items()),
                    sep=" | ",
                )
    if arguments.json:
        content = {
            "command": "benchmarks/restored_prior.py",
            "environment": environment(),
            "training": vars(TRAINING),
            "tables": tables,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
