"""The paper's network on Adult, ten folds on a CPU: as the UCI experiment does it, the naive way, and as bare products.

    python benchmarks/uci_cpu.py                          # one fold, two epochs, three times: minutes
    python benchmarks/uci_cpu.py --folds 10 --epochs 20 --repeats 1
    python benchmarks/uci_cpu.py --json results/benchmarks/uci_cpu.json

d-1000-1000-500-50-c with the Matérn-3/2 activation, 20 epochs of Adam 5e-5 with batches of 500, then 100 samples of MC
dropout and the metrics; in float32.

* ours: ``train``, then ``predict`` with ``MCDropout(100)`` and without dropout.
* naive: the usual script, as the authors' is: plain autograd through the formula of the activation, Adam as it comes, a
  pass over the test fold in eval mode after each epoch, at the end 100 passes of the whole network over the test fold.
* products: the matrix products of ours alone, into tensors that are there already: x W', g W (not for the inputs) and
  g' x of each layer and step; one pass over the test fold and 100 readouts of its features.

The three take turns, epoch by epoch: the others run where ``train`` reports its progress. All epochs cost the same, so
10 folds take 10 (20 epoch + evaluation), by medians; by means, which is their sum, where all were run. What ``train``
does before its first epoch and after its last counts as part of these.
"""

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import torch
from scipy.stats import ttest_rel
from torch import Tensor, nn
from torch.nn import functional as F

from stationary import metrics
from stationary.inference import MCDropout, Point, predict
from stationary.lab.data import Split, uci
from stationary.lab.experiments import networks
from stationary.lab.experiments.paper import Prior
from stationary.lab.experiments.uci.run import LEARNING_RATES, LENGTHSCALE
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.nn import MLP
from stationary.predictive import Categorical, Members
from stationary.training import Training, train

FOLDS, BATCH, SAMPLES, HIDDEN = 10, 500, 100, (1000, 1000, 500, 50)
TRAINING = Training(epochs=20, milestones=(10, 15), batch_size=BATCH, learning_rate=LEARNING_RATES["adult"])
AT_LEAST, AT_MOST = 1.2, 1.3  # naive / ours, ours / products
Scores = dict[str, float]
Times = defaultdict[str, list[float]]  # by way and part


def score(sampled: Categorical, point: Categorical, y: Tensor) -> Scores:
    """By the paper's rules: NLPD is -E[log p], the accuracy is that of the pass without dropout."""
    found = metrics.classification(sampled, y)
    return {"NLPD": found["expected_nll"], "ACC": metrics.accuracy(point, y), "AUC": found["auc"]}


class PlainMatern32(nn.Module):
    """A x e^(-lambda x) for x > 0, else 0, with the authors' constants for the length-scale 1/2."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.abs()
        return torch.where(x > 0, math.sqrt(384) * size * torch.exp(-math.sqrt(12) * size), 0.0)


class Naive:
    """The usual script."""

    def __init__(self, split: Split, seed: int) -> None:
        torch.manual_seed(seed)
        layers = list[nn.Module]()
        for n_in, n_out in pairwise((split.n_features, *HIDDEN[:-1])):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        layers += [nn.Linear(*HIDDEN[-2:]), PlainMatern32(), nn.Dropout(0.2), nn.Linear(HIDDEN[-1], split.n_classes)]
        self.split, self.model = split, nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), TRAINING.learning_rate)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, TRAINING.milestones)

    def epoch(self) -> tuple[float, float]:
        """The loss and the accuracy on the test fold after it."""
        x, y = self.split.train
        self.model.train()
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(self.model(x[rows]), y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.schedule.step()
        outputs, y_test = self.outputs(dropout=False), self.split.y_test
        return F.cross_entropy(outputs, y_test).item(), (outputs.argmax(1) == y_test).float().mean().item()

    def outputs(self, *, dropout: bool) -> Tensor:
        self.model.train(dropout)
        with torch.no_grad():
            return torch.cat([self.model(x) for x in self.split.x_test.split(BATCH)])

    def evaluate(self) -> Scores:
        samples = torch.stack([self.outputs(dropout=True) for _ in range(SAMPLES)])
        sampled = Categorical.from_members([Members(samples)], SAMPLES)
        point = Categorical.from_members([Members(self.outputs(dropout=False)[None])], 1)
        return score(sampled, point, self.split.y_test)


class Products:
    """Layer after layer, without biases, activations, losses and steps."""

    def __init__(self, split: Split) -> None:
        torch.manual_seed(0)
        self.train, self.test = split.x_train, split.x_test
        widths = (split.n_features, *HIDDEN, split.n_classes)
        self.weights = [torch.randn(n_out, n_in) / math.sqrt(n_in) for n_in, n_out in pairwise(widths)]
        self.weight_grads = [torch.empty_like(weight) for weight in self.weights]
        sizes = {len(x) for x in (*self.train.split(BATCH), self.test)}
        self.outputs = {n: [torch.empty(n, width) for width in widths[1:]] for n in sizes}
        self.grads = {n: [torch.randn(n, width) for width in widths[1:]] for n in sizes}
        self.readouts = torch.empty(SAMPLES, split.n_classes, len(self.test))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input of every layer."""
        inputs = [x]
        for weight, out in zip(self.weights, self.outputs[len(x)], strict=True):
            inputs.append(torch.mm(inputs[-1], weight.T, out=out))
        return inputs[:-1]

    def epoch(self) -> None:
        for x in self.train.split(BATCH):
            inputs, grads = self.forward(x), self.grads[len(x)]
            for layer in reversed(range(len(self.weights))):
                torch.mm(grads[layer].T, inputs[layer], out=self.weight_grads[layer])
                if layer > 0:
                    torch.mm(grads[layer], self.weights[layer], out=grads[layer - 1])

    def evaluate(self) -> None:
        features = self.forward(self.test)[-1].T.contiguous()
        for out in self.readouts:
            torch.mm(self.weights[-1], features, out=out)


def measure(split: Split, seed: int, epochs: int, times: Times) -> dict[str, Scores]:
    """Train and evaluate in all three ways in turn; adds to the times, returns the results."""
    naive, products, started = Naive(split, seed), Products(split), time.perf_counter()

    def stop(what: str) -> None:
        nonlocal started
        times[what].append(time.perf_counter() - started)
        started = time.perf_counter()

    def build() -> nn.Module:
        activation = networks.activation(Prior("matern32"), LENGTHSCALE, code_scale=True)
        return MLP(split.n_features, split.n_classes, hidden=HIDDEN, activation=activation)

    def others(*_: object) -> None:
        stop("ours, epoch")
        naive.epoch()
        stop("naive, epoch")
        products.epoch()
        stop("products, epoch")

    (model,) = train(build, split.train, replace(TRAINING, epochs=epochs), seeds=[seed], progress=others)
    times["ours, epoch"][-1] += time.perf_counter() - started
    started = time.perf_counter()
    sampled, point = predict(model, split.x_test, MCDropout(SAMPLES)), predict(model, split.x_test, Point())
    ours = score(sampled, point, split.y_test)
    stop("ours, evaluation")
    theirs = naive.evaluate()
    stop("naive, evaluation")
    products.evaluate()
    stop("products, evaluation")
    return {"ours": ours, "naive": theirs}


def run_of(times: Times, typical: Callable[[list[float]], float]) -> dict[str, float]:
    """Seconds of a run of ten folds in each way, and how they compare."""
    run = {
        way: FOLDS * (TRAINING.epochs * typical(times[f"{way}, epoch"]) + typical(times[f"{way}, evaluation"]))
        for way in ("ours", "naive", "products")
    }
    return run | {"naive / ours": run["naive"] / run["ours"], "ours / products": run["ours"] / run["products"]}


def agreement(metric: str, scores: list[dict[str, Scores]]) -> str:
    ours, naive = ([one[way][metric] for one in scores] for way in ("ours", "naive"))
    p = float(ttest_rel(ours, naive).pvalue) if len(scores) > 1 else math.nan
    noise = f"{'NOT ' if p < 0.01 else ''}within the noise of seeds (paired t test, p = {p:.2f})"
    return f"{metric:12}{fmean(ours):10.4f}{fmean(naive):12.4f}   {noise if len(scores) > 1 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=1, choices=range(1, FOLDS + 1), metavar=f"1..{FOLDS}")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of every fold, each with its own seed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = uci.load("adult")
    rows = table.fold_rows(FOLDS)[: arguments.folds]
    first = table.split(*rows[0])
    warm_up = replace(first, x_train=first.x_train[:BATCH], y_train=first.y_train[:BATCH])
    measure(warm_up, 0, 1, Times(list))
    times, scores = Times(list), list[dict[str, Scores]]()
    started, started_cpu = time.perf_counter(), time.process_time()
    for fold in rows * arguments.repeats:
        scores.append(measure(table.split(*fold), len(scores), arguments.epochs, times))
    cores = (time.process_time() - started_cpu) / (time.perf_counter() - started)
    whole = (arguments.folds, arguments.epochs) == (FOLDS, TRAINING.epochs)
    typical, how = (fmean, "means") if whole else (median, "medians")
    run, fastest = run_of(times, typical), run_of(times, min)
    busy = ": the machine was BUSY with something else" if cores < 0.9 * arguments.threads else ""
    print(f"{arguments.threads} threads, which had {cores:.2f} cores{busy}")
    print(f"\nseconds, {how}{FOLDS:>30} folds of {TRAINING.epochs} epochs{'' if whole else ', extrapolated'}")
    for way in ("ours", "naive", "products"):
        epoch, evaluation = (typical(times[f"{way}, {part}"]) for part in ("epoch", "evaluation"))
        print(f"{way:10} epoch {epoch:8.3f}, evaluation {evaluation:8.3f}{run[way]:9.0f}")
    for name, holds, bound in (
        ("naive / ours", run["naive / ours"] >= AT_LEAST, f"at least {AT_LEAST}"),
        ("ours / products", run["ours / products"] <= AT_MOST, f"at most {AT_MOST}"),
    ):
        print(f"{name:15}{run[name]:6.2f} ({fastest[name]:.2f} by minima), {bound}: {'met' if holds else 'MISSED'}")
    print(f"\n{arguments.epochs:2} epochs         ours       naive")
    for metric in scores[0]["ours"]:
        print(agreement(metric, scores))
    if arguments.json:
        content = {
            "command": "benchmarks/uci_cpu.py",
            "environment": environment(),
            **{name: getattr(arguments, name) for name in ("folds", "epochs", "repeats")},
            "cores": cores,
            "times": times,
            "run": {how: run, "minima": fastest},
            "scores": scores,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
