"""The prediction of classes from sums over the units of a head, which C takes while it computes the units.

A pass of a network writes its units to memory, and each statistic reads them again. But what dropout makes of the
outputs depends on the units phi through few sums, of phi and phi^2 with some weights, and of powers of phi. So a head
as it comes, in float64 on the CPU, needs neither a pass nor hooks (``layer_sums`` in ``_native.c``).
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from stationary import _native
from stationary.activations import Matern
from stationary.activations._cpu import MAX_POWER, MaternTwin
from stationary.activations.functional import matern_twin
from stationary.inference._readout import WIDE
from stationary.inference._replay import as_it_comes
from stationary.nn import MLP, StationaryHead
from stationary.nn.masks import is_active
from stationary.nn.restored_prior import prior_of
from stationary.nn.running import Inputs, modules_of
from stationary.predictive import Categorical
from stationary.theory import logistic

if TYPE_CHECKING:
    from stationary.inference.exact_dropout import ExactDropout

WIDTH = 8  # of the panels in which ``layer_sums`` reads weights


def of_classes(network: nn.Module, x: Inputs, method: "ExactDropout") -> Categorical | None:
    """What the method predicts for rows (n, d) with a network in eval mode; None where C does not cover it."""
    if not isinstance(x, Tensor) or not x.is_cpu or x.ndim != 2 or _native.compiled() is None:
        return None
    head = _plain_head(network)
    if head is None or head.out_features > WIDE or (method.approximate and head.out_features == 2):
        return None
    z = network.trunk(x) if isinstance(network, MLP) and len(network.trunk) else x
    parameters = head.hidden.weight, head.hidden.bias, head.output.weight, head.output.bias
    if z.shape[1] != head.in_features or any(each.dtype != torch.float64 for each in (z, *parameters)):
        return None
    if method.restore_prior and prior_of(head) is None:
        return None
    predicted = _two_classes if head.out_features == 2 else _more_classes
    return predicted(head, z.contiguous(), method.restore_prior is not False, method.tolerance)


def _plain_head(network: nn.Module) -> StationaryHead | None:
    """The head of a network of known layers, whose only dropout and whose activation are those that C knows."""
    head = network.head if type(network) is MLP else network
    if type(head) is not StationaryHead or type(head.activation) is not Matern or type(head.dropout) is not nn.Dropout:
        return None
    activation = head.activation
    linear = type(head.hidden) is type(head.output) is nn.Linear and head.hidden.bias is not None
    known = not activation.learnable and activation.dim == 1 and activation.nu - 0.5 in range(1, MAX_POWER + 1)
    modules = modules_of(network)
    alone = [module for module in modules if is_active(module)] == [head.dropout]
    return head if linear and known and alone and all(map(as_it_comes, modules)) else None


def _two_classes(head: StationaryHead, z: Tensor, restored: bool, tolerance: float) -> Categorical | None:
    (weight, bias), drop, twin = (head.output.weight, head.output.bias), head.dropout.p, _twin(head)
    difference = weight[1] - weight[0]
    factors = difference / (1 - drop)
    scale, loud = logistic.light(math.exp(twin.log_peak) * factors.abs(), drop, tolerance)
    shares, alone = factors / scale.heaviest, nn.functional.one_hot(loud, len(factors)).to(weight)
    of_squares = torch.cat([drop / (1 - drop) * weight.square(), torch.ones_like(weight[:1])])
    sums = _sums(head, twin, z, torch.cat([weight, alone]), of_squares, shares, scale.degree)
    if sums is None:
        return None
    mean, units, variance, squares, powers = sums.split([2, len(loud), 2, 1, scale.degree])
    prior = prior_of(head) if restored else None
    missing = torch.zeros_like(variance.mT) if prior is None else prior.where(squares[0])
    coins = logistic.Coins.of(powers, units.mT * shares[loud], scale)
    offset = (bias[1] - bias[0]).expand(len(z))
    expected = logistic.of_coins(
        offset, coins, drop, missing.sum(-1), tolerance, lambda: head.features(z), factors=difference
    )
    outputs = (mean + bias[:, None]).mT, variance.mT + missing
    return Categorical.from_logistic(expected, *outputs, prior_restored=prior is not None)


def _more_classes(head: StationaryHead, z: Tensor, restored: bool, _: float) -> Categorical | None:
    (weight, bias), drop, c = (head.output.weight, head.output.bias), head.dropout.p, head.out_features
    pairs = (drop / (1 - drop) * weight[:, None] * weight).flatten(0, 1)
    sums = _sums(head, _twin(head), z, weight, torch.cat([pairs, torch.ones_like(weight[:1])]), weight[0], 0)
    if sums is None:
        return None
    mean, covariance, squares = sums.split([c, c * c, 1])
    covariance = covariance.view(c, c, len(z)).permute(2, 0, 1)
    if (prior := prior_of(head) if restored else None) is not None:
        covariance.diagonal(dim1=-2, dim2=-1).add_(prior.where(squares[0]))
    return Categorical.from_moments((mean + bias[:, None]).mT, covariance, prior_restored=prior is not None)


def _twin(head: StationaryHead) -> MaternTwin:
    activation = head.activation
    return matern_twin(activation.nu, activation.lengthscale, activation.variance, centered=activation.centered)


def _sums(
    head: StationaryHead, twin: MaternTwin, z: Tensor, of_units: Tensor, of_squares: Tensor, shares: Tensor, degree: int
) -> Tensor | None:
    """(results, n) products of the units, then of their squares, with rows of weights; then sums of their powers."""
    made = z.new_full((len(of_units) + len(of_squares) + degree, len(z)), math.nan)
    sizes = *z.shape, len(shares), len(of_units), len(of_squares), degree, twin.power
    constants = torch.tensor(twin.native_arguments, dtype=torch.float64)
    own = in_panels(head.hidden.weight), head.hidden.bias, constants, in_panels(of_units), in_panels(of_squares), shares
    return made if _native.in_c("layer_sums", sizes, z, *own, made) else None


def in_panels(weight: Tensor) -> Tensor:
    """Weights (columns, depth) as ``layer_sums`` reads them: panels (depth, WIDTH) of columns, then zeros."""
    columns, depth = weight.shape
    padded = nn.functional.pad(weight, (0, 0, 0, -columns % WIDTH))
    return padded.view(-1, WIDTH, depth).mT.contiguous()
