"""What is in results/ of an experiment whose runs are one file for each data set and method."""

import json
from pathlib import Path

import numpy as np

from stationary.lab.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def stored(name):
    """The results of an experiment, all seeds of a method as one, in the order of its configurations."""
    config = EXPERIMENTS[name].config
    files = [json.loads(path.read_bytes()) for path in (ROOT / "results" / name).glob("*.json")]
    order = list(dict.fromkeys((one.dataset, one.method) for one in config.configs("paper")))
    files.sort(key=lambda content: order.index((content["config"]["dataset"], content["config"]["method"])))
    for content in files:
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in content["config"].items()}
        yield config.Config(**settings), {name: np.array(values) for name, values in content["numbers"].items()}
