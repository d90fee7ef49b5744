"""The picture that shows why: what a ReLU and a Matérn network believe far from their training data.

Binary classification in one dimension with the network of the paper's toy examples: one hidden layer of 50 units,
dropout 0.2 before the output, Adam 0.02 divided by 10 at epochs 250, 500 and 1000, full batches. Each line is one
network from its own random start; its probability is averaged over MC dropout.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stationary.activations import Matern
from stationary.inference import MCDropout, predict
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Measured, Section, Table
from stationary.nn import StationaryHead
from stationary.training import Training, train

TITLE = "Far from the data: ReLU against Matérn"
REPRODUCES = "the claim behind Fig. 1, in one dimension (not a figure of the paper)"
DURATION = {"smoke": "2 seconds", "demo": "20 seconds", "paper": "20 seconds"}
VERSION = 2  # trained in lockstep: other random numbers
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Config:
    n_train: int = 200
    nu: float = 2.5
    lengthscale: float = 0.5
    hidden: int = 50
    dropout: float = 0.2
    learning_rate: float = 0.02
    milestones: tuple[int, ...] = (250, 500, 1000)
    epochs: int = 1500
    n_members: int = 8
    n_samples: int = 200
    extent: float = 10.0
    resolution: int = 401
    seed: int = 0


def configs(scale: str = "paper") -> list[Config]:
    smoke = Config(epochs=50, n_members=2, n_samples=20, resolution=41)
    return [smoke if scale == "smoke" else Config()]


def run(config: Config, device: str = "cpu") -> Arrays:
    x, y = (part.to(device) for part in noisy_waves(config))
    grid = torch.linspace(-config.extent, config.extent, config.resolution)[:, None].to(device)
    training = Training(
        epochs=config.epochs,
        batch_size=None,
        learning_rate=config.learning_rate,
        milestones=config.milestones,
        seed=config.seed + 1,
    )
    results: Arrays = {"x": x[:, 0].cpu().numpy(), "y": y.cpu().numpy(), "grid": grid[:, 0].cpu().numpy()}
    for name, activation in (("relu", "relu"), ("matern", Matern(config.nu, config.lengthscale))):
        build = partial(StationaryHead, 1, 2, hidden=config.hidden, activation=activation, dropout=config.dropout)
        members = train(build, x, y, training, n_members=config.n_members)
        predictions = [predict(member, grid, MCDropout(config.n_samples)) for member in members]
        results[name] = torch.stack([prediction.probs[:, 1] for prediction in predictions]).cpu().numpy()
    return results


def noisy_waves(config: Config) -> tuple[Tensor, Tensor]:
    """X uniform on (-2, 2); class 1 with the probability sigmoid(4 sin(2.5 x))."""
    generator = torch.Generator().manual_seed(config.seed)
    x = 4 * torch.rand(config.n_train, 1, generator=generator) - 2
    return x, torch.bernoulli(torch.sigmoid(4 * torch.sin(2.5 * x[:, 0])), generator=generator).long()


def report(results: list[tuple[Config, Arrays]]) -> Section:
    [(config, arrays)] = results
    labels = {"relu": "ReLU", "matern": f"Matérn-{plots.smoothness_label(config.nu)}"}
    edge, grid = 0.9 * config.extent, arrays["grid"]
    near = (grid >= arrays["x"].min()) & (grid <= arrays["x"].max())
    regions = {"where the data are": near, f"beyond |x| = {edge:g}": abs(grid) > edge}
    confidence = {name: np.maximum(arrays[name], 1 - arrays[name]) for name in labels}
    means = {name: [confidence[name][:, where].mean(1) for where in regions.values()] for name in labels}
    return Section(
        title=TITLE,
        paper=(
            "Fig. 1 and the introduction: a ReLU network extrapolates with growing confidence however far an input is "
            "from its training data. A Matérn activation is local, so the network falls back to its prior there, as "
            "a Gaussian process with a stationary kernel does. The paper has no one-dimensional picture of this; the "
            "network and its training are those of its toy examples."
        ),
        ours=_verdict(means["relu"][-1], means["matern"][-1]),
        figures={"far_from_data": _curves(arrays, labels)},
        captions={
            "far_from_data": f"The probability of class 1 that each of {config.n_members} networks gives, averaged "
            f"over {config.n_samples} dropout masks. Dots are the training data, all in the shaded part."
        },
        tables=(
            Table(
                f"Confidence, the probability of the likelier class, from 0.5 to 1: mean and standard deviation over "
                f"{config.n_members} networks.",
                ("activation", *regions),
                tuple((label, *map(Measured.over, means[name])) for name, label in labels.items()),
            ),
        ),
    )


def _verdict(relu: np.ndarray[Any, Any], matern: np.ndarray[Any, Any]) -> str:
    """What the confidence far from the data, one number for each network, says about the paper's claim."""
    verdict = "The claim holds" if matern.max() < relu.min() else "The claim does not hold for every network"
    return (
        f"{verdict}. Far from the data ReLU networks give the likelier class a probability of {relu.mean():.3f} (the "
        f"least sure of them {relu.min():.3f}), Matérn networks {matern.mean():.3f} (the surest {matern.max():.3f}); "
        f"in {(matern[:, None] < relu).mean():.0%} of all pairs the Matérn network is the less sure one.\n\n"
        "What keeps a Matérn network from exactly one half is the bias of its last layer: far away its features "
        "vanish, and the bias is all that is left."
    )


def _curves(arrays: Arrays, labels: dict[str, str]) -> Figure:
    figure, axes = plots.panels(1, 2, width=9, height=3.2, sharey=True)
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        ax.axvspan(arrays["x"].min(), arrays["x"].max(), color="0.93", zorder=0)
        ax.axhline(0.5, color="0.6", linewidth=0.8, linestyle=":")
        ax.plot(arrays["grid"], arrays[name].T, color=plots.COLORS[0], alpha=0.6, linewidth=1.2)
        jitter = 0.02 * np.random.default_rng(0).standard_normal(len(arrays["y"]))
        ax.scatter(arrays["x"], arrays["y"] * 1.1 - 0.05 + jitter, s=4, color=plots.COLORS[4], linewidths=0)
        ax.set(title=label, xlabel="input (training data in the shaded part)")
    axes[0].set(ylabel="probability of class 1", yticks=(0, 0.5, 1))
    return figure
