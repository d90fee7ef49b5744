"""Detectors of pytorch-ood and scikit-learn on the features and outputs of the deterministic network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stationary._extras import extra
from stationary.lab.experiments.arena.methods.base import Fitted, Judged, lowest
from stationary.lab.experiments.arena.protocol import PROTOCOL
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.torchvision_operators import declare

with extra("experiments"):
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor


def _beside_the_network(task: Task, score: Callable[[Tensor], Tensor], **chosen: float) -> Fitted:
    return Fitted(lambda x: Judged(task.network(x).softmax(-1), score(x)), chosen)


def _pytorch_ood() -> Any:
    declare()
    with extra("arena"):
        from pytorch_ood import detector
    return detector


def of_outputs(name: str) -> Callable[[Task, int], Fitted]:
    """Return the fit of a detector that needs the network's outputs alone."""

    def fitted(task: Task, seed: int) -> Fitted:
        kind = getattr(_pytorch_ood(), name)
        detector = kind(task.network).to("cpu")
        return _beside_the_network(task, detector.predict)

    return fitted


def of_feature_maps(name: str) -> Callable[[Task, int], Fitted]:
    """Return the fit of a detector that changes the features, as maps of one pixel, in front of the last layer."""

    def fitted(task: Task, seed: int) -> Fitted:
        x, y = task.train
        kind = getattr(_pytorch_ood(), name)
        detector = kind(lambda x: x[:, :, None, None], lambda maps: task.network(maps.flatten(1))).to("cpu")
        if detector.requires_fit:
            detector.fit_feature_maps(x[:, :, None, None], y)
        return _beside_the_network(task, detector.predict)

    return fitted


def of_features(
    name: str, settings: Callable[[Task], tuple[Any, ...]] = lambda task: ()
) -> Callable[[Task, int], Fitted]:
    """Return the fit of a detector that learns the features of the training rows.

    Args:
        name: name of the detector in pytorch-ood.
        settings: function from a task to the arguments of the detector behind the encoder.
    """

    def fitted(task: Task, seed: int) -> Fitted:
        kind = getattr(_pytorch_ood(), name)
        detector = kind(None, *settings(task)).to("cpu").fit_features(*task.train)
        return _beside_the_network(task, detector.predict_features)

    return fitted


def vim_settings(task: Task) -> tuple[Any, ...]:
    return task.n_features // 2, task.network.weight, task.network.bias


def ddu(task: Task, seed: int) -> Fitted:
    """Fit a Gaussian to each class; the validation rows choose what is added to the diagonals of the covariances."""
    GMM = _pytorch_ood().GMM

    def likely(reg: float) -> tuple[float, tuple[float, Any]]:
        detector = GMM(None, reg).to("cpu").fit_features(*task.train)
        scores = [detector.predict_features(some) for some in task.validation[0].split(500)]
        return torch.cat(scores).mean().item(), (reg, detector)

    ((_, grid),) = PROTOCOL["ddu"].grid
    reg, detector = lowest(likely, grid)
    return _beside_the_network(task, detector.predict_features, reg=reg)


def lof(task: Task, seed: int) -> Fitted:
    return _beside_the_network(task, _negated(LocalOutlierFactor(novelty=True).fit(task.train[0].numpy())))


def isolation_forest(task: Task, seed: int) -> Fitted:
    return _beside_the_network(task, _negated(IsolationForest(random_state=seed).fit(task.train[0].numpy())))


def _negated(detector: Any) -> Callable[[Tensor], Tensor]:
    """Return scores that are higher farther out; scikit-learn's are lower."""
    return lambda x: -torch.from_numpy(detector.score_samples(x.numpy()))
