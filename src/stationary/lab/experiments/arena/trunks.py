"""The trunks of the events with images: a ResNet-20 for each seed, and the features that it gives of all images.

``python -m stationary.lab.experiments.arena.trunks --data DIR --out DIR`` trains them, on a GPU if there is one, and
writes a file of features for each seed. Only the features are kept, in float16, with the
weights of the last layer: every head and detector of the arena starts from these.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary._files import write_atomically
from stationary.inference import Point, fit
from stationary.lab.data import grey_images
from stationary.lab.data.augment import AugmentedBatches, augmented, is_held_out
from stationary.lab.models.resnet import ResNet20
from stationary.lab.runs.provenance import environment
from stationary.training import Training

PIECE = 2_000  # number of images whose features are computed at once
SHIFT = 2  # largest shift of an image, in pixels
Parts = dict[str, tuple[Tensor, Tensor | None]]  # images and their classes; unknown images have none


@dataclass(frozen=True)
class Recipe:
    """The training of a trunk: SGD with Nesterov momentum and one cycle of the learning rate.

    Args:
        epochs: number of passes over the training images, shifted by up to 2 pixels and perhaps mirrored in each pass.
        batch_size: number of images in a batch; a smaller last batch is left out.
        learning_rate: the highest learning rate of the cycle.
        weight_decay: weight decay of SGD, which is part of the gradient.
        seed: seed of the initial weights, the order of the images, their shifts and their mirroring.
    """

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 0.2
    weight_decay: float = 5e-4
    seed: int = 0


def _shown(images: Tensor, generator: torch.Generator) -> Tensor:
    return prepared(augmented(images, generator, SHIFT))


def prepared(images: Tensor) -> Tensor:
    """Return pixels of 0 to 255 as numbers of -1 to 1, with the channels last in memory."""
    return (images.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def fashion_mnist(data_dir: str | Path | None = None) -> Parts:
    """Return the images of Fashion-MNIST by part, and MNIST and notMNIST as unknown ones.

    The last tenth of the training images of each class is "validation".
    """
    x, y = grey_images.load("fashion-mnist", "train", data_dir)
    assert y is not None
    held = is_held_out(y)
    return {
        "train": (x[~held], y[~held]),
        "validation": (x[held], y[held]),
        "test": grey_images.load("fashion-mnist", "test", data_dir),
        "mnist": grey_images.load("mnist", "test", data_dir),
        "notmnist": grey_images.load("notmnist", "test", data_dir),
    }


def trained(parts: Parts, recipe: Recipe, device: str) -> ResNet20:
    """Train a trunk on the part "train"; it is always the network of the last epoch."""
    x, y = parts["train"]
    assert y is not None
    precision = "bfloat16" if device == "cuda" else "float32"
    training = Training(
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        optimizer="sgd",
        learning_rate=recipe.learning_rate,
        nesterov=True,
        weight_decay=recipe.weight_decay,
        schedule="one_cycle",
        precision=precision,
        seed=recipe.seed,
    )
    n_classes = int(y.max()) + 1
    build = lambda: ResNet20(n_classes).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # noqa: E731
    network = fit(Point(), build, AugmentedBatches(x.to(device), y.to(device), recipe, _shown), training).networks[0]
    assert isinstance(network, ResNet20)
    return network.eval()


@torch.inference_mode()
def features(network: ResNet20, images: Tensor, device: str) -> np.ndarray[Any, Any]:
    """Return the features (n, d) of images in float16."""
    found = [network.features(prepared(some.to(device))).half().cpu() for some in images.split(PIECE)]
    return torch.cat(found).numpy()


def arrays(network: ResNet20, parts: Parts, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the features and classes of all parts, and the weights of the last layer, by name."""
    found: dict[str, np.ndarray[Any, Any]] = {
        "weight": network.head.weight.detach().float().cpu().numpy(),
        "bias": network.head.bias.detach().float().cpu().numpy(),
    }
    for name, (x, y) in parts.items():
        found[f"x {name}"] = features(network, x, device)
        if y is not None:
            found[f"y {name}"] = y.numpy().astype(np.uint8)
    return found


def write(folder: Path, parts: Parts, recipes: list[Recipe], device: str) -> list[Path]:
    """Train a trunk for each recipe, and write a file for each as soon as it is trained; return their paths.

    The array "about" of a file is a text in JSON: the recipe, where it was trained, and the seconds that took.
    """
    paths = []
    for recipe in recipes:
        start = time.perf_counter()
        found = arrays(trained(parts, recipe, device), parts, device)
        seconds = round(time.perf_counter() - start, 1)
        about = {"recipe": asdict(recipe), "environment": environment(device) | {"wall_s": seconds}}
        found["about"] = np.array(json.dumps(about))
        path = folder / file_name(recipe.seed)
        paths.append(write_atomically(path, lambda file, found=found: np.savez_compressed(file, **found)))  # type: ignore[misc]
    return paths


def file_name(seed: int) -> str:
    return f"seed-{seed}.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the trunks of the arena's images and write their features.")
    parser.add_argument("--data", type=Path, help="the folder of the images")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the features")
    parser.add_argument("--seeds", type=int, default=5, help="number of trunks")
    parser.add_argument("--first", type=int, default=0, help="seed of the first trunk; the next has the next number")
    parser.add_argument("--epochs", type=int, default=Recipe.epochs, help="passes over the training images")
    parser.add_argument("--rows", type=int, help="take only so many images of each part, to try it out")
    options = parser.parse_args()
    parts = fashion_mnist(options.data)
    if options.rows:
        parts = {name: (x[: options.rows], y if y is None else y[: options.rows]) for name, (x, y) in parts.items()}
    recipes = [Recipe(epochs=options.epochs, seed=seed) for seed in range(options.first, options.first + options.seeds)]
    write(options.out, parts, recipes, "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
