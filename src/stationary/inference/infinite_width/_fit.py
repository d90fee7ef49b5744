"""One fit, from the rows of the data to a posterior: what is given is taken, what is not given is chosen."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from stationary._shared import ONE_THREAD_OF_SCIPY
from stationary.inference.infinite_width import _classes, _noise, _search, _values
from stationary.inference.infinite_width._basis import Basis, Passes, moments
from stationary.inference.infinite_width._geometry import Geometry
from stationary.inference.infinite_width._journal import Journal, number
from stationary.inference.infinite_width._numbers import Numbers
from stationary.inference.infinite_width._outputs import classes_nlpd
from stationary.inference.infinite_width._sums import Total, alone, gathered, of_first, over_processes, together
from stationary.inference.infinite_width._trunk import Fingerprint, Place, Rows, check_labels, has_trunk, outputs_of
from stationary.inference.infinite_width.posterior import InfiniteWidthPosterior
from stationary.nn.restored_prior import is_head
from stationary.predictive import Bernoulli, Categorical, Gaussian

if TYPE_CHECKING:
    from stationary.inference.infinite_width.method import InfiniteWidth

# Inducing inputs in the search of a regression by validation rows. Behind a trunk, on 1,800 rows of friedman1, 1,000
# take nine times as long, 35 s instead of 4, and the NLPD of new rows is .01 lower.
VALUES_INDUCING = 300
EVIDENCE_ROWS = 1000  # rows in the search of a regression by the evidence
CONSTANT = 1e-12  # a standard deviation of targets that is so little of their mean is rounding
DIGESTED = 1000  # rows, at least where there are as many, by which a checkpoint knows its data


class Fit:
    """One fit, from rows to a posterior."""

    def __init__(
        self, method: "InfiniteWidth", network: nn.Module, place: Place, rows: Rows, held: Rows | None
    ) -> None:
        self.method, self.network, self.place = method, network, place
        self.say = method.verbose if callable(method.verbose) else _printed if method.verbose else _quiet
        self.rows = rows
        self.held = held if held is None else held.to(rows.z.device)
        self.total: Total = over_processes if method.distributed else alone
        self.trunk = has_trunk(network, place)
        self.seen = self.trunk or method.prior_mean == "network"  # whether something was trained on the rows before
        self.fingerprint = Fingerprint.of(network, place)
        if method.distributed:
            alike = gathered(torch.tensor([[int(self.fingerprint.digest[:15], 16), held is not None]]))
            if (alike != alike[0]).any():
                raise ValueError(
                    "distributed=True needs the same network on all processes, and validation rows on all or none; got "
                    "processes that differ: send the weights of one to the others, or pass validation= everywhere"
                )

    def posterior(self) -> InfiniteWidthPosterior:
        method, rows = self.method, self.rows
        with together(method.distributed):
            family, y, n_outputs = _targets(rows.y, self._width())
        n_outputs = int(self._all(torch.tensor([n_outputs])).max())
        rows = replace(rows, y=y, weight=rows.weight * self._class_weights(y, n_outputs))
        if len(rows) == 0:
            raise ValueError("data must have at least one row of positive weight, got none")
        name, n_classes = method.geometry or ("polar" if self.trunk else "euclidean"), n_outputs * (y.ndim == 1)
        geometry = Geometry.of(name, _chunks(rows), n_classes, self.total)
        chosen = _subset(len(rows), method.n_inducing, method.seed, method.distributed)
        z = self._all(rows.z[chosen])
        inducing, prior = geometry(z), None
        if method.prior_mean == "network":
            self._check_inducing(len(z), rows)
            prior = outputs_of(self.network, self.place, z, family)
        if len(inducing) <= method.n_inducing and len(inducing) < 4000:
            inducing, number, counts = inducing.unique(dim=0, return_inverse=True, return_counts=True)
            if prior is not None:  # the mean of what is at the same place
                prior = prior.new_zeros(len(inducing), n_outputs).index_add(0, number, prior) / counts[:, None]
        held = None if self.held is None else self._used(self.held)
        self.journal = self._journal(rows, held, prior)
        self.start: Tensor | None = None
        self.nearby: Tensor | None = None
        self.draws: list[Numbers] = []
        with ONE_THREAD_OF_SCIPY:
            numbers = self._same(self._numbers(family, rows, held, geometry, inducing, n_outputs, prior))
        made = [
            InfiniteWidthPosterior.fitted(
                method,
                self.network,
                self.place,
                self.fingerprint,
                geometry,
                Basis.of(method.kernel, each.lengthscale, inducing),
                each,
                family,
                rows,
                None if held is None else held.marks,
                self.total,
                self.start,
                self.nearby,
                prior,
                self.journal,
            )
            for each in (numbers, *self.draws)
        ]
        return replace(made[0], draws=tuple(made[1:]))

    def _check_inducing(self, n: int, rows: Rows) -> None:
        """Warn where so many inducing inputs cannot tell what a linear layer on the features says elsewhere."""
        d, every = rows.z.shape[1], int(self.total(rows.weight.new_tensor([len(rows)])))
        if n < min(d, every):
            warnings.warn(
                f"n_inducing should be at least {min(d, every)} for prior_mean='network', whose outputs on {d} "
                f"features fewer inducing inputs cannot determine; got {n}: pass n_inducing={min(3 * d, every)}, or "
                "prior_mean='uniform'",
                stacklevel=4,
            )

    def _journal(self, rows: Rows, held: Rows | None, prior: Tensor | None) -> Journal:
        """The steps that a fit of the same settings, network and rows has taken before it was stopped."""
        if self.method.checkpoint is None:
            return Journal(None, say=self.say)
        settings = replace(self.method, features=None, store=None, checkpoint=None, verbose=False)
        digest = sha256(f"{settings} {self.fingerprint.digest} {len(rows)}".encode())
        tensors = [] if prior is None else [prior]
        for part in (rows, held) if held is not None else (rows,):
            some = part[torch.arange(0, len(part), max(1, len(part) // DIGESTED))]
            tensors += [some.z, some.y, some.weight]
        for tensor in tensors:
            digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
        return Journal(Path(self.method.checkpoint), digest.hexdigest(), rows.z.device, self.say)

    def _width(self) -> int | None:
        """The number of outputs of the network, where its last layer tells it."""
        readout = self.place.readout(self.network)
        if readout is None:
            return None
        linear = readout.output if is_head(readout) else readout
        return linear.out_features if isinstance(linear, nn.Linear) else None

    def _class_weights(self, y: Tensor, n_outputs: int) -> Tensor:
        weights = self.method.class_weight
        if weights is None:
            return torch.ones(len(y), dtype=torch.float64, device=y.device)
        if y.ndim != 1 or y.is_floating_point():
            raise ValueError("class_weight must be None for a regression or several labels; use sample_weight")
        if weights == "balanced":
            counts = self.total(torch.bincount(y, self.rows.weight, n_outputs))
            return (counts.sum() / (counts > 0).sum() / counts.clamp(min=1e-30))[y]
        each = torch.tensor(weights, dtype=torch.float64, device=y.device)
        if each.shape != (n_outputs,) or not (each > 0).all():
            raise ValueError(f"class_weight must have a positive number for each of {n_outputs} classes; got {weights}")
        return each[y]

    def _all(self, rows: Tensor) -> Tensor:
        return gathered(rows) if self.method.distributed else rows

    def _same(self, numbers: Numbers) -> Numbers:
        """The numbers of the first process: a search may end elsewhere on a machine that rounds differently."""
        if not self.method.distributed:
            return numbers
        parts = numbers.variance, numbers.temperature, numbers.lengthscale, numbers.offset
        variance, temperature, lengthscale, offset = (of_first(torch.as_tensor(part).double()) for part in parts)
        noise = None if numbers.noise is None else of_first(numbers.noise)
        return Numbers(lengthscale, variance if variance.ndim else float(variance), float(temperature), offset, noise)

    def _used(self, held: Rows) -> Rows:
        """The validation rows that the search looks at, of all processes."""
        some = held[_subset(len(held), self.method.search_rows, self.method.seed, self.method.distributed)]
        assert some.marks is not None
        return Rows(self._all(some.z), self._all(some.y), self._all(some.weight), self._all(some.marks))

    def _numbers(
        self,
        family: type[Any],
        rows: Rows,
        held: Rows | None,
        geometry: Geometry,
        inducing: Tensor,
        n_outputs: int,
        prior: Tensor | None,
    ) -> Numbers:
        """Length-scale, variance, temperature, noise and prior mean."""
        method = self.method
        given = self.held is None and self.seen and None in (method.lengthscale, method.variance)
        if given:
            warnings.warn(
                "InfiniteWidth chooses its length-scale and variance by the evidence of rows that the trunk was "
                "trained on, whose features are more separable than any it will meet again: its probabilities will be "
                "too bold. Pass validation= rows that the trunk has not seen",
                stacklevel=4,
            )
        chosen = _subset(len(rows), method.search_rows, method.seed + 1, method.distributed)
        some = rows[chosen]
        some = Rows(self._all(some.z), self._all(some.y), self._all(some.weight))
        if held is not None:
            _, held_y, _ = _targets(held.y, n_outputs, "validation")
            if held_y.shape[1:] != rows.y.shape[1:] or held_y.is_floating_point() != rows.y.is_floating_point():
                raise ValueError(
                    f"validation must have targets like those of data, got {tuple(held_y.shape)} {held_y.dtype} and "
                    f"{tuple(rows.y.shape)} {rows.y.dtype}"
                )
            held = replace(held, y=held_y)
        known = None not in (method.lengthscale, method.variance, method.noise)
        if method.draws and (family is not Gaussian or held is not None or known):
            raise ValueError(
                f"draws must be 0 for classes, with validation= and where all numbers are given, got {method.draws}: "
                "only the evidence of a regression says which other numbers are possible; leave it out"
            )
        u = geometry(some.z)
        validation = None if held is None else (geometry(held.z), held.y)
        per_column = not self.trunk if method.per_column is None else method.per_column
        say = self.say
        if family is Gaussian:
            return self._numbers_of_values(rows, some, geometry, u, inducing, validation, per_column, say)
        offset = self._offset(rows, n_outputs)
        if None not in (method.lengthscale, method.variance, method.temperature):
            return Numbers(
                _number(method.lengthscale, u), float(method.variance or 0), method.temperature or 1.0, offset
            )
        few = slice(None, None, -(-len(inducing) // _search.INDUCING))
        sample = _search.Sample(method.kernel, inducing[few], u, some.y, some.weight, offset, validation)
        search = partial(
            _search.search, per_column=per_column, cross_validate=not self.seen, journal=self.journal, verbose=say
        )
        lengthscale: float | Tensor | None = method.lengthscale
        if prior is not None:
            if lengthscale is None:  # that of the labels: the longest there is would interpolate the network best
                lengthscale = search(sample, None, None, None).lengthscale
            sample = replace(sample, prior=prior[few])
        found = search(sample, lengthscale, method.variance, method.temperature)
        if len(found.mean) == len(inducing):
            self.start, self.nearby = found.mean, found.roots
        numbers = Numbers(found.lengthscale, found.variance, found.temperature, offset)
        if validation is not None and method.temperature is None:  # once more, with the probabilities themselves
            best = self.journal.step(lambda: self._temperature(some, u, inducing, validation, numbers, prior))
            numbers = replace(numbers, temperature=math.exp(float(best["log_temperature"])))
        say(
            f"chosen: length-scale {found.lengthscale.log().mean().exp():.4g}, variance {found.variance:.4g}, "
            f"temperature {numbers.temperature:.3g}"
        )
        return numbers

    def _temperature(
        self,
        some: Rows,
        u: Tensor,
        inducing: Tensor,
        validation: tuple[Tensor, Tensor],
        numbers: Numbers,
        prior: Tensor | None,
    ) -> dict[str, Tensor]:
        """The logarithm of the temperature with the lowest NLPD of the validation rows."""
        basis = Basis.of(self.method.kernel, numbers.lengthscale, inducing)
        passes = Passes(basis, lambda each: u[each], len(u), self.method.memory)
        task = _classes.Task(passes, some.y, some.weight, float(numbers.variance), numbers.offset, alone, prior)
        solution = _classes.solve(task, None, _search.ROUGH)
        mean, variance = moments(basis, solution.mean, solution.root, validation[0], task.prior_variance)
        log_temperature, _ = _search.least(
            lambda log_t: classes_nlpd(mean, variance, numbers.offset, math.exp(log_t), validation[1])
        )
        return {"log_temperature": number(log_temperature)}

    def _sum(self, weight: Tensor) -> Tensor:
        return self.total(weight.sum()[None])[0]

    def _offset(self, rows: Rows, n_outputs: int) -> Tensor:
        """(c,) the prior mean of the outputs of classes or labels."""
        if self.method.prior_mean == "frequencies":
            return _classes.of_frequencies(rows.y, rows.weight, n_outputs, self.total)
        return torch.zeros(n_outputs, dtype=torch.float64, device=rows.z.device)

    def _numbers_of_values(
        self,
        rows: Rows,
        some: Rows,
        geometry: Geometry,
        u: Tensor,
        inducing: Tensor,
        validation: tuple[Tensor, Tensor] | None,
        per_column: bool,
        say: Callable[[str], object],
    ) -> Numbers:
        method = self.method
        mean = self.total(rows.weight @ rows.y) / self._sum(rows.weight)
        spread = self.total(rows.weight @ (rows.y - mean).square()) / self._sum(rows.weight)
        constant = spread <= (CONSTANT * mean).square()
        spread, centred = torch.where(constant, 1.0, spread), torch.where(constant, 0.0, some.y - mean)
        variance = None if method.variance is None else method.variance * spread
        noise = method.noise * spread if isinstance(method.noise, float) else None
        if method.lengthscale is not None and variance is not None and noise is not None:
            return Numbers(_number(method.lengthscale, u), variance, 1.0, mean, noise)
        start = _search.typical_distance(u) if method.lengthscale is None else _number(method.lengthscale, u)
        if per_column and u.shape[1] > 1 and method.lengthscale is None:
            start = start.expand(u.shape[1]).clone()
        few, seen = None, (u, centred, some.weight)
        if validation is not None:
            validation = validation[0], validation[1] - mean
            few = inducing[:: -(-len(inducing) // VALUES_INDUCING)]
        else:
            chosen = _subset(len(u), EVIDENCE_ROWS, method.seed + 2, False).to(u.device)
            seen = u[chosen], seen[1][chosen], seen[2][chosen]
        found = _values.choose(
            method.kernel,
            few,
            seen,
            validation,
            start,
            (method.lengthscale, variance, noise),
            draws=method.draws,
            verbose=say,
        )
        numbers, *self.draws = (
            Numbers(each.lengthscale, each.variance, 1.0, mean, each.noise) for each in (found, *found.draws)
        )
        if method.noise != "input":
            return numbers
        shown, known = (u, centred, some.weight), validation is None or not self.trunk
        if validation is not None and self.trunk:  # whose own rows have smaller residuals than new ones
            shown = *validation, torch.ones(len(validation[0])).to(u)
        found, varying = _noise.learn(
            method.kernel,
            inducing,
            (geometry(rows.z), rows.y - mean, rows.weight),
            shown,
            _subset(len(shown[0]), EVIDENCE_ROWS, method.seed + 2, False).to(u.device),
            found,
            start,
            (method.lengthscale, variance),
            known=known,
            memory=method.memory,
        )
        return replace(numbers, lengthscale=found.lengthscale, variance=found.variance, input_noise=varying)


def _targets(y: Tensor, width: int | None, name: str = "data") -> tuple[type[Any], Tensor, int]:
    """The kind of the prediction, the targets in their form, and the number of outputs."""
    if y.is_floating_point():
        y = y.reshape(len(y), -1).double()
        return Gaussian, y, y.shape[1]
    if y.ndim == 2:
        check_labels(y, name)
        return Bernoulli, y.long(), y.shape[1]
    if y.ndim != 1:
        raise ValueError(f"{name} must have targets (n,) or (n, m), got {tuple(y.shape)}")
    if width is not None and width < 2:
        raise ValueError(
            f"{name} with class indices needs a network of two classes or more, got {width} class; for a regression "
            "pass y.float()"
        )
    y, least, largest = y.long(), int(y.min()), int(y.max())
    if least < 0 or (width is not None and largest >= width):
        rule = "0, 1, ..." if width is None else f"0 to {width - 1}, as the network has {width} outputs"
        raise ValueError(f"{name} must have class indices {rule}; got {least if least < 0 else largest}")
    return Categorical, y, max(width or 0, largest + 1, 2)


def _subset(n: int, most: int, seed: int, distributed: bool) -> Tensor:
    """The indices of at most so many of n rows, drawn without repeats, in their order.

    With several processes they are drawn from the rows of all, in the order of their ranks; each gets its own.
    """
    counts = [n]
    first = 0
    if distributed:
        every = gathered(torch.tensor([n]))
        counts, first = every.tolist(), int(every[: dist.get_rank()].sum())
    everything = sum(counts)
    if everything <= most:
        return torch.arange(n)
    drawn = torch.randperm(everything, generator=torch.Generator().manual_seed(seed))[:most].sort().values
    return drawn[(drawn >= first) & (drawn < first + n)] - first


def _chunks(rows: Rows, size: int = 2**15) -> Callable[[], Any]:
    return lambda: ((part.z, part.weight, part.y) for i in range(0, len(rows), size) for part in [rows[i : i + size]])


def _number(value: float | None, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=like.device)


def _printed(line: str) -> None:
    print(line)


def _quiet(_: str) -> None:
    pass
