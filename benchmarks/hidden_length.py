"""What a head of infinite width says of inputs that are 100 times too large, behind trunks that hide the length.

    python benchmarks/hidden_length.py --json results/benchmarks/hidden_length.json

scikit-learn's digits, 900 rows to train on, 300 that choose the numbers of the head, 597 to test on; five seeds, by
which the rows are split and the networks trained. A trunk has two layers of 128 and 64 units: with ReLU, with ReLU and
then LayerNorm, or with tanh. Of the test images, and of the same 100 times as large: the mean and the least entropy
over log 10; and the accuracy of the test images.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import stationary as st
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

SEEDS, TIMES = 5, 100
TRUNKS: dict[str, Callable[[], list[nn.Module]]] = {
    "ReLU": lambda: [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()],
    "ReLU, LayerNorm": lambda: [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.LayerNorm(64)],
    "tanh": lambda: [nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh()],
}
TRAINING = st.Training(epochs=60, learning_rate=2e-3, batch_size=64)


def measure(trunk: Callable[[], list[nn.Module]], seed: int) -> dict[str, float]:
    data = load_digits()
    order = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(data.data[order] / 16).float(), torch.tensor(data.target[order])
    train, held, (new, labels) = ((x[rows], y[rows]) for rows in (slice(900), slice(900, 1200), slice(1200, None)))
    [model] = st.train(lambda: nn.Sequential(*trunk(), nn.Linear(64, 10)), train, TRAINING, seeds=[seed])
    posterior = st.InfiniteWidth(n_inducing=500).posterior(model, train, validation=held)
    row = {"accuracy": float((st.predict(posterior, new).predict() == labels).double().mean())}
    for name, times in (("test", 1), (f"{TIMES} times", TIMES)):
        entropy = st.predict(posterior, times * new).entropy() / math.log(10)
        row |= {f"entropy, {name}": float(entropy.mean()), f"least entropy, {name}": float(entropy.min())}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    trunks: dict[str, Any] = {}
    for name, trunk in TRUNKS.items():
        rows = [measure(trunk, seed) for seed in range(SEEDS)]
        mean = {key: fmean(row[key] for row in rows) for key in rows[0]}
        trunks[name] = {"mean": mean, "seeds": rows}
        print(f"{name:16}", *(f"{key} {value:.3f}" for key, value in mean.items()), sep=" | ", flush=True)
    if arguments.json:
        content = {"command": "benchmarks/hidden_length.py", "environment": environment(), "trunks": trunks}
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
