"""The trunks of the events with images: a ResNet for each seed, and the features that it gives of all images.

``python -m stationary.lab.experiments.arena.trunks --dataset cifar10 --data DIR --out DIR`` trains them, on a GPU if
there is one, and writes a file of features for each seed. Only the features are kept, in float16, with the weights of
the last layer: every head and detector of the arena starts from these.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary._files import write_atomically
from stationary.inference import Point, fit
from stationary.lab.data import cifar10, corrupted, grey_images
from stationary.lab.data.augment import AugmentedBatches, augmented, is_held_out, varied
from stationary.lab.models.resnet import ResNet
from stationary.lab.runs.provenance import environment
from stationary.nn import RotationPrediction, spectral_normalize
from stationary.training import Training

PIECE = 2_000  # number of images whose features are computed at once
UNKNOWN = 5_000  # number of images of each kind that are unknown beside CIFAR-10
KEPT = 2_000  # of CIFAR-10, number of training images of a class that heads are fitted to, the first ones
Parts = dict[str, tuple[Tensor, Tensor | None]]  # images and their classes; unknown images have none


@dataclass(frozen=True)
class Recipe:
    """The training of a trunk: SGD with Nesterov momentum and one cycle of the learning rate.

    Args:
        epochs: number of passes over the training images, shifted and perhaps mirrored in each pass.
        batch_size: number of images in a batch; a smaller last batch is left out.
        learning_rate: the highest learning rate of the cycle.
        weight_decay: weight decay of SGD, which is part of the gradient.
        shift: largest shift of an image, in pixels.
        widths: number of channels of each stage of the network.
        blocks: number of blocks of each stage.
        varied: whether images are also turned a little, recoloured and partly hidden (``augment.varied``).
        bound: bound on the spectral norm of the convolutions (``spectral_normalize``); None for none.
        rotation: weight of a second loss, that of telling by how many quarter turns an image was turned; 0 for none.
        seed: seed of the initial weights, the order of the images, and of how each is shown.
    """

    epochs: int = 30
    batch_size: int = 256
    learning_rate: float = 0.2
    weight_decay: float = 5e-4
    shift: int = 2
    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int = 3
    varied: bool = False
    bound: float | None = None
    rotation: float = 0.0
    seed: int = 0


RESNET18 = Recipe(20, 512, 0.4, shift=4, widths=(64, 128, 256, 512), blocks=2)


def _shown(images: Tensor, generator: torch.Generator, recipe: Recipe) -> Tensor:
    shifted = augmented(images, generator, recipe.shift)
    return prepared(varied(shifted, generator) if recipe.varied else shifted)


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


def classes_of_cifar10(data_dir: str | Path | None = None, n_classes: int = 10) -> Parts:
    """Return CIFAR-10 by part: "train" has the images of the first classes, without the last tenth of each.

    The test images are there of all classes. Where all are known, grey images with a black border and noise are
    unknown.
    """
    found = cifar10.load(data_dir)
    x, y = found.x_train, found.y_train
    known, held = y < n_classes, is_held_out(y)
    generator = torch.Generator().manual_seed(0)
    parts: Parts = {
        "train": (x[known & ~held], y[known & ~held]),
        "validation": (x[known & held], y[known & held]),
        "test": (found.x_test, found.y_test),
    }
    if n_classes < len(cifar10.CLASSES):
        return parts
    for name in ("mnist", "notmnist"):
        grey = grey_images.load(name, "test", data_dir).x[:UNKNOWN]
        parts[name] = (F.pad(grey, (2,) * 4).expand(-1, 3, -1, -1), None)
    parts["noise"] = (torch.randint(0, 256, (UNKNOWN, 3, 32, 32), generator=generator).to(torch.uint8), None)
    return parts


def and_corrupted(data_dir: str | Path | None = None) -> Parts:
    """Return all classes of CIFAR-10 by part, with corrupted test images."""
    shifted = {name: (part.x, part.y) for name, part in corrupted.load(data_dir).items()}
    return classes_of_cifar10(data_dir) | shifted


def kept(parts: Parts) -> Parts:
    """Leave only the first training images of each class."""
    x, y = parts["train"]
    assert y is not None
    rows = torch.cat([(y == label).nonzero()[:KEPT, 0] for label in y.unique()]).sort().values
    return parts | {"train": (x[rows], y[rows])}


@dataclass(frozen=True)
class Event:
    """Images and how trunks are trained on them.

    Args:
        load: function from a folder to the images by part.
        recipe: the recipe.
        kept: function from the parts to those whose features are kept.
    """

    load: Callable[[str | Path | None], Parts]
    recipe: Recipe
    kept: Callable[[Parts], Parts] = lambda parts: parts


STRICT = Event(partial(classes_of_cifar10, n_classes=len(cifar10.KNOWN)), RESNET18, kept)
EVENTS = {
    "fashion-mnist": Event(fashion_mnist, Recipe()),
    "cifar10": Event(and_corrupted, RESNET18, kept),
    "cifar10-strict": STRICT,
    # the numbers are those of protocol.RECIPES_RULE, and were fixed with it
    "cifar10-strict-longer": replace(STRICT, recipe=replace(RESNET18, epochs=60, varied=True)),
    "cifar10-strict-bounded": replace(STRICT, recipe=replace(RESNET18, bound=1.0)),
    "cifar10-strict-rotated": replace(STRICT, recipe=replace(RESNET18, rotation=0.5)),
    "cifar10-strict-longer-rotated": replace(STRICT, recipe=replace(RESNET18, epochs=60, varied=True, rotation=0.5)),
}


def trained(parts: Parts, recipe: Recipe, device: str) -> ResNet:
    """Train a trunk on the part "train"; it is always the network of the last epoch."""
    x, y = parts["train"]
    assert y is not None
    precision = "bfloat16" if device == "cuda" else "float32"
    training = Training(
        loss="own" if recipe.rotation else "cross_entropy",
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
    n_classes, channels = int(y.max()) + 1, x.shape[1]

    def build() -> nn.Module:
        network = ResNet(n_classes, channels, recipe.widths, recipe.blocks)
        if recipe.bound is not None:
            spectral_normalize(network, recipe.bound, skip=["head"])
        learner = RotationPrediction(network, recipe.rotation) if recipe.rotation else network
        return learner.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    batches = AugmentedBatches(x.to(device), y.to(device), recipe, partial(_shown, recipe=recipe))
    network = fit(Point(), build, batches, training).networks[0]
    if isinstance(network, RotationPrediction):
        network = network.network
    assert isinstance(network, ResNet)
    return network.eval()


@torch.inference_mode()
def features(network: ResNet, images: Tensor, device: str) -> np.ndarray[Any, Any]:
    """Return the features (n, d) of images in float16."""
    found = [network.features(prepared(some.to(device))).half().cpu() for some in images.split(PIECE)]
    return torch.cat(found).numpy()


def arrays(network: ResNet, parts: Parts, device: str) -> dict[str, np.ndarray[Any, Any]]:
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


def write(
    folder: Path, parts: Parts, recipes: list[Recipe], device: str, kept: Callable[[Parts], Parts] = lambda parts: parts
) -> list[Path]:
    """Train a trunk for each recipe, and write a file for each as soon as it is trained; return their paths.

    The array "about" of a file is a text in JSON: the recipe, where it was trained, and the seconds that took.

    Args:
        folder: the folder for the files.
        parts: images by part.
        recipes: the recipes; each has its own seed.
        device: "cpu" or "cuda"; on "cuda" the layers compute in bfloat16.
        kept: function from the parts to those whose features are written.
    """
    paths = []
    for recipe in recipes:
        start = time.perf_counter()
        found = arrays(trained(parts, recipe, device), kept(parts), device)
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
    parser.add_argument("--dataset", choices=EVENTS, default="fashion-mnist", help="the images")
    parser.add_argument("--data", type=Path, help="the folder of the images")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the features")
    parser.add_argument("--seeds", type=int, default=5, help="number of trunks")
    parser.add_argument("--first", type=int, default=0, help="seed of the first trunk; the next has the next number")
    parser.add_argument("--epochs", type=int, help="passes over the training images, if other than the recipe's")
    parser.add_argument("--rows", type=int, help="take only so many images of each part, to try it out")
    options = parser.parse_args()
    event = EVENTS[options.dataset]
    parts, recipe = event.load(options.data), replace(event.recipe, epochs=options.epochs or event.recipe.epochs)
    if options.rows:
        parts = {name: (x[: options.rows], y if y is None else y[: options.rows]) for name, (x, y) in parts.items()}
    recipes = [replace(recipe, seed=seed) for seed in range(options.first, options.first + options.seeds)]
    write(options.out, parts, recipes, "cuda" if torch.cuda.is_available() else "cpu", event.kept)


if __name__ == "__main__":
    main()
