"""Deep ensembles (Lakshminarayanan et al., 2017): networks that differ in their initialisation and order of data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stationary.inference.base import Method, Networks, run
from stationary.nn.inputs import prepared
from stationary.nn.running import Inputs, evaluating, wants_gradients
from stationary.predictive import Joint, Members, P
from stationary.training import Data


@dataclass(frozen=True)
class Ensemble(Method):
    """The members of the posterior are networks; ``fit`` trains member k with the seed ``training.seed + k``.

    Args:
        size: number of networks that ``fit`` trains.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data. By default it
            is added where ``calibrate_prior`` was called; True makes it an error where it was not, False leaves it out.
    """

    size: int = 5
    restore_prior: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 2:
            raise ValueError(f"size must be an integer, at least 2; got {self.size!r}; use Point() for one network")

    @property
    def n_networks(self) -> int:
        return self.size

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "EnsemblePosterior":
        """The posterior of trained networks, given as a sequence or as an ``nn.ModuleList``."""
        if isinstance(networks, nn.Module) and not isinstance(networks, nn.ModuleList):
            raise ValueError(
                f"Ensemble needs several trained networks, got one {type(networks).__name__}; pass a list of them to "
                "Ensemble().posterior, or train them with stationary.fit(Ensemble(), ...)"
            )
        if len(networks) < 2:
            raise ValueError(f"Ensemble needs at least 2 networks, got {len(networks)}; use Point() for one network")
        return EnsemblePosterior(self, tuple(networks))


@dataclass(frozen=True)
class EnsemblePosterior:
    """Several trained networks, whose predictions are averaged."""

    method: Ensemble
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        return family.from_members(self.members(x), len(self.networks), keep_samples=keep_samples)

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The mean and covariance over the networks of the outputs at all rows of x; differentiable in x.

        Args:
            x: one batch of inputs.
            group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes
                all rows together.
        """
        x = prepared(x, self.networks[0])
        return Joint.from_members(self.members(x, gradients=wants_gradients(x)), group_size)

    def members(self, x: Inputs, *, gradients: bool = False) -> Iterator[Members]:
        """The outputs of the networks, one network at a time; ``gradients`` says whether they are differentiable."""
        for network in self.networks:
            with evaluating(network, gradients=gradients):
                member = run(network, x, self.method.restore_prior)
            yield member
