"""AUC on Covtype of GPDNN and SVGP, which is below the paper's: what moves it.

    python benchmarks/covtype_auc.py --device cuda --data-dir DATA --json results/benchmarks/covtype_auc.json

The paper leaves open parts of both, and how AUC was averaged over the classes. Here one thing after another is changed,
on rows held out from the training folds: no test row is looked at. Two folds, Matérn-3/2, otherwise as in the
experiment.
"""

import argparse
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from stationary.inference import fit_folds, predict
from stationary.lab.baselines import GPDNN, SVGP, likelihoods
from stationary.lab.baselines.sparse import SparseGP
from stationary.lab.data.split import Split
from stationary.lab.experiments.uci import run as uci
from stationary.lab.experiments.uci.config import Config
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

FOLDS, NU = (0, 1), 1.5


@dataclass(frozen=True)
class Variant:
    """A method, and what is changed."""

    method: Any = field(default_factory=lambda: GPDNN(NU))
    rate: float = 0.001
    milestones: tuple[int, ...] = ()
    whitened: bool = False
    kept: float = likelihoods.KEPT
    binary: bool = False  # columns with two values are 0 and 1, not standardised

    def build(self, x: Tensor, n_classes: int) -> SparseGP:
        model: SparseGP = self.method.build(x, n_classes)
        model.whitened = model.whitened or self.whitened
        return model

    def columns(self, x: Tensor) -> Tensor:
        low, high = x.min(0).values, x.max(0).values
        two_values = ((x == low) | (x == high)).all(0) & self.binary
        return torch.where(two_values, (x == high).to(x), x)


STEPS = (10, 15)
VARIANTS = {
    "GPDNN": Variant(),
    "GPDNN, learning rate 1e-4": Variant(rate=1e-4),
    "GPDNN, whitened": Variant(whitened=True),
    "GPDNN, learning rate / 10 at epochs 10 and 15": Variant(milestones=STEPS),
    "SVGP": Variant(SVGP(NU), 0.01),
    "SVGP, learning rate / 10, columns of 0 and 1": Variant(SVGP(NU), 0.01, STEPS, binary=True),
    "GPDNN, probabilities kept 1e-4 from 0 and 1, as in GPflow 1": Variant(kept=1e-4),
}


def areas(probs: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """AUC by every rule that one may mean."""
    truth = np.eye(probs.shape[1], dtype=bool)[y]
    by_class = [roc_auc_score(truth[:, k], probs[:, k]) for k in range(probs.shape[1])]
    above = [probs.ravel() > t for t in np.linspace(1, 0, 200)]  # as tf.keras.metrics.AUC
    curve = [((a & truth.ravel()).sum() / truth.sum(), (a & ~truth.ravel()).sum() / (~truth).sum()) for a in above]
    true, false = np.transpose([(0.0, 0.0), *curve, (1.0, 1.0)])
    return {
        "macro": np.mean(by_class),
        "by class": by_class,
        "weighted by class": np.average(by_class, weights=truth.mean(0)),
        "micro": roc_auc_score(truth.ravel(), probs.ravel()),
        "micro, 200 thresholds": np.trapezoid(true, false),
        "one against one": roc_auc_score(y, probs, multi_class="ovo"),
    }


def measured(variant: Variant, splits: list[Split], device: str) -> list[dict[str, Any]]:
    likelihoods.KEPT = variant.kept
    config = Config("covtype", folds=FOLDS)
    given = uci.Given(config, splits, uci.Clock(device))
    training = given.training(loss="own", learning_rate=variant.rate, milestones=variant.milestones)
    held_out, folds = [], []
    for split in splits:
        columns = variant.columns(split.x_train)
        order = torch.randperm(len(split.y_train), generator=torch.Generator().manual_seed(0)).to(device)
        last = len(order) // 10
        held_out.append((columns[order[:last]], split.y_train[order[:last]].cpu().numpy()))
        folds.append((columns[order[last:]], split.y_train[order[last:]]))
    builds = [partial(variant.build, x, splits[0].n_classes) for x, _ in folds]
    found = []
    posteriors = fit_folds(variant.method, builds, folds, training, seeds=FOLDS)
    for posterior, (rows, truth) in zip(posteriors, held_out, strict=True):
        prediction = predict(posterior, rows, batch_size=10_000)
        probs = prediction.probs.double().cpu().numpy()
        right = probs.argmax(1) == truth
        measures = {
            "ACC": right.mean(),
            "NLPD": -np.log(probs[np.arange(len(truth)), truth]).mean(),
            "recall": [right[truth == k].mean() for k in range(probs.shape[1])],
            "AUC": areas(probs / probs.sum(1, keepdims=True), truth),
        }
        found.append(measures)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", help="where covtype.csv.xz is, if not in STATIONARY_DATA")
    parser.add_argument("--json", type=Path, help="where to store the results")
    arguments = parser.parse_args()
    if arguments.data_dir:
        os.environ["STATIONARY_DATA"] = arguments.data_dir
    splits = uci._splits("covtype", 10, 0, FOLDS, arguments.device)
    results: dict[str, Any] = {"folds": FOLDS, "environment": environment(arguments.device), "results": {}}
    for name, variant in VARIANTS.items():
        folds = measured(variant, splits, arguments.device)
        results["results"][name] = folds
        mean = {rule: np.mean([fold["AUC"][rule] for fold in folds]) for rule in folds[0]["AUC"] if rule != "by class"}
        mean |= {name: np.mean([fold[name] for fold in folds]) for name in ("ACC", "NLPD")}
        print(name, {name: round(float(value), 4) for name, value in mean.items()}, flush=True)
        if arguments.json:
            write_json(arguments.json, results)


if __name__ == "__main__":
    main()
