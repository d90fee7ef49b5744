"""Ways to train for an epoch: over rows in memory, or over batches of an iterable. ``_cuda_graph`` has a third way."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from stationary.nn.init import seeded
from stationary.nn.inputs import suited
from stationary.nn.running import batches, call, evaluating, outputs_of
from stationary.training._by_hand import ByHand
from stationary.training._members import Trainees
from stationary.training.data import Data, Rows, checked_targets

if TYPE_CHECKING:
    from stationary.training._stacked_adam import Fused

AfterStep = Callable[[], object]
AHEAD = 2**18  # numbers of inputs that are gathered at a time: a gather takes longer than many a step


class Epochs(Protocol):
    """A way to train: the members, and what they do in an epoch."""

    members: Trainees

    @property
    def fused(self) -> "Fused | None":
        """What the optimizer has to know of fused layers; None without any."""

    def train(self, epoch: int, optimizer: Optimizer, after_step: AfterStep) -> list[float]:
        """Train for one epoch, and return the mean loss of each member.

        Args:
            epoch: number of the epoch, from 1.
            optimizer: optimizer of the members' parameters.
            after_step: function to call after each step.
        """

    def __len__(self) -> int:
        """The number of steps in an epoch."""


class InMemory:
    """Epochs over rows in memory, in an order that each member's generator draws.

    Args:
        members: the networks to train.
        data: the rows to train on, on the device of the members.
        size: number of rows in a batch; None for all.
    """

    fused = None

    def __init__(self, members: Trainees, data: Rows, size: int | None) -> None:
        self.members, self.data, self.size = members, data, size or data.rows.shape[1]

    def __len__(self) -> int:
        return -(-self.data.rows.shape[1] // self.size)

    def train(self, epoch: int, optimizer: Optimizer, after_step: AfterStep) -> list[float]:
        whole = self.size >= self.data.rows.shape[1]
        rows = self.data.rows if whole else self.members.shuffled(self.data)
        return _epoch(self.members, _parts(self.members, self.data, rows, self.size), optimizer, after_step)


class Streamed:
    """Epochs over an iterable of batches, for one network; a new pass begins with each epoch.

    Where the iterable has a method ``set_epoch``, as PyTorch's distributed samplers do, it is called with the number of
    the epoch, from 0, so that a training that is continued sees the batches that it would have seen.

    Args:
        members: the network to train, not stacked.
        data: iterable of batches (x, y), which are moved to the device of the network.
    """

    fused = None

    def __init__(self, members: Trainees, data: Data) -> None:
        self.members, self.data, self.seen = members, data, False

    def __len__(self) -> int:
        try:
            return len(self.data)  # type: ignore[arg-type]
        except TypeError:
            raise ValueError(
                "data must have a length for schedule='one_cycle', which needs the number of steps; got "
                f"{type(self.data).__name__}: use a DataLoader, or schedule='steps'"
            ) from None

    def train(self, epoch: int, optimizer: Optimizer, after_step: AfterStep) -> list[float]:
        if callable(set_epoch := getattr(self.data, "set_epoch", None)):
            set_epoch(epoch - 1)
        return _epoch(self.members, self._batches(), optimizer, after_step)

    def _batches(self) -> Iterator[tuple[Any, Tensor, Tensor]]:
        for x, y, weight in streamed(self.members, self.data):
            if not self.seen:
                check_outputs(self.members, x, y)
                self.seen = True
            yield x, y, weight


def _epoch(
    members: Trainees, parts: Iterator[tuple[Any, Tensor, Tensor]], optimizer: Optimizer, after_step: AfterStep
) -> list[float]:
    members.set_mode(training=True)
    gradients = ByHand(members).gradients if ByHand.suits(members) else partial(_gradients, members)
    sums = []
    for part in parts:
        optimizer.zero_grad()
        sums.append(gradients(*part))
        optimizer.step()
        after_step()
    return _mean(sums)


def _gradients(members: Trainees, x: Any, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Set the gradients of all parameters, and return the weighted losses and the weights of the batch, (K,) each."""
    loss, total = members.sums(x, y, weight, dropout=True)
    (loss / total).sum().backward()  # members share no parameter, so each gets its own gradient
    return loss.detach(), total


def evaluate(members: Trainees, data: Rows | Data, size: int | None) -> list[float]:
    """The mean loss of each member on validation data, without dropout, in batches of this size (None for all rows)."""
    members.set_mode(training=False)
    if isinstance(data, Rows):
        parts = _parts(members, data, data.rows, size or data.rows.shape[1])
    else:
        parts = streamed(members, data, "validation ")
    with torch.no_grad():
        return _mean([members.sums(*part, dropout=False) for part in parts])


def _parts(members: Trainees, data: Rows, rows: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches x, y and weight of the rows: (K, b, ...) for stacked members, (b, ...) for a network by itself."""
    ahead = max(1, AHEAD // (size * data.x[0].numel()))
    for some in rows.split(ahead * size, dim=1):
        mine = some.expand(len(members.models), -1) if members.stacked else some[0]
        gathered = data.x[mine], data.y[mine], data.weights(mine)
        yield from zip(*(tensor.split(size, mine.ndim - 1) for tensor in gathered), strict=True)


def streamed(members: Trainees, data: Data, name: str = "") -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Batches x, y and weight of an iterable, on the device of the members; each row has the weight 1."""
    for x, y in batches(data, model=members.models[0]):
        if y is None:
            raise ValueError(
                f"{name}data must give batches (x, y), got inputs without targets; a DataLoader of a "
                "TensorDataset(x, y) gives both"
            )
        y = suited(checked_targets(y, members.losses.loss, name), members.models[0])
        yield x, y, torch.ones(len(y), device=y.device)


def check_outputs(members: Trainees, x: Any, y: Tensor) -> None:
    """Raise an error unless the outputs of the networks for x have the columns that the targets y need."""
    loss = members.losses.loss
    if loss == "own":
        return
    with evaluating(members.models[0]), seeded(0, members.device):
        result = call(members.models[0], x)
    if loss == "beta_nll":
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(part, Tensor) for part in result):
            raise ValueError(
                f"build must make networks that return a pair, mean and noise variance, for loss='beta_nll'; got "
                f"{type(result).__name__}: wrap a network of {2 * y.shape[1]} outputs, two for each target, in "
                "stationary.MeanAndNoise"
            )
        result, _ = result
    outputs = outputs_of(result)
    classes = loss == "cross_entropy"
    width = int(y.max()) + 1 if classes else y.shape[1]
    if outputs.shape[1] < width or (outputs.shape[1] > width and not classes):
        raise ValueError(
            f"build must make networks that return a tensor (n, {width}{' or more' if classes else ''}), one column "
            f"for each {'class' if classes else 'target'} in y; got a tensor {tuple(outputs.shape)} for {len(outputs)} "
            "inputs: give the last layer as many outputs"
        )


def _mean(sums: list[tuple[Tensor, Tensor]]) -> list[float]:
    loss, weight = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
    return (loss / weight).tolist()
