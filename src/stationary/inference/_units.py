"""The prediction of classes from sums over the units of a head, which C takes while it computes the units.

A pass of a network writes its units to memory, and each statistic reads them again. But what dropout makes of the
outputs depends on the units phi through few sums, of phi and phi^2 with some weights, and of powers of phi. So a head
as it comes, in float64 on the CPU, needs neither a pass nor hooks (``layer_sums`` in ``_native_dropout.c``).
"""

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from stationary._native import compiled, in_c
from stationary.activations import Matern
from stationary.activations.functional import matern_twin
from stationary.inference._readout import WIDE
from stationary.inference._replay import as_it_comes
from stationary.nn import MLP, StationaryHead
from stationary.nn.masks import is_active
from stationary.nn.restored_prior import RestoredPrior, prior_of
from stationary.nn.running import Inputs, modules_of
from stationary.predictive import Categorical
from stationary.theory import logistic

if TYPE_CHECKING:
    from stationary.inference.exact_dropout import ExactDropout

WIDTH = 8  # of the panels in which ``layer_sums`` reads weights


class _Head(NamedTuple):
    """A head as it comes: its layers, and of its activation the power, the largest value and the constants in C."""

    module: StationaryHead
    hidden: tuple[Tensor, Tensor]
    weight: Tensor
    bias: Tensor
    drop: float
    prior: RestoredPrior | None
    power: int
    peak: float
    constants: Tensor


def of_classes(network: nn.Module, x: Inputs, method: "ExactDropout") -> Categorical | None:
    """What the method predicts for rows (n, d) with a network in eval mode; None where C does not cover it."""
    if not isinstance(x, Tensor) or not x.is_cpu or x.ndim != 2 or compiled() is None:
        return None
    head = _head_of(network, method)
    if head is None or len(head.weight) > WIDE or (method.approximate and len(head.weight) == 2):
        return None
    z = network.trunk(x) if isinstance(network, MLP) and len(network.trunk) else x
    numbers = z, *head.hidden, head.weight, head.bias
    if z.shape[1] != head.module.in_features or any(each.dtype != torch.float64 for each in numbers):
        return None
    return (_more_classes if len(head.weight) > 2 else _two_classes)(head, z.contiguous(), method.tolerance)


def _head_of(network: nn.Module, method: "ExactDropout") -> _Head | None:
    """The head of a network of known layers, whose only dropout and whose activation are those that C knows."""
    head = network.head if type(network) is MLP else network
    if type(head) is not StationaryHead or not type(head.hidden) is type(head.output) is nn.Linear:
        return None
    sigma, modules = head.activation, modules_of(network)
    if type(sigma) is not Matern or sigma.learnable or sigma.dim > 1 or type(head.dropout) is not nn.Dropout:
        return None
    if [each for each in modules if is_active(each)] != [head.dropout] or not all(map(as_it_comes, modules)):
        return None
    twin = matern_twin(sigma.nu, sigma.lengthscale, sigma.variance, centered=sigma.centered)
    prior = None if method.restore_prior is False else prior_of(head)
    missing = head.hidden.bias is None or head.output.bias is None or (method.restore_prior and prior is None)
    if twin.power <= 0 or missing:
        return None
    return _Head(
        head,
        (head.hidden.weight, head.hidden.bias),
        head.output.weight,
        head.output.bias,
        head.dropout.p,
        prior,
        twin.power,
        math.exp(twin.log_peak),
        torch.tensor(twin.native_arguments, dtype=torch.float64),
    )


def _two_classes(head: _Head, z: Tensor, tolerance: float) -> Categorical | None:
    difference, drop = head.weight[1] - head.weight[0], head.drop
    factors = difference / (1 - drop)
    scale, loud = logistic.light(head.peak * factors.abs(), drop, tolerance)
    shares, alone = factors / scale.heaviest, nn.functional.one_hot(loud, len(factors)).to(factors)
    of_squares = torch.cat([drop / (1 - drop) * head.weight.square(), torch.ones_like(head.weight[:1])])
    sums = _sums(head, z, torch.cat([head.weight, alone]), of_squares, shares, scale.degree)
    if sums is None:
        return None
    mean, units, variance, squares, powers = sums.split([2, len(loud), 2, 1, scale.degree])
    missing = torch.zeros_like(variance.mT) if head.prior is None else head.prior.where(squares[0])
    coins = logistic.Coins.of(powers, units.mT * shares[loud], scale)
    offset, features = (head.bias[1] - head.bias[0]).expand(len(z)), partial(head.module.features, z)
    expected = logistic.of_coins(offset, coins, drop, missing.sum(-1), tolerance, features, factors=difference)
    outputs = (mean + head.bias[:, None]).mT, variance.mT + missing
    return Categorical.from_logistic(expected, *outputs, prior_restored=head.prior is not None)


def _more_classes(head: _Head, z: Tensor, _: float) -> Categorical | None:
    c, weight = len(head.weight), head.weight
    a, b = torch.tril_indices(c, c)
    pairs = head.drop / (1 - head.drop) * weight[a] * weight[b]
    sums = _sums(head, z, weight, torch.cat([pairs, torch.ones_like(weight[:1])]), weight[0], 0)
    if sums is None:
        return None
    mean, below, squares = sums.split([c, len(pairs), 1])
    covariance = below.new_empty(c, c, len(z))
    covariance[a, b] = covariance[b, a] = below
    covariance = covariance.permute(2, 0, 1)
    if head.prior is not None:
        covariance.diagonal(dim1=-2, dim2=-1).add_(head.prior.where(squares[0]))
    return Categorical.from_moments((mean + head.bias[:, None]).mT, covariance, prior_restored=head.prior is not None)


def _sums(head: _Head, z: Tensor, of_units: Tensor, of_squares: Tensor, shares: Tensor, degree: int) -> Tensor | None:
    """(results, n) products of the units, then of their squares, with rows of weights; then sums of their powers."""
    made = z.new_full((len(of_units) + len(of_squares) + degree, len(z)), math.nan)
    sizes = *z.shape, len(shares), len(of_units), len(of_squares), degree, head.power
    weight, bias = head.hidden
    own = in_panels(weight), bias, head.constants, in_panels(of_units), in_panels(of_squares), shares
    return made if in_c("layer_sums", sizes, z, *own, made) else None


def in_panels(weight: Tensor) -> Tensor:
    """Weights (columns, depth) as ``layer_sums`` reads them: panels (depth, WIDTH) of columns, then zeros."""
    columns, depth = weight.shape
    padded = nn.functional.pad(weight, (0, 0, 0, -columns % WIDTH))
    return padded.view(-1, WIDTH, depth).mT.contiguous()
