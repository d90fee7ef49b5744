"""Training of the networks, and their predictions on an interval."""

from functools import partial

import torch
from torch import Tensor

from stationary.activations import Matern
from stationary.inference import MCDropout, predict
from stationary.lab.experiments.far_from_data.config import Config
from stationary.lab.experiments.networks import fit_seeds
from stationary.lab.runs.store import Arrays
from stationary.nn import StationaryHead
from stationary.training import Training


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train networks of both activations; return the probabilities of class 1 on the grid, (networks, inputs)."""
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
        posteriors = fit_seeds(MCDropout(config.n_samples), build, (x, y), training, config.n_members, of=2)
        predictions = [predict(posterior, grid) for posterior in posteriors]
        results[name] = torch.stack([prediction.probs[:, 1] for prediction in predictions]).cpu().numpy()
    return results


def noisy_waves(config: Config) -> tuple[Tensor, Tensor]:
    """Draw inputs x that are uniform on (-2, 2), and classes: 1 has the probability sigmoid(4 sin(2.5 x))."""
    generator = torch.Generator().manual_seed(config.seed)
    x = 4 * torch.rand(config.n_train, 1, generator=generator) - 2
    return x, torch.bernoulli(torch.sigmoid(4 * torch.sin(2.5 * x[:, 0])), generator=generator).long()
