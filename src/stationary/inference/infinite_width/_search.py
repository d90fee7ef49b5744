"""The search for length-scale, variance and temperature of classes: deterministic, on a sample of the rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from stationary.inference.infinite_width import _classes, _evidence, _values
from stationary.inference.infinite_width._basis import Basis, Passes, moments
from stationary.inference.infinite_width._journal import Journal, number
from stationary.inference.infinite_width._sums import alone

VARIANCE = 10.0  # where the search for the variance starts
REACH = 6.0, 3.0  # farthest that it goes from the start, in powers of 2 for the length-scale and of 10 for the variance
ROUGH = 1e-6  # tolerance of a fit within the search; 1e-3 may give the evidence of a variance of 1e4 a third too much
COLDEST, HOTTEST = 0.01, 1.0  # temperatures
PAIRS = 1000  # rows between which distances are measured
LEFT_OUT = 2000  # rows, at most, each of which is predicted without itself
SMALL_ROWS, SMALL_INDUCING = 1000, 500  # at most, for length-scale and variance where no rows validate
INDUCING = 1000  # at most, as many as the fit has by default: with fewer, more is unseen, and other numbers are best
COLUMN_INDUCING, COLUMN_ROWS = 250, 2000  # at most, for the columns


@dataclass(frozen=True)
class Sample:
    """Rows of the training data, and rows to judge by.

    Args:
        kernel: name of the kernel.
        inducing: (M, d) places of the inducing inputs.
        u, y, weight: places (n, d), targets and weights of the rows to learn from.
        offset: (c,) prior mean of the outputs.
        validation: places and targets of rows that nothing was trained on; None to judge by the evidence.
        prior: (M, c) what the prior mean has beyond ``offset`` at the inducing inputs; None is 0.
    """

    kernel: str
    inducing: Tensor
    u: Tensor
    y: Tensor
    weight: Tensor
    offset: Tensor
    validation: tuple[Tensor, Tensor] | None
    prior: Tensor | None = None


@dataclass(frozen=True)
class Found:
    """What the search has found.

    Args:
        lengthscale: length-scale, () or (d,).
        variance, temperature: the two numbers.
        loss: what they minimise.
        mean: (M, c) the solution there, up to a tolerance.
        roots: (c, M, M) the Cholesky factors of the curvature of each class alone, where rows were left out.
    """

    lengthscale: Tensor
    variance: float
    temperature: float
    loss: float
    mean: Tensor
    roots: Tensor | None = None


def search(
    sample: Sample,
    lengthscale: float | Tensor | None,
    variance: float | None,
    temperature: float | None,
    *,
    per_column: bool,
    cross_validate: bool,
    journal: Journal,
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
        cross_validate: whether the temperature, which the evidence knows nothing of, and the variance that suits it
            come from the NLPD of rows that are each left out, at the length-scale that the evidence has chosen. Length-
            scale and variance then come from some of the rows, and the temperature from all of them.
        journal: what was found before the search was stopped.
        verbose: function that takes a line of text for each step.
    """
    start, by_rows = typical_distance(sample.u), sample.validation is None and cross_validate
    if lengthscale is not None:
        start = torch.as_tensor(lengthscale).to(sample.u)
    elif per_column and sample.u.shape[1] > 1:
        typical = start
        start = journal.step(lambda: {"start": _by_regression(sample, typical, verbose)})["start"]
    tries = _Tries(_smaller(sample) if by_rows else sample, start, variance, temperature, journal, verbose)
    ways = [(1.0, 0.0), (0.0, 0.5)][lengthscale is not None : 1 + (variance is None)]
    judged, without = (partial(tries.loss, judge=judge) for judge in (_judged, _left_out))
    place = _descend((0.0, 0.0), ways, judged)
    if by_rows and temperature is None:
        place = _vertex(place, [way for way in ways if way[0]], judged)
        ways = [way for way in ways if way[1]]
        place = _vertex(_descend(place, ways, without), ways, without)
        whole = tries
        if tries.sample is not sample:
            whole = _Tries(sample, start, variance, temperature, journal, verbose)
            whole.last = tries.last
        if whole is not tries and ways:  # more rows bear a larger variance
            place = _descend(place, ways, partial(whole.loss, judge=_left_out), signs=(1,))
        found = whole(*place, _left_out)
        return replace(found, roots=whole.roots_at(found, whole.task(*place)))
    return min((tries(*at, _judged) for at in (place, _vertex(place, ways, judged))), key=lambda found: found.loss)


def _smaller(sample: Sample) -> Sample:
    """Some of the rows, and some of these as inducing inputs."""
    if len(sample.u) <= SMALL_ROWS and len(sample.inducing) <= SMALL_INDUCING:
        return sample
    some = _drawn(len(sample.u), SMALL_ROWS).to(sample.u.device)
    inducing = sample.u[some[:SMALL_INDUCING]].unique(dim=0)
    return replace(sample, inducing=inducing, u=sample.u[some], y=sample.y[some], weight=sample.weight[some])


Place: TypeAlias = tuple[float, float]
Judged: TypeAlias = tuple[float, float]  # temperature and loss
Judge: TypeAlias = Callable[..., Judged]  # of a sample, a task, its solution and a temperature


def _descend(
    place: Place, ways: Sequence[Place], loss: Callable[[Place], float], signs: Sequence[int] = (1, -1)
) -> Place:
    """The place that no step forth or back (or only forth) in one of the ways improves."""
    steps = [(sign * di, sign * dj) for di, dj in ways for sign in signs]
    moved = bool(steps)
    while moved:
        moved = False
        for di, dj in steps:
            while _within(new := (place[0] + di, place[1] + dj)) and loss(new) < loss(place) - 1e-6 * abs(loss(place)):
                place, moved = new, True
    return place


def _vertex(place: Place, ways: Sequence[Place], loss: Callable[[Place], float]) -> Place:
    """The lowest point of the parabola through a place, where ``_descend`` has ended, and its neighbours, each way."""
    i, j = place
    for di, dj in ways:
        before, after = (place[0] - di, place[1] - dj), (place[0] + di, place[1] + dj)
        if _within(before) and _within(after):
            slope, curvature = (loss(after) - loss(before)) / 2, loss(after) - 2 * loss(place) + loss(before)
            share = min(0.5, max(-0.5, -slope / curvature)) if curvature > 0 else 0.0
            i, j = i + share * di, j + share * dj
    return i, j


def _within(place: Place) -> bool:
    return abs(place[0]) <= REACH[0] and abs(place[1]) <= REACH[1]


class _Tries:
    """Fits at a length-scale and a variance, given as powers from the start, each made and judged once."""

    def __init__(
        self,
        sample: Sample,
        start: Tensor,
        variance: float | None,
        temperature: float | None,
        journal: Journal,
        verbose: Callable[[str], object],
    ) -> None:
        self.sample, self.start, self.variance, self.temperature = sample, start, variance, temperature
        self.journal, self.verbose = journal, verbose
        self.found: dict[tuple[float, float, Judge], Found] = {}
        self.passes: dict[float, tuple[Passes, Tensor | None]] = {}  # and where the next solution starts
        self.last: tuple[Basis, Tensor] | None = None  # the last solution
        self.own: tuple[Tensor, Tensor | None] | None = None  # and the curvatures of each class there

    def task(self, i: float, j: float) -> _classes.Task:
        """The rows to learn from, and the prior, there."""
        sample = self.sample
        if i not in self.passes:
            while len(self.passes) > 2:
                del self.passes[next(iter(self.passes))]
            basis = Basis.of(sample.kernel, self.start * 2**i, sample.inducing)
            self.passes[i] = Passes(basis, lambda rows: sample.u[rows], len(sample.u), None), None
        variance = VARIANCE * 10**j if self.variance is None else self.variance
        passes, _ = self.passes[i]
        return _classes.Task(passes, sample.y, sample.weight, variance, sample.offset, alone, sample.prior)

    def __call__(self, i: float, j: float, judge: Judge) -> Found:
        if (i, j, judge) not in self.found:
            task, scale = self.task(i, j), self.start * 2**i
            passes, warm = self.passes[i]
            if warm is None and self.last is not None:  # the same outputs at the inducing inputs
                basis, mean = self.last
                warm = passes.basis.through(basis(passes.basis.inducing) @ mean)
            step = self.journal.step(partial(self._tried, task, warm, judge))
            mean, temperature, loss = step["mean"], float(step["temperature"]), float(step["loss"])
            self.passes[i], self.last = (passes, mean), (passes.basis, mean)
            self.found[i, j, judge] = Found(scale, task.variance, temperature, loss, mean)
            self.verbose(
                f"length-scale {_typical(scale):.4g}, variance {task.variance:.4g}, temperature {temperature:.3g}: "
                f"{self._name(judge)} {loss:.5f}"
            )
        return self.found[i, j, judge]

    def _tried(self, task: _classes.Task, warm: Tensor | None, judge: Judge) -> dict[str, Tensor]:
        self.own = None  # before others are made, which are as large
        known: dict[str, Tensor | None] = {}
        solution = _classes.solve(task, warm, ROUGH)
        if judge is _left_out and task.offset.numel() * task.passes.basis.size**2 <= _classes.LARGEST**2:
            self.own = solution.mean, _evidence.curvatures(task, solution.mean)
            known = {"own": self.own[1]}
        temperature, loss = judge(self.sample, task, solution, self.temperature, **known)
        return {"mean": solution.mean, "temperature": number(temperature), "loss": number(loss)}

    def roots_at(self, found: Found, task: _classes.Task) -> Tensor | None:
        """The Cholesky factors of the curvature of each class alone there, which the last try may have made."""
        if self.own is not None and self.own[0] is found.mean:
            return self.own[1]
        return _evidence.curvatures(task, found.mean)

    def loss(self, place: Place, judge: Judge) -> float:
        return self(*place, judge).loss

    def _name(self, judge: Judge) -> str:
        if judge is _left_out:
            return "NLPD of rows left out"
        return "-evidence per row" if self.sample.validation is None else "NLPD"


def typical_distance(u: Tensor) -> Tensor:
    """The median distance between rows of u (n, d)."""
    some = u[:: max(1, len(u) // PAIRS)][:PAIRS]
    distances = torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances[distances > 1e-6 * some.abs().max()]  # what is less may be rounding of the network
    if not len(distances):
        raise ValueError(
            f"data must give features that differ between rows, got the same for all of n_samples={len(u)}; "
            "let a column of x differ, or pass other features="
        )
    return distances.median()


def _judged(sample: Sample, task: _classes.Task, solution: _classes.Solution, temperature: float | None) -> Judged:
    """The temperature, and the NLPD of the validation rows or the negative evidence per row."""
    if sample.validation is None:
        loss = -_evidence.log_evidence(task, solution) / float(sample.weight.sum())
        return 1.0 if temperature is None else temperature, loss
    u, y = sample.validation
    outputs = moments(task.passes.basis, solution.mean, solution.root, u, task.prior_variance)
    return _best(*outputs, sample.offset, y, None, temperature)


def _left_out(
    sample: Sample,
    task: _classes.Task,
    solution: _classes.Solution,
    temperature: float | None,
    own: Tensor | None = None,
) -> Judged:
    """The temperature, and the NLPD of rows, each predicted without itself."""
    some = _drawn(len(sample.u), LEFT_OUT).to(sample.u.device)
    outputs = _evidence.left_out(task, solution, some, own)
    return _best(*outputs, sample.offset, sample.y[some], sample.weight[some], temperature)


def _best(
    mean: Tensor, variance: Tensor, offset: Tensor, y: Tensor, weight: Tensor | None, temperature: float | None
) -> tuple[float, float]:
    """The best temperature, or that which is given, and the NLPD; outputs are moderated, not integrated over."""

    def nlpd(log_temperature: float) -> float:
        z = offset + mean * (1 + math.pi / 8 * math.exp(log_temperature) * variance).rsqrt()
        if y.ndim == 1:
            losses = F.cross_entropy(z, y, reduction="none")
        else:
            losses = F.binary_cross_entropy_with_logits(z, y.to(z), reduction="none").sum(1)
        return float(losses.mean() if weight is None else weight @ losses / weight.sum())

    if temperature is not None:
        return temperature, nlpd(math.log(temperature))
    log_temperature, loss = least(nlpd)
    return math.exp(log_temperature), loss


def least(loss: Callable[[float], float]) -> tuple[float, float]:
    """The logarithm of the best temperature, and the loss there."""
    end = minimize_scalar(
        loss, bounds=(math.log(COLDEST), math.log(HOTTEST)), method="bounded", options={"xatol": 0.01}
    )
    return float(end.x), float(end.fun)


def _by_regression(sample: Sample, start: Tensor, verbose: Callable[[str], object]) -> Tensor:
    """A length-scale for each column, from a regression on the classes coded as 0 and 1, centred.

    Many rows are judged by the bound of few inducing inputs, few rows by the evidence itself.
    """
    y = F.one_hot(sample.y, len(sample.offset)).to(sample.u) if sample.y.ndim == 1 else sample.y.to(sample.u)
    y = y - (sample.weight @ y) / sample.weight.sum()
    y = y[:, (y != 0).any(0)]
    begin = start.expand(sample.u.shape[1]).clone()
    some = _drawn(len(sample.u), COLUMN_ROWS).to(sample.u.device)
    rows = sample.u[some], y[some], sample.weight[some]
    few = rows[0][:COLUMN_INDUCING].unique(dim=0) if len(some) > 2 * COLUMN_INDUCING else None
    found = _values.choose(sample.kernel, few, rows, None, begin, shared=True, verbose=verbose)
    return found.lengthscale


def _drawn(n: int, most: int) -> Tensor:
    """The indices of at most so many of n rows, at random."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most]


def _typical(lengthscale: Tensor) -> float:
    return float(lengthscale.log().mean().exp())
