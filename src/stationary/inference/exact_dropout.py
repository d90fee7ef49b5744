"""Dropout before the last layer without a single sample: the mean over all masks, in closed form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stationary.inference._readout import WIDE, Readout, check_dropout, find_readout
from stationary.inference._replay import of_network
from stationary.inference._units import of_classes
from stationary.inference.base import Method, Networks, only_network, run
from stationary.nn.inputs import prepared
from stationary.nn.running import Inputs, evaluating, wants_gradients
from stationary.predictive import CHUNK, NODES, Categorical, Gaussian, Joint, Members, P, normal_nodes
from stationary.theory import logistic
from stationary.training import Data


@dataclass(frozen=True)
class ExactDropout(Method):
    """The limit of MC dropout with infinitely many samples, deterministic, for dropout before the last linear layer.

    The mean and the covariance of the outputs are exact, and a regression needs nothing else. For two classes the
    probability, the entropies and the mutual information are exact as well, up to the tolerance in one-dimensional
    integrals (``stationary.theory.logistic``). For more classes the outputs are taken as Gaussian with the exact
    moments. The noise of a regression that depends on the input (``MeanAndNoise``) is its exact mean over all masks.

    Args:
        approximate: whether to take the outputs as Gaussian for two classes too. On a CPU it costs about as much; on a
            GPU there is no kernel for it, and it takes several times as long.
        last_layer: whether to use only the dropout before the last linear layer, with the other dropout layers off. By
            default a network with other active dropout layers is an error.
        restore_prior: whether to add the prior variance that a finite network lacks far from its data. By default it
            is added where ``calibrate_prior`` was called; True makes it an error where it was not, False leaves it out.
        tolerance: absolute error allowed to the probabilities, the expected log probabilities and the entropies of two
            classes, from 1e-12 to 0.01, before they are rounded to the network's dtype. On the CPU it may be larger
            where logits spread over more than 10^4 (``stationary.theory.logistic``).
    """

    approximate: bool = False
    last_layer: bool = False
    restore_prior: bool | None = None
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not 1e-12 <= self.tolerance <= 0.01:
            raise ValueError(
                f"tolerance must be from 1e-12 to 0.01, got {self.tolerance!r}; float64 gives no more than 1e-12, and "
                "more than 0.01 saves no time"
            )

    def check(self, network: nn.Module, *, sample_weight: Tensor | None = None) -> None:
        check_dropout(network)

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
    """One trained network, which predicts with the mean over all dropout masks."""

    method: ExactDropout
    networks: tuple[nn.Module, ...]

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        if keep_samples:
            raise ValueError(
                "keep_samples must be False for ExactDropout, which takes no samples; got True: use MCDropout"
            )
        predicted: Callable[[Inputs], tuple[Any, bool]] = partial(self._predicted, family)
        return of_network(self.networks[0], (self.method, family), predicted, x)

    def _predicted(self, family: type[P], x: Inputs) -> tuple[P | Categorical | Gaussian, bool]:
        """The prediction, and whether it was made by operations that wait for nothing on a GPU."""
        with evaluating(self.networks[0]):
            if family is Categorical and (made := of_classes(self.networks[0], x, self.method)) is not None:
                return made, False
            readout = self._readout(x)
            exact_pair = len(readout.weight) == 2 and not self.method.approximate
            if family is Categorical and (exact_pair or len(readout.weight) > 2) and has_kernel(readout):
                return _fused(readout, self.method.tolerance), True
            if family is Categorical and exact_pair:
                return _two_classes(readout, self.method.tolerance), False
            if family is Categorical and len(readout.weight) > WIDE:
                return _many_classes(readout), False
            restored = readout.members.prior is not None
            if family is Gaussian:  # needs no covariance
                mean = readout.members.outputs[0]
                return Gaussian(mean, readout.variance(), readout.noise(), prior_restored=restored), True
            return family.from_moments(*readout.moments(), prior_restored=restored), False

    def moments(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """The exact mean (n, c) and covariance (n, c, c) of the network's outputs over all dropout masks."""
        with evaluating(self.networks[0]):
            return self._readout(x).moments()

    def output_mean(self, x: Inputs) -> Tensor:
        """The exact mean (n, c) alone, a plain pass: the last layer is linear, and a mask is 1 on average."""
        with evaluating(self.networks[0]):
            return run(self.networks[0], x, restore_prior=False).outputs[0]

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The joint distribution of the outputs at all rows of x over masks that they share; differentiable in x.

        Output k has the covariance p / (1 - p) Phi diag(w_k^2) Phi^T between the rows, whose features are Phi (n, h).
        The restored prior adds to the diagonal, as if what it restores at two inputs were independent.

        Args:
            x: one batch of inputs.
            group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes
                all rows together.
        """
        x = prepared(x, self.networks[0])
        with evaluating(self.networks[0], gradients=wants_gradients(x)):
            readout = self._readout(x)
            mean, prior = readout.members.outputs[0], readout.members.prior
            factors = (readout.drop / (1 - readout.drop)) ** 0.5 * readout.features * readout.weight[:, None]
            extra = torch.zeros_like(mean) if prior is None else prior[0]
            return Joint.of_rows(mean, factors, extra, readout.noise(), group_size)

    def _readout(self, x: Inputs) -> Readout:
        method = self.method
        readout = find_readout(self.networks[0], x, last_layer=method.last_layer, restore_prior=method.restore_prior)
        if readout is None:
            raise ValueError(
                "ExactDropout needs the model's only active dropout to be before its last linear layer; use MCDropout, "
                "or ExactDropout(last_layer=True) to leave the other dropout layers off"
            )
        return readout


def has_kernel(readout: Readout) -> bool:
    """Whether the fused kernels can average this readout: it must be float32, on CUDA, and not too wide."""
    if not readout.fusible:
        return False
    from stationary.inference import _exact_dropout_triton as kernel

    return readout.features.shape[1] <= kernel.MAX_HIDDEN and len(readout.weight) <= kernel.MAX_CLASSES


def _fused(readout: Readout, tolerance: float) -> Categorical:
    """All statistics in one launch on a GPU."""
    from stationary.inference import _exact_dropout_triton as kernel

    mean, prior = readout.members.outputs[0], None if readout.members.prior is None else readout.members.prior[0]
    features, weight, bias, drop = readout.features, readout.weight, readout.bias, readout.drop
    if len(weight) == 2:
        probs, log_probs, entropy, variance = kernel.launch_two(
            features, weight, bias, drop, prior=prior, tolerance=tolerance
        )
    else:
        probs, log_probs, entropy, variance = kernel.launch_many(mean, features, weight, drop, prior=prior)
    return Categorical(probs, log_probs, entropy, mean, variance, prior_restored=prior is not None)


def _two_classes(readout: Readout, tolerance: float) -> Categorical:
    mean = readout.members.outputs[0]
    offset = (readout.bias[1] - readout.bias[0]).expand(len(mean))
    prior = readout.members.prior
    variance = torch.zeros_like(offset) if prior is None else prior[0].sum(-1)
    difference = readout.weight[1] - readout.weight[0]
    expected = logistic.of_dropout(offset, readout.features, readout.drop, variance, tolerance, factors=difference)
    return Categorical.from_logistic(expected, mean, readout.variance(), prior_restored=prior is not None)


def _many_classes(readout: Readout) -> Categorical:
    """The expectation over the Gaussian outputs by points in the space of the hidden units.

    W diag(phi) sqrt(p / (1 - p)) is a square root of the covariance, so that the covariance itself is never needed.
    """
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
