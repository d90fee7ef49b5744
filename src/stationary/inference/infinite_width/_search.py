"""The search for length-scale, variance and temperature of classes: deterministic, on a sample of the rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from stationary.inference.infinite_width import _classes, _values
from stationary.inference.infinite_width._basis import Basis, Passes, unseen
from stationary.inference.infinite_width._sums import alone

VARIANCE = 10.0  # where the search for the variance starts
STEPS = (1.0, 0.5)  # of the search, in powers of 2 for the length-scale and of 10 for the variance
REACH = 6.0  # farthest that it goes from the start, in the same powers
ROUGH = 1e-3  # tolerance of a fit within the search
COLDEST, HOTTEST = 1e-3, 1.0  # temperatures
PAIRS = 1000  # rows between which distances are measured


@dataclass(frozen=True)
class Sample:
    """Rows of the training data, and rows to judge by.

    Args:
        kernel: name of the kernel.
        inducing: (M, d) places of the inducing inputs.
        u, y, weight: places (n, d), targets and weights of the rows to learn from.
        offset: (c,) prior mean of the outputs.
        validation: places and targets of rows that nothing was trained on; None to judge by the evidence.
    """

    kernel: str
    inducing: Tensor
    u: Tensor
    y: Tensor
    weight: Tensor
    offset: Tensor
    validation: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Found:
    """What the search has found: a length-scale () or (d,), a variance, a temperature, and the number it minimised."""

    lengthscale: Tensor
    variance: float
    temperature: float
    loss: float


def search(
    sample: Sample,
    lengthscale: float | Tensor | None,
    variance: float | None,
    temperature: float | None,
    *,
    per_column: bool,
    verbose: Callable[[str], object],
) -> Found:
    """Length-scale, variance and temperature; those that are given stay.

    With validation rows the loss is their NLPD, at the best temperature for each length-scale and variance; without,
    it is the negative evidence per row, at temperature 1.

    Args:
        sample: the rows.
        lengthscale, variance, temperature: values that are given, or None.
        per_column: whether each column has a length-scale of its own. Their ratios come from the evidence of a
            regression on the classes, which has a slope in all of them; the search then scales them together.
        verbose: function that takes a line of text for each step.
    """
    start = typical_distance(sample.u)
    if lengthscale is not None:
        start = torch.as_tensor(lengthscale).to(sample.u)
    elif per_column and sample.u.shape[1] > 1:
        start = _by_regression(sample, start, verbose)
    cache: dict[tuple[float, float], Found] = {}
    passes: dict[float, tuple[Passes, Tensor | None]] = {}

    def at(i: float, j: float) -> Found:
        if (i, j) not in cache:
            scale, s2 = start * 2**i, VARIANCE * 10**j if variance is None else variance
            if i not in passes:
                while len(passes) > 2:
                    del passes[next(iter(passes))]
                basis = Basis.of(sample.kernel, scale, sample.inducing)
                passes[i] = Passes(basis, lambda rows: sample.u[rows], len(sample.u), 2**31), None
            made, warm = passes[i]
            task = _classes.Task(made, sample.y, sample.weight, s2, sample.offset, alone)
            solution = _classes.solve(task, warm, ROUGH)
            passes[i] = made, solution.mean
            cache[i, j] = found = _judged(sample, task, solution, scale, temperature)
            verbose(
                f"length-scale {_typical(scale):.4g}, variance {s2:.4g}, temperature {found.temperature:.3g}: "
                f"{'NLPD' if sample.validation else '-evidence per row'} {found.loss:.5f}"
            )
        return cache[i, j]

    place = (0.0, 0.0)
    ways = [(1, 0), (-1, 0)] * (lengthscale is None) + [(0, 1), (0, -1)] * (variance is None)
    best = at(*place)
    for step in STEPS:
        moved = bool(ways)
        while moved:
            moved = False
            for di, dj in ways:
                new = place[0] + step * di, place[1] + step / 2 * dj
                while max(map(abs, new)) <= REACH and at(*new).loss < best.loss - 1e-6 * abs(best.loss):
                    place, best, moved = new, at(*new), True
                    new = place[0] + step * di, place[1] + step / 2 * dj
    return best


def typical_distance(u: Tensor) -> Tensor:
    """The median distance between rows of u (n, d)."""
    some = u[:: max(1, len(u) // PAIRS)][:PAIRS]
    distances = torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances[distances > 1e-6 * some.abs().max()]  # what is less may be rounding of the network
    if not len(distances):
        raise ValueError(
            f"data must give features that differ between rows, got the same {u.shape[1]} numbers for all of them; "
            "pass other features="
        )
    return distances.median()


def outputs(basis: Basis, solution: _classes.Solution, u: Tensor, variance: float) -> tuple[Tensor, Tensor]:
    """The mean (n, c) of the outputs without their prior mean, and their variance (n, 1), or (n, c) for labels."""
    phi = basis(u)
    roots = solution.root if solution.root.ndim == 3 else solution.root[None]
    inside = torch.linalg.solve_triangular(roots, phi.mT.expand(len(roots), -1, -1), upper=False).square().sum(1).mT
    return phi @ solution.mean, inside + variance * unseen(phi)[:, None]


def _judged(
    sample: Sample, task: _classes.Task, solution: _classes.Solution, scale: Tensor, temperature: float | None
) -> Found:
    if sample.validation is None:
        loss = -_classes.log_evidence(task, solution) / float(sample.weight.sum())
        return Found(scale, task.variance, 1.0 if temperature is None else temperature, loss)
    u, y = sample.validation
    mean, variance = outputs(task.passes.basis, solution, u, task.variance)

    def nlpd(log_temperature: float) -> float:
        z = sample.offset + mean * (1 + math.pi / 8 * math.exp(log_temperature) * variance).rsqrt()
        loss = F.cross_entropy(z, y) if y.ndim == 1 else F.binary_cross_entropy_with_logits(z, y.to(z))
        return float(loss)

    if temperature is not None:
        return Found(scale, task.variance, temperature, nlpd(math.log(temperature)))
    log_t, loss = least(nlpd)
    return Found(scale, task.variance, math.exp(log_t), loss)


def least(loss: Callable[[float], float]) -> tuple[float, float]:
    """The logarithm of the best temperature, and the loss there."""
    end = minimize_scalar(
        loss, bounds=(math.log(COLDEST), math.log(HOTTEST)), method="bounded", options={"xatol": 0.01}
    )
    return float(end.x), float(end.fun)


def _by_regression(sample: Sample, start: Tensor, verbose: Callable[[str], object]) -> Tensor:
    """A length-scale for each column, from a regression on the classes coded as 0 and 1, centred."""
    y = F.one_hot(sample.y, len(sample.offset)).to(sample.u) if sample.y.ndim == 1 else sample.y.to(sample.u)
    y = y - (sample.weight @ y) / sample.weight.sum()
    y = y[:, (y != 0).any(0)]
    begin = start.expand(sample.u.shape[1]).clone()
    rows = sample.u, y, sample.weight
    found = _values.choose(sample.kernel, sample.inducing, rows, None, begin, shared=True, verbose=verbose)
    return found.lengthscale


def _typical(lengthscale: Tensor) -> float:
    return float(lengthscale.log().mean().exp())


