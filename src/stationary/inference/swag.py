"""SWAG (Maddox et al., 2019): a Gaussian over the weights, from the end of the path that training takes."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from stationary.inference.base import Build, Data, Inputs, evaluating, run
from stationary.predictive import Members, P
from stationary.training import Progress, Training, train


@dataclass(frozen=True)
class SWAG:
    """Members are weights drawn from N(mean, scale (diag + D D^T / (K - 1))).

    Mean and diagonal variance are those of the weights after each epoch from ``start`` on; the K columns of D are the
    last deviations from the running mean.

    Args:
        n_samples: networks to draw.
        start: the share of the epochs after which collection starts, in (0, 1).
        rank: K, the deviations to keep; memory is rank times the number of weights.
        learning_rate: constant while collecting; by default training's own goes on.
        scale: of the covariance; 1/2 is the paper's.
        restore_prior: add the missing prior variance; by default where ``calibrate_prior`` was called.
        seed: of the drawn weights; the same seed gives the same prediction.
    """

    n_samples: int = 30
    start: float = 0.75
    rank: int = 20
    learning_rate: float | None = None
    scale: float = 0.5
    restore_prior: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            "n_samples": (self.n_samples >= 2, "at least 2"),
            "start": (0 < self.start < 1, "in (0, 1)"),
            "rank": (self.rank >= 2, "at least 2"),
            "learning_rate": (self.learning_rate is None or self.learning_rate > 0, "positive, or None"),
            "scale": (0 < self.scale < math.inf, "positive and finite; the paper takes 0.5"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{name} must be {rule}; got {getattr(self, name)!r}")

    def fit(self, build: Build, data: Data, training: Training) -> "SWAGPosterior":
        return self.fit_folds([build], [data], training)[0]

    def fit_folds(
        self,
        builds: Sequence[Build],
        folds: Sequence[Data],
        training: Training,
        *,
        seeds: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list["SWAGPosterior"]:
        """A posterior for each set of data, in lockstep on a GPU; ``seeds`` and ``progress`` are those of ``train``."""
        first = max(1, round(self.start * training.epochs))
        if training.epochs - first < 2:
            raise ValueError(
                f"start={self.start} of {training.epochs} epochs leaves {training.epochs - first} to collect weights "
                "from, and SWAG needs at least 2; lower start or raise epochs"
            )
        if training.patience is not None:
            raise ValueError(f"patience must be None for SWAG, which needs the whole path; got {training.patience!r}")
        paths: list[Path] = []  # where the networks train as one, one path of all; else one for each

        def on_epoch(epoch: int, parameters: dict[str, Tensor], optimizer: Optimizer) -> None:
            if epoch == 1:
                paths.append(Path(self.rank))
            if epoch > first:
                paths[-1].add(torch.cat([value.detach().flatten(1) for value in parameters.values()], 1))
            if epoch >= first and self.learning_rate is not None:
                optimizer.param_groups[0]["lr"] = self.learning_rate

        checked = [partial(_without_batchnorm, build) for build in builds]
        x, y = zip(*folds, strict=True)
        models = train(checked, x, y, training, seeds=seeds, progress=progress, on_epoch=on_epoch)
        rows = [(path, row) for path in paths for row in range(len(path.mean))]
        return [self._collected(model, *row) for model, row in zip(models, rows, strict=True)]

    def _collected(self, model: nn.Module, path: "Path", row: int) -> "SWAGPosterior":
        model.load_state_dict(_named(model, path.mean[row]), strict=False)
        variance = (path.squares[row] / path.n).clamp(min=0)
        return SWAGPosterior(self, model, variance, torch.stack([deviation[row] for deviation in path.deviations]))

    def posterior(self, model: nn.Module) -> "SWAGPosterior":
        raise ValueError(
            f"SWAG needs the path that training takes, and a trained {type(model).__name__} no longer has it; use "
            "SWAG().fit(build, data, training), where build may return the trained network"
        )


class Path:
    """Mean, summed squared deviations and last deviations of the weights so far."""

    n: int
    mean: Tensor
    squares: Tensor

    def __init__(self, rank: int) -> None:
        self.n, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())
        self.deviations: deque[Tensor] = deque(maxlen=rank)

    def add(self, weights: Tensor) -> None:
        """One more point, by Welford's update, which does not cancel."""
        before = weights - self.mean
        self.n += 1
        self.mean = self.mean + before / self.n
        self.deviations.append(weights - self.mean)
        self.squares = self.squares + before * self.deviations[-1]


@dataclass(frozen=True)
class SWAGPosterior:
    method: SWAG
    model: nn.Module  # with the mean weights
    variance: Tensor  # (p,)
    deviations: Tensor  # (K, p)

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        with evaluating(self.model):
            return family.from_members(self.members(x), self.method.n_samples, keep_samples=keep_samples)

    def members(self, x: Inputs) -> Iterator[Members]:
        """The samples, one at a time; the model must be in eval mode."""
        for weights in self.weights():
            yield run(_With(self.model, weights), x, self.method.restore_prior)

    def weights(self) -> Iterator[Tensor]:
        """The drawn weights, (p,) each, in the order of ``model.parameters()``."""
        mean, std = parameters_to_vector(self.model.parameters()).detach(), self.variance.sqrt()
        spread = self.deviations / math.sqrt(len(self.deviations) - 1)
        generator = torch.Generator(mean.device).manual_seed(self.method.seed)
        for _ in range(self.method.n_samples):
            z1, z2 = (torch.empty_like(a).normal_(generator=generator) for a in (mean, spread[:, 0]))
            yield mean + math.sqrt(self.method.scale) * (std * z1 + z2 @ spread)


class _With(nn.Module):
    """The network with other weights; its own are not touched."""

    def __init__(self, model: nn.Module, weights: Tensor) -> None:
        super().__init__()
        self.model, self.parts = model, _named(model, weights)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.model, self.parts, args, kwargs)


def _named(model: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    parts = weights.split([parameter.numel() for parameter in named.values()])
    return {name: part.view_as(p) for part, (name, p) in zip(parts, named.items(), strict=True)}


def _without_batchnorm(build: Build) -> nn.Module:
    model = build()
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ValueError(
                f"SWAG needs a network without running statistics, which would have to be recomputed for each sample; "
                f"{name!r} is {module}: use GroupNorm or LayerNorm, or Ensemble or MCDropout"
            )
    return model
