"""What the kinds of prediction share: rows, files, and sums over members, some at a time, in O(n c) memory."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from stationary._files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

P = TypeVar("P", bound="Predictive")

NODES = 64  # points for a Gaussian over outputs; for ten classes the error is half that of 100 random samples
SHOWN, ENDS = 3, 4  # of what is printed: rows, and columns from either end
CHUNK = 2**18  # outputs that are computed at a time: about the cache of a core


PRIOR_MISSING = (
    "the head's activation decays and its prior was not calibrated: far from the data the epistemic uncertainty "
    "vanishes, and the network looks sure; call stationary.calibrate_prior(model, x_train) after training, or give the "
    "method restore_prior=False to leave it so"
)


class Members(NamedTuple):
    """Some members of a posterior at n inputs.

    Attributes:
        outputs: (s, n, c) outputs of the s members.
        prior: (1 or s, n, c) variance of the restored prior; None where it is not restored.
        noise: (s, n, c) noise variance that each member of a regression predicts; None where it predicts none.
    """

    outputs: Tensor
    prior: Tensor | None = None
    noise: Tensor | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """A prediction for n inputs: the base of ``Categorical``, ``Gaussian`` and ``Bernoulli``.

    What it is made of are attributes: tensors whose first dimension is that of the inputs, except for ``samples``,
    whose second one is. What is computed from them are methods.

    Args:
        prior_restored: whether the prediction includes the prior variance that ``calibrate_prior`` restores.
        prior_missing: whether ``calibrate_prior`` would have restored one, and was not called: epistemic measures then
            vanish far from the data, and warn.
    """

    kind: ClassVar[str]
    prior_restored: bool = field(default=False, kw_only=True)
    prior_missing: bool = field(default=False, kw_only=True)

    @classmethod
    def from_members(cls: type[P], members: Iterable[Members], n_members: int, *, keep_samples: bool = False) -> P:
        """The prediction of the members of a posterior.

        Args:
            members: the members, some at a time.
            n_members: number of members in all.
            keep_samples: whether the prediction keeps the outputs of all members.
        """
        raise NotImplementedError

    @classmethod
    def from_moments(cls: type[P], mean: Tensor, covariance: Tensor, *, prior_restored: bool = False) -> P:
        """The prediction of outputs with this mean (n, c) and covariance (n, c, c)."""
        raise NotImplementedError

    def distribution(self) -> Distribution:
        """The prediction as an object of ``torch.distributions``."""
        raise NotImplementedError

    def columns(self) -> dict[str, Tensor]:
        """(n,) each, by name: what a person wants to see of it."""
        raise NotImplementedError

    def sample(self, n_samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Targets drawn from the prediction, (n_samples, n) classes or (n_samples, n, m) values or labels.

        Args:
            n_samples: number of targets to draw for each input.
            generator: source of randomness, on the prediction's device; by default PyTorch's own.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))

    def __getitem__(self: P, rows: Any) -> P:
        """The prediction for some inputs: a number, a slice, numbers or a mask. One input stays a batch of one."""
        if isinstance(rows, int) and not -len(self) <= rows < len(self):
            raise IndexError(f"rows must be in [{-len(self)}, {len(self)}), got {rows}; len(pred) is {len(self)}")
        if not isinstance(rows, slice):
            rows = torch.atleast_1d(torch.as_tensor(rows))
            rows = rows if len(rows) else rows.long()  # an empty list has no type
        chosen: dict[str, Any] = {
            name: value[:, rows] if name == "samples" else value[rows] for name, value in self.tensors().items()
        }
        return replace(self, **chosen)

    def __repr__(self) -> str:
        columns = [
            [name, *(f"{value:.4g}" for value in values[:SHOWN].tolist())] for name, values in self.columns().items()
        ]
        if len(columns) > 2 * ENDS:
            columns[ENDS:-ENDS] = [["..."] * len(columns[0])]
        widths = [max(map(len, column)) for column in columns]
        rows = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in zip(*columns, strict=True)
        ]
        head = f"{type(self).__name__} of {len(self)} inputs{', prior restored' * self.prior_restored}"
        return "\n".join([head, *rows, *["..."] * (len(self) > SHOWN)])

    def to_pandas(self) -> "pd.DataFrame":
        """The prediction as a table of pandas, a row for each input."""
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ImportError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pd.DataFrame({name: values.cpu().numpy() for name, values in self.columns().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}

    def to(self: P, device: str | torch.device) -> P:
        """The same prediction on another device."""
        moved: dict[str, Any] = {name: value.to(device) for name, value in self.tensors().items()}
        return replace(self, **moved)

    @classmethod
    def concatenate(cls: type[P], parts: Sequence[P]) -> P:
        """The predictions of consecutive batches as one prediction."""
        if not parts:
            raise ValueError("parts must have at least one prediction, got none")
        if len(parts) == 1:
            return parts[0]
        tensors = [part.tensors() for part in parts]
        joined: dict[str, Any] = {
            n: torch.cat([t[n] for t in tensors], dim=1 if n == "samples" else 0) for n in tensors[0]
        }
        return replace(parts[0], **joined)

    def save(self, path: str | Path) -> Path:
        """Write the prediction to a NumPy archive (.npz), which is never half written, and return its path."""
        arrays: dict[str, Any] = {name: value.cpu().numpy() for name, value in self.tensors().items()}
        path = Path(path)
        arrays |= {"kind": self.kind, "prior_restored": self.prior_restored, "prior_missing": self.prior_missing}
        return write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))

    @classmethod
    def load(cls: type[P], path: str | Path) -> P:
        """The prediction that ``save`` wrote to this path."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        if (kind := str(arrays.pop("kind", "no known kind"))) != cls.kind:
            raise ValueError(
                f"{path} must hold a {cls.kind} prediction, got {kind}; load it with the class of that kind"
            )
        parts: dict[str, Any] = {name: bool(arrays.pop(name, False)) for name in ("prior_restored", "prior_missing")}
        parts |= {name: torch.from_numpy(value) for name, value in arrays.items()}
        return cls(**parts)

    def _warn_of_missing_prior(self) -> None:
        """Warn where an epistemic measure is asked for, and ``calibrate_prior`` was not called."""
        if self.prior_missing:
            warnings.warn(PRIOR_MISSING, UserWarning, stacklevel=3)


class Sums:
    """Running sums of tensors over their first dimension."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []
        self.count = 0

    def add(self, *tensors: Tensor) -> None:
        new = [tensor.sum(0) for tensor in tensors]
        self.sums = [a + b for a, b in zip(self.sums, new, strict=True)] if self.sums else new
        self.count += len(tensors[0])

    def mean(self) -> list[Tensor]:
        return [total / self.count for total in self.sums]


class Moments:
    """Running mean and variance over the first dimension, taken about the first member to lose no digits."""

    def __init__(self) -> None:
        self.sums, self.first = Sums(), torch.empty(0)

    def add(self, z: Tensor, extra_variance: Tensor) -> None:
        if not self.sums.count:
            self.first = z[0].clone()
        deviation = z - self.first
        self.sums.add(deviation, deviation.square() + extra_variance)

    def mean(self) -> Tensor:
        return self.first + self.sums.mean()[0]

    def variance(self) -> Tensor:
        mean, square = self.sums.mean()
        return (square - mean.square()).clamp(min=0)


@lru_cache(maxsize=16)
def normal_nodes(n: int, dim: int) -> Tensor:
    """(n, dim) points of the standard normal distribution.

    They are scrambled Sobol points and their mirror images, scaled to unit variance in each dimension.
    """
    with torch.inference_mode(False):  # the cache keeps them, and gradients may need them later
        half = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(math.ceil(n / 2), dtype=torch.float64)
        points = torch.special.ndtri(half.clamp(1e-9, 1 - 1e-9))
        points = points / points.square().mean(0).sqrt()
        return torch.stack([points, -points], 1).flatten(0, 1)[:n]


def square_root(covariance: Tensor) -> Tensor:
    """A lower triangular square root L of covariances, L L^T, which may be singular or, by rounding, indefinite.

    It is the Cholesky factor, with a diagonal that is raised by a few units of rounding. Where that fails, as after
    products in TF32, which round much more, it comes from eigenvalues: the most negative one shows the rounding, and
    none is taken as less than its size. Its diagonal is not below 0 then either: the nodes of ``normal_nodes`` give
    other answers where a column has the other sign.
    """
    scale = covariance.diagonal(dim1=-2, dim2=-1).amax(-1)
    jitter = (rounding(covariance) * scale).clamp(min=torch.finfo(covariance.dtype).tiny)
    raised = covariance + jitter[:, None, None] * torch.eye(covariance.shape[-1]).to(covariance)
    factor, info = torch.linalg.cholesky_ex(raised)
    failed = info > 0
    if failed.any():
        values, vectors = torch.linalg.eigh(covariance[failed])
        roots = torch.maximum(values, values[:, :1].abs()).sqrt()
        upper = torch.linalg.qr((vectors * roots[:, None]).mT).R
        signs = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper)
        factor[failed] = upper.mT * signs[:, None]
    return factor


def rounding(covariance: Tensor) -> float:
    """The share of the largest variance that is added to all of them, a few units of rounding."""
    return 10 * covariance.shape[-1] * torch.finfo(covariance.dtype).eps


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, or as it is where its dtype has more digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
