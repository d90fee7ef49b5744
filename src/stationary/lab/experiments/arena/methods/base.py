"""What a fitted method is, and what several families share: training a head, and choosing from a grid."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from stationary.inference import Method, Point, Posterior, fit, predict
from stationary.lab.experiments.arena.tasks import Standardised, Task
from stationary.lab.runs import inside
from stationary.metrics import doubt
from stationary.training import Training

BATCH = 500  # number of rows in one prediction


class Judged(NamedTuple):
    """What a method says of some inputs.

    Args:
        probs: probabilities of the known classes, (n, c).
        scores: how far out each input looks, (n,); higher is farther.
        others: other scores by name, which are stored beside the one that judges.
    """

    probs: Tensor
    scores: Tensor
    others: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Fitted:
    """A method that is fitted to a task.

    Args:
        judge: function from features (n, d) to what the method says of them.
        chosen: numbers that the validation rows chose, by name.
    """

    judge: Callable[[Tensor], Judged]
    chosen: dict[str, float] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Judged:
        with torch.no_grad():
            parts = [self.judge(some) for some in x.split(BATCH)]
        others = {name: _joined(part.others[name] for part in parts) for name in parts[0].others}
        return Judged(_joined(part.probs for part in parts), _joined(part.scores for part in parts), others)


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().double() for part in parts])


Fit: TypeAlias = Callable[[Task, int], Fitted]  # from a task and a seed
T = TypeVar("T")


def by_doubt(probs: Tensor) -> Judged:
    """Judge by 1 - max p."""
    return Judged(probs, doubt(probs))


def by_entropy(probs: Tensor) -> Judged:
    """Judge by the entropy of p."""
    return Judged(probs, torch.special.entr(probs).sum(-1))


def nlpd(probs: Tensor, y: Tensor) -> float:
    return -probs.double().gather(1, y[:, None]).log().mean().item()


def lowest(candidate: Callable[[float], tuple[float, T]], grid: Iterable[float]) -> T:
    """Return what a candidate gives with the lowest number, for the value of the grid that comes first of equals."""
    return min(map(candidate, inside.parts(grid, "candidate")), key=lambda found: found[0])[1]


def training(seed: int, weight_decay: float = 0.0) -> Training:
    return Training(epochs=100, batch_size=200, learning_rate=1e-3, weight_decay=weight_decay, patience=10, seed=seed)


def trained(task: Task, build: Callable[[], nn.Module], how: Training, method: Method | None = None) -> Posterior:
    """Train heads on standardised columns, each until the loss of the validation rows no longer falls."""
    watch = inside.watched(how.epochs)
    return fit(
        method or Point(),
        lambda: Standardised(task.train[0], build()),
        task.train,
        how,
        validation=task.validation,
        progress=watch.epoch,
        checkpoint=watch.checkpoint,
    )


def probabilities(posterior: Posterior, x: Tensor) -> Tensor:
    return predict(posterior, x).probs
