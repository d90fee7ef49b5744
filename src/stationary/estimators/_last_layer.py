"""What rows do not say of the last layer of a trained network: most of what a regression does not know in a gap.

Networks that were trained to the end agree where there are no rows, and dropout hardly makes them differ. But given
the features phi(x) of a network, the rows leave the weights of its last layer uncertain. With weights from
N(0, s^2 / l) and noise of variance s^2 their posterior is known in closed form (Bishop, Pattern Recognition and Machine
Learning, section 3.3), and adds to the variance of the mean

    v(x) = s^2 phi(x)^T (Phi^T Phi + l I)^-1 phi(x),

where s^2 and l have the highest evidence of the rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stationary.inference import Posterior
from stationary.inference.base import joint_of
from stationary.nn.restored_prior import only_head
from stationary.nn.running import Inputs, call, evaluating, wants_gradients
from stationary.predictive import Gaussian, Joint

RIDGES = torch.logspace(-12, 2, 141, dtype=torch.float64)  # values of l to try, relative to the largest eigenvalue
LEAST = 1e-12  # smallest share of the targets' squares that is noise


class LastLayer(NamedTuple):
    """The uncertainty of the last layer of one network: the posterior of its weights, and of its biases.

    Attributes:
        axes: (h + 1, r) orthogonal directions that the features of the rows have, and a 1 for the bias.
        scales: (m, r) standard deviations of the weights of each output along them.
        prior: (m,) standard deviation of the weights of each output in all other directions.
    """

    axes: Tensor
    scales: Tensor
    prior: Tensor

    @classmethod
    def of_rows(cls, network: nn.Module, x: Tensor, y: Tensor, weight: Tensor, batch_size: int) -> "LastLayer":
        """Given n rows: inputs (n, d), targets (n, m) of mean 0, weights (n, 1) of mean 1, and rows in a pass."""
        with _features(network) as features:
            phi = weight.sqrt() * torch.cat([features(some) for some in x.split(batch_size)]).double()
        product = phi.mT @ (weight.sqrt() * y)
        if phi.shape[1] <= len(phi):
            d, axes = torch.linalg.eigh(phi.mT @ phi)  # = U diag(d) U^T
        else:
            _, singular, across = torch.linalg.svd(phi, full_matrices=False)
            d, axes = singular.square(), across.mT
        d, squares = d.clamp(min=0), (weight * y.square()).sum(0)
        ridges = d.max() * RIDGES.to(d)[:, None, None]  # (k, 1, 1) values of l
        left = squares - ((axes.mT @ product).mT.square() / (d + ridges)).sum(-1)  # (k, m), n s^2 by each of them
        left = left.clamp(min=LEAST * squares)
        evidence = -len(y) * left.log() - torch.log1p(d / ridges).sum(-1)  # twice its logarithm, but for a constant
        best = evidence.argmax(0)
        variance, ridge = left.gather(0, best[None])[0] / len(y), ridges[best, 0, 0]  # (m,)
        return cls(axes, (variance[:, None] / (d + ridge[:, None])).sqrt(), (variance / ridge).sqrt())

    def factors(self, phi: Tensor) -> Tensor:
        """(m, n, k) numbers whose products over k are covariances of the outputs where the features are (n, h + 1)."""
        phi = phi.to(self.axes)
        along = phi @ self.axes
        factors = along * self.scales[:, None]
        if self.axes.shape[0] == self.axes.shape[1]:
            return factors
        return torch.cat([factors, (phi - along @ self.axes.mT) * self.prior[:, None, None]], -1)


@dataclass(frozen=True)
class WithLastLayer:
    """A posterior of a regression, and the uncertainty of the last layer that its networks have.

    By the law of total variance the mean over the networks of v(x) adds to the variance between them.

    Args:
        base: the posterior; its networks have one head each.
        layers: the last layers of its networks.
    """

    base: Posterior
    layers: tuple[LastLayer, ...]
    family = Gaussian

    @classmethod
    def of_rows(cls, base: Posterior, x: Tensor, y: Tensor, weight: Tensor, batch_size: int) -> "WithLastLayer":
        """The last layers given n rows: inputs (n, d), targets (n, m) of mean 0, weights (n,), and rows in a pass.

        The noise of all rows counts as the same, also where the networks know that of each.
        """
        y, weight = y.to(x), (weight / weight.mean()).to(x)[:, None]
        return cls(base, tuple(LastLayer.of_rows(network, x, y, weight, batch_size) for network in base.networks))

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The networks of the posterior."""
        return self.base.networks

    @property
    def method(self) -> Any:
        """The method of the posterior."""
        return self.base.method  # type: ignore[attr-defined]

    @property
    def output_mean(self) -> Any:
        """The function for the mean alone, where the posterior has one."""
        return self.base.output_mean  # type: ignore[attr-defined]

    def predict(self, x: Inputs, family: type[Any], *, keep_samples: bool = False) -> Any:
        """The prediction of one batch."""
        pred = self.base.predict(x, family, keep_samples=keep_samples)
        if not isinstance(pred, Gaussian):
            return pred
        missing = self._factors(x).square().sum(-1).mT
        return replace(pred, epistemic_variance=pred.epistemic_variance + missing.to(pred.mean))

    def joint(self, x: Inputs, *, group_size: int | None = None) -> Joint:
        """The joint distribution at all rows of x, or of each group of them; differentiable in x."""
        joint, factors = joint_of(self.base, x, group_size=group_size), self._factors(x)
        zero = torch.zeros_like(factors[..., 0].mT)
        missing = Joint.of_rows(zero, factors, zero, zero, group_size)
        return replace(joint, covariance=joint.covariance + missing.covariance.to(joint.mean))

    def _factors(self, x: Inputs) -> Tensor:
        """(m, n, k) numbers whose products over k are the covariances of the last layers' outputs at the rows of x."""
        each = []
        for network, layer in zip(self.networks, self.layers, strict=True):
            with _features(network, gradients=wants_gradients(x)) as features:
                each.append(layer.factors(features(x)))
        return torch.cat(each, -1) / len(each) ** 0.5


@contextmanager
def _features(network: nn.Module, *, gradients: bool = False) -> Iterator[Any]:
    """Inside, a function from inputs to the (n, h + 1) features that the last layer reads, and a 1 for its bias."""
    found: list[Tensor] = []

    def features(x: Inputs) -> Tensor:
        call(network, x)
        phi = found.pop()
        return torch.cat([phi, torch.ones_like(phi[:, :1])], -1)

    with evaluating(network, gradients=gradients):
        handle = only_head(network).dropout.register_forward_pre_hook(lambda _, args: found.append(args[0]))
        try:
            yield features
        finally:
            handle.remove()
