"""What a detector beside a classifier finds on tables, what the classifier's own uncertainty finds, and what both do.

    python benchmarks/beside_a_detector.py --json results/benchmarks/beside_a_detector.json

The rows and the unknown rows are those of the arena: Diabetes, Adult, Connect-4 and Covtype, at most 1,000 rows to
train on, with its seeds. Of the known test rows one half sets the thresholds, the other counts the false alarms. Own is
the mutual information of StationaryClassifier(); LOF sees standardised columns; both reject a row of which twice the
smaller p-value is at most 0.05. Covtype's file must be in STATIONARY_DATA.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from sklearn.neighbors import LocalOutlierFactor
from torch import Tensor

import stationary as st
from stationary.lab.experiments.arena.protocol_tables import MORE_SPLITS, SPLITS
from stationary.lab.experiments.arena.tables import Rows, tasks
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.ood import detector_score

DATASETS, RATE = ("diabetes", "adult", "connect-4", "covtype"), 0.05
KNOWN = "false alarms"


def measure(rows: Rows, seed: int) -> dict[str, dict[str, float]]:
    """Share of known and of unknown rows that each way rejects."""
    clf = st.StationaryClassifier(random_state=seed).fit(rows.x.numpy(), rows.y.numpy())
    lof = LocalOutlierFactor(novelty=True).fit(clf.inputs(rows.x.numpy()).numpy())  # standardised columns
    known = rows.test[0]
    hold, new = known[::2], known[1::2]
    own = st.OODDetector(clf, score="mutual_information").fit(hold)
    beside = st.OODDetector(clf, detector_score(lof)).fit(hold)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "own": own.p_value,
        "LOF": beside.p_value,
        "both": lambda x: 2 * torch.minimum(own.p_value(x).cpu(), beside.p_value(x).cpu()),
    }
    asked = {KNOWN: new, **rows.unknown}
    return {of: {way: (p(x) <= RATE).double().mean().item() for way, p in ways.items()} for of, x in asked.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for name in DATASETS:
        for seed in range(MORE_SPLITS.get(name, SPLITS)):
            for rows in tasks(name, seed):
                found.setdefault(name, []).append(measure(rows, seed))
                print(name, seed, found[name][-1], flush=True)
    mean = {
        name: {
            of: {way: fmean(one[of][way] for one in fits if of in one) for way in ("own", "LOF", "both")}
            for of in dict.fromkeys(of for one in fits for of in one)
        }
        for name, fits in found.items()
    }
    for name, kinds in mean.items():
        for of, ways in kinds.items():
            print(f"{name:10} {of:20}", *(f"{way} {share:.2f}" for way, share in ways.items()))
    if arguments.json:
        content = {
            "command": "benchmarks/beside_a_detector.py",
            "environment": environment(),
            "mean": mean,
            "fits": found,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
