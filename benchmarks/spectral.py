"""What a bound on the spectral norm of the trunk's layers is worth, and what the limit of infinite width is.

    python benchmarks/spectral.py --json results/benchmarks/spectral.json

A trunk, plain or residual, with and without a bound (``spectral_normalize``), is trained with a finite head, for a
fixed time or, as a control, until the loss of the validation rows rises. Two answers on the same trunk are compared:
that of the head (``ExactDropout``, prior restored) and that of ``InfiniteWidth``, whose numbers are chosen by
validation rows. Banana: 300 rows to train, 100 to validate, and as unknown inputs points of a square three times as
wide as the data, at least half a standard deviation away from all of them. Digits: classes 0 to 4 of scikit-learn's
digits are known, 5 to 9 unknown. Five seeds, trained in lockstep on the same rows.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import stationary as st
from stationary.lab.data import banana
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

SEEDS = 5
WIDTH = 128
SCORES = ("entropy", "mutual_information", "std")
TRAINING = st.Training(epochs=150, batch_size=64, learning_rate=3e-3, weight_decay=1e-4, schedule="one_cycle")
STOPPED = replace(TRAINING, patience=10)
VARIANTS = {
    "no bound": (None, TRAINING),
    "stopped early": (None, STOPPED),
    "bound 3": (3, TRAINING),
    "bound 1": (1, TRAINING),
}


class Problem(NamedTuple):
    """Inputs and classes to train, to validate and to test, and inputs that are unlike all of them."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    unknown: Tensor


def on_banana() -> Problem:
    split, generator = banana.load(), torch.Generator().manual_seed(0)
    mean, scale = split.x_train.mean(0), split.x_train.std(0)
    x, test = (split.x_train - mean) / scale, (split.x_test - mean) / scale
    order = torch.randperm(len(x), generator=generator)
    reach = 3 * torch.cat([x, test]).abs().max()
    square = (2 * torch.rand(3000, 2, generator=generator) - 1) * reach
    unknown = square[torch.cdist(square, torch.cat([x, test])).amin(1) > 0.5]
    rows, held = order[:300], order[300:]
    y = split.y_train
    return Problem((x[rows], y[rows]), (x[held], y[held]), (test, split.y_test), unknown)


def on_digits() -> Problem:
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 16
    known = (y < 5).nonzero()[:, 0]
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))]
    train, validation, test = ((x[rows], y[rows]) for rows in (known[:500], known[500:650], known[650:]))
    return Problem(train, validation, test, x[y >= 5])


class Residual(nn.Module):
    """x + relu(W x + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).relu()


def network(trunk: str, d: int, c: int, bound: float | None) -> nn.Module:
    if trunk == "residual":
        layers: list[nn.Module] = [nn.Linear(d, WIDTH), *(Residual(WIDTH) for _ in range(3))]
    else:
        layers = [nn.Linear(d, WIDTH), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers, st.StationaryHead(WIDTH, c, hidden=50))
    return model if bound is None else st.spectral_normalize(model, bound)


def measured(predict: Callable[[Tensor], Any], problem: Problem) -> dict[str, float]:
    x, y = problem.test
    inside, outside = predict(x), predict(problem.unknown)
    row = {
        "accuracy": (inside.predict() == y).float().mean().item(),
        "NLPD": float(st.metrics.nlpd(inside, y)),
    }
    for name in SCORES:
        scores = [getattr(pred, name)() for pred in (inside, outside)]
        row[f"AUROC {name}"] = st.metrics.auroc(*(s if s.ndim == 1 else s.mean(-1) for s in scores))
    return row


def answers(model: nn.Module, problem: Problem) -> dict[str, dict[str, float]]:
    """The measures of the finite head and of the limit."""
    st.calibrate_prior(model, problem.train[0])
    finite = measured(lambda x: st.predict(model, x, st.ExactDropout()), problem)
    posterior = st.InfiniteWidth(n_inducing=500).posterior(model, problem.train, validation=problem.validation)
    limit = measured(lambda x: st.predict(posterior, x), problem)
    limit["length-scale"] = float(posterior.numbers.lengthscale)
    return {"finite head": finite, "infinite width": limit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    tables: dict[str, Any] = {}
    for name, load in (("banana", on_banana), ("digits", on_digits)):
        problem = load()
        (x, y) = problem.train
        for trunk in ("plain", "residual"):
            for variant, (bound, training) in VARIANTS.items():
                start = perf_counter()
                models = st.train(
                    lambda: network(trunk, x.shape[1], int(y.max()) + 1, bound),  # noqa: B023
                    problem.train,
                    training,
                    n_members=SEEDS,
                    validation=problem.validation if training.patience else None,
                )
                seconds = perf_counter() - start
                seeds = [answers(model, problem) for model in models]
                for answer in seeds[0]:
                    rows = [each[answer] for each in seeds]
                    mean = {key: fmean(row[key] for row in rows) for key in rows[0]}
                    spread = {key: stdev(row[key] for row in rows) for key in rows[0]}
                    label = f"{name}, {trunk} trunk, {variant}, {answer}"
                    tables[label] = {"mean": mean, "std": spread, "seeds": rows, "training seconds": seconds}
                    print(f"{label:52}", *(f"{key} {value:.3f}" for key, value in mean.items()), sep=" | ", flush=True)
    if arguments.json:
        content = {
            "command": "benchmarks/spectral.py",
            "environment": environment(),
            "training": asdict(TRAINING),
            "tables": tables,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
