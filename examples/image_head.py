"""A new head for an image network that is already trained: digits it knows, digits it has never seen, and no digits.

A small convolutional network learns the digits 0 to 6 of scikit-learn's 8 x 8 images. Then its trunk is frozen, and its
linear classifier replaced by a StationaryHead. Which network notices what: its own softmax, a ReLU head of the same
size, or the Matérn head, by the entropy of the prediction?

    python examples/image_head.py --out out/examples
"""

import argparse
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import stationary as st
from stationary.inference import Posterior
from stationary.lab.report import figures as plots


def main(out: Path, seeds: int) -> None:
    x, y, rows, test, odd = load()
    found: dict[str, list[list[float]]] = {}
    data = x[rows], y[rows]
    for seed in range(seeds):
        softmax = st.fit(st.Point(), convolutional, data, training(epochs=20, seed=seed))
        relu, matern = (
            st.fit(st.ExactDropout(), partial(with_head, *softmax.networks, name), data, training(epochs=50, seed=seed))
            for name in ("relu", "matern52")
        )
        st.calibrate_prior(*matern.networks, x[rows])
        for name, posterior in (("its own softmax", softmax), ("ReLU head", relu), ("Matérn-5/2 head", matern)):
            pred = st.predict(posterior, x[test])
            inside = pred.entropy()
            outside = [st.predict(posterior, images).entropy() for images in odd.values()]
            areas = [st.metrics.auroc(inside, scores) for scores in outside]
            accepted = [100 * st.metrics.fpr95(inside, scores) for scores in outside]
            errors = [st.metrics.accuracy(pred, y[test]), st.metrics.nlpd(pred, y[test])]
            found.setdefault(name, []).append([*errors, *areas, *accepted])
    print(f"Odd images by entropy, mean over {seeds} networks: area under the ROC curve, and the share that is")
    print("accepted together with 95 % of the known ones.\n")
    print(f"{'':17}{'accuracy':>9}{'NLPD':>7}" + "".join(f"{name:>16}" for name in odd))
    for name, values in found.items():
        accuracy, nlpd, *rest = np.mean(values, 0)
        cells = [f"{area:.2f}, {share:.0f} %" for area, share in zip(rest[: len(odd)], rest[len(odd) :], strict=True)]
        print(f"{name:17}{accuracy:>9.3f}{nlpd:>7.3f}" + "".join(f"{cell:>16}" for cell in cells))
    draw(softmax, matern, {"known digits": x[test], **odd}).savefig(out / "image_head.png", dpi=150)


def load() -> tuple[Tensor, Tensor, Any, Any, dict[str, Tensor]]:
    """Images and labels; the rows to train and to test on; and images that are not digits from 0 to 6."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    known = np.flatnonzero(labels < 7)
    rows, test = train_test_split(known, test_size=0.4, random_state=0, stratify=labels[known])
    photos = [torch.tensor(photo / 255, dtype=torch.float32).mean(-1) for photo in load_sample_images().images]
    small = [nn.functional.avg_pool2d(photo[None, None], 10)[0, 0] for photo in photos]
    patches = torch.cat([photo.unfold(0, 8, 4).unfold(1, 8, 4).reshape(-1, 1, 8, 8) for photo in small])
    odd = {"unknown digits": x[labels >= 7], "negative images": 1 - x[test], "bright x 5": 5 * x[test]}
    return x, y, rows, test, {**odd, "photo patches": patches}


def training(epochs: int, seed: int) -> st.Training:
    return st.Training(epochs=epochs, batch_size=50, learning_rate=3e-3, weight_decay=1e-4, seed=seed)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 7),
    )  # fmt: skip


def with_head(model: nn.Module, activation: str) -> nn.Module:
    """A copy with the trunk frozen and a new head."""
    frozen = deepcopy(model).requires_grad_(False)
    return st.replace_head(frozen, st.StationaryHead(64, 7, hidden=50, activation=activation, dropout=0.2))


def draw(softmax: Posterior, matern: Posterior, groups: dict[str, Tensor]) -> Any:
    """For each kind of image three examples, and how unsure the two networks are of all of them."""
    figure, axes = plots.panels(2, len(groups), width=10.5, height=3.4)
    for (above, below), (name, images) in zip(axes.T, groups.items(), strict=True):
        chosen = images[torch.linspace(0, len(images) - 1, 5).long()[1:4], 0]
        side_by_side = nn.functional.pad(chosen, (1, 1)).permute(1, 0, 2).flatten(1)
        above.imshow(side_by_side.numpy(), "gray_r", vmax=1)
        above.set_axis_off()
        above.set_title(name)
        for label, pred, color in (
            ("its own softmax", st.predict(softmax, images), plots.COLORS[1]),
            ("Matérn head", st.predict(matern, images), plots.COLORS[0]),
        ):
            counts, edges = np.histogram(pred.entropy() / np.log(7), np.linspace(0, 1, 21))
            below.stairs(100 * counts / len(images), edges, fill=True, alpha=0.6, color=color, label=label)
        below.set(xlabel="entropy / log 7", ylim=(0, 100))
    axes[1, 0].set_ylabel("images (%)")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    parser.add_argument("--seeds", type=int, default=5, help="networks, each from its own random numbers")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out, arguments.seeds)
