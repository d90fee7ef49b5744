"""Dropout before the last layer without a single sample: the mean over all masks, in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stationary.inference._readout import Readout, find_readout
from stationary.inference.base import Method, Networks, only_network
from stationary.nn.running import Inputs, evaluating
from stationary.predictive import CHUNK, NODES, Categorical, Gaussian, Members, P, normal_nodes
from stationary.theory import logistic
from stationary.training import Data

WIDE = 64  # more classes than this: a c x c covariance for each input would cost more than the network


@dataclass(frozen=True)
class ExactDropout(Method):
    """The limit of MC dropout with infinitely many samples, deterministic, for dropout before the last linear layer.

    Mean and covariance of the outputs are exact: all there is to know in regression. For two classes the
    probability, the entropies and the mutual information are exact as well, by one-dimensional integrals (1e-12; see
    ``stationary.theory.logistic``). For more classes the outputs are taken as Gaussian with the exact moments.

    Args:
        approximate: take the outputs as Gaussian for two classes too: an order of magnitude cheaper.
        last_layer: other dropout layers are off instead of an error.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data; by default
            where ``calibrate_prior`` was called.
    """

    approximate: bool = False
    last_layer: bool = False
    restore_prior: bool | None = None

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> "ExactDropoutPosterior":
        return ExactDropoutPosterior(self, (only_network(networks, self),))


@dataclass(frozen=True)
class ExactDropoutPosterior:
    method: ExactDropout
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        if keep_samples:
            raise ValueError("keep_samples=True has nothing to keep, ExactDropout takes no samples; use MCDropout")
        with evaluating(self.networks[0]):
            readout = self._readout(x)
            if family is Categorical and len(readout.weight) == 2 and not self.method.approximate:
                return _two_classes(readout)  # type: ignore[return-value]
            if family is Categorical and len(readout.weight) > WIDE:
                return _many_classes(readout)  # type: ignore[return-value]
            restored = readout.members.prior is not None
            if family is Gaussian:  # needs no covariance
                mean = readout.members.outputs[0]
                return Gaussian(mean, readout.variance(), torch.zeros_like(mean), prior_restored=restored)  # type: ignore[return-value]
            return family.from_moments(*readout.moments(), prior_restored=restored)

    def moments(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Exact mean (n, c) and covariance (n, c, c) of the network's outputs."""
        with evaluating(self.networks[0]):
            return self._readout(x).moments()

    def _readout(self, x: Inputs) -> Readout:
        method = self.method
        readout = find_readout(self.networks[0], x, last_layer=method.last_layer, restore_prior=method.restore_prior)
        if readout is None:
            raise ValueError(
                "ExactDropout needs the model's only active dropout to be before its last linear layer; use MCDropout, "
                "or ExactDropout(last_layer=True) to leave the other dropout layers off"
            )
        return readout


def _two_classes(readout: Readout) -> Categorical:
    mean = readout.members.outputs[0]
    weights = readout.features * (readout.weight[1] - readout.weight[0])
    offset = (readout.bias[1] - readout.bias[0]).expand(len(mean))
    prior = readout.members.prior
    variance = torch.zeros_like(offset) if prior is None else prior[0].sum(-1)
    expected = logistic.of_dropout(offset, weights, readout.drop, variance)
    return Categorical.from_logistic(expected, mean, readout.variance(), prior_restored=prior is not None)


def _many_classes(readout: Readout) -> Categorical:
    """The same Gaussian by points in the space of hidden units: W diag(phi) sqrt(p / (1 - p)) is its square root."""
    weight = readout.weight * (readout.drop / (1 - readout.drop)) ** 0.5
    mean, columns, (c, hidden) = readout.members.outputs[0], readout.features.T.contiguous(), weight.shape
    nodes = normal_nodes(NODES, hidden).to(weight)
    chunks = (
        Members(
            ((some[:, None] * weight).flatten(0, 1) @ columns).view(-1, c, len(mean)).mT + mean, readout.members.prior
        )
        for some in nodes.split(max(1, CHUNK // mean.numel()))
    )
    result = Categorical.from_members(chunks, NODES)
    return replace(result, output_mean=mean, output_variance=readout.variance())
