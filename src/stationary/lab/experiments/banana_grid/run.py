"""Training of the networks, and the pictures with few and with many samples."""

from functools import partial
from typing import Any

import numpy as np
import torch

from stationary import metrics
from stationary.inference import ExactDropout, MCDropout, Point, predict
from stationary.lab.data import banana
from stationary.lab.experiments import networks
from stationary.lab.experiments.banana_grid.config import Config
from stationary.lab.experiments.paper import Prior
from stationary.lab.runs.store import Arrays
from stationary.nn import StationaryHead


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train the networks; return their maps on the grid, the maps' errors, and the errors on held-out points."""
    split = banana.load().to(device)
    side = torch.linspace(-config.extent, config.extent, config.resolution, device=device)
    grid = torch.cartesian_prod(side, side)
    activation = networks.activation(Prior("matern52"), config.lengthscale, code_scale=True)
    build = partial(StationaryHead, 2, 2, hidden=config.hidden, activation=activation, dropout=config.dropout)
    training = networks.toy_training(config.epochs, seed=config.seed)
    posteriors = networks.fit_seeds(ExactDropout(), build, split.train, training, config.n_seeds)
    models = [posterior.networks[0] for posterior in posteriors]
    exact = predict(posteriors[0], grid[::7])  # every seventh point, since the closed form costs more than the picture
    results: Arrays = {"x": split.x_train.cpu().numpy(), "y": split.y_train.cpu().numpy()}
    results["boundary"] = _as_map(predict(models[0], grid, Point()).probs[:, 1], config)
    for n in config.n_samples:
        sampled = predict(models[0], grid, MCDropout(n), batch_size=10_000)
        results[f"total {n}"] = _as_map(sampled.bernoulli_std(), config)
        results[f"error {n}"] = np.array((sampled.probs[::7] - exact.probs).abs().mean().item())
    tested = [predict(model, split.x_test, ExactDropout(approximate=True)) for model in models]
    results["nlpd"] = np.array([metrics.nlpd(prediction, split.y_test) for prediction in tested])
    results["accuracy"] = np.array([metrics.accuracy(prediction, split.y_test) for prediction in tested])
    return results


def _as_map(values: torch.Tensor, config: Config) -> np.ndarray[Any, Any]:
    return values.view(config.resolution, config.resolution).mT.float().cpu().numpy()
