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

from stationary import plots
from stationary.activations import Matern
from stationary.inference import MCDropout, predict
from stationary.models import StationaryHead
from stationary.training import Training, train

VERSION = 2  # trained in lockstep: other random numbers
TITLE = "Far from the data: ReLU against Matérn"
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
    return [Config() if scale == "paper" else Config(epochs=50, n_members=2, n_samples=20, resolution=41)]


def run(config: Config) -> Arrays:
    x, y = noisy_waves(config)
    grid = torch.linspace(-config.extent, config.extent, config.resolution)[:, None]
    training = Training(
        epochs=config.epochs,
        batch_size=None,
        learning_rate=config.learning_rate,
        milestones=config.milestones,
        seed=config.seed + 1,
    )
    results: Arrays = {"x": x[:, 0].numpy(), "y": y.numpy(), "grid": grid[:, 0].numpy()}
    for name, activation in (("relu", "relu"), ("matern", Matern(config.nu, config.lengthscale))):
        build = partial(StationaryHead, 1, 2, hidden=config.hidden, activation=activation, dropout=config.dropout)
        members = train(build, x, y, training, n_members=config.n_members)
        predictions = [predict(member, grid, MCDropout(config.n_samples)) for member in members]
        results[name] = torch.stack([prediction.probs[:, 1] for prediction in predictions]).numpy()
    return results


def noisy_waves(config: Config) -> tuple[Tensor, Tensor]:
    """X uniform on (-2, 2); class 1 with the probability sigmoid(4 sin(2.5 x))."""
    generator = torch.Generator().manual_seed(config.seed)
    x = 4 * torch.rand(config.n_train, 1, generator=generator) - 2
    return x, torch.bernoulli(torch.sigmoid(4 * torch.sin(2.5 * x[:, 0])), generator=generator).long()


def draw(results: Arrays) -> dict[str, Figure]:
    figure, axes = plots.panels(1, 2, width=9, height=3.2, sharey=True)
    for ax, name, title in zip(axes, ("relu", "matern"), ("ReLU", "Matérn-5/2"), strict=True):
        ax.axvspan(results["x"].min(), results["x"].max(), color="0.93", zorder=0)
        ax.axhline(0.5, color="0.6", linewidth=0.8, linestyle=":")
        ax.plot(results["grid"], results[name].T, color=plots.COLORS[0], alpha=0.6, linewidth=1.2)
        jitter = 0.02 * np.random.default_rng(0).standard_normal(len(results["y"]))
        ax.scatter(results["x"], results["y"] * 1.1 - 0.05 + jitter, s=4, color=plots.COLORS[4], linewidths=0)
        ax.set(title=title, xlabel="input (training data in the shaded part)")
    axes[0].set(ylabel="probability of class 1", yticks=(0, 0.5, 1))
    return {"far_from_data": figure}
