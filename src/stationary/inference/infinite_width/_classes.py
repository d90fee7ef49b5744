"""The posterior of classes, or of several labels at once: a strictly convex problem, solved by Newton's method.

With a_i = (1 + pi r_i / 8)^(-1/2), where r_i is the prior variance that the inducing inputs do not see at row i,

    W = argmin sum_i -log softmax(b + a_i W^T phi_i)_(y_i) + |W|^2 / (2 s^2),
    H = I / s^2 + sum_i a_i^2 (1 - sum_c p_ic^2) phi_i phi_i^T,

and the outputs at x have mean b + W^T phi and, for every class, variance phi^T H^-1 phi + s^2 (1 - |phi|^2). For two
classes H is the exact curvature along the difference of the outputs; for more it bounds the curvature from above.
Where the prior mean is b + W_0^T phi, the interpolation of a network's own outputs at the inducing inputs, the penalty
is |W - W_0|^2 / (2 s^2). What is between the inducing inputs is unseen then of the network's function too, as one drawn
from a process of the variance s_0^2 = mean W_0^2, so that the prior variance of the outputs is s^2 + s_0^2 in r_i.
Labels that may hold at the same time have sigmoids instead, and each has the exact curvature of its own.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from stationary.inference.infinite_width._basis import Passes, outer, solved_by
from stationary.inference.infinite_width._journal import Journal, number
from stationary.inference.infinite_width._likelihoods import Likelihood, Sigmoid, Softmax
from stationary.inference.infinite_width._sums import Total

# Of the gradient's norm, relative to that at W = 0 where that is above 1. W is right to 1e-7 of its size then; a
# fit to 1e-10 takes up to half as long again, for one more Newton step.
TOLERANCE = 1e-8
STEPS, INNER, HALVINGS = 100, 200, 40  # at most: Newton steps, conjugate gradients in each, and halvings of a step
ACCURACY = 0.3  # of a Newton direction at the start, relative; it improves with the gradient
ENOUGH = 0.1  # of the share of the gradient that may be left: a more accurate direction is for nothing
REUSE = {"cpu": 5, "cuda": 0}  # conjugate gradients that take as long as a new factorisation of H, by the device
LARGEST = 2**14  # unknowns up to which the whole curvature is factorised, in 2 GiB
READING = {"cpu": 30, "cuda": 390}  # to read the features takes as long as their product with so many columns


@dataclass(frozen=True)
class Task:
    """The rows to learn from, and the prior of the outputs.

    Args:
        passes: the features of the rows.
        targets: (n,) class indices; or (n, c) zeros and ones for several labels at once.
        weight: (n,) weights of the rows.
        variance: s^2, the prior variance of the outputs.
        offset: (c,) their prior mean b.
        total: sum over the machines.
        prior: (M, c) what the prior mean has beyond b at the inducing inputs, which the kernel interpolates; None is 0.
    """

    passes: Passes
    targets: Tensor
    weight: Tensor
    variance: float
    offset: Tensor
    total: Total
    prior: Tensor | None = None

    @property
    def several(self) -> bool:
        """Whether several labels may hold at once."""
        return self.targets.ndim == 2

    @cached_property
    def centre(self) -> Tensor | None:
        """(M, c) the prior mean W_0 of W; None is 0."""
        return None if self.prior is None else self.passes.basis.through(self.prior)

    @cached_property
    def prior_variance(self) -> float:
        """The prior variance of the outputs where the inducing inputs see nothing: s^2, or s^2 + s_0^2.

        The outputs of classes have a mean of 0 in each row, so that one of them less is free.
        """
        if self.centre is None:
            return self.variance
        size, c = self.centre.shape
        return self.variance + float(self.centre.square().sum()) / (size * (c if self.several else c - 1))


@dataclass(frozen=True)
class Solution:
    """The posterior of W.

    Args:
        mean: (M, c) the minimum W.
        root: (M, M), or (c, M, M) for several labels, the Cholesky factor of H.
        loss: the minimum of the sum.
        gradient: norm of the gradient there.
    """

    mean: Tensor
    root: Tensor
    loss: float
    gradient: float

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a posterior needs of it, by name."""
        return {"mean": self.mean, "root": self.root}


def solve(
    task: Task,
    start: Tensor | None = None,
    tolerance: float = TOLERANCE,
    nearby: Tensor | None = None,
    journal: Journal | None = None,
) -> Solution:
    """The posterior of W; the same from every start, up to the tolerance.

    Args:
        task: the rows and the prior.
        start: (M, c) where to begin; None is the prior mean.
        tolerance: of the gradient's norm, relative to that at W = 0 where that is above 1.
        nearby: (c, M, M) the Cholesky factors of each class's own curvature close to the start, where they are at hand.
        journal: where the state is noted now and then, and where to go on if somebody stopped the solve before.
    """
    problem, journal = Problem(task, nearby), journal or Journal(None)
    start = task.centre if start is None else start
    mean = task.offset.new_zeros(task.passes.basis.size, len(task.offset)) if start is None else start
    loss, gradient = problem.at(mean)
    goal = tolerance * max(1.0, float(gradient.norm()) if start is None else problem.scale())
    if begun := journal.begun:
        mean, loss, gradient = begun["mean"], float(begun["loss"]), begun["gradient"]
        problem.root, problem.exact = begun.get("root"), bool(begun["exact"])
        if "own_at" in begun:
            problem.take_own_curvatures(begun["own_at"])
    for newton in range(1, STEPS + 1):
        norm = float(gradient.norm())
        if norm <= goal:
            break
        journal.say(f"Newton step {newton}: gradient {norm:.3g}, to come below {goal:.3g}")
        journal.within(partial(problem.state, mean, loss, gradient))
        accuracy = max(ACCURACY * min(1.0, norm / max(1.0, problem.scale())) ** 0.5, ENOUGH * goal / norm)
        direction = problem.newton_direction(mean, gradient, accuracy)
        slope, step = float((direction * gradient).sum()), 1.0
        for _ in range(HALVINGS):
            new = mean + step * direction
            new_loss, new_gradient = problem.at(new)
            rounding = 1e-13 * abs(loss)
            if new_loss <= loss + 1e-4 * step * slope + rounding:
                break
            step /= 2
        else:
            break
        new_norm = float(new_gradient.norm())
        as_far_as_rounding_allows = new_loss >= loss - rounding and new_norm >= 0.5 * norm
        if new_norm < norm or not as_far_as_rounding_allows:
            mean, loss, gradient = new, new_loss, new_gradient
        if as_far_as_rounding_allows:
            break
    roots = problem.roots(mean)
    return Solution(mean, roots if task.several else roots[0], loss, float(gradient.norm()))


class Problem:
    """The sum to be minimised, its slope and its curvature, each by one pass over the rows."""

    def __init__(self, task: Task, nearby: Tensor | None = None) -> None:
        self.task, self.nearby = task, nearby
        self.root: Tensor | None = None  # of a curvature that is not far
        self.likelihood: Likelihood = Sigmoid() if task.several else Softmax()
        self.shrink = (1 + math.pi / 8 * task.prior_variance * task.passes.unseen()).rsqrt()[:, None]  # a_i
        self._scale: float | None = None
        self.own_at: Tensor | None = None  # where ``nearby`` is the curvatures of, if they were made here
        self.exact = False  # whether Newton's directions come from a factorisation

    def state(self, mean: Tensor, loss: float, gradient: Tensor) -> dict[str, Tensor]:
        """Where a solve is, as tensors by name, from which it goes on to the same end."""
        found = {"mean": mean, "loss": number(loss), "gradient": gradient, "exact": torch.tensor(self.exact)}
        more = {"root": self.root, "own_at": self.own_at}
        return found | {name: tensor for name, tensor in more.items() if tensor is not None}

    def scale(self) -> float:
        """The norm of the gradient at W = 0."""
        if self._scale is None:
            zero = self.task.offset.new_zeros(self.task.passes.basis.size, len(self.task.offset))
            self._scale = float(self.at(zero)[1].norm())
        return self._scale

    def outputs(self, rows: slice, phi: Tensor, mean: Tensor) -> Tensor:
        return self.task.offset + self.shrink[rows] * (phi @ mean)

    def at(self, mean: Tensor) -> tuple[float, Tensor]:
        """The sum at W, and its gradient (M, c)."""
        task = self.task
        loss, slope = mean.new_zeros(1), torch.zeros_like(mean)
        for rows, phi in task.passes:
            z, y, shrink = self.outputs(rows, phi, mean), task.targets[rows], self.shrink[rows]
            loss += task.weight[rows] @ self.likelihood.loss(z, y)
            slope += phi.mT @ (task.weight[rows, None] * shrink * self.likelihood.slope(z, y))
        rest = mean if task.centre is None else mean - task.centre
        half = rest.square().sum() / (2 * task.variance)
        return float(task.total(loss) + half), task.total(slope) + rest / task.variance

    def roots(self, mean: Tensor) -> Tensor:
        """The Cholesky factors (1 or c, M, M) of the curvature at W, or of its bound."""
        return self._factorized(mean, self.likelihood.bound)

    def own_roots(self, mean: Tensor) -> Iterator[Tensor]:
        """The Cholesky factor (M, M) of the curvature in the outputs of each class alone, one after the other.

        With many classes all of them together would be the largest tensor of a search.
        """
        task, size = self.task, len(mean)
        probs = [self.outputs(rows, phi, mean).softmax(-1) for rows, phi in task.passes]
        for k in range(len(task.offset)):
            sums = mean.new_zeros(size, size)
            for (rows, phi), p in zip(task.passes, probs, strict=True):
                sums += outer(phi, task.weight[rows] * self.shrink[rows, 0].square() * (p[:, k] * (1 - p[:, k])))
            yield torch.linalg.cholesky(task.total(sums) + _eye(size, mean) / task.variance)

    def all_own_roots(self, mean: Tensor) -> Tensor:
        """(c, M, M) the same of all classes, each put in its place at once: a list of them would take as much again."""
        size, c = mean.shape
        roots = mean.new_empty(c, size, size)
        for k, root in enumerate(self.own_roots(mean)):
            roots[k] = root
        return roots

    def _factorized(self, mean: Tensor, curvature: Callable[[Tensor], Tensor]) -> Tensor:
        """The Cholesky factors (k, M, M) of the sum over rows, of curvatures (n, k) that are a function of outputs."""
        task, size = self.task, len(mean)
        sums: list[Tensor] = []
        for rows, phi in task.passes:
            shares = task.weight[rows, None] * self.shrink[rows].square() * curvature(self.outputs(rows, phi, mean))
            parts = [outer(phi, share) for share in shares.mT]
            sums = [a.add_(b) for a, b in zip(sums, parts, strict=True)] if sums else parts
        both = torch.stack(sums)
        return torch.linalg.cholesky(task.total(both) + _eye(size, mean) / task.variance)

    def times_curvature(self, outputs: list[Tensor], direction: Tensor) -> Tensor:
        product = torch.zeros_like(direction)
        for (rows, phi), z in zip(self.task.passes, outputs, strict=True):
            shrink = self.shrink[rows]
            curved = self.likelihood.curved(z, shrink * (phi @ direction))
            product += phi.mT @ (self.task.weight[rows, None] * shrink * curved)
        return self.task.total(product) + direction / self.task.variance

    def newton_direction(self, mean: Tensor, gradient: Tensor, accuracy: float) -> Tensor:
        """- curvature^-1 gradient: exactly for several labels, else by conjugate gradients with H in front.

        These are quick where H is close to the curvature. Where they have taken as long as it takes to factorise the
        curvature of each class alone, these go in front, here and in the later steps; and where that is not enough, as
        for large variances, the whole curvature is factorised.
        """
        if self.task.several:
            return -solved_by(self.roots(mean), gradient.mT[..., None])[..., 0].mT
        outputs = [self.outputs(rows, phi, mean) for rows, phi in self.task.passes]
        if self.exact:
            return self._exact_direction(outputs, gradient)
        if self.nearby is None and self.root is None:
            [self.root] = self.roots(mean)
        size, c = gradient.shape
        own = c > 2 and c * size**2 <= LARGEST**2
        found, good = self._conjugate(outputs, gradient, accuracy, self.own_patience if own else self.patience)
        if own and not good:
            self.take_own_curvatures(mean)
            found, good = self._conjugate(outputs, gradient, accuracy, self.patience)
        self.exact = not good and gradient.numel() <= LARGEST
        return self._exact_direction(outputs, gradient) if self.exact else found

    def take_own_curvatures(self, mean: Tensor) -> None:
        """Put the curvatures of each class alone at W in front of conjugate gradients."""
        self.nearby = self.root = None  # before others are made, which are as large
        self.nearby, self.own_at = self.all_own_roots(mean), mean

    def _conjugate(self, outputs: list[Tensor], gradient: Tensor, accuracy: float, most: int) -> tuple[Tensor, bool]:
        """- curvature^-1 gradient by at most so many conjugate gradients, and whether it is accurate enough."""
        solution, residual = torch.zeros_like(gradient), -gradient
        step = preconditioned = self._nearly_solved(residual)
        product = (residual * preconditioned).sum()
        first = product
        for taken in range(most):
            curved = self.times_curvature(outputs, step)
            length = product / (step * curved).sum()
            solution = solution + length * step
            residual = residual - length * curved
            preconditioned = self._nearly_solved(residual)
            product, before = (residual * preconditioned).sum(), product
            if float(product) <= accuracy**2 * float(first):
                if taken >= REUSE.get(gradient.device.type, REUSE["cpu"]):
                    self.root = None
                return solution, True
            step = preconditioned + product / before * step
        return solution, False

    def _nearly_solved(self, residual: Tensor) -> Tensor:
        """curvature^-1 residual (M, c), roughly.

        By the bound, or by the curvature of each class alone, among changes that do not change all outputs alike.
        """
        if self.nearby is None:
            assert self.root is not None
            return solved_by(self.root, residual)
        alike = residual.mean(1, keepdim=True)
        found = solved_by(self.nearby, (residual - alike).mT[..., None])[..., 0].mT
        return found - found.mean(1, keepdim=True) + self.task.variance * alike

    @cached_property
    def patience(self) -> int:
        """The number of conjugate gradients that take as long as a factorisation would, at most INNER."""
        size, c = self.task.passes.basis.size, len(self.task.offset)
        unknowns = size * (c - 1)
        return min(INNER, self._as_long_as(self._n * size * unknowns * c + unknowns**3 / 3))

    @cached_property
    def own_patience(self) -> int:
        """The number of them that take as long as the curvatures of each class alone."""
        size, c = self.task.passes.basis.size, len(self.task.offset)
        return min(self.patience, self._as_long_as(c * (self._n * size**2 + size**3 / 3)))

    def _as_long_as(self, operations: float) -> int:
        """The number of conjugate gradients that take as long as so many operations of matrix products."""
        size, c = self.task.passes.basis.size, len(self.task.offset)
        reading = READING.get(self.task.offset.device.type, READING["cpu"])
        return 5 + int(operations / (4 * self._n * size * (c + reading)))

    @cached_property
    def _n(self) -> float:
        """The number of rows on all machines."""
        return float(self.task.total(self.task.weight.new_tensor([self.task.passes.n])))

    def _exact_direction(self, outputs: list[Tensor], gradient: Tensor) -> Tensor:
        """- curvature^-1 gradient, by a Cholesky factorisation.

        A change of all outputs alike changes no probability, so it meets the prior alone; the others, W Q^T with
        Q (c, c - 1) orthonormal, meet the curvature Q^T (diag(p) - p p^T) Q of each row.
        """
        size, c = gradient.shape
        alike = gradient.mean(1, keepdim=True)
        basis = torch.linalg.qr(_eye(c, gradient) - 1 / c)[0][:, :-1]
        curvature = gradient.new_zeros(c - 1, size, c - 1, size)
        for (rows, phi), z in zip(self.task.passes, outputs, strict=True):
            p, scale = z.softmax(-1), self.task.weight[rows] * self.shrink[rows, 0].square()
            within, mean = basis.mT @ (p[..., None] * basis), p @ basis
            within = (within - mean[:, :, None] * mean[:, None]) * scale[:, None, None]
            for a in range(c - 1):
                for b in range(a + 1):
                    curvature[a, :, b] += outer(phi, within[:, a, b])
        for a in range(c - 1):
            for b in range(a):
                curvature[a, :, b] = curvature[a, :, b].tril() + curvature[a, :, b].tril(-1).mT
        matrix = self.task.total(curvature).view((c - 1) * size, -1)
        matrix.diagonal().add_(1 / self.task.variance)
        direction = solved_by(torch.linalg.cholesky(matrix), ((gradient - alike) @ basis).mT.reshape(-1, 1))
        return -direction.view(c - 1, size).mT @ basis.mT - self.task.variance * alike


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def of_frequencies(y: Tensor, weight: Tensor, c: int, total: Total) -> Tensor:
    """(c,) the outputs whose probabilities are the frequencies of classes y (n,) or labels y (n, c), in weighted rows.

    Every class is counted once more than it occurs, and every label once more than it holds and than it does not.
    """
    if y.ndim == 1:
        counts = total(torch.bincount(y, weight, c)) + 1
        return (counts / counts.sum()).log()
    return torch.logit((total(weight @ y.to(weight)) + 1) / (total(weight.sum()[None]) + 2))
