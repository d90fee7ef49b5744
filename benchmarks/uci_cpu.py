"""The paper's network on Adult, ten folds on a CPU: as the UCI experiment does it, the naive way, and as bare products.

    python benchmarks/uci_cpu.py                          # one fold, two epochs: minutes
    python benchmarks/uci_cpu.py --folds 10 --epochs 20   # nothing extrapolated: hours
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
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import torch
from scipy.stats import ttest_rel
from torch import Tensor, nn
from torch.nn import functional as F

from stationary import metrics
from stationary.data import Split, uci
from stationary.experiments import paper
from stationary.experiments.uci import LEARNING_RATES, LENGTHSCALE
from stationary.inference import MCDropout, predict
from stationary.models import MLP
from stationary.predictive import Categorical, Members
from stationary.runs import environment, write_json
from stationary.training import Training, train

FOLDS, EPOCHS, BATCH, SAMPLES, DROPOUT = 10, 20, 500, 100, 0.2
HIDDEN = (1000, 1000, 500, 50)
AT_LEAST, AT_MOST = 1.2, 1.3  # naive / ours, ours / products
WAYS = ("ours", "naive", "products")
T = TypeVar("T")
Scores = dict[str, float]
Times = dict[str, dict[str, list[float]]]  # of each way, by part


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
        layers += [nn.Linear(*HIDDEN[-2:]), PlainMatern32(), nn.Dropout(DROPOUT)]
        self.model = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], split.n_classes))
        self.split = split
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATES["adult"])
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [10, 15])

    def epoch(self) -> None:
        x, y = self.split.train
        self.model.train()
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(self.model(x[rows]), y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.schedule.step()
        self.model.eval()
        outputs = self.outputs()
        F.cross_entropy(outputs, self.split.y_test).item()
        (outputs.argmax(1) == self.split.y_test).float().mean().item()

    def outputs(self) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.model(x) for x in self.split.x_test.split(BATCH)])

    def evaluate(self) -> Scores:
        self.model.eval()
        point = Categorical.from_members([Members(self.outputs()[None])], 1)
        self.model.train()
        samples = torch.stack([self.outputs() for _ in range(SAMPLES)])
        return score(Categorical.from_members([Members(samples)], SAMPLES), point, self.split.y_test)


class Products:
    """Layer after layer, without biases, activations, losses and steps."""

    def __init__(self, split: Split) -> None:
        torch.manual_seed(0)
        widths = (split.n_features, *HIDDEN, split.n_classes)
        self.train, self.test = split.x_train, split.x_test
        self.weights = [torch.randn(n_out, n_in) / math.sqrt(n_in) for n_in, n_out in pairwise(widths)]
        self.weight_grads = [torch.empty_like(weight) for weight in self.weights]
        sizes = {len(x) for x in (*self.train.split(BATCH), self.test)}
        self.hidden = {n: [torch.empty(n, width) for width in widths[1:]] for n in sizes}
        self.grads = {n: [torch.randn(n, width) for width in widths[1:]] for n in sizes}
        self.readouts = torch.empty(SAMPLES, split.n_classes, len(self.test))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input of every layer."""
        inputs = [x]
        for weight, out in zip(self.weights, self.hidden[len(x)], strict=True):
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


def timed(times: list[float], job: Callable[[], T]) -> T:
    started = time.perf_counter()
    result = job()
    times.append(time.perf_counter() - started)
    return result


def measure(split: Split, seed: int, epochs: int, times: Times) -> dict[str, Scores]:
    """Train and evaluate in all three ways in turn; adds to the times, returns what came out."""
    naive, products = Naive(split, seed), Products(split)
    training = Training(epochs=epochs, milestones=(10, 15), batch_size=BATCH, learning_rate=LEARNING_RATES["adult"])
    started = time.perf_counter()

    def build() -> nn.Module:
        activation = paper.activation("matern32", LENGTHSCALE, code_scale=True)
        return MLP(split.n_features, split.n_classes, hidden=HIDDEN, activation=activation, dropout=DROPOUT)

    def others(*_: object) -> None:
        nonlocal started
        times["ours"]["epoch"].append(time.perf_counter() - started)
        timed(times["naive"]["epoch"], naive.epoch)
        timed(times["products"]["epoch"], products.epoch)
        started = time.perf_counter()

    (model,) = train(build, *split.train, training, seeds=[seed], progress=others)
    times["ours"]["epoch"][-1] += time.perf_counter() - started

    def evaluate() -> Scores:
        sampled, point = predict(model, split.x_test, MCDropout(SAMPLES)), predict(model, split.x_test)
        return score(sampled, point, split.y_test)

    timed(times["products"]["evaluation"], products.evaluate)
    return {
        "ours": timed(times["ours"]["evaluation"], evaluate),
        "naive": timed(times["naive"]["evaluation"], naive.evaluate),
    }


def no_times() -> Times:
    return {way: {"epoch": [], "evaluation": []} for way in WAYS}


def run_of(times: Times, typical: Callable[[list[float]], float]) -> dict[str, float]:
    """Seconds of a run of ten folds in each way, and how they compare."""
    run = {
        way: FOLDS * (EPOCHS * typical(parts["epoch"]) + typical(parts["evaluation"])) for way, parts in times.items()
    }
    return run | {"naive / ours": run["naive"] / run["ours"], "ours / products": run["ours"] / run["products"]}


def agreement(metric: str, scores: list[dict[str, Scores]]) -> str:
    ours, naive = ([one[way][metric] for one in scores] for way in ("ours", "naive"))
    text = f"  {metric:6}{fmean(ours):8.4f}{fmean(naive):8.4f}"
    if len(scores) < 2:
        return text
    p = float(ttest_rel(ours, naive).pvalue)
    return f"{text}   they {'DIFFER' if p < 0.01 else 'agree'} within the noise of seeds (paired t test: p = {p:.2f})"


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
    measure(warm_up, 0, 1, no_times())
    times, scores = no_times(), list[dict[str, Scores]]()
    for _ in range(arguments.repeats):
        for fold in rows:
            scores.append(measure(table.split(*fold), len(scores), arguments.epochs, times))
    whole = (arguments.folds, arguments.epochs) == (FOLDS, EPOCHS)
    typical, how = (fmean, "means") if whole else (median, "medians")
    run, fastest = run_of(times, typical), run_of(times, min)
    print(f"{arguments.threads} threads; {how} of {len(times['ours']['epoch'])} epochs, {len(scores)} evaluations")
    title = f"{FOLDS} folds of {EPOCHS} epochs{'' if whole else ', extrapolated'}"
    print(f"{'seconds':12}{'epoch':>10}{'evaluation':>12}   {title}")
    for way, parts in times.items():
        print(f"{way:12}{typical(parts['epoch']):10.3f}{typical(parts['evaluation']):12.3f}{run[way]:11.0f}")
    for name, bound, holds in (
        ("naive / ours", f"at least {AT_LEAST}", run["naive / ours"] >= AT_LEAST),
        ("ours / products", f"at most {AT_MOST}", run["ours / products"] <= AT_MOST),
    ):
        verdict = "met" if holds else "MISSED"
        print(f"{name:16}{run[name]:6.2f}, from the fastest {fastest[name]:.2f}; {bound}: {verdict}")
    print(f"\nafter {arguments.epochs} epochs  ours   naive")
    for metric in scores[0]["ours"]:
        print(agreement(metric, scores))
    if arguments.json:
        content = {
            "command": "benchmarks/uci_cpu.py",
            "environment": environment(),
            **{name: getattr(arguments, name) for name in ("folds", "epochs", "repeats")},
            "times": times,
            "run": {how: run, "minima": fastest},
            "scores": scores,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
