"""What rows do not say of the layers of a trained network: most of what a regression does not know in a gap.

Networks that were trained to the end agree where there are no rows, and dropout hardly makes them differ. But as a
linear model on the units phi(x) of a hidden layer, given as they are, the network is uncertain where the rows say
little of these units. With weights from N(0, s^2 / l) and noise of variance s^2 their posterior is known in closed form
(Bishop, Pattern Recognition and Machine Learning, section 3.3), and adds to the variance of the mean

    v(x) = s^2 phi(x)^T (Phi^T Phi + l I)^-1 phi(x),

where s^2 and l have the highest evidence of the rows. The v of all hidden layers add up. With one hidden layer that is
the posterior of the last weights. In a deeper network the last units may take a gap for rows; the first ones, linear in
the inputs but for their activation, do not.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stationary.inference import Posterior
from stationary.inference.base import joint_of
from stationary.nn import MLP
from stationary.nn.running import Inputs, call, evaluating, modules_of, wants_gradients
from stationary.predictive import Gaussian, Joint

RIDGES = torch.logspace(-12, 2, 141, dtype=torch.float64)  # values of l to try, relative to the largest eigenvalue
LEAST = 1e-12  # smallest share of the targets' squares that is noise


class Layer(NamedTuple):
    """A linear model on the units of one hidden layer: the posterior of its weights, and of its biases.

    Attributes:
        axes: (h + 1, r) orthogonal directions that the units of the rows have, and a 1 for the bias.
        scales: (m, r) standard deviations of the weights of each output along them.
        prior: (m,) standard deviation of the weights of each output in all other directions.
    """

    axes: Tensor
    scales: Tensor
    prior: Tensor

    @classmethod
    def of_rows(cls, phi: Tensor, y: Tensor, weight: Tensor) -> "Layer":
        """Given n rows: units and a 1 (n, h + 1), targets (n, m) of mean 0, and weights (n, 1) of mean 1."""
        phi = weight.sqrt() * phi.double()
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
        """(m, n, k) numbers whose products over k are covariances of the outputs where the units are (n, h + 1)."""
        phi = phi.to(self.axes)
        along = phi @ self.axes
        factors = along * self.scales[:, None]
        if self.axes.shape[0] == self.axes.shape[1]:
            return factors
        return torch.cat([factors, (phi - along @ self.axes.mT) * self.prior[:, None, None]], -1)


@dataclass(frozen=True)
class WithLayers:
    """A posterior of a regression by ``MLP`` or linear networks, and what the rows do not say of their layers.

    By the law of total variance the mean over the networks of what v(x) adds up to adds to the variance between them.

    Args:
        base: the posterior.
        layers: the hidden layers of each of its networks.
    """

    base: Posterior
    layers: tuple[tuple[Layer, ...], ...]
    family = Gaussian

    @classmethod
    def of_rows(
        cls, base: Posterior, x: Tensor, y: Tensor, weight: Tensor, batch_size: int, *, last: bool = True
    ) -> "WithLayers":
        """The layers given n rows: inputs (n, d), targets (n, m) of mean 0, weights (n,), and rows in a pass.

        The noise of all rows counts as the same, also where the networks know that of each. The last hidden layer is
        left out where the posterior knows it.
        """
        y, weight = y.to(x), (weight / weight.mean()).to(x)[:, None]
        layers = []
        for network in base.networks:
            with _units(network) as units:
                parts = zip(*(units(some) for some in x.split(batch_size)), strict=True)
                each = [torch.cat(part) for part in parts]
            layers.append(tuple(Layer.of_rows(phi, y, weight) for phi in (each if last else each[:-1])))
        return cls(base, tuple(layers))

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
        """(m, n, k) numbers whose products over k are the covariances of the linear models at the rows of x."""
        each = []
        for network, layers in zip(self.networks, self.layers, strict=True):
            with _units(network, gradients=wants_gradients(x)) as units:
                each += [layer.factors(phi) for layer, phi in zip(layers, units(x), strict=False)]
        return torch.cat(each, -1) / len(self.networks) ** 0.5


@contextmanager
def _units(network: nn.Module, *, gradients: bool = False) -> Iterator[Callable[[Any], list[Tensor]]]:
    """Inside, a function from inputs to the (n, h + 1) units of each hidden layer, and a 1 for the bias.

    A network without hidden layers reads its inputs, which take the place of units.
    """
    mlps = [module for module in modules_of(network) if isinstance(module, MLP)]
    found: list[Tensor] = []

    def units(x: Any) -> list[Tensor]:
        found[:] = [] if mlps else [x]
        call(network, x)
        return [torch.cat([phi, torch.ones_like(phi[:, :1])], -1) for phi in found]

    with evaluating(network, gradients=gradients), ExitStack() as stack:
        for mlp in mlps:
            for activation in [*mlp.trunk][1::2]:
                stack.callback(activation.register_forward_hook(lambda *passed: found.append(passed[-1])).remove)
            stack.callback(mlp.head.dropout.register_forward_pre_hook(lambda _, args: found.append(args[0])).remove)
        yield units
