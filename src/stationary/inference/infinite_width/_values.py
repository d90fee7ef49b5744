"""The posterior of real values: a sparse Gaussian process in closed form, and the bound that chooses its numbers.

Around W^T phi_i the target of row i, of weight w_i, varies by the noise n and by r_i = s^2 (1 - |phi_i|^2), what the
inducing inputs do not see of the prior variance s^2 (Snelson and Ghahramani, 2006). So the precision H of W and its
mean are

    H = I / s^2 + sum_i w_i / (n + r_i) phi_i phi_i^T,    W = H^-1 sum_i w_i / (n + r_i) phi_i y_i.

Length-scale, s^2 and n come from the log evidence of few rows, log N(y | 0, s^2 kappa + n I), or from the density of
validation rows. What the evidence leaves open of them is known from its curvature at the best numbers, by Laplace's
approximation in their logarithms; ``Chosen.draws`` are numbers from there. The collapsed bound of Titsias (2009) takes
many rows, and what it does not see it takes for noise:

    log N(y | 0, s^2 Phi Phi^T + n I) - sum_i w_i r_i / (2 n).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from stationary.inference.infinite_width._basis import Passes, outer, solved_by, unseen
from stationary.inference.infinite_width._minima import Array, End, around, minimum, refined
from stationary.inference.infinite_width._sums import Total
from stationary.theory.isotropic import gram

RATIO = 1.0  # prior standard deviation of the logarithm of a column's length-scale, around the typical distance
COARSE = 4  # one of so many rows and inducing inputs has the bound that is looked at first
FEW = 300  # rows whose evidence is looked at first
ELSEWHERE = 0.5  # difference of the logarithm of a number between two ends of the search that are not the same
ROUNDING = 1e-7  # share of the variance below which what a row leaves unseen is rounding
QUIETEST = 1e-6  # smallest noise variance, relative to the variance of the targets


@dataclass(frozen=True)
class Values:
    """The posterior of W.

    Args:
        mean: (M, m) the mean of W.
        root: (m, M, M) the Cholesky factors of H, the precision of each output's W.
    """

    mean: Tensor
    root: Tensor


def solve(passes: Passes, y: Tensor, weight: Tensor, variance: Tensor, noise: Tensor, total: Total) -> Values:
    """The posterior of W.

    Args:
        passes: the features of the rows.
        y: (n, m) targets, whose prior mean is 0.
        weight: (n,) weights of the rows: a row of weight 2 counts as two.
        variance: (m,) prior variances.
        noise: (m,) noise variances, or (n, m) one for each row.
        total: sum over the machines.
    """
    size, m = passes.basis.size, y.shape[1]
    sums, products = y.new_zeros(m, size, size), y.new_zeros(m, size, 1)
    for rows, phi in passes:
        for k, share in enumerate(_shares(phi, weight[rows], variance, noise.expand_as(y)[rows])):
            sums[k] += outer(phi, share)
            products[k] += phi.mT @ (share * y[rows, k])[:, None]
    root = torch.linalg.cholesky(total(sums) + torch.eye(size).to(y) / variance[:, None, None])
    return Values(solved_by(root, total(products))[..., 0].mT, root)


def _shares(phi: Tensor, weight: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """(m, n) what each row counts: its weight over the variance that W does not explain."""
    left = F.threshold(unseen(phi), ROUNDING, 0.0)
    return weight / ((noise.mT if noise.ndim == 2 else noise[:, None]) + variance[:, None] * left)


@dataclass(frozen=True)
class Chosen:
    """Numbers that were chosen: length-scale () or (d,), prior variances (m,) and noise variances (m,).

    ``draws`` are others that the evidence leaves possible.
    """

    lengthscale: Tensor
    variance: Tensor
    noise: Tensor
    draws: tuple["Chosen", ...] = ()


def collapsed_bound(inner: Tensor, cross: Tensor, y: Tensor, weight: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """The sum over outputs of the bound on the log evidence; differentiable, once, in the kernels and variances.

    Args:
        inner: (M, M) the kernel of unit variance between the inducing inputs.
        cross: (M, n) the same between the inducing inputs and the rows.
        y: (n, m) targets, whose prior mean is 0.
        weight: (n,) weights of the rows: a row of weight 2 counts as two.
        variance, noise: (m,) prior variances and noise variances; one for several outputs is that of all.
    """
    columns = y.shape[1] // len(variance)
    pairs = zip(y.split(columns, 1), variance, noise, strict=True)
    return torch.stack([_Bound.apply(inner, cross, some, weight, s2, n) for some, s2, n in pairs]).sum()


class _Bound(torch.autograd.Function):
    """The collapsed bound of outputs Y (n, m) that share their variances, with its slope in closed form.

    With A = L L^T the kernel between inducing inputs, phi = L^-1 B, t = s^2 / noise and D the weights,

        S = phi D phi^T,    P = I + t S,    b = phi D Y,    c = P^-1 b,
        -2 bound = m (sum log(2 pi noise) + log det P + t tr(D - S)) + (tr Y^T D Y - t tr b^T c) / noise,

    and it depends on A and B through B^T A^-1 B alone, so that its slope in A is - L^-T (slope in phi) phi^T L^-1 / 2.
    """

    @staticmethod
    def forward(
        ctx: Any, inner: Tensor, cross: Tensor, y: Tensor, weight: Tensor, variance: Tensor, noise: Tensor
    ) -> Tensor:
        factor = torch.linalg.cholesky(inner)
        phi = torch.linalg.solve_triangular(factor, cross, upper=False)
        t, m = variance / noise, y.shape[1]
        lower = outer(phi.mT, weight)
        sums = lower.tril() + lower.tril(-1).mT
        root = torch.linalg.cholesky(torch.eye(len(phi)).to(phi) + t * sums)
        products = phi @ (weight[:, None] * y)
        solved = solved_by(root, products)
        fit = weight @ y.square().sum(1) - t * (products * solved).sum()
        lost = weight.sum() - sums.trace()
        log_det = weight.sum() * (2 * math.pi * noise).log() + 2 * root.diagonal().log().sum()
        ctx.save_for_backward(factor, phi, y, weight, noise, t, sums, root, products, solved, fit, lost)
        return -0.5 * (m * (log_det + t * lost) + fit / noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor, phi, y, weight, noise, t, sums, root, products, solved, fit, lost = ctx.saved_tensors
        m, inverse = y.shape[1], torch.cholesky_inverse(root)
        in_sums = -0.5 * t * (m * inverse + t / noise * solved @ solved.mT)
        in_sums.diagonal().add_(0.5 * m * t)
        in_products = t / noise * solved
        in_phi = torch.addmm(in_products @ (weight[:, None] * y).mT, in_sums, phi * weight, alpha=2)
        in_cross = torch.linalg.solve_triangular(factor.mT, in_phi, upper=True)
        both = 2 * in_sums @ sums + in_products @ products.mT  # (slope in phi) phi^T
        half = torch.linalg.solve_triangular(factor.mT, both, upper=True)
        in_inner = -0.5 * torch.linalg.solve_triangular(factor, half, upper=False, left=False)
        curved = (inverse * sums).sum() * m + t / noise * (solved * (sums @ solved)).sum()
        in_t = -0.5 * (curved - (products * solved).sum() / noise + m * lost)
        in_noise = -0.5 * (m * weight.sum() / noise - fit / noise.square()) - in_t * t / noise
        return grad * in_inner, grad * in_cross, None, None, grad * in_t / noise, grad * in_noise


def log_evidence(similarity: Tensor, y: Tensor, weight: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """The sum over outputs of the log evidence itself, which the bound is where each row is an inducing input.

    Args:
        similarity: (n, n) the kernel of unit variance between the rows.
        y, weight, variance: as for ``collapsed_bound``; a row of weight 2 has half the noise. One variance for several
            outputs is that of all.
        noise: (m,) noise variances, or (n, m) one for each row.
    """
    columns = y.shape[1] // len(variance)
    terms = []
    for some, s2, n in zip(y.split(columns, 1), variance, noise.mT if noise.ndim == 2 else noise, strict=True):
        log_det = ((weight - 1) * n.log() + weight.log()).sum() + weight.sum() * math.log(2 * math.pi)
        terms.append(_Surprise.apply(s2 * similarity + torch.diag(n / weight), some) + columns * log_det)
    return -0.5 * torch.stack(terms).sum()


class _Surprise(torch.autograd.Function):
    """m log det K + tr(Y^T K^-1 Y) of K (n, n) and Y (n, m), whose slope in K is m K^-1 - K^-1 Y Y^T K^-1."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, y: Tensor) -> Tensor:
        root = torch.linalg.cholesky(matrix)
        solved = solved_by(root, y)
        ctx.save_for_backward(root, solved)
        return 2 * y.shape[1] * root.diagonal().log().sum() + (y * solved).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        root, solved = ctx.saved_tensors
        slope = torch.addmm(torch.cholesky_inverse(root), solved, solved.mT, beta=solved.shape[1], alpha=-1)
        return grad * slope, 2 * grad * solved


def predictive_nlpd(
    phi: Tensor, y: Tensor, weight: Tensor, new: Tensor, new_y: Tensor, variance: Tensor, noise: Tensor
) -> Tensor:
    """The mean negative log density of other rows ``new_y`` (k, m), given rows to learn from; differentiable."""
    weighted = _shares(phi, weight, variance, noise)[..., None] * phi
    eye = torch.eye(phi.shape[1]).to(phi)
    root = torch.linalg.cholesky(weighted.mT @ phi + eye / variance[:, None, None])
    mean = new @ torch.cholesky_solve(weighted.mT @ y.mT[..., None], root)[..., 0].mT
    inside = torch.linalg.solve_triangular(root, new.mT.expand(len(root), -1, -1), upper=False).square().sum(1).mT
    total = inside + variance * unseen(new)[:, None] + noise
    return 0.5 * ((2 * math.pi * total).log() + (new_y - mean).square() / total).mean()


def choose(
    kernel: str,
    inducing: Tensor | None,
    rows: tuple[Tensor, Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None,
    start: Tensor,
    given: tuple[float | Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
    *,
    shared: bool = False,
    starts: Sequence[float] = (0.1, 0.005),
    typical: bool = False,
    relative: Tensor | None = None,
    draws: int = 0,
    verbose: Callable[[str], object] = lambda _: None,
) -> Chosen:
    """Length-scale, prior variance and noise variance by the bound, or by the density of validation rows.

    Several starts, one with much noise and one with little, each by L-BFGS; the best end is taken. Deterministic. The
    length-scales of columns have a log-normal prior around the start: without it the bound switches columns off by
    accident where rows are few.

    Args:
        kernel: name of the kernel.
        inducing: (M, d) inducing inputs, which stay where they are; None to choose by the evidence itself.
        rows: places (n, d), targets (n, m), whose prior mean is 0, and weights (n,).
        validation: places (k, d) and targets (k, m) of rows that nothing was trained on; None for the bound.
        start: length-scale to start from, () for one that all columns share, (d,) for one each.
        given: length-scale, prior variance and noise variance where the user has set them.
        shared: whether all outputs have the same variances, relative to the spread of their targets.
        starts: noise variances to start from, relative to the variance of the targets.
        typical: whether one length-scale that all columns share has that prior too.
        relative: (n, m) noise variances of the rows in units of the one that is chosen, for a choice by the evidence;
            None where all are alike.
        draws: number of draws, in a choice by the evidence.
        verbose: function that takes a line for each start.
    """
    u, y, weight = rows
    spread = (weight @ y.square()) / weight.sum()
    spread = torch.where(spread > 0, spread, 1.0)  # that of a constant, as for the rows that are given numbers
    if shared:
        y, spread = y / spread.sqrt(), spread.new_ones(1)
    parts, m = start.numel(), len(spread)

    def numbers(theta: Tensor) -> Chosen:
        lengthscale, variance, noise = theta[:parts].exp(), theta[parts : parts + m].exp(), theta[parts + m :].exp()
        fixed, fixed_variance, fixed_noise = given
        return Chosen(
            (start * lengthscale.reshape(start.shape)) if fixed is None else torch.as_tensor(fixed).to(start),
            spread * variance if fixed_variance is None else fixed_variance,
            spread * (QUIETEST + noise) if fixed_noise is None else fixed_noise,
        )

    def unlikely(theta: Tensor) -> Tensor | float:
        return (theta[:parts] / RATIO).square().sum() / 2 if parts > 1 or typical else 0.0

    def of_evidence(theta: Tensor, some: Tensor | slice = slice(None)) -> Tensor:
        chosen = numbers(theta)
        places = u[some] / chosen.lengthscale
        each = chosen.noise if relative is None else chosen.noise * relative[some]
        evidence = log_evidence(gram(kernel, places, places), y[some], weight[some], chosen.variance, each)
        return (unlikely(theta) - evidence) / weight[some].sum()

    def inner(chosen: Chosen, step: int = 1) -> tuple[Tensor, Tensor]:
        assert inducing is not None
        scaled = inducing[::step] / chosen.lengthscale
        eye = torch.eye(len(scaled)).to(scaled)
        return scaled, gram(kernel, scaled, scaled) * (1 - eye) + (1 + 1e-9) * eye

    def of_bound(theta: Tensor, step: int = 1) -> Tensor:
        chosen = numbers(theta)
        scaled, matrix = inner(chosen, step)
        cross = gram(kernel, scaled, u[::step] / chosen.lengthscale)
        bound = collapsed_bound(matrix, cross, y[::step], weight[::step], chosen.variance, chosen.noise)
        return (unlikely(theta) - bound) / weight[::step].sum()

    def of_validation(theta: Tensor) -> Tensor:
        assert validation is not None
        chosen = numbers(theta)
        scaled, matrix = inner(chosen)
        factor = torch.linalg.cholesky(matrix)

        def features(at: Tensor) -> Tensor:
            similarity = gram(kernel, scaled, at / chosen.lengthscale)
            return torch.linalg.solve_triangular(factor, similarity, upper=False).mT

        new, new_y = validation
        return predictive_nlpd(features(u), y, weight, features(new), new_y, chosen.variance, chosen.noise)

    limits = [(-7.0, 7.0)] * parts + [(-5.0, 5.0)] * m + [(math.log(QUIETEST), 3.0)] * m
    thetas = [np.concatenate([np.zeros(parts + m), np.full(m, math.log(noise))]) for noise in starts]

    def ends(loss: Callable[[Tensor], Tensor], thetas: list[Array], name: str) -> list[End]:
        found = [minimum(loss, theta, limits, u) for theta in thetas]
        for end in found:
            verbose(f"{name}: {end.loss:.5f} after {end.evaluations} evaluations")
        return sorted(found, key=lambda end: end.loss)

    def refine(loss: Callable[[Tensor], Tensor], few: Callable[[Tensor], Tensor], start: End, name: str) -> End:
        end = refined(loss, few, start.at, limits, u)
        verbose(f"{name}: {end.loss:.5f} after {end.evaluations} evaluations")
        return end

    if validation is not None:
        [best, *_] = ends(of_validation, thetas, "NLPD")
    elif inducing is not None:
        coarse = lambda theta: of_bound(theta, COARSE)  # noqa: E731
        [first, *_] = ends(coarse, thetas, f"-bound of {len(u[::COARSE])} rows")
        best = refine(of_bound, coarse, first, f"-bound of {len(u)} rows")
    elif len(u) > 1.5 * FEW:
        of_few = partial(of_evidence, some=_few(u / start))
        first, *others = ends(of_few, thetas, f"-evidence of few of {len(u)} rows")
        others = [other for other in others if np.abs(other.at - first.at).max() > ELSEWHERE]
        name = f"-evidence of {len(u)} rows"
        best = min((refine(of_evidence, of_few, end, name) for end in (first, *others)), key=lambda end: end.loss)
    else:
        [best, *_] = ends(of_evidence, thetas, f"-evidence of {len(u)} rows")
    every = lambda theta: of_evidence(theta) * weight.sum()  # noqa: E731
    with torch.no_grad():
        place = lambda theta: numbers(torch.tensor(theta, device=u.device, dtype=u.dtype))  # noqa: E731
        drawn = around(every, best.at, limits, u, draws) if draws else ()
        return replace(place(best.at), draws=tuple(map(place, drawn)))


def _few(u: Tensor) -> Tensor:
    """The indices of a few rows of u (n, d): some at random, and the nearest of the others to each of them.

    Rows that are close to each other tell noise from what the function does.
    """
    some = torch.randperm(len(u), generator=torch.Generator().manual_seed(0))[: FEW // 2].to(u.device)
    distances = torch.cdist(u[some], u)
    distances[:, some] = math.inf
    return torch.cat([some, distances.argmin(1).unique()])
