"""GPDNN on Diabetes, whose NLPD is above the paper's with Matérn-1/2: how it falls with the number of steps.

    python benchmarks/gpdnn_steps.py --json results/benchmarks/gpdnn_steps.json

Twenty epochs of 691 rows in batches of 500 are 40 steps of Adam. Rows held out from the ten training folds: no test row
is looked at.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from stationary.lab.data.split import Split
from stationary.lab.experiments.uci import run as uci
from stationary.lab.experiments.uci.config import METHODS, Config
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

FOLDS, EPOCHS, STEPS_AN_EPOCH = tuple(range(10)), (20, 30, 40), 2


def inner(split: Split) -> Split:
    """A tenth of the training rows to test on, the rest to train on."""
    order = torch.randperm(len(split.y_train), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 10], order[len(order) // 10 :]
    x, y = split.train
    return replace(split, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to store the results")
    arguments = parser.parse_args()
    splits = [inner(split) for split in uci._splits("diabetes", 10, 0, FOLDS, "cpu")]
    results = {}
    for prior in ("matern12", "matern32"):
        for epochs in EPOCHS:
            config = Config("diabetes", "GPDNN", prior, FOLDS, epochs=epochs)
            folds = list(uci.predictions_of(uci.Given(config, splits, uci.Clock("cpu"))))
            found = uci._evaluate(METHODS["GPDNN"].nlpd, "GPDNN", folds, splits)
            means = {metric: float(np.mean([fold[metric] for fold in found])) for metric in ("NLPD", "ACC", "AUC")}
            results[f"{prior}, {STEPS_AN_EPOCH * epochs} steps"] = means
            print(prior, STEPS_AN_EPOCH * epochs, {metric: round(value, 3) for metric, value in means.items()})
    if arguments.json:
        write_json(arguments.json, {"environment": environment("cpu"), "results": results})


if __name__ == "__main__":
    main()
