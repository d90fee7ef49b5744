"""SWAG (Maddox et al., 2019): a Gaussian over the weights, from the end of the path that training takes."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from stationary.inference.base import Method, Networks, only_network, run
from stationary.nn.inputs import prepared
from stationary.nn.running import Inputs, evaluating, wants_gradients
from stationary.predictive import Joint, Members, P
from stationary.training import Data, Training


@dataclass(frozen=True)
class SWAG(Method):
    """The members of the posterior are networks with weights drawn from N(mean, scale (diag + D D^T / (K - 1))).

    The mean and the diagonal variance are those of the weights after each epoch from ``start`` on; the K columns of D
    are the last deviations from the running mean.

    Args:
        n_samples: number of networks to draw, at least 2.
        start: share of the epochs after which weights are collected, in (0, 1).
        rank: number K of deviations to keep; the memory is that of ``rank`` networks.
        learning_rate: constant learning rate while weights are collected. By default the schedule of the training goes
            on. It has an effect with ``schedule="steps"`` only, since "one_cycle" sets the rate at every step.
        scale: factor on the covariance; 0.5 is the value of the paper by Maddox et al.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data. By default it
            is added where ``calibrate_prior`` was called; True makes it an error where it was not, False leaves it out.
        seed: seed of the drawn weights; the same seed gives the same prediction.
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

    def check(self, network: nn.Module, *, sample_weight: Tensor | None = None) -> None:
        for name, module in network.named_modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                raise ValueError(
                    f"SWAG needs a network without running statistics, which would have to be recomputed for each "
                    f"sample; {name!r} is {module}: use GroupNorm or LayerNorm, or Ensemble or MCDropout"
                )

    def observer(self, training: Training) -> "Path":
        first = max(1, round(self.start * training.epochs))
        if training.epochs - first < 2:
            raise ValueError(
                f"start={self.start} of {training.epochs} epochs leaves {training.epochs - first} to collect weights "
                "from, and SWAG needs at least 2; lower start or raise epochs"
            )
        if training.patience is not None:
            raise ValueError(
                f"patience must be None for SWAG, which needs the whole path of training, got {training.patience!r}; "
                "an estimator takes early_stopping=False"
            )
        if self.learning_rate is not None and training.schedule == "one_cycle":
            raise ValueError(
                f"learning_rate of SWAG must be None with schedule='one_cycle', which sets the rate of each step; got "
                f"{self.learning_rate!r}: leave it out, or use schedule='steps'"
            )
        return Path(self.rank, first, self.learning_rate)

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "SWAGPosterior":
        network = only_network(networks, self)
        if not observed:
            raise ValueError(
                f"SWAG needs the path that training takes, and a trained {type(network).__name__} no longer has it; "
                "use stationary.fit(SWAG(), build, data, training), where build may return the trained network"
            )
        [path] = observed
        with torch.no_grad():
            for (_, parameter), mean in zip(
                network.named_parameters(), _named(network, path.mean).values(), strict=True
            ):
                parameter.copy_(mean)
        variance = (path.squares / path.n).clamp(min=0)
        return SWAGPosterior(self, (network,), variance, torch.stack(list(path.deviations)))


class Path:
    """The observer of one network's training: mean, summed squared deviations and last deviations of its weights.

    Args:
        rank: number of deviations to keep.
        first: epoch after which weights are collected.
        learning_rate: constant learning rate from then on, which is multiplied by the factor of each group of
            parameters; None leaves the schedule alone.
    """

    first: int
    learning_rate: float | None
    n: int
    mean: Tensor
    squares: Tensor
    deviations: deque[Tensor]

    def __init__(self, rank: int, first: int, learning_rate: float | None) -> None:
        self.first, self.learning_rate = first, learning_rate
        self.n, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())
        self.deviations = deque(maxlen=rank)

    def __call__(self, epoch: int, parameters: dict[str, Tensor], optimizer: Optimizer) -> None:
        if epoch > self.first:
            self.add(torch.cat([value.detach().flatten() for value in parameters.values()]))
        if epoch >= self.first and self.learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * group["rate"]

    def state_dict(self) -> dict[str, Tensor]:
        """What it has seen, for a checkpoint: the sums, the deviations, and its own settings."""
        kept = torch.stack(list(self.deviations)) if self.deviations else torch.zeros(0)
        return self._settings() | {"n": torch.tensor(self.n), "mean": self.mean, "squares": self.squares, "kept": kept}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from what another path of the same settings has seen.

        Raises:
            ValueError: the other path has other settings.
        """
        for name, value in self._settings().items():
            if not torch.equal(state[name].cpu(), value):
                raise ValueError(
                    f"the checkpoint must come from a training for SWAG with the same {name}, {value:g}; it comes from "
                    f"{state[name]:g}: delete it, or choose another path"
                )
        self.n, self.mean, self.squares = int(state["n"]), state["mean"], state["squares"]
        self.deviations.extend(state["kept"])

    def _settings(self) -> dict[str, Tensor]:
        """The settings as tensors; a learning rate that is left to the schedule is 0."""
        numbers = {"rank": self.deviations.maxlen or 0, "first": self.first, "learning_rate": self.learning_rate or 0.0}
        return {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}

    def add(self, weights: Tensor) -> None:
        """Take in one more point of the path, by Welford's update, which loses no digits by cancellation."""
        before = weights - self.mean
        self.n += 1
        self.mean = self.mean + before / self.n
        self.deviations.append(weights - self.mean)
        self.squares = self.squares + before * self.deviations[-1]


@dataclass(frozen=True)
class SWAGPosterior:
    """One network with the mean weights, and the Gaussian around them."""

    method: SWAG
    networks: tuple[nn.Module, ...]  # one, with the mean weights
    variance: Tensor  # (p,), of each of the p weights
    deviations: Tensor  # (K, p), from the running mean

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        with evaluating(self.networks[0]):
            return family.from_members(self.members(x), self.method.n_samples, keep_samples=keep_samples)

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The mean and covariance over the samples of the outputs at all rows of x; differentiable in x.

        Args:
            x: one batch of inputs.
            group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes
                all rows together.
        """
        x = prepared(x, self.networks[0])
        with evaluating(self.networks[0], gradients=wants_gradients(x)):
            return Joint.from_members(self.members(x), group_size)

    def members(self, x: Inputs) -> Iterator[Members]:
        """The outputs of the samples, one sample at a time; the network must be in eval mode."""
        for weights in self.weights():
            yield run(_With(self.networks[0], weights), x, self.method.restore_prior)

    def weights(self) -> Iterator[Tensor]:
        """The drawn weights, (p,) each, in the order of the network's ``parameters()``."""
        mean, std = parameters_to_vector(self.networks[0].parameters()).detach(), self.variance.sqrt()
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
