"""How the difficulty of the radar experiment was chosen, and what its network looks at.

    python benchmarks/radar_difficulty.py --device cuda --json results/radar/difficulty.json

The ReLU network alone, trained as in the experiment, is asked for 5000 samples of a validation simulation of the known
emitters: no unknown emitter is simulated here. For each ``spread`` = ``error``: its accuracy, and its accuracy when
frequency and width, or the pulse train, are those of another sample. Three seeds.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stationary.lab.data.radar import EmitterLibrary
from stationary.lab.experiments.radar import run as radar
from stationary.lab.experiments.radar.config import Config
from stationary.lab.models.radar_cnn import SCALARS
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.training import train

SIZES = (0.14, 0.15, 0.16)
SEEDS = [0, 1, 2]
SAMPLES = 5000


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (model(x).argmax(1) == y).double().mean().item()


def measured(size: float, device: str) -> dict[str, Any]:
    config = Config("relu", spread=size, error=size)
    library = EmitterLibrary.generate(config.n_emitters, config.n_modes, spread=size, error=size)
    training = library.simulate(config.samples_per_mode, seed=radar.TRAINING)
    validation = library.draw(SAMPLES, seed=radar.VALIDATION)
    x, y = validation.inputs().to(device), validation.targets().to(device)
    models = train(
        lambda: radar.build(config),
        (training.inputs().to(device), training.targets().to(device)),
        radar.training_of(config),
        seeds=SEEDS,
    )
    scalars, pulses = x[:, :SCALARS], x[:, SCALARS:]
    inputs = {
        "accuracy": x,
        "with another's frequency and width": torch.cat([scalars.roll(1, 0), pulses], 1),
        "with another's pulse train": torch.cat([scalars, pulses.roll(1, 0)], 1),
    }
    found: dict[str, Any] = {name: [accuracy(model, x, y) for model in models] for name, x in inputs.items()}
    return {"spread": size, "error": size, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="where to store the results")
    arguments = parser.parse_args()
    rows = []
    for size in SIZES:
        rows.append(measured(size, arguments.device))
        print(rows[-1])
    if arguments.json:
        results = {"seeds": SEEDS, "samples": SAMPLES, "results": rows, "environment": environment(arguments.device)}
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
