"""Expectations of the logistic function and its relatives, exactly, from a characteristic function.

For a random logit D with the characteristic function phi(t) = E[e^(itD)],

    E[sigmoid(D)]       = 1/2   + int_0^inf Im phi(t) / sinh(pi t) dt
    E[log 2 cosh(D/2)]  = log 2 + int_0^inf (1 - Re phi(t)) / (t sinh(pi t)) dt
    E[H(sigmoid(D))]    =         int_0^inf Re phi(t) (pi t coth(pi t) - 1) / (t sinh(pi t)) dt

with H the entropy of a coin: the Fourier transforms of the three functions are the three weights. The integrands are
analytic and decay like e^(-pi t), so the midpoint rule with the step h converges like e^(-(2 pi / h - |D|)). One
number, ``accuracy``, decides how many nodes that takes.

The nodes are as many as D is wide. Where it reaches farther than 10^4 and 10 / sqrt(accuracy), u D takes its place,
with a u < 1 that ends that: E[sigmoid(D)] is the probability of D + L > 0 for a logistic L, and beside such a D the
size of L no longer matters. For a D with a density of width s the error is below 0.4 / (u s)^2. Only a D that is within
some 10 / u of 0 with a chance of its own, as that of few units that are all dropped, counts as one half instead.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from stationary._native import in_c
from stationary.theory import _coins

SHARES = 8  # of the error: two for where the integral ends, two for where D does, one for the step, one for light units
FARTHEST = 1e4  # the least limit of |D|: a few milliseconds for an input of fifty heavy units
BLOCK_SIZE = {"cpu": 2**16, "cuda": 2**24}  # complex numbers at work: a core's cache, enough to fill a GPU

Parts = tuple[Tensor, Tensor]  # the real and the imaginary part


class Nodes(NamedTuple):
    """Of the midpoint rule: times t, their distance, and (3, nodes) weights: of Im phi for the probability, of Re phi
    for the entropy and for log 2 cosh.
    """

    t: Tensor
    step: float
    weights: Tensor


Characteristic = Callable[
    [Tensor, Nodes], Iterator[Parts]
]  # both parts of phi at the nodes, in blocks of (nodes, rows)


class LogisticExpectations(NamedTuple):
    """Expectations over random logits D of two classes.

    Attributes:
        probability: E[sigmoid(D)], that of the class that D speaks for.
        entropy: E[H(sigmoid(D))], in nats.
        log_cosh: E[log 2 cosh(D / 2)].
    """

    probability: Tensor
    entropy: Tensor
    log_cosh: Tensor


def of_gaussian(mean: Tensor, variance: Tensor, accuracy: float = 1e-8) -> LogisticExpectations:
    """The expectations for D ~ N(mean, variance), element by element, in float64."""
    mean, variance = mean.double(), variance.double()
    spread = math.sqrt(2 * math.log(1 / accuracy)) * variance.sqrt()
    if (unit := _unit(mean, spread, accuracy)) is not None:
        return _over(unit, of_gaussian(unit * mean, unit.square() * variance, accuracy))

    def characteristic(rows: Tensor, nodes: Nodes) -> Iterator[Parts]:
        for times in nodes.t.split(max(1, _block_size(mean) // len(rows))):
            modulus = torch.exp(-0.5 * variance[rows] * times[:, None].square())
            yield _wave(mean[rows] * times[:, None], modulus)

    gaussian, none = (mean.contiguous(), variance.contiguous()), mean.new_empty(0)

    def fill(rows: Tensor, nodes: Nodes, made: Tensor) -> None:
        sizes = len(rows), len(mean), len(nodes.t), 0, 0, 0.0
        if not in_c("node_sums", sizes, rows, none, none, none, nodes.t, nodes.weights, none, *gaussian, made):
            made[:, rows] = _sums(characteristic, rows, nodes)

    return _integrate(fill, mean, spread, 8, math.log(1 / accuracy))


def of_dropout(
    offset: Tensor,
    weights: Tensor,
    drop: float,
    variance: Tensor,
    accuracy: float = 1e-12,
    *,
    factors: Tensor | None = None,
) -> LogisticExpectations:
    """The expectations for D = offset + sum_k M_k weights_k factors_k / (1 - drop) + N(0, variance), in float64.

    Each M_k is 0 with the probability ``drop``, else 1: this is the mean over all 2^hidden dropout masks. Units that
    move D by little have polynomials in phi instead of factors (``_coins``). At an accuracy of 1e-6 these are nearly
    all units of a usual network, and the cost is that of a few sums over units, not of a product for each node.

    Args:
        offset: (n,) the part of D that dropout leaves alone.
        weights: (n, hidden) what each hidden unit adds to D before the factor 1 / (1 - drop).
        drop: the dropout probability.
        variance: (n,) variance of the Gaussian part of D.
        accuracy: absolute error allowed to each expectation, up to rounding: that of ``log_cosh`` grows with D. Where
            D reaches farther than ``FARTHEST``, the error may be larger, as said above.
        factors: (hidden,) factors of the columns of weights; None for 1. They save a product (n, hidden).
    """
    offset, variance = offset.double(), variance.double()
    given, factors = factors, (torch.ones(weights.shape[-1]).to(offset) if factors is None else factors.double())
    factors = factors / (1 - drop)
    sizes = torch.maximum(weights.amax(0), -weights.amin(0)) if len(weights) else factors.new_zeros(1)
    scale, loud = light(sizes * factors.abs(), drop, accuracy)  # in float64, as what decides whether a unit is light
    shares = factors / scale.heaviest
    sums = _coins.sums_of_powers(weights, shares, scale.degree)
    coins = Coins.of(sums, weights[:, loud] * shares[loud], scale)
    return of_coins(offset, coins, drop, variance, accuracy, lambda: weights, factors=given)


def light(sizes: Tensor, drop: float, accuracy: float) -> tuple[_coins.Scale, Tensor]:
    """The polynomials for units that move D by at most these sizes, and the units that these may leave out."""
    largest = sizes.max().item()
    scale = _coins.scale_for(largest, drop, len(sizes), accuracy / SHARES)
    loud = sizes >= scale.heaviest if largest >= scale.heaviest else sizes[:0]
    return scale, loud.nonzero()[:, 0]


class Coins(NamedTuple):
    """What D takes from dropout: sums of powers (degree, n) of the light units, and the heavy ones (n, most) of each
    row, packed, with their number (n,).
    """

    sums: Tensor
    heavy: Tensor
    number: Tensor
    scale: _coins.Scale

    @classmethod
    def of(cls, sums: Tensor, loud: Tensor, scale: _coins.Scale) -> "Coins":
        """Given the units (n, k) that the sums may leave out, those beyond 1, relative to the heaviest light one."""
        if not loud.shape[1]:
            return cls(sums, loud, sums.new_zeros(sums.shape[1], dtype=torch.long), scale)
        return cls(sums, *_packed(scale.heaviest * loud, loud.abs() > 1), scale)


def of_coins(
    offset: Tensor,
    coins: Coins,
    drop: float,
    variance: Tensor,
    accuracy: float,
    weights: Callable[[], Tensor],
    *,
    factors: Tensor | None = None,
) -> LogisticExpectations:
    """``of_dropout`` for units that are known by their sums; where D reaches too far for them, it asks for weights."""
    (sums, heavy, count, scale), digits = coins, math.log(SHARES / accuracy)
    first = scale.heaviest * sums[0] + heavy.sum(-1)
    norm = (scale.heaviest**2 * sums[1] + heavy.square().sum(-1)).sqrt()
    spread = math.sqrt(digits / 2) * norm + (2 * digits * variance).sqrt()  # by Hoeffding's bound
    mean = offset + (1 - drop) * first
    if (unit := _unit(mean, spread, accuracy)) is not None:
        offset, narrow, variance = unit * offset, unit[:, None] * weights(), unit.square() * variance
        return _over(unit, of_dropout(offset, narrow, drop, variance, accuracy, factors=factors))

    def characteristic(rows: Tensor, nodes: Nodes) -> Iterator[Parts]:
        even, odd = _coins.coefficients(nodes.t, drop, scale)
        with_heavy = count[rows].nonzero()[:, 0]
        a = heavy[rows[with_heavy], : int(count[rows].max())].T[:, None]  # (units, 1, rows)
        size = max(1, _block_size(offset) // max(len(rows), a.numel()))
        waves = torch.complex(*_wave(nodes.t[:size, None] * a))
        advance = torch.complex(*_wave(size * nodes.step * a))  # from block to block: cheaper than new sines
        own = sums[:, rows]
        for times, real_part, imaginary_part in zip(*(each.split(size) for each in (nodes.t, even, odd)), strict=True):
            log_modulus, angle = real_part @ own[1::2], imaginary_part @ own[::2]
            log_modulus -= 0.5 * variance[rows] * times[:, None].square()
            angle += offset[rows] * times[:, None]
            real, imaginary = _wave(angle, log_modulus.exp_())
            if len(with_heavy):
                phi = torch.complex(real[:, with_heavy], imaginary[:, with_heavy])
                phi *= _product((1 - drop) * waves[:, : len(times)] + drop)
                real[:, with_heavy], imaginary[:, with_heavy] = phi.real, phi.imag
                waves *= advance
            yield real, imaginary

    columns, gaussian = heavy.T.contiguous(), (offset.contiguous(), variance.contiguous())

    def fill(rows: Tensor, nodes: Nodes, made: Tensor) -> None:
        even, odd = _coins.coefficients(nodes.t, drop, scale)
        most = int(count[rows].max()) if len(columns) else 0
        sizes = len(rows), len(offset), len(nodes.t), scale.degree // 2, most, drop
        if not in_c("node_sums", sizes, rows, sums, even, odd, nodes.t, nodes.weights, columns, *gaussian, made):
            made[:, rows] = _sums(characteristic, rows, nodes)

    return _integrate(fill, mean, spread, max(8, heavy.shape[-1]), digits)


def _unit(mean: Tensor, spread: Tensor, accuracy: float) -> Tensor | None:
    """(n,) the factor on D with which it is narrow enough; None where D is as it is."""
    reach, farthest = mean.abs() + spread, max(FARTHEST, 10 / math.sqrt(accuracy))
    far = reach > farthest
    return torch.where(far, 0.5 * farthest / reach, 1.0) if far.any() else None


def _over(unit: Tensor, expected: LogisticExpectations) -> LogisticExpectations:
    """The expectations for D from those for unit D."""
    return LogisticExpectations(expected.probability, unit * expected.entropy, expected.log_cosh / unit)


def _packed(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen values of each row, moved to its start, with zeros after them; and their number."""
    count = chosen.sum(-1)
    packed = values.new_zeros(len(values), int(count.max()) if len(count) else 0)
    packed[torch.arange(packed.shape[1], device=values.device) < count[:, None]] = values[chosen]
    return packed, count


def _block_size(x: Tensor) -> int:
    return BLOCK_SIZE.get(x.device.type, BLOCK_SIZE["cpu"])


def _wave(angle: Tensor, modulus: Tensor | float = 1.0) -> Parts:
    """modulus e^(i angle) as a pair, which is several times faster than complex numbers."""
    return angle.cos().mul_(modulus), angle.sin().mul_(modulus)


def _product(factors: Tensor) -> Tensor:
    """Over the first dimension, half against half: whole vectors at a time."""
    while len(factors) > 1:
        half = len(factors) // 2
        product = factors[:half] * factors[half : 2 * half]
        factors = torch.cat([product, factors[2 * half :]]) if len(factors) % 2 else product
    return factors[0]


def _sums(characteristic: Characteristic, rows: Tensor, nodes: Nodes) -> Tensor:
    """(3, n) the sums over nodes of Im phi, Re phi and 1 - Re phi, each with its weights."""
    total, done = nodes.weights.new_zeros(3, len(rows)), 0
    for real, imaginary in characteristic(rows, nodes):
        weights = nodes.weights[:, done : (done := done + len(real))]
        total[0] += weights[0] @ imaginary
        total[1] += weights[1] @ real
        total[2] += weights[2] @ (1 - real)
    return total


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _nodes(reach: float, digits: float, like: torch.device) -> Nodes:
    # the step repeats D with this period, and adds the repetitions' entropy, x e^-x at the distance x
    step = 2 * math.pi / (reach + digits + math.log(2 * digits + 4))
    t = (torch.arange(math.ceil(digits / math.pi / step), dtype=torch.float64, device=like) + 0.5) * step
    over_sinh = step / torch.sinh(math.pi * t)
    over_t = over_sinh / t
    return Nodes(t, step, torch.stack([over_sinh, over_t * (math.pi * t / torch.tanh(math.pi * t) - 1), over_t]))


def _integrate(
    fill: Callable[[Tensor, Nodes, Tensor], None], mean: Tensor, spread: Tensor, width: int, digits: float
) -> LogisticExpectations:
    """The three integrals for every row; rows that reach equally far share their nodes.

    Args:
        fill: function that writes the sums over nodes, as ``_sums``, into these rows of the last tensor (3, n).
        mean: (n,) mean of D.
        spread: (n,) how far D can be from its mean.
        width: number of complex numbers at work for each row and node.
        digits: -log of the error that each integral may have, but for a factor of about 2.
    """
    size, made = mean.abs(), mean.new_zeros(3, len(mean))
    unsure = size - spread <= digits + 5
    reach, rows = size + spread, unsure.nonzero()[:, 0]
    for some in rows[reach[rows].argsort()].split(max(1, _block_size(mean) // (8 * width))) if len(rows) else ():
        farthest = 2 ** (math.ceil(8 * math.log2(max(1, reach[some[-1]].item()))) / 8)  # few numbers, to know again
        fill(some, _nodes(farthest, digits, mean.device), made)
    odd, entropy, even = made  # 0 for the rows that are sure whatever the mask
    return LogisticExpectations(
        torch.where(unsure, (0.5 + odd).clamp_(0, 1), mean.sigmoid()),  # rounding may lead beyond
        entropy.clamp_(0, math.log(2)),
        torch.where(unsure, math.log(2) + even, size / 2),
    )
