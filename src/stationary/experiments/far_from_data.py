"""The picture that shows why: what a ReLU and a Matérn network believe far from their training data.

Binary classification in one dimension with the network of the paper's toy examples: one hidden layer of 50 units,
dropout 0.2 before the output, Adam 0.02 divided by 10 at epochs 250, 500 and 1000, full batches. Each line is one
network from its own random start; its probability is averaged over MC dropout.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from stationary import plots
from stationary.activations import Matern

VERSION = 1
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
    results: Arrays = {"x": x[:, 0].numpy(), "y": y.numpy(), "grid": grid[:, 0].numpy()}
    for name, activation in (("relu", nn.ReLU()), ("matern", Matern(config.nu, config.lengthscale))):
        members = []
        for member in range(config.n_members):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed + 1 + member)
                members.append(mc_dropout(train(activation, x, y, config), grid, config).numpy())
        results[name] = np.stack(members)
    return results


def noisy_waves(config: Config) -> tuple[Tensor, Tensor]:
    """X uniform on (-2, 2); class 1 with the probability sigmoid(4 sin(2.5 x))."""
    generator = torch.Generator().manual_seed(config.seed)
    x = 4 * torch.rand(config.n_train, 1, generator=generator) - 2
    return x, torch.bernoulli(torch.sigmoid(4 * torch.sin(2.5 * x[:, 0])), generator=generator).long()


def train(activation: nn.Module, x: Tensor, y: Tensor, config: Config) -> nn.Sequential:
    hidden, output = nn.Linear(x.shape[1], config.hidden), nn.Linear(config.hidden, 2)
    network = nn.Sequential(hidden, activation, nn.Dropout(config.dropout), output)
    optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(config.milestones))
    for _ in range(config.epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
        schedule.step()
    return network


@torch.no_grad()
def mc_dropout(network: nn.Sequential, x: Tensor, config: Config) -> Tensor:
    """The probability of class 1, averaged over dropout masks; what comes before the dropout is computed once."""
    hidden, activation, dropout, output = network
    features = activation(hidden(x)).expand(config.n_samples, -1, -1)
    return output(dropout(features)).softmax(-1)[..., 1].mean(0)  # the network is still in training mode


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
