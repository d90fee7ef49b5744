"""A Triton kernel for MC dropout before the last layer: masks, outputs, softmax and statistics in one launch.

Only the statistics are written to memory, so more samples cost time and nothing else. The masks come from Triton's
counter-based generator: the same seed gives the same masks on every call.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from stationary.predictive import normal_nodes

MAX_HIDDEN, MAX_CLASSES = 256, 32  # beyond these the plain version's matrix products are the better tool
SAMPLES = 128  # samples that are computed at a time


def launch(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    drop: float,
    *,
    n_samples: int,
    shared: bool,
    seed: int,
    prior: Tensor | None,
    nodes: Tensor | None,
) -> list[Tensor]:
    """The fields of a ``Categorical``: probs, expected log probs, member entropy, output mean, output variance.

    Args:
        features: (n, hidden) input of the last layer before dropout, float32.
        weight, bias: (c, hidden) and (c,), the parameters of the last layer.
        drop: probability of dropping a feature.
        n_samples: number of dropout masks to draw.
        shared: whether all inputs share the mask of a sample.
        seed: seed of the masks.
        prior: (n, c) variance of the restored prior, or None without one.
        nodes: (n_samples, c) points of the standard normal distribution by which the prior is sampled, or None.
    """
    (n, hidden), c = features.shape, len(weight)
    sums = torch.empty(4, n, c, device=features.device)
    entropy = torch.empty(n, device=features.device)
    with torch.cuda.device(features.device):
        sample[(n,)](
            features.contiguous(), weight.contiguous(), bias, prior, nodes, sums, entropy,
            n, n_samples, hidden, seed, drop, 1 / (1 - drop), 1 / n_samples,
            C=c, CLASSES=max(16, triton.next_power_of_2(c)), QUARTER=max(16, triton.next_power_of_2(-(-hidden // 4))),
            SHARED=shared, PRIOR=prior is not None, SAMPLES=SAMPLES, num_warps=4,
        )  # fmt: skip
    probs, log_probs, mean, variance = sums
    return [probs, log_probs, entropy, mean, variance]


@lru_cache(maxsize=64)
def nodes_on(device: torch.device, n: int, dim: int) -> Tensor:
    """``normal_nodes`` in float32 on the device, where they stay for the next call."""
    with torch.inference_mode(False):
        return normal_nodes(n, dim).to(device, torch.float32)


@triton.jit
def _add(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _weights(h_ptr, w_ptr, row, k, c, hidden, C: tl.constexpr):
    """phi_k W_ck for some units k of one input, as (units, classes)."""
    h = tl.load(h_ptr + row * hidden + k, mask=k < hidden, other=0.0)
    w = tl.load(w_ptr + c[None, :] * hidden + k[:, None], mask=(k < hidden)[:, None] & (c < C)[None, :], other=0.0)
    return h[:, None] * w


@triton.jit
def softmax_parts(z, counted, there):
    """The softmax of outputs z (samples, classes) and its logarithm, 0 where not counted, and their entropies' sum."""
    z = tl.where(there[None, :], z, float("-inf"))
    z -= tl.max(z, 1)[:, None]
    log_p = z - tl.log(tl.sum(tl.exp(z), 1))[:, None]
    log_p = tl.where(counted, log_p, 0.0)
    p = tl.where(counted, tl.exp(log_p), 0.0)
    return p, log_p, -tl.sum(p * tl.maximum(log_p, -1e30))


@triton.jit(do_not_specialize=["seed", "n_samples"])
def sample(
    h_ptr, w_ptr, b_ptr, prior_ptr, nodes_ptr, sums_ptr, entropy_ptr,
    n, n_samples, hidden, seed, drop, scale, per_sample,
    C: tl.constexpr, CLASSES: tl.constexpr, QUARTER: tl.constexpr,
    SHARED: tl.constexpr, PRIOR: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    """One input: outputs (samples, classes) are products of masks (samples, units) and weighted features.

    The generator gives four numbers at a time, so units are taken in four interleaved quarters.
    """
    row = tl.program_id(0).to(tl.int64)
    c, j = tl.arange(0, CLASSES), tl.arange(0, QUARTER)
    there = c < C
    hw0 = _weights(h_ptr, w_ptr, row, 4 * j, c, hidden, C)
    hw1 = _weights(h_ptr, w_ptr, row, 4 * j + 1, c, hidden, C)
    hw2 = _weights(h_ptr, w_ptr, row, 4 * j + 2, c, hidden, C)
    hw3 = _weights(h_ptr, w_ptr, row, 4 * j + 3, c, hidden, C)
    bias = tl.load(b_ptr + c, mask=there, other=0.0)
    centre = tl.sum(hw0 + hw1 + hw2 + hw3, 0)  # the mean over all masks; deviations from it do not cancel
    spread = tl.zeros((CLASSES,), tl.float32)
    if PRIOR:
        spread = tl.load(prior_ptr + row * C + c, mask=there, other=0.0)
    p_sum = tl.zeros((CLASSES,), tl.float32)
    log_p_sum = tl.zeros((CLASSES,), tl.float32)
    deviation_sum = tl.zeros((CLASSES,), tl.float32)
    square_sum = tl.zeros((CLASSES,), tl.float32)
    entropy_sum = 0.0
    for start in range(0, n_samples, SAMPLES):
        s = start + tl.arange(0, SAMPLES)
        counter = s.to(tl.int64)[:, None] * QUARTER + j[None, :]
        if not SHARED:
            counter += row * n_samples * QUARTER
        u0, u1, u2, u3 = tl.rand4x(seed, counter)
        z = tl.dot(tl.where(u0 < drop, 0.0, 1.0), hw0, input_precision="tf32x3")
        z = tl.dot(tl.where(u1 < drop, 0.0, 1.0), hw1, z, input_precision="tf32x3")
        z = tl.dot(tl.where(u2 < drop, 0.0, 1.0), hw2, z, input_precision="tf32x3")
        z = tl.dot(tl.where(u3 < drop, 0.0, 1.0), hw3, z, input_precision="tf32x3") * scale
        counted = (s < n_samples)[:, None] & there[None, :]
        deviation = tl.where(counted, z - centre[None, :], 0.0)
        z += bias[None, :]
        if PRIOR:
            nodes = tl.load(nodes_ptr + s[:, None] * C + c[None, :], mask=counted, other=0.0)
            z += tl.sqrt(spread)[None, :] * nodes
        p, log_p, entropy = softmax_parts(z, counted, there)
        entropy_sum += entropy
        sums = tl.reduce((p, log_p, deviation, deviation * deviation), 0, _add)
        p_sum += sums[0]
        log_p_sum += sums[1]
        deviation_sum += sums[2]
        square_sum += sums[3]
    mean = deviation_sum * per_sample
    at, plane = sums_ptr + row * C + c, n * C
    tl.store(at, p_sum * per_sample, mask=there)
    tl.store(at + plane, log_p_sum * per_sample, mask=there)
    tl.store(at + 2 * plane, centre + bias + mean, mask=there)
    tl.store(at + 3 * plane, tl.maximum(square_sum * per_sample - mean * mean, 0.0) + spread, mask=there)
    tl.store(entropy_ptr + row, entropy_sum * per_sample)
