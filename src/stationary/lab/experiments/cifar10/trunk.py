"""The trunk of the CIFAR-10 experiment: a GoogLeNet, trained once and then frozen, and its 1024 features."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary._extras import extra
from stationary._files import cache_folder, write_atomically
from stationary.inference import Point, fit, predict
from stationary.lab.data import cache, cifar10
from stationary.lab.data.augment import AugmentedBatches, augmented, is_held_out
from stationary.lab.data.cifar10 import Images
from stationary.lab.data.split import Split
from stationary.lab.experiments.cifar10.config import HELD_OUT, TRUNK_CLASSES, TRUNK_EPOCHS
from stationary.lab.models.googlenet import GoogLeNet, normalised
from stationary.lab.runs.store import write_json
from stationary.metrics import accuracy
from stationary.nn.init import seeded
from stationary.training import Training

with extra("experiments"):
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

BATCH, CHUNK = (
    {"cuda": 250, "cpu": 25},
    2_500,
)  # numbers of images: in a batch, by device, and in one file of cached features
FEATURES = 1024
Epoch = dict[str, float]  # what is measured after an epoch, by name
log = logging.getLogger(__name__)
OnEpoch = Callable[[Epoch], object]


@dataclass(frozen=True)
class TrunkRecipe:
    """The training of the trunk: SGD with Nesterov momentum and one cycle of the learning rate (Smith and Topin, 2018).

    Args:
        n_classes: number of classes that it is trained on, the first ones: all 10, or the 5 known ones.
        epochs: number of passes over the training images, which are shifted by up to 4 pixels and perhaps mirrored
            anew in each pass.
        batch_size: number of images in a batch; a smaller last batch is left out.
        learning_rate: the highest learning rate of the cycle.
        warm_up: share of all steps after which the highest learning rate is reached.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD, which is part of the gradient.
        label_smoothing: share of the target's probability that is spread over all classes.
        seed: seed of the initial weights, the order of the images, their shifts and their mirroring.
        held_out: whether it is not trained on the images that ``is_held_out`` names.
    """

    n_classes: int = 10
    epochs: int = TRUNK_EPOCHS
    batch_size: int = 512
    learning_rate: float = 0.4
    warm_up: float = 0.25
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    seed: int = 0
    held_out: bool = False


# Training


def _shown(images: Tensor, generator: torch.Generator) -> Tensor:
    return normalised(augmented(images, generator))


def train_trunk(
    images: Images,
    recipe: TrunkRecipe,
    device: str = "cpu",
    *,
    checkpoint: Path | None = None,
    progress: OnEpoch = lambda epoch: None,
    build: Callable[[int], nn.Module] = GoogLeNet,
) -> tuple[nn.Module, list[Epoch]]:
    """Train a network, and return it with what was measured after each epoch.

    Measured are the mean loss of the epoch and the loss on the test images of the network's classes, and after the last
    epoch the test accuracy. These numbers choose nothing: the network is always that of the last epoch.

    Args:
        images: training and test images of all classes.
        recipe: how the network is trained, and on how many classes.
        device: "cpu" or "cuda"; on "cuda" the layers compute in bfloat16.
        checkpoint: file that keeps the state after an epoch, as for ``fit``; a training that finds it continues there.
        progress: function that is called with what was measured after each epoch, also those before a continuation.
        build: function that makes the network from the number of classes.
    """
    x_test, y_test = _of_classes(images.x_test, images.y_test, recipe.n_classes, device)
    seen = ~is_held_out(images.y_train) if recipe.held_out else slice(None)
    x_train, y_train = images.x_train[seen], images.y_train[seen]
    tests = [(_prepared(x), y) for x, y in zip(x_test.split(BATCH[device]), y_test.split(BATCH[device]), strict=True)]
    curve: list[Epoch] = []

    def note(epoch: int, loss: float, test_loss: float | None) -> None:
        curve.append({"epoch": epoch, "loss": loss, "test loss": test_loss or 0.0})
        progress(curve[-1])

    posterior = fit(
        Point(),
        lambda: build(recipe.n_classes).to(device, memory_format=torch.channels_last),  # type: ignore[call-overload]
        AugmentedBatches(*_of_classes(x_train, y_train, recipe.n_classes, device), recipe, _shown),
        _training(recipe, device),
        validation=tests,
        progress=note,
        checkpoint=checkpoint,
    )
    pred = predict(posterior, tests)
    curve[-1]["test accuracy"] = accuracy(pred, y_test)
    return posterior.networks[0], curve


def _training(recipe: TrunkRecipe, device: str) -> Training:
    return Training(
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        optimizer="sgd",
        learning_rate=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=True,
        weight_decay=recipe.weight_decay,
        label_smoothing=recipe.label_smoothing,
        schedule="one_cycle",
        warm_up=recipe.warm_up,
        precision="bfloat16" if device == "cuda" else "float32",
        seed=recipe.seed,
    )


def _of_classes(x: Tensor, y: Tensor, n_classes: int, device: str) -> tuple[Tensor, Tensor]:
    rows = y < n_classes
    return x[rows].to(device), y[rows].to(device)


def _prepared(images: Tensor) -> Tensor:
    """Normalise images and put their channels last in memory, which doubles the speed of convolutions, on a CPU too."""
    return normalised(images).contiguous(memory_format=torch.channels_last)


# Files


def file_name(n_classes: int, held_out: bool = False) -> str:
    return f"trunk-{n_classes}{'-held-out' * held_out}.safetensors"


def save_trunk(
    folder: Path, model: nn.Module, recipe: TrunkRecipe, curve: list[Epoch], environment: dict[str, Any]
) -> Path:
    """Write the weights in float16, and beside them a JSON file about their training; return the path of the weights.

    Args:
        folder: the folder for both files.
        model: the trained network.
        recipe: how it was trained.
        curve: what was measured after each epoch, as ``train_trunk`` returns it.
        environment: where it was trained, as ``provenance.environment`` gives it.
    """
    tensors = {name: (t.half() if t.is_floating_point() else t).contiguous() for name, t in model.state_dict().items()}
    content = save(tensors)
    path = write_atomically(folder / file_name(recipe.n_classes, recipe.held_out), lambda file: file.write(content))
    digest = sha256(content).hexdigest()
    about = {"recipe": asdict(recipe), "environment": environment, "sha256": digest, "curve": curve}
    write_json(path.with_suffix(".json"), about)
    return path


def load_trunk(path: Path) -> GoogLeNet:
    """Load a network from a file that ``save_trunk`` wrote.

    Raises:
        ValueError: if the file is damaged, or if the JSON file beside it is about another file.
    """
    about = path.with_suffix(".json")
    if about.is_file() and json.loads(about.read_text())["sha256"] != sha256(path.read_bytes()).hexdigest():
        raise ValueError(f"{path} is not the file that {about.name} describes; restore both, or train again")
    tensors = _read(path)
    model = GoogLeNet(len(tensors["head.bias"]))
    model.load_state_dict(tensors)
    return model.eval()


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}); restore it, or delete it and train again") from error


def find_trunk(n_classes: int, held_out: bool = False) -> Path:
    """Return the file of the trunk that was trained on so many classes, perhaps without the images that are held out.

    It is looked for in ``$STATIONARY_DATA``, in results/cifar10 of the current folder, and in the cache folder.

    Raises:
        FileNotFoundError: if none of these folders has it.
    """
    folders = [os.environ.get("STATIONARY_DATA"), "results/cifar10", cache_folder()]
    paths = [Path(folder).expanduser() / file_name(n_classes, held_out) for folder in folders if folder]
    for path in paths:
        if path.is_file():
            return path
    wanted = n_classes, held_out
    setting = next(name for name, count in TRUNK_CLASSES.items() if (count, name in HELD_OUT) == wanted)
    raise FileNotFoundError(
        f"no trained network {' or '.join(map(str, paths))}; run this in a checkout, which has it, or train it on a "
        f"GPU: stationary trunk {setting} --device cuda"
    )


# Features


@lru_cache(maxsize=1)
def images_of(setting: str) -> Images:
    """Return CIFAR-10, or for the setting "generated" a few generated images."""
    return cifar10.generated(120, 80, seed=0) if setting == "generated" else cifar10.load()


@lru_cache(maxsize=2)
def features(setting: str, device: str, *, copies: int = 0) -> Split:
    """Return the features of the known classes' training images, and of all test images.

    They are cached on disk piece by piece, so that an interrupted computation continues where it was.

    Args:
        setting: "paper" for the trunk that saw all ten classes, "strict" for the one that saw the known ones only,
            with "-held-out" for one that did not see the images that ``is_held_out`` names; or "generated" for a trunk
            with random weights and generated images, to try things out.
        device: device on which the features are computed and returned.
        copies: number of copies of each training image, each shifted and perhaps mirrored; 0 for the images as they
            are.
    """
    if setting not in (*TRUNK_CLASSES, "generated"):
        raise ValueError(f"setting must be {', '.join(TRUNK_CLASSES)} or generated, got {setting!r}")
    images = images_of(setting)
    if setting == "generated":
        model, key = _untrained(images.x_train), None
    else:
        path = find_trunk(TRUNK_CLASSES[setting], setting in HELD_OUT)
        model, key = load_trunk(path), sha256(path.read_bytes()).hexdigest()[:16]
    known = images.y_train < len(cifar10.KNOWN)
    x = images.x_train[known]
    shown = {f"copy-{k}": augmented(x, torch.Generator().manual_seed(k)) for k in range(copies)} or {"train": x}
    shown["test"] = images.x_test
    *trained, x_test = (
        _features(model, some, device, key and f"cifar10-{key}-{device}-{name}") for name, some in shown.items()
    )
    y_train, y_test = images.y_train[known].repeat(len(trained)).to(device), images.y_test.to(device)
    names = tuple(f"feature {i}" for i in range(FEATURES))
    return Split(torch.cat(trained), y_train, x_test, y_test, names, cifar10.CLASSES)


def _features(model: GoogLeNet, images: Tensor, device: str, name: str | None) -> Tensor:
    """Return the features (n, 1024), rounded to float16 whether they come from the cache or not."""

    @torch.inference_mode()
    def compute(some: Tensor) -> dict[str, np.ndarray[Any, Any]]:
        parts = [model.features(_prepared(batch.to(device))) for batch in some.split(BATCH[device])]
        return {"features": torch.cat(parts).half().cpu().numpy()}

    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    chunks = []
    for start in range(0, len(images), CHUNK):
        log.info("features of %s: %d of %d images", name or "generated images", start, len(images))
        some = images[start : start + CHUNK]
        here = partial(compute, some)
        found = cache.remembered(f"{name}-{start}-{len(some)}", ("features",), here) if name else here()
        chunks.append(found["features"])
    return torch.from_numpy(np.concatenate(chunks)).float().to(device)


def _untrained(images: Tensor) -> GoogLeNet:
    """Return a network with random weights and with these images' statistics in BatchNorm.

    Without the statistics the features would hardly depend on the input.
    """
    with seeded(0, torch.device("cpu")):
        model = GoogLeNet(10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(normalised(images[:50]))
    return model.eval()
