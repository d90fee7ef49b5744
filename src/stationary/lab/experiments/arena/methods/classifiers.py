"""Other classifiers on the same features: last-layer Laplace, VBLL, MC dropout, ensembles, logistic regression."""

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stationary._extras import extra
from stationary.inference import Ensemble, MCDropout, Posterior
from stationary.lab.experiments.arena.methods.base import (
    Fitted,
    by_doubt,
    by_entropy,
    lowest,
    nlpd,
    probabilities,
    trained,
    training,
)
from stationary.lab.experiments.arena.protocol import PROTOCOL
from stationary.lab.experiments.arena.tasks import Standardised, Task, folded
from stationary.lab.runs import inside
from stationary.lab.torchvision_operators import declare
from stationary.nn import StationaryHead
from stationary.nn.init import seeded

with extra("experiments"):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

HIDDEN, SAMPLES = 512, 100  # units of a head; samples of weights, masks or outputs
FLAT = 1e-6  # standard deviation of a column that varies by rounding alone
WEIGHT_DECAYS = (0.0, 1e-5, 1e-4, 1e-3)


def linear_layer(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], n_classes: int, seed: int
) -> nn.Linear:
    """Train the last layer of the deterministic network where the features are frozen and it has none."""
    task = Task(train, validation, validation, {}, nn.Linear(train[0].shape[1], n_classes))

    def candidate(weight_decay: float) -> tuple[float, Posterior]:
        build = lambda: nn.Linear(task.n_features, n_classes)  # noqa: E731
        posterior = trained(task, build, training(seed, weight_decay))
        return nlpd(probabilities(posterior, validation[0]), validation[1]), posterior

    network = lowest(candidate, WEIGHT_DECAYS).networks[0]
    assert isinstance(network, Standardised)
    return folded(network)


def laplace(task: Task, seed: int) -> Fitted:
    """Make the last layer of the deterministic network Gaussian, by laplace-torch.

    A layer behind standardised columns, folded onto the columns themselves, has huge weights where a column hardly
    varies. These go into the bias, since else the one prior precision of all weights would have to fit them.
    """
    declare()  # it imports torchvision where that is installed
    with extra("arena"):
        from laplace import Laplace
    layer = nn.utils.skip_init(nn.Linear, task.n_features, task.n_classes)
    layer.load_state_dict(task.network.state_dict())  # with gradients, and not shared with other methods
    spread, mean = torch.std_mean(task.train[0], 0)
    flat = (spread > 0) & (spread < FLAT)
    with torch.no_grad():
        layer.bias += layer.weight[:, flat] @ mean[flat]
        layer.weight[:, flat] = 0
    model = Laplace(nn.Sequential(layer), "classification", subset_of_weights="all", hessian_structure="kron")
    model.fit(DataLoader(TensorDataset(*task.train), 500))
    model.optimize_prior_precision(method="marglik")

    def judge(x: Tensor) -> Tensor:
        with seeded(seed, x.device):  # the same weights for every batch
            return model(x, pred_type="nn", link_approx="mc", n_samples=SAMPLES)

    return Fitted(lambda x: by_entropy(judge(x)), {"prior_precision": float(model.prior_precision.mean())})


def vbll_outputs(layer: Any, x: Tensor) -> Any:
    """Return the outputs of a layer of vbll for all rows, by two products; its own code takes two for each row."""
    weights = layer.W()
    return type(weights)(x @ weights.mean.mT, (x.square() @ weights.var.mT).sqrt()) + layer.noise()


def vbll(task: Task, seed: int) -> Fitted:
    """Train the last layer of the package vbll on standardised columns, with its own loss."""
    with extra("arena"):
        from vbll import DiscClassification
    columns = Standardised(task.train[0], nn.Identity())
    (x, y), (held, labels) = ((columns(x), y) for x, y in (task.train, task.validation))

    def probs(layer: Any, x: Tensor) -> Tensor:
        with seeded(seed, x.device), torch.no_grad():
            return layer.predictive(x, SAMPLES)

    def candidate(wishart_scale: float) -> tuple[float, tuple[float, Any]]:
        layer = DiscClassification(task.n_features, task.n_classes, 1 / len(x), "diagonal", wishart_scale=wishart_scale)
        layer.logit_predictive = partial(vbll_outputs, layer)
        optimizer = torch.optim.Adam(layer.parameters(), training(seed).learning_rate)
        best, kept, since = float("inf"), layer.state_dict(), 0
        watch = inside.watched(training(seed).epochs)
        for epoch in range(training(seed).epochs):
            watch.epoch(epoch)
            for rows in torch.randperm(len(x)).split(training(seed).batch_size or len(x)):
                optimizer.zero_grad()
                layer._get_train_loss_fn(x[rows])(y[rows]).backward()  # layer(x) would sample probabilities too
                optimizer.step()
            loss, since = nlpd(probs(layer, held), labels), since + 1
            if loss < best:
                best, kept, since = loss, {key: value.clone() for key, value in layer.state_dict().items()}, 0
            if since == training(seed).patience:
                break
        layer.load_state_dict(kept)
        return best, (wishart_scale, layer)

    ((_, grid),) = PROTOCOL["vbll"].grid
    with seeded(seed, torch.device("cpu")):
        scale, layer = lowest(candidate, grid)
    return Fitted(lambda x: by_doubt(probs(layer, columns(x))), {"wishart_scale": scale})


def relu_head(task: Task, dropout: float) -> StationaryHead:
    return StationaryHead(task.n_features, task.n_classes, hidden=HIDDEN, activation="relu", dropout=dropout)


def mc_dropout(task: Task, seed: int) -> Fitted:
    """Train a head of ReLU units with dropout, and keep dropping when it predicts."""
    x, y = task.validation

    def candidate(dropout: float) -> tuple[float, tuple[float, Posterior]]:
        posterior = trained(task, lambda: relu_head(task, dropout), training(seed), MCDropout(SAMPLES))
        return nlpd(probabilities(posterior, x), y), (dropout, posterior)

    ((_, grid),) = PROTOCOL["mc dropout"].grid
    dropout, posterior = lowest(candidate, grid)
    return Fitted(lambda x: by_entropy(probabilities(posterior, x)), {"dropout": dropout})


def ensemble(task: Task, seed: int) -> Fitted:
    """Average five trunks, or where the features are frozen five heads of ReLU units."""
    if task.members:
        layers = task.members
        return Fitted(
            lambda x: by_entropy(
                torch.stack(
                    [layer(some).softmax(-1) for layer, some in zip(layers, x.chunk(len(layers), 1), strict=True)]
                ).mean(0)
            )
        )
    posterior = trained(task, lambda: relu_head(task, 0.0), training(5 * seed), Ensemble(5))
    return Fitted(lambda x: by_entropy(probabilities(posterior, x)))


def logistic_regression(task: Task, seed: int) -> Fitted:
    (x, y), (held, labels) = task.train, task.validation

    def candidate(C: float) -> tuple[float, tuple[float, Any]]:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=300))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the protocol says how many iterations there are
            model.fit(x.numpy(), y.numpy())
        return nlpd(torch.from_numpy(model.predict_proba(held.numpy())), labels), (C, model)

    ((_, grid),) = PROTOCOL["logistic regression"].grid
    C, model = lowest(candidate, grid)
    return Fitted(lambda x: by_doubt(torch.from_numpy(model.predict_proba(x.numpy()))), {"C": C})
