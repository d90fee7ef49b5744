"""Triton kernels for exact dropout before the last layer: from the features to all statistics in one launch.

They compute what ``stationary.theory.logistic.of_dropout`` and ``Categorical.from_moments`` compute in plain PyTorch,
one input in each program. Each input of two classes has its own nodes, so none waits for the longest list of them.
"""

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from stationary.inference._dropout_triton import nodes_on, softmax_parts
from stationary.predictive import NODES
from stationary.theory.logistic import SHARES

MAX_HIDDEN, MAX_CLASSES = 256, 64  # beyond these the plain version's matrix products are the better tool
TILE = 1024  # complex numbers that a program of two classes holds: nodes times units


def launch_two(
    features: Tensor, weight: Tensor, bias: Tensor, drop: float, *, prior: Tensor | None, tolerance: float
) -> list[Tensor]:
    """Probs (n, 2), expected log probs (n, 2), member entropy (n,) and output variance (n, 2) of two classes.

    Args:
        features: (n, hidden) input of the last layer before dropout, float32.
        weight, bias: (2, hidden) and (2,), the parameters of the last layer.
        drop: probability of dropping a feature.
        prior: (n, 2) variance of the restored prior, or None without one.
        tolerance: absolute error allowed to the statistics.
    """
    n, hidden = features.shape
    features, weight, prior = features.contiguous(), weight.contiguous(), None if prior is None else prior.contiguous()
    pairs, entropy = torch.empty(3, n, 2, device=features.device), torch.empty(n, device=features.device)
    units = max(16, triton.next_power_of_2(hidden))
    nodes = min(16, TILE // units)
    with torch.cuda.device(features.device):
        two_classes[(n,)](
            features, weight, bias, prior, _numbers(drop, tolerance, features.device), pairs, entropy, n, hidden,
            UNITS=units, NODES=nodes, BITS=nodes.bit_length() - 1, PRIOR=prior is not None, num_warps=4,
        )  # fmt: skip
    probs, log_probs, variance = pairs
    return [probs, log_probs, entropy, variance]


def launch_many(mean: Tensor, features: Tensor, weight: Tensor, drop: float, *, prior: Tensor | None) -> list[Tensor]:
    """Probs (n, c), expected log probs (n, c), member entropy (n,) and output variance (n, c) of Gaussian outputs.

    Args:
        mean: (n, c) mean of the outputs.
        features, weight, drop, prior: as for two classes, with the weight (c, hidden) and the prior (n, c).
    """
    (n, hidden), c = features.shape, len(weight)
    features, weight, prior = features.contiguous(), weight.contiguous(), None if prior is None else prior.contiguous()
    sums, entropy = torch.empty(3, n, c, device=features.device), torch.empty(n, device=features.device)
    classes = max(16, triton.next_power_of_2(c))
    with torch.cuda.device(features.device):
        many_classes[(n,)](
            mean.contiguous(), features, weight, prior, nodes_on(features.device, NODES, c), sums, entropy,
            n, hidden, drop / (1 - drop), 10 * c * torch.finfo(torch.float32).eps,
            C=c, CLASSES=classes, UNITS=16 if hidden <= 16 else 32 if hidden <= 32 else 64, NODES=NODES,
            PRIOR=prior is not None, num_warps=1 if classes == 16 else 4,  # one warp needs no barriers
        )  # fmt: skip
    probs, log_probs, variance = sums
    return [probs, log_probs, entropy, variance]


@lru_cache(maxsize=64)
def _numbers(drop: float, tolerance: float, device: torch.device) -> Tensor:
    """The constants of the integrals in float64, which arguments of a kernel are not: the digits as in ``logistic``."""
    digits = math.log(SHARES / tolerance)
    beyond = digits + math.log(2 * digits + 4)
    with torch.inference_mode(False):
        return torch.tensor([drop, digits, beyond, math.pi, math.log(2)], dtype=torch.float64, device=device)


@triton.jit
def _times(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit
def two_classes(
    h_ptr, w_ptr, b_ptr, prior_ptr, numbers_ptr, pairs_ptr, entropy_ptr, n, hidden,
    UNITS: tl.constexpr, NODES: tl.constexpr, BITS: tl.constexpr, PRIOR: tl.constexpr,
):  # fmt: skip
    """One input: the three integrals of ``logistic`` over phi, a product of one factor for each unit, in float64."""
    row = tl.program_id(0).to(tl.int64)
    k, j = tl.arange(0, UNITS), tl.arange(0, NODES)
    drop, digits = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    beyond, pi, log_2 = tl.load(numbers_ptr + 2), tl.load(numbers_ptr + 3), tl.load(numbers_ptr + 4)
    keep = 1 - drop
    h = tl.load(h_ptr + row * hidden + k, mask=k < hidden, other=0.0).to(tl.float64)
    w0 = tl.load(w_ptr + k, mask=k < hidden, other=0.0).to(tl.float64)
    w1 = tl.load(w_ptr + hidden + k, mask=k < hidden, other=0.0).to(tl.float64)
    offset = tl.load(b_ptr + 1).to(tl.float64) - tl.load(b_ptr).to(tl.float64)
    variance_0 = tl.sum(h * h * w0 * w0, 0) * (drop / keep)
    variance_1 = tl.sum(h * h * w1 * w1, 0) * (drop / keep)
    variance = drop - drop
    if PRIOR:
        prior_0 = tl.load(prior_ptr + 2 * row).to(tl.float64)
        prior_1 = tl.load(prior_ptr + 2 * row + 1).to(tl.float64)
        variance_0 += prior_0
        variance_1 += prior_1
        variance = prior_0 + prior_1
    a = h * (w1 - w0) / keep
    mean = offset + keep * tl.sum(a, 0)
    coins = tl.minimum(tl.sum(tl.abs(a), 0), tl.sqrt(tl.sum(a * a, 0) * digits / 2))
    spread = coins + tl.sqrt(2 * digits * variance)
    unsure = tl.abs(mean) - spread <= digits + 5
    step = 2 * pi / (tl.abs(mean) + spread + beyond)
    count = tl.where(unsure, (digits / pi / step).to(tl.int32) + 1, 0)

    # e^(i a t) at the first nodes, t = (j + 1/2) step, by the bits of j; then ``next`` leads from block to block
    re, im = tl.cos(a * step / 2), tl.sin(a * step / 2)
    next_re, next_im = _times(re, im, re, im)
    wave_re = tl.broadcast_to(re[None, :], (NODES, UNITS))
    wave_im = tl.broadcast_to(im[None, :], (NODES, UNITS))
    for bit in tl.static_range(BITS):
        on_re, on_im = _times(wave_re, wave_im, next_re[None, :], next_im[None, :])
        on = ((j >> bit) & 1)[:, None] == 1
        wave_re, wave_im = tl.where(on, on_re, wave_re), tl.where(on, on_im, wave_im)
        next_re, next_im = _times(next_re, next_im, next_re, next_im)

    p_sum = tl.zeros((NODES,), tl.float64)
    entropy_sum = tl.zeros((NODES,), tl.float64)
    log_cosh_sum = tl.zeros((NODES,), tl.float64)
    for start in range(0, count, NODES):
        t = ((start + j).to(tl.float64) + 0.5) * step
        phi_re, phi_im = tl.reduce((keep * wave_re + drop, keep * wave_im), 1, _times)
        modulus = tl.exp(-variance * t * t / 2)
        phi_re, phi_im = _times(phi_re, phi_im, modulus * tl.cos(offset * t), modulus * tl.sin(offset * t))
        e = tl.exp(-pi * t)
        less = (1 - e) * (1 + e)
        over_sinh = tl.where(start + j < count, step * 2 * e / less, 0.0)
        over_t = over_sinh / t
        p_sum += over_sinh * phi_im
        entropy_sum += over_t * (pi * t * (1 + e * e) / less - 1) * phi_re
        log_cosh_sum += over_t * (1 - phi_re)
        wave_re, wave_im = _times(wave_re, wave_im, next_re[None, :], next_im[None, :])

    # an input that is sure whatever the mask needs no integral
    p = tl.where(unsure, 0.5 + tl.sum(p_sum, 0), 1 / (1 + tl.exp(-mean)))
    p = tl.where(p < 0, 0.0, tl.where(p > 1, 1.0, p))  # rounding may lead beyond; NaN stays
    entropy = tl.where(unsure, tl.sum(entropy_sum, 0), mean - mean)
    entropy = tl.where(entropy < 0, 0.0, tl.where(entropy > log_2, log_2, entropy))
    log_cosh = tl.where(unsure, log_2 + tl.sum(log_cosh_sum, 0), tl.abs(mean) / 2)
    at, plane = pairs_ptr + 2 * row, 2 * n
    tl.store(at, 1 - p)
    tl.store(at + 1, p)
    tl.store(at + plane, -mean / 2 - log_cosh)
    tl.store(at + plane + 1, mean / 2 - log_cosh)
    tl.store(at + 2 * plane, variance_0)
    tl.store(at + 2 * plane + 1, variance_1)
    tl.store(entropy_ptr + row, entropy)


@triton.jit
def many_classes(
    mean_ptr, h_ptr, w_ptr, prior_ptr, nodes_ptr, sums_ptr, entropy_ptr,
    n, hidden, ratio, jitter,
    C: tl.constexpr, CLASSES: tl.constexpr, UNITS: tl.constexpr, NODES: tl.constexpr, PRIOR: tl.constexpr,
):  # fmt: skip
    """One input: the covariance of its outputs, the Cholesky factor of that, and the softmax at Gaussian nodes."""
    row = tl.program_id(0).to(tl.int64)
    c, s = tl.arange(0, CLASSES), tl.arange(0, NODES)
    there, diagonal = c < C, c[:, None] == c[None, :]
    rest = tl.zeros((CLASSES, CLASSES), tl.float32)
    for start in range(0, hidden, UNITS):
        k = start + tl.arange(0, UNITS)
        h = tl.load(h_ptr + row * hidden + k, mask=k < hidden, other=0.0)
        w = tl.load(w_ptr + c[:, None] * hidden + k[None, :], mask=there[:, None] & (k < hidden)[None, :], other=0.0)
        hw = w * h[None, :]
        rest = tl.dot(hw, tl.trans(hw), rest, input_precision="tf32x3")
    rest *= ratio
    if PRIOR:
        rest += tl.where(diagonal, tl.load(prior_ptr + row * C + c, mask=there, other=0.0)[:, None], 0.0)
    variance = tl.sum(tl.where(diagonal, rest, 0.0), 1)
    rest += tl.where(diagonal, tl.maximum(jitter * tl.max(variance, 0), 1.2e-38), 0.0)  # as ``square_root`` does
    factor = tl.zeros((CLASSES, CLASSES), tl.float32)
    for i in range(C):
        column = tl.sum(tl.where((c == i)[None, :], rest, 0.0), 1)
        pivot = tl.sum(tl.where(c == i, column, 0.0), 0)
        inverse = tl.where(pivot > 0, 1 / tl.sqrt(pivot), 0.0)  # below 0 by rounding alone
        column = tl.where(c >= i, column * inverse, 0.0)
        rest -= column[:, None] * column[None, :]
        factor = tl.where((c == i)[None, :], column[:, None], factor)
    nodes = tl.load(nodes_ptr + s[:, None] * C + c[None, :], mask=there[None, :], other=0.0)
    mean = tl.load(mean_ptr + row * C + c, mask=there, other=0.0)
    z = tl.dot(nodes, tl.trans(factor), input_precision="tf32x3") + mean[None, :]
    p, log_p, entropy = softmax_parts(z, there[None, :] & (s >= 0)[:, None], there)
    at, plane = sums_ptr + row * C + c, n * C
    tl.store(at, tl.sum(p, 0) / NODES, mask=there)
    tl.store(at + plane, tl.sum(log_p, 0) / NODES, mask=there)
    tl.store(at + 2 * plane, variance, mask=there)
    tl.store(entropy_ptr + row, entropy / NODES)
