"""A tiny experiment for kill.py: many results in a second, large enough that their writing takes a while.

    python benchmarks/kill_experiment.py run kill --scale smoke --jobs 2

is ``stationary run`` with this experiment among its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import stationary as st

TITLE, REPRODUCES, VERSION = "To be killed", "nothing", 1
N_CONFIGS = 40


@dataclass(frozen=True)
class Config:
    """One regression."""

    seed: int = 0
    hidden: int = 100
    n_points: int = 40_000


def configs(scale: str) -> list[Config]:
    return [Config(seed) for seed in range(N_CONFIGS)]


def run(config: Config, device: str = "cpu") -> dict[str, np.ndarray[Any, Any]]:
    """Ridge regression of a sine on random Matérn features, and its predictions."""
    generator = torch.Generator().manual_seed(config.seed)
    weight, bias = torch.randn(2, config.hidden, generator=generator, dtype=torch.float64)
    x = torch.randn(config.n_points, 1, generator=generator, dtype=torch.float64)
    features = st.Matern(1.5)(x * weight + bias)
    train = features[:200]
    gram = train.T @ train + 1e-3 * torch.eye(config.hidden, dtype=torch.float64)
    solution = torch.linalg.solve(gram, train.T @ torch.sin(3 * x[:200]))
    return {"weights": solution.numpy(), "predictions": (features @ solution).numpy()}


def report(results: Mapping[Config, Any]) -> None:
    raise NotImplementedError("there is nothing to show")


def main() -> None:
    import kill_experiment  # by its name, as the processes of the pool import it

    from stationary.__main__ import main
    from stationary.lab.experiments import EXPERIMENTS

    EXPERIMENTS["kill"] = kill_experiment
    main()


if __name__ == "__main__":
    main()
