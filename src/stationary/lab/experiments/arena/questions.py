"""Unknown questions: CLINC150, whose questions out of scope are unknown, behind a frozen all-MiniLM-L6-v2."""

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stationary._files import cache_folder
from stationary.lab.data import clinc150, sentences
from stationary.lab.experiments.arena.methods.classifiers import linear_layer
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.experiments.networks import held_out
from stationary.training.data import Pair

VALIDATION = 1 / 6  # share of the known rows that are not for testing, as in CLINC150 itself


def missing() -> str | None:
    """Say why the event cannot run here, or None if it can."""
    return _missing(os.environ.get("STATIONARY_DATA"), cache_folder())


@lru_cache(maxsize=1)
def _missing(data_dir: str | None, cache: Path) -> str | None:
    """The answer for these folders, looked for once: each look may ask the hub of Hugging Face."""
    try:
        clinc150.find()
        sentences.find()
    except (FileNotFoundError, ImportError) as problem:
        return str(problem)
    return None


@lru_cache(maxsize=1)
def vectors() -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """Return the vectors and the classes of the parts by name, and a digest of the vectors. Unknown parts have none."""
    parts = clinc150.load()
    every = sentences.embedded([text for part in parts.values() for text in part.texts])
    pieces = torch.from_numpy(every.astype(np.float32)).split([len(part.texts) for part in parts.values()])
    intents = sorted(set(parts["train"].intents))
    known = [name for name in parts if not name.startswith("oos")]
    classes = {name: torch.tensor([intents.index(intent) for intent in parts[name].intents]) for name in known}
    return dict(zip(parts, pieces, strict=True)), classes, sha256(every.tobytes()).hexdigest()


@lru_cache(maxsize=5)
def task(seed: int) -> Task:
    """Return the task. The seed draws which of the 18,000 known rows for training and validation are which.

    The questions out of scope that the data set has for training and validation are not used.
    """
    x, y, digest = vectors()
    rows: Pair = torch.cat([x["train"], x["val"]]), torch.cat([y["train"], y["val"]])
    train, validation = held_out(rows, VALIDATION, seed)
    network = linear_layer(train, validation, int(y["train"].max()) + 1, seed)
    return Task(train, validation, (x["test"], y["test"]), {"out of scope": x["oos_test"]}, network, digest=digest)
