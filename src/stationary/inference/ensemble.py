"""Deep ensembles (Lakshminarayanan et al., 2017): networks that differ in their initialisation and order of data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from stationary.inference.base import Build, Data, Inputs, evaluating, run
from stationary.predictive import Members, P
from stationary.training import Training, train


@dataclass(frozen=True)
class Ensemble:
    """Members are networks; ``fit`` trains them in lockstep, member k with the seed ``training.seed + k``.

    Args:
        size: networks that ``fit`` trains.
        restore_prior: add the missing prior variance; by default where ``calibrate_prior`` was called.
    """

    size: int = 5
    restore_prior: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 2:
            raise ValueError(f"size must be an integer, at least 2; got {self.size!r}; use Point() for one network")

    def fit(self, build: Build, data: Data, training: Training) -> "EnsemblePosterior":
        return self.posterior(train(build, *data, training, n_members=self.size))

    def posterior(self, model: nn.Module | Sequence[nn.Module]) -> "EnsemblePosterior":
        """Wrap trained networks: a sequence of them, or an ``nn.ModuleList``."""
        if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
            raise ValueError(
                f"Ensemble needs several trained networks, got one {type(model).__name__}; pass a list of them to "
                "Ensemble().posterior, or train them with Ensemble().fit"
            )
        if len(model) < 2:
            raise ValueError(f"Ensemble needs at least 2 networks, got {len(model)}; use Point() for one network")
        return EnsemblePosterior(self, tuple(model))


@dataclass(frozen=True)
class EnsemblePosterior:
    method: Ensemble
    models: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        return family.from_members(self.members(x), len(self.models), keep_samples=keep_samples)

    def members(self, x: Inputs) -> Iterator[Members]:
        for model in self.models:
            with evaluating(model):
                member = run(model, x, self.method.restore_prior)
            yield member
