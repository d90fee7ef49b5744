"""Training of the networks, and how well each measure tells unknown digits from known ones."""

from functools import partial
from typing import Any

import numpy as np
import torch

from stationary import metrics
from stationary._extras import extra
from stationary.inference import ExactDropout, InfiniteWidth, predict
from stationary.lab.experiments import networks, paper
from stationary.lab.experiments.digits.config import INFINITE, MEASURES, Config
from stationary.lab.runs.store import Arrays
from stationary.nn import MLP
from stationary.nn.restored_prior import calibrate_prior
from stationary.training import Training

with extra("experiments"):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

HELD_OUT = 0.2  # share of the training images that a trunk is not trained on, for infinite width


def run(config: Config, device: str = "cpu") -> Arrays:
    """Train networks on the known digits; return their errors, and each measure of known and unknown test digits."""
    images, labels = load_digits(return_X_y=True)
    known = labels < 5
    rows, test_rows = train_test_split(known.nonzero()[0], random_state=config.seed)
    x = torch.tensor(images / 16, dtype=torch.float32, device=device)
    y = torch.tensor(labels, device=device)
    prior = paper.look_up(paper.TRAINABLE, INFINITE.get(config.prior, config.prior), "prior")
    train = held = x[rows], y[rows]
    if config.prior in INFINITE:
        train, held = networks.held_out(train, HELD_OUT, config.seed)
    activation = networks.activation(prior, config.lengthscale, code_scale=True)
    build = partial(MLP, 64, 5, hidden=config.hidden, activation=activation, dropout=config.dropout)
    training = Training(
        epochs=config.epochs, batch_size=config.batch_size, learning_rate=config.learning_rate, seed=config.seed
    )
    posteriors = networks.fit_seeds(ExactDropout(), build, train, training, config.n_seeds)
    models: list[Any] = [posterior.networks[0] for posterior in posteriors]
    kinds = ["plain"]
    if config.prior in INFINITE:
        limit = InfiniteWidth(prior.name)
        models = [limit.posterior([model], train, validation=held) for model in models]
    elif prior.restorable:
        models = [calibrate_prior(model, x[rows]) for model in models]
        kinds.append("restored")
    results: Arrays = {}
    for kind in kinds:
        method = None if config.prior in INFINITE else ExactDropout(restore_prior=kind == "restored")
        inside = [predict(model, x[test_rows], method) for model in models]
        outside = [predict(model, x[~known], method) for model in models]
        if kind == "plain":
            results["accuracy"] = np.array([metrics.accuracy(p, y[test_rows]) for p in inside])
            results["nlpd"] = np.array([metrics.nlpd(p, y[test_rows]) for p in inside])
            results["unknown_nlpd"] = np.array([metrics.unknown_nlpd(p).value for p in outside])
        for measure in MEASURES:
            scores = [[getattr(p, measure)() for p in predictions] for predictions in (inside, outside)]
            results[f"auroc {measure}, {kind}"] = np.array([metrics.auroc(a, b) for a, b in zip(*scores, strict=True)])
            results[f"known {measure}, {kind}"] = torch.cat(scores[0]).cpu().numpy()
            results[f"unknown {measure}, {kind}"] = torch.cat(scores[1]).cpu().numpy()
    return results
