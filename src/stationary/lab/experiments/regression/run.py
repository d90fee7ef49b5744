"""Training of exact Gaussian processes, networks and infinite width, and their functions on an interval."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary.gp import kernels
from stationary.inference import InfiniteWidth, MCDropout, fit, predict
from stationary.lab.baselines.exact import ExactGP, gp_training
from stationary.lab.data import toy_regression
from stationary.lab.experiments import networks, paper
from stationary.lab.experiments.regression.config import PLACES, Config
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.nn import StationaryHead
from stationary.nn.restored_prior import calibrate_prior
from stationary.predictive import Gaussian

KERNELS: dict[str, Any] = {
    "relu": kernels.ArcCos1Kernel,
    "rbf": kernels.RBFKernel,
    "matern52": partial(kernels.MaternKernel, 2.5),
    "matern32": partial(kernels.MaternKernel, 1.5),
    "matern12": partial(kernels.MaternKernel, 0.5),
}


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train the model; return mean and standard deviation on the grid and at each place, for each repeat."""
    split = toy_regression.load(seed=config.seed).to(device)
    grid = torch.linspace(-config.extent, config.extent, config.n_points, device=device)[:, None]
    near = split.x_train
    places = [near, *(torch.tensor([[-x], [x]], device=device) for x in PLACES.values())]
    results: Arrays = {"x": split.x_train[:, 0].cpu().numpy(), "y": split.y_train[:, 0].cpu().numpy()}
    results["grid"] = grid[:, 0].cpu().numpy()
    if config.model == "gp":
        process = ExactGP().builder(KERNELS[config.prior](), split.train)
        watch = inside.watched(config.gp_steps)
        training = gp_training(config.gp_steps)
        posterior = fit(ExactGP(), process, split.train, training, progress=watch.epoch, checkpoint=watch.checkpoint)
        asks = {"plain": [partial(_ask, posterior, None)]}
    elif config.model == "infinite width":
        posterior = InfiniteWidth(config.prior).posterior([nn.Linear(1, 1).to(near)], split.train)
        asks = {"plain": [partial(_ask, posterior, None)]}
    else:
        prior = paper.look_up(paper.TRAINABLE, config.prior, "prior")
        activation = networks.activation(prior, config.lengthscale, code_scale=False)
        build = partial(StationaryHead, 1, 1, hidden=config.hidden, activation=activation, dropout=config.dropout)
        training = networks.toy_training(config.epochs, loss="mse", seed=config.seed)
        plain = MCDropout(config.n_samples, restore_prior=False)
        posteriors = networks.fit_seeds(plain, build, split.train, training, config.n_repeats)
        asks = {"plain": [partial(_ask, posterior, None) for posterior in posteriors]}
        if prior.restorable:
            models = [calibrate_prior(posterior.networks[0], *split.train) for posterior in posteriors]
            asks["restored"] = [partial(_ask, model, MCDropout(config.n_samples)) for model in models]
    for kind, repeats in asks.items():
        predictions = [ask(grid) for ask in repeats]
        results[f"mean, {kind}"] = np.stack([p.mean[:, 0].cpu().numpy() for p in predictions])
        results[f"std, {kind}"] = np.stack([p.epistemic_variance[:, 0].sqrt().cpu().numpy() for p in predictions])
        results[f"places, {kind}"] = np.array([[_mean_std(ask(x)) for x in places] for ask in repeats])
    return results


def _ask(model: Any, method: MCDropout | None, x: Tensor) -> Gaussian:
    return predict(model, x, method, family=Gaussian)


def _mean_std(prediction: Gaussian) -> float:
    return prediction.epistemic_variance.sqrt().mean().item()
