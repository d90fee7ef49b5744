"""Which head tells classes that it was not taught, by the arena's validation rows alone: why others are ahead.

    python benchmarks/arena_left_out.py --json results/benchmarks/arena_left_out.json
    python benchmarks/arena_left_out.py --clinc150 --json results/benchmarks/arena_left_out-clinc150.json
    python benchmarks/arena_left_out.py --imagenet --json results/benchmarks/arena_left_out-imagenet.json

Fashion-MNIST, the features of the arena's first trunk (``arena/images.py`` says where they are looked for). Two classes
at a time are left out of 8,000 training rows; of the validation rows, every second one of the other classes chooses,
and the rest are told from those of the two classes. With --clinc150, 15 of the 150 intents are left out of 4,000 rows.
No test row and no other data are looked at. The trunk has seen all classes, so this is no test of unknown images: it
asks whether these rows would have chosen another configuration or score. The vectors of CLINC150 know no intent.
Infinite width has 300 inducing rows, 600 with --clinc150; "white" are features that are whitened by their covariance
within classes, and "network" begins with the outputs of the network's own last layer for the other classes.

With --imagenet the features are the 1,280 of the frozen EfficientNet, which has not seen CIFAR-10. Of the five classes
that the arena takes for known there, two at a time are left out of 10,000 rows, and of the last layer too, which is
trained anew. The question is how many inducing rows to take: 1,000, or two or three for each feature.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stationary import metrics
from stationary.inference import InfiniteWidth, predict
from stationary.lab.experiments.arena import images, questions
from stationary.lab.experiments.arena.methods import METHODS, Judged
from stationary.lab.experiments.arena.methods.classifiers import linear_layer
from stationary.lab.experiments.arena.run import on_known
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.training.data import Pair

ROWS = {"fashion-mnist": 8_000, "clinc150": 4_000, "cifar10-imagenet-five": 10_000}
INDUCING = {"fashion-mnist": 300, "clinc150": 600}
PAIRS = ([0, 1], [2, 3], [4, 0])  # of the five known classes
PEERS = ("rmd", "mahalanobis", "knn", "ddu")
POLAR = InfiniteWidth(geometry="polar", per_column=False)
WHITE = replace(POLAR, geometry="whitened")
OURS = {
    "infinite width": POLAR,
    "infinite width, white": WHITE,
    "infinite width, network": replace(POLAR, prior_mean="network"),
    "infinite width, white, network": replace(WHITE, prior_mean="network"),
}
MANY = {  # with as many inducing rows as by default, and two or three for each feature
    f"{name}, {rows:,} rows": replace(OURS[name], n_inducing=rows)
    for name, tried in {
        "infinite width": (1_000, 2_560),
        "infinite width, white, network": (1_000, 2_560, 3_840),
    }.items()
    for rows in tried
}


def without(task: Task, left_out: list[int], most: int, *, anew: bool = False) -> Task:
    """Return the task of the other classes, with at most so many rows to train, and the left-out rows as unknown.

    The last layer is that of all classes without the outputs of those left out; or it is trained anew.
    """
    kept = [label for label in range(task.n_classes) if label not in left_out]
    number = torch.full((task.n_classes,), -1)
    number[kept] = torch.arange(len(kept))

    def known(pair: Pair) -> Pair:
        x, y = pair
        rows = number[y] >= 0
        return x[rows], number[y[rows]]

    (x, y), (held, labels) = known(task.train), known(task.validation)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most]
    train, chooser, rest = (x[rows], y[rows]), (held[::2], labels[::2]), (held[1::2], labels[1::2])
    unknown = {"left out": task.validation[0][number[task.validation[1]] < 0]}
    if anew:
        return Task(train, chooser, rest, unknown, linear_layer(train, chooser, len(kept), 0))
    layer = nn.Linear(task.n_features, len(kept)).requires_grad_(False)
    layer.weight.copy_(task.network.weight[kept])
    layer.bias.copy_(task.network.bias[kept])
    return Task(train, chooser, rest, unknown, layer)


def infinite_width(task: Task, method: InfiniteWidth) -> dict[str, float]:
    """Return the AUROC of several scores, how good the probabilities of known rows are, and the time of the fit."""
    start = time.perf_counter()
    posterior = method.posterior(task.network, task.train, validation=task.validation)
    seconds = time.perf_counter() - start
    known, unknown = (predict(posterior.untempered(), x) for x in (task.test[0], task.unknown["left out"]))
    found = {
        "AUROC energy": metrics.auroc(known.energy(), unknown.energy()),
        "AUROC mutual information": metrics.auroc(known.mutual_information(), unknown.mutual_information()),
        "AUROC std": metrics.auroc(known.output_variance[:, 0], unknown.output_variance[:, 0]),
        "AUROC entropy": metrics.auroc(known.entropy(), unknown.entropy()),
    }
    of_rows = on_known(Judged(predict(posterior, task.test[0]).probs, known.energy()), task.test[1])
    return found | {"NLPD": of_rows["NLPD"], "ECE": of_rows["ECE"], "seconds": seconds}


def peer(task: Task, name: str) -> dict[str, float]:
    fitted = METHODS[name](task, 0)
    scores = [fitted(x).scores for x in (task.test[0], task.unknown["left out"])]
    return {"AUROC": metrics.auroc(scores[0], scores[1])}


def itself(task: Task) -> dict[str, float]:
    """Return how good the probabilities of known rows are that the network itself gives."""
    of_rows = on_known(Judged(task.network(task.test[0]).softmax(1), torch.zeros(len(task.test[0]))), task.test[1])
    return {"NLPD": of_rows["NLPD"], "ECE": of_rows["ECE"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell left-out classes by validation rows alone.")
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--clinc150", action="store_true", help="leave intents of CLINC150 out")
    parser.add_argument("--imagenet", action="store_true", help="leave classes out behind the ImageNet trunk")
    options = parser.parse_args()
    frozen = "cifar10-imagenet-five"
    dataset = "clinc150" if options.clinc150 else frozen if options.imagenet else "fashion-mnist"
    if options.clinc150:
        whole = questions.task(0)
        folds = [torch.randperm(150, generator=torch.Generator().manual_seed(0))[:15].tolist()]
    else:
        whole = images.task(dataset, 0)
        folds = list(PAIRS) if options.imagenet else [[first, first + 1] for first in range(0, 10, 2)]
    found: dict[str, Any] = {"features": whole.digest, "environment": environment(), "folds": []}
    ours = MANY
    if not options.imagenet:
        ours = {name: replace(method, n_inducing=INDUCING[dataset]) for name, method in OURS.items()}
    for left_out in folds:
        task = without(whole, left_out, ROWS[dataset], anew=options.imagenet)
        peers = ("vim", "she", *PEERS) if options.imagenet else PEERS
        one = {name: infinite_width(task, method) for name, method in ours.items()}
        one |= {name: peer(task, name) for name in peers} | {"the network itself": itself(task)}
        found["folds"].append({"left out": left_out, "methods": one})
        write_json(options.json, found)


if __name__ == "__main__":
    main()
