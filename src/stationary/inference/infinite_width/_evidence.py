"""What the rows themselves say about the numbers of a posterior of classes: their evidence, and each row left out."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stationary.inference.infinite_width._basis import unseen
from stationary.inference.infinite_width._classes import Problem, Solution, Task


def log_evidence(task: Task, solution: Solution) -> float:
    """Laplace's approximation of the logarithm of the probability of the targets.

    For more than two classes, c, the determinant is that of the curvatures of each class alone, to the power
    (c - 1) / c, since c - 1 directions of the outputs matter. The bound that the posterior has for all of them would
    count too much: with 10 classes and few rows several nats a row.
    """
    size, c = len(solution.mean), len(task.offset)
    own = c > 2 and not task.several
    roots = Problem(task).own_roots(solution.mean) if own else iter(solution.root.view(-1, size, size))
    log_det = sum(2 * float(root.diagonal().log().sum()) + size * math.log(task.variance) for root in roots)
    return -solution.loss - 0.5 * log_det * ((c - 1) / c if own else 1)


def curvatures(task: Task, mean: Tensor) -> Tensor | None:
    """(c, M, M) the Cholesky factors of the curvature of each class alone, for more than two classes."""
    if task.several or len(task.offset) == 2:
        return None
    return Problem(task).all_own_roots(mean)


class LeftOut(NamedTuple):
    """The outputs at rows, each as if it had not been learnt from.

    Args:
        mean: (k, c) their mean, without the prior mean.
        variance: (k, 1), or (k, c) for several labels, their variance.
    """

    mean: Tensor
    variance: Tensor


def left_out(task: Task, solution: Solution, some: Tensor, known: Tensor | None = None) -> LeftOut:
    """The outputs at some rows, each as if it had not been learnt from.

    Without row i the minimum is, to first order, where the other rows' curvature leaves it:

        phi^T W + R a (p - e_y),    R = q / (1 - h q),    q = phi^T H^-1 phi,

    with h its share of the curvature H, and R is the variance there. For more than two classes the H of each class has
    the curvature p (1 - p) of its own output, since the bound for all of them would leave too little to change.

    Args:
        task: the rows that were learnt from.
        solution: the posterior.
        some: (k,) indices of the rows.
        known: the Cholesky factors of ``curvatures`` there; None to make them, one after the other.
    """
    problem = Problem(task)
    phi = task.passes.basis(task.passes.places(some))
    shrink, weight = problem.shrink[some], task.weight[some, None]
    mean = phi @ solution.mean
    z, y = task.offset + shrink * mean, task.targets[some]
    slope, scale = weight * shrink * problem.likelihood.slope(z, y), weight * shrink.square()

    def without(root: Tensor, h: Tensor) -> Tensor:
        q = torch.linalg.solve_triangular(root, phi.mT, upper=False).square().sum(0)
        return q / (1 - h * q).clamp(min=1e-3)

    own = scale * problem.likelihood.bound(z)
    roots = solution.root if task.several else solution.root[None]
    variance = torch.stack([without(root, h) for root, h in zip(roots, own.mT, strict=True)], -1)
    change = variance
    if not task.several and len(task.offset) > 2:
        own_roots, p = problem.own_roots(solution.mean) if known is None else known, z.softmax(-1)
        shares = (scale * p * (1 - p)).mT
        change = torch.stack([without(root, h) for root, h in zip(own_roots, shares, strict=True)], -1)
    return LeftOut(mean + change * slope, variance + task.prior_variance * unseen(phi)[:, None])
