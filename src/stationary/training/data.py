"""What networks train on: a pair of tensors, or any iterable of batches."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stationary.nn.inputs import is_array, prepared, tensor_of
from stationary.nn.running import Inputs, batches

REAL = ("mse", "beta_nll")  # losses of real targets
Pair: TypeAlias = tuple[Tensor, Tensor]
Data: TypeAlias = Pair | Iterable[Any]  # (x, y), or batches of (x, y) such as those of a DataLoader


def is_pair(data: object) -> TypeGuard[Pair]:
    """Whether the data are two tensors or arrays; else they are an iterable of batches."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    arrays = [isinstance(part, Tensor) or is_array(part) for part in data]
    if any(arrays) and not all(arrays):
        raise TypeError(
            f"data must be two tensors or arrays (x, y), or an iterable of batches of such; got a pair of "
            f"{' and '.join(type(part).__name__ for part in data)}: torch.tensor makes a tensor of numbers, and a "
            "mapping with its targets is a batch, [(x, y)]"
        )
    return all(arrays)


def tensors_of(pair: Pair) -> Pair:
    """Both as tensors."""
    return tensor_of(pair[0], "x"), tensor_of(pair[1], "y")


def labelled(data: Data, size: int | None, network: nn.Module, name: str) -> Iterator[tuple[Any, Tensor]]:
    """Batches of inputs and targets, after a check of both.

    Args:
        data: a pair of tensors or arrays, or batches of (x, y).
        size: number of rows in a batch of a pair; None for all.
        network: network that the inputs are for, as ``batches`` takes it.
        name: name of the data in errors.
    """
    if is_pair(data):
        x, y = tensors_of(data)
        if len(x) != len(y):
            raise ValueError(f"{name} must have as many inputs as targets, got {len(x)} and {len(y)}")
        parts = zip(
            batches(prepared(data[0], network, name), size, name=name), y.split(size or max(1, len(y))), strict=True
        )
        pairs: Iterable[tuple[Any, Tensor | None]] = ((part, targets) for (part, _), targets in parts)
    else:
        pairs = batches(data, model=network, name=name)
    for x, targets in pairs:
        if targets is None:
            raise ValueError(f"{name} must give batches (x, y), got inputs without targets")
        if not isinstance(targets, Tensor):
            raise TypeError(f"{name} must have targets that are tensors or arrays, got {type(targets).__name__}")
        if targets.is_floating_point():
            finite = targets.isfinite().all()
            if not finite:
                raise ValueError(f"{name} must have finite targets, got NaN or infinity; drop such rows")
        yield x, targets


def marks_of(x: Inputs) -> Tensor:
    """(n,) a 63-bit number for each row of a batch of inputs, which depends on its content alone."""
    parts = [x] if isinstance(x, Tensor) else [x[name] for name in sorted(x)]
    raw = [part.detach().cpu().contiguous().reshape(len(part), -1).view(torch.uint8).numpy() for part in parts]
    digests = [
        hashlib.blake2b(b"".join(part[i].tobytes() for part in raw), digest_size=8).digest() for i in range(len(raw[0]))
    ]
    return torch.tensor([int.from_bytes(digest, "little") >> 1 for digest in digests], dtype=torch.int64)


def refuse_known(marks: Tensor, used: Tensor | None, name: str, consequence: str) -> None:
    """Raise an error where rows have chosen something of a posterior before.

    Args:
        marks: (n,) numbers by which the rows are known again.
        used: those of the rows that have chosen; None for none.
        name, consequence: what the error calls the rows, and what it says would come of them.
    """
    again = 0 if used is None else int(torch.isin(marks, used.cpu()).sum())
    if again:
        raise ValueError(
            f"{name} must be rows that have chosen nothing before, got {again} that chose numbers of the posterior "
            f"(validation=, or calibrate): with them {consequence}; split them off before"
        )


class Rows(NamedTuple):
    """The rows of x and y that each of K members trains on.

    Args:
        x, y: (n, ...) inputs and targets of all members together.
        weight: (n,) weight of each row in the loss.
        rows: (1 or K, n') indices of the rows that each member sees, one line for all or one for each; -1 fills up the
            line of a member that has fewer.
        counts: number of rows of each member, 1 or K numbers.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    rows: Tensor
    counts: tuple[int, ...]

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """The data of several members as one; what members share is stored once."""
        n = max(part.rows.shape[1] for part in parts)
        unique = {id(part): part for part in parts}
        starts = dict(zip(unique, accumulate((len(part.x) for part in unique.values()), initial=0), strict=False))
        rows = [F.pad(part.rows + starts[id(part)], (0, n - part.rows.shape[1]), value=-1) for part in parts]
        x, y, weight = (torch.cat(tensors) for tensors in list(zip(*unique.values(), strict=True))[:3])
        return cls(x, y, weight, torch.cat(rows), tuple(part.counts[0] for part in parts))

    def some(self) -> tuple[Tensor, Tensor]:
        """The first two inputs, and all targets that are trained on."""
        return self.x[:2], self.y[self.rows[self.rows >= 0]]

    def weights(self, rows: Tensor) -> Tensor:
        """The weights of these rows, 0 for the index -1."""
        return torch.where(rows >= 0, self.weight[rows], 0.0)


def checked(x: Tensor, y: Tensor, loss: str, weight: Tensor | None = None, name: str = "") -> Rows:
    """The data on the device of x, after a check; rows of weight 0 are neither checked nor trained on.

    Args:
        x, y: (n, ...) inputs and targets.
        loss: name of the loss, which decides what the targets must be.
        weight: (n,) weight of each row in the loss; 1 by default.
        name: what error messages put before "x" and "y", such as "validation ".
    """
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"{name}x and y must have the same number of rows, at least one; got {len(x)} and {len(y)}")
    y = checked_targets(y, loss, name)
    weight = torch.ones(len(x)) if weight is None else torch.as_tensor(tensor_of(weight, "sample_weight"))
    if weight.shape != (len(x),) or not (weight.isfinite() & (weight >= 0)).all() or not weight.any():
        span = f", from {weight.min().item():g} to {weight.max().item():g}" if weight.numel() else ""
        raise ValueError(
            f"sample_weight must be finite, at least 0, not all 0, and of shape ({len(x)},); got shape "
            f"{tuple(weight.shape)}{span}"
        )
    y, weight = y.to(x.device), weight.to(x.device)
    rows = weight.nonzero().T
    for letter, values in (("x", x), ("y", y)):
        bad = rows[0, ~values.reshape(len(x), -1).isfinite().all(1)[rows[0]]]
        if len(bad):
            raise ValueError(
                f"{name}{letter} must be finite, got NaN or infinity in row {bad[0].item()}; drop such rows"
            )
    if loss == "cross_entropy" and y[rows].min() < 0:
        raise ValueError(f"{name}y must be class indices from 0, got {y.min().item()}; map the labels to 0, 1, ...")
    if rows.shape[1] < len(x):  # what may be in the others, NaN perhaps, must not come near the loss
        x, y, weight = x[rows[0]], y[rows[0]], weight[rows[0]]
        rows = torch.arange(len(x), device=x.device)[None]
    return Rows(x, y, weight, rows, (rows.shape[1],))


def checked_targets(y: Tensor, loss: str, name: str = "") -> Tensor:
    """The targets, after a check that their shape and type suit the loss; class indices are returned as int64."""
    if loss == "cross_entropy" and (y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool):
        raise ValueError(
            f"{name}y must be class indices (n,), integers, for loss='cross_entropy'; got {tuple(y.shape)} {y.dtype}: "
            "use y.long(), or loss='mse' for real targets"
        )
    if loss in REAL and (y.ndim != 2 or not y.is_floating_point()):
        raise ValueError(
            f"{name}y must be real targets (n, m) for loss={loss!r}; got {tuple(y.shape)} {y.dtype}: use y.float() "
            "and, for a single target, y[:, None]"
        )
    return y.long() if loss == "cross_entropy" else y
