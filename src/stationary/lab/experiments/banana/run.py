"""Gaussian processes, networks and infinite width, and what they believe on a grid and on circles around the data."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stationary import metrics
from stationary.gp import kernels
from stationary.inference import ExactDropout, InfiniteWidth, MCDropout, Point, Posterior, fit, predict
from stationary.lab.baselines.exact import VGP, gp_training
from stationary.lab.data import Split, banana
from stationary.lab.experiments import networks, paper
from stationary.lab.experiments.banana.config import CIRCLES, INFINITE, Config
from stationary.lab.runs import inside
from stationary.lab.runs.store import Arrays
from stationary.nn import MLP, StationaryHead
from stationary.nn.restored_prior import calibrate_prior
from stationary.predictive import Categorical

KERNELS: dict[str, Any] = {
    "step": kernels.ArcCos0Kernel,
    "relu": kernels.ArcCos1Kernel,
    "erf": kernels.ErfNNKernel,
    "rbf": kernels.RBFNNKernel,
    "matern52": partial(kernels.MaternKernel, 2.5),
}
HELD_OUT = 0.25  # share of the 400 points that a trunk is not trained on


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train the model; return its maps on the grid, its errors, and its uncertainty at each place for each seed."""
    split = banana.load().to(device)
    side = torch.linspace(-config.extent, config.extent, config.resolution, device=device)
    grid = torch.cartesian_prod(side, side)
    places = {"data": split.x_train} | {f"radius {r}": circle(r, device) for r in (4, 8, 20)}
    results: Arrays = {"x": split.x_train.cpu().numpy(), "y": split.y_train.cpu().numpy()}
    if config.model == "gp":
        build = VGP().builder(KERNELS[config.prior](), split.train)
        watch = inside.watched(config.vgp_steps)
        training = gp_training(config.vgp_steps)
        gp = fit(VGP(), build, split.train, training, progress=watch.epoch, checkpoint=watch.checkpoint)
        ask = partial(predict, gp, batch_size=5000)
        seeds = [{"plain": ask}]
        drawn = boundary = ask(grid)
    elif config.model in INFINITE:
        seeds = [{"plain": partial(predict, posterior, batch_size=5000)} for posterior in infinite_width(config, split)]
        drawn = boundary = seeds[0]["plain"](grid)
    else:
        prior = paper.look_up(paper.TRAINABLE, config.prior, "prior")
        head = partial(
            StationaryHead,
            2,
            2,
            hidden=config.hidden,
            activation=networks.activation(prior, config.lengthscale, code_scale=True),
            dropout=config.dropout,
        )
        training = networks.toy_training(config.epochs, seed=config.seed)
        plain = ExactDropout(restore_prior=False)
        posteriors = networks.fit_seeds(plain, head, split.train, training, config.n_seeds)
        models = [posterior.networks[0] for posterior in posteriors]
        seeds = []
        for model, posterior in zip(models, posteriors, strict=True):
            asks = {"plain": partial(predict, posterior)}
            if prior.restorable:
                calibrate_prior(model, split.x_train)
                asks["restored"] = partial(predict, model, method=ExactDropout(restore_prior=True))
            seeds.append(asks)
        sampled = MCDropout(config.n_samples, restore_prior=False)
        drawn, boundary = predict(models[0], grid, sampled, batch_size=10_000), predict(models[0], grid, Point())
        if "restored" in seeds[0]:
            results["total, restored map"] = as_map(seeds[0]["restored"](grid).bernoulli_std(), config)
        for i, posterior in enumerate(posteriors):  # the picture of every seed is drawn by the closed form
            results[f"seed {i}"] = as_map(predict(posterior, grid).bernoulli_std(), config)
    results["total"], results["epistemic"] = (
        as_map(drawn.bernoulli_std(), config),
        as_map(drawn.mutual_information(), config),
    )
    results["boundary"] = as_map(boundary.probs[:, 1], config)
    tested = [asks["plain"](split.x_test) for asks in seeds]
    results["nlpd"] = np.array([metrics.nlpd(prediction, split.y_test) for prediction in tested])
    results["accuracy"] = np.array([metrics.accuracy(prediction, split.y_test) for prediction in tested])
    for kind in seeds[0]:
        predictions = [[asks[kind](x) for x in places.values()] for asks in seeds]
        results[f"total, {kind}"] = np.array([[mean_std(p) for p in row] for row in predictions])
        results[f"epistemic, {kind}"] = np.array(
            [[p.mutual_information().mean().item() for p in row] for row in predictions]
        )
        results[f"least, {kind}"] = np.array(
            [[asks[kind](circle(r, device)).bernoulli_std().min().item() for r in CIRCLES] for asks in seeds]
        )
    return results


def infinite_width(config: Config, split: Split) -> list[Posterior]:
    """Make the one posterior on the two columns, or one for each seed on a trunk that is trained with a finite head."""
    kernel = InfiniteWidth(config.prior)
    if config.model == "infinite width":
        return [kernel.posterior([nn.Linear(2, 2).to(split.x_train)], split.train)]
    train, held = networks.held_out(split.train, HELD_OUT, config.seed)
    build = partial(MLP, 2, 2, hidden=(config.hidden,) * 3, activation=config.prior, dropout=config.dropout)
    trained = networks.fit_seeds(Point(), build, train, networks.toy_training(config.epochs), config.n_seeds)
    return [kernel.posterior(posterior.networks, train, validation=held) for posterior in trained]


def circle(radius: float, device: str) -> Tensor:
    angle = torch.linspace(0, 2 * math.pi, 361, device=device)[:-1]
    return radius * torch.stack([angle.cos(), angle.sin()], -1)


def mean_std(prediction: Categorical) -> float:
    return prediction.bernoulli_std().mean().item()


def as_map(values: Tensor, config: Config) -> np.ndarray[Any, Any]:
    """Return values on the grid as an image, with rows for x2 and columns for x1."""
    return values.view(config.resolution, config.resolution).mT.float().cpu().numpy()
