"""Ten folds of the paper's network in lockstep on a GPU: seconds, beside those of its matrix products and bytes alone.

    python benchmarks/lockstep.py --json results/benchmarks/lockstep-h200.json        # needs CUDA and Covtype

d-1000-1000-500-50-c with the Matérn-3/2 activation on Covtype, Adult and Connect-4, 20 epochs of Adam with batches
of 500, in bf16. Training is what ``stationary run uci`` reports as such, for all ten folds together.

The floor is what no arrangement of a step avoids whose update waits for all gradients: the matrix products for all
folds at once, as a CUDA graph of nothing else; and the bytes of Adam, at the speed of a kernel that reads and writes
large tensors. Adam reads and writes each weight in 4 bytes and its two moments in 2 each, and reads a gradient in 2, 18
bytes in all. The two do not overlap: the products take all registers of the GPU.
"""

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from stationary.lab.data import uci
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.uci.run import run
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

DATASETS = ("covtype", "adult", "connect-4")
FOLDS, BATCH, BYTES = 10, 500, 18


def replay_seconds(job: Any, times: int = 50) -> float:
    """Seconds of a job on the GPU, captured as a graph and run many times."""
    job()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    found = []
    for _ in range(5):
        start.record()
        for _ in range(times):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3 / times)
    return median(found)


def bytes_per_second() -> float:
    x = torch.randn(2**28, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / replay_seconds(lambda: torch.neg(x, out=y), 10)


def floor(n_features: int, n_classes: int, hidden: tuple[int, ...]) -> tuple[float, int]:
    """Seconds of the matrix products of a step of all folds, and the number of weights."""
    widths = [-(-width // 8) * 8 for width in (n_features, *hidden, n_classes)]

    def random(*shape: int) -> Tensor:
        return torch.randn(FOLDS, *shape, device="cuda", dtype=torch.bfloat16)

    layers = [(random(BATCH, i), random(BATCH, o), random(o, i)) for i, o in pairwise(widths)]

    def products() -> None:
        for number, (x, y, weight) in enumerate(layers):
            torch.bmm(x, weight.mT)
            torch.bmm(y.mT, x)
            if number:
                torch.bmm(y, weight)

    return replay_seconds(products), sum(weight.numel() for _, _, weight in layers)


def measure(dataset: str, speed: float) -> dict[str, float]:
    every = EXPERIMENTS["uci"].config.configs("paper")
    first = next(c for c in every if (c.dataset, c.method, c.prior) == (dataset, "NN", "matern32"))
    config = replace(first, folds=tuple(range(FOLDS)))
    run(replace(config, epochs=1), "cuda")  # compiles
    found = run(config, "cuda")
    table = uci.load(dataset)
    steps = config.epochs * -(-(len(table.y) * (FOLDS - 1) // FOLDS) // BATCH)
    products, weights = floor(table.x.shape[1], table.n_classes, config.hidden)
    return {
        "training_s": float(found["seconds training"].sum()),
        "set_up_s": float(found["seconds set-up"].sum()),
        "evaluation_s": float(found["seconds evaluation"].sum()),
        "nlpd": float(found["NN: NLPD"].mean()),
        "accuracy": float(found["NN: ACC"].mean()),
        "steps": steps,
        "products_s": steps * products,
        "bytes_s": steps * weights * BYTES / speed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    speed = bytes_per_second()
    print(f"a kernel moves {speed / 1e12:.2f} TB/s")
    rows = {}
    for dataset in DATASETS:
        rows[dataset] = row = measure(dataset, speed)
        print(
            f"{dataset:10} training {row['training_s']:.2f} s, products {row['products_s']:.2f} s, Adam's bytes "
            f"{row['bytes_s']:.2f} s; NLPD {row['nlpd']:.4f}, accuracy {row['accuracy']:.4f}"
        )
    if arguments.json:
        content = {"command": "benchmarks/lockstep.py", "environment": environment("cuda")}
        print(f"wrote {write_json(arguments.json, content | {'bytes_per_second': speed, 'tables': rows})}")


if __name__ == "__main__":
    main()
