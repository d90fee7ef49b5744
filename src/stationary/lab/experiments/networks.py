"""What the experiments' networks share: the paper's activations by name, and the training of its small networks."""

import math

import torch
from torch import nn

from stationary.activations import RBF, Matern, Sine, Step
from stationary.activations import activation as activation_by_name
from stationary.inference import Method, Posterior, fit_folds
from stationary.lab.experiments.paper import NUS, Prior
from stationary.lab.runs import inside
from stationary.training import Build, Training
from stationary.training.data import Pair


def activation(prior: Prior, lengthscale: float, *, code_scale: bool) -> nn.Module:
    """Return an activation of the paper.

    Args:
        prior: which activation, and its variant. With the variant "surrogate", gradients are those of a jump that is
            blurred by the length-scale.
        lengthscale: length-scale of the Matérn activations, and of the RBF unless ``code_scale``.
        code_scale: whether activations are scaled as in the authors' published code, whose Matérn activations have the
            variance lambda / nu = 2 / (lengthscale sqrt(2 nu)) instead of 1, and whose RBF is e^(-x^2).
    """
    surrogate = lengthscale if prior.variant == "surrogate" else None
    if prior.name in NUS:
        nu = NUS[prior.name]
        variance = 2 / (lengthscale * math.sqrt(2 * nu)) if code_scale else 1.0
        return Matern(nu, lengthscale, variance, surrogate=surrogate, learnable=prior.variant == "learnable")
    if prior.name == "step":
        return Step(surrogate=surrogate)
    if prior.name == "siren":
        return Sine(1.0)  # the paper does not state the frequency
    if prior.name == "rbf":
        return RBF(1.0, math.sqrt(math.pi / 2)) if code_scale else RBF(lengthscale)
    return activation_by_name(prior.name)


def fit_seeds(method: Method, build: Build, data: Pair, training: Training, n: int, *, of: int = 1) -> list[Posterior]:
    """Fit n posteriors to the same data with the seeds ``training.seed``, ``training.seed`` + 1, and so on.

    Args:
        method, build, data, training: as for ``fit``.
        n: number of posteriors.
        of: number of such calls in the run, for its progress.
    """
    seeds, watch = range(training.seed, training.seed + n), inside.watched(training.epochs, of=of)
    return fit_folds(
        method, build, [data] * n, training, seeds=seeds, progress=watch.epoch, checkpoint=watch.checkpoint
    )


def held_out(data: Pair, share: float, seed: int) -> tuple[Pair, Pair]:
    """Divide rows at random into those to train on, and a share that only chooses a posterior's numbers."""
    x, y = data
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    held, rows = order.tensor_split([round(share * len(x))])
    return (x[rows], y[rows]), (x[held], y[held])


def toy_training(epochs: int, *, loss: str = "cross_entropy", seed: int = 0) -> Training:
    """Return the training of the paper's small networks, with Adam on all rows at once.

    The learning rate is 0.02, and divided by 10 at the epochs 250, 500 and 1000.

    Args:
        epochs: number of epochs.
        loss: the loss, as for ``Training``.
        seed: seed of the first network.
    """
    return Training(
        loss=loss, epochs=epochs, batch_size=None, learning_rate=0.02, milestones=(250, 500, 1000), seed=seed
    )
