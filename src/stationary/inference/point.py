"""The network as it is: a single member, without dropout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stationary.inference.base import Method, Networks, only_network, run
from stationary.nn.running import Inputs, evaluating
from stationary.predictive import Joint, P
from stationary.training import Data


@dataclass(frozen=True)
class Point(Method):
    """One deterministic pass of the network; the only variance is that of the restored prior, where it is calibrated.

    Args:
        restore_prior: whether to add the prior variance that a finite network lacks far from its data. By default it
            is added where ``calibrate_prior`` was called; True makes it an error where it was not, False leaves it out.
    """

    restore_prior: bool | None = None

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "PointPosterior":
        return PointPosterior(self, (only_network(networks, self),))


@dataclass(frozen=True)
class PointPosterior:
    """One trained network, which predicts in a single pass."""

    method: Point
    networks: tuple[nn.Module, ...]

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """An error: a single network has no joint distribution."""
        raise ValueError(
            "Point has no joint distribution, since a single pass has no uncertainty to share between inputs; use "
            "InfiniteWidth, ExactDropout, Laplace, MCDropout, Ensemble or SWAG"
        )

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        [network] = self.networks
        with evaluating(network):
            members = run(network, x, self.method.restore_prior)
        return family.from_members([members], 1, keep_samples=keep_samples)
