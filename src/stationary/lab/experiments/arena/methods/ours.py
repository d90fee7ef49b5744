"""Our heads, by one configuration for all events: finite, with the restored prior, and of infinite width."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from stationary.calibration import calibrate
from stationary.inference import ExactDropout, InfiniteWidth, Posterior, predict
from stationary.lab.experiments.arena.methods.base import Fitted, Judged, by_entropy, probabilities, trained, training
from stationary.lab.experiments.arena.protocol import ROWS_OF_FEATURE
from stationary.lab.experiments.arena.tasks import Task
from stationary.lab.runs import inside
from stationary.nn import StationaryHead
from stationary.nn.restored_prior import calibrate_prior
from stationary.predictive import Categorical

HIDDEN = 512  # as the paper takes it for images


def _finite(task: Task, seed: int) -> Posterior:
    build = lambda: StationaryHead(task.n_features, task.n_classes, hidden=HIDDEN)  # noqa: E731
    return trained(task, build, training(seed), ExactDropout())


def finite_head(task: Task, seed: int) -> Fitted:
    posterior = _finite(task, seed)
    return Fitted(lambda x: by_entropy(probabilities(posterior, x)))


def restored_prior(task: Task, seed: int) -> Fitted:
    posterior = _finite(task, seed)
    calibrate_prior(posterior.networks[0], task.train[0], batch_size=5000)
    return Fitted(lambda x: by_entropy(probabilities(posterior, x)))


def infinite_width(task: Task, seed: int) -> Fitted:
    """Make the posterior on the features, which are a trunk's although the network here begins behind it."""
    return _limit(task, nn.Linear(task.n_features, task.n_classes), InfiniteWidth(geometry="polar", seed=seed))


def from_network(task: Task, seed: int) -> Fitted:
    """Make the posterior that begins with what the network itself says, on features that are whitened in each class."""
    return _limit(task, task.network, InfiniteWidth(geometry="whitened", prior_mean="network", seed=seed))


def with_more_rows(task: Task, seed: int) -> Fitted:
    """Make the same posterior with enough inducing rows to determine a linear layer on many features."""
    return _limit(task, task.network, _of_more_rows(task, seed), by_information)


def calibrated(task: Task, seed: int) -> Fitted:
    """Make that posterior, and correct its probabilities by the validation rows."""
    return _limit(task, task.network, _of_more_rows(task, seed), by_information, correct=True)


def _of_more_rows(task: Task, seed: int) -> InfiniteWidth:
    rows = max(1_000, ROWS_OF_FEATURE * task.n_features)
    return InfiniteWidth(geometry="whitened", prior_mean="network", n_inducing=rows, seed=seed)


def by_energy(probs: Tensor, pred: Categorical) -> Judged:
    return Judged(probs, pred.energy())


def by_information(probs: Tensor, pred: Categorical) -> Judged:
    others = {"energy": pred.energy(), "std": pred.output_variance[:, 0]}
    return Judged(probs, pred.mutual_information(), others)


def _limit(
    task: Task,
    network: nn.Linear,
    method: InfiniteWidth,
    judged: Callable[[Tensor, Categorical], Judged] = by_energy,
    *,
    correct: bool = False,
) -> Fitted:
    """Make the posterior, whose score is that of its prediction at temperature 1."""
    method = replace(method, per_column=False, **inside.of_fit())
    posterior = method.posterior(network, task.train, validation=task.validation)
    untempered, numbers = posterior.untempered(), posterior.numbers
    chosen = {
        "lengthscale": float(numbers.lengthscale),
        "variance": float(numbers.variance),
        "temperature": float(numbers.temperature),
    }
    corrected: Posterior = posterior
    if correct:
        corrected = calibrate(posterior, task.validation, batch_size=5000)
        chosen["temperature of probabilities"] = corrected.temperature
    return Fitted(lambda x: judged(probabilities(corrected, x), predict(untempered, x, family=Categorical)), chosen)
