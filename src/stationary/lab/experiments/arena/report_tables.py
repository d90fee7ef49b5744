"""The report of the events with tables: who is better than infinite width, by how much, and whether beyond chance.

On one table differences are paired by split or seed and judged by Student's t, over all tables they are paired by table
and judged by Wilcoxon's signed ranks; two-sided at 5 %, after Holm's correction over all other methods.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata, t, wilcoxon

from stationary.lab.experiments.arena.config import Config
from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH, Entry
from stationary.lab.experiments.arena.protocol_tables import (
    CLASSIFIERS,
    DRAWS,
    KINDS,
    OF_EVENT,
    REGRESSORS,
    TABLES_EVENT,
    UNKNOWN,
    VALUES_EVENT,
)
from stationary.lab.experiments.arena.words import called, listed, name_of
from stationary.lab.report.content import Cell, Table
from stationary.lab.runs.store import Arrays

LEVEL = 0.05
MOST_TABLES = 2  # of a kind of split, on which a peer may be better
BETTER, WORSE = "▲", "▽"  # than infinite width
LL = "log-likelihood"
MARKS = f"{BETTER} is better and {WORSE} is worse than infinite width (paired t, Holm over the methods, 5 %)"
Numbers = dict[str, dict[int, float]]  # by name of a metric, its value by seed
Methods = dict[str, Numbers]
Found = dict[str, Methods]  # by data set


class Compared(NamedTuple):
    """How a method differs from infinite width on the same splits.

    Args:
        mean: mean of the method's number minus that of infinite width, with its sign turned where lower is better.
        n: number of splits that both have.
        p: p-value, corrected; 1 where there are fewer than two splits.
    """

    mean: float
    n: int
    p: float

    @property
    def mark(self) -> str:
        return "" if self.p >= LEVEL else BETTER if self.mean > 0 else WORSE


def found_of(results: Sequence[tuple[Config, Arrays]], event: str) -> Found:
    """Return the finite numbers of an event by data set, method, name and seed."""
    found: Found = {}
    for config, arrays in results:
        if config.event != event:
            continue
        numbers = found.setdefault(config.dataset, {}).setdefault(config.method, {})
        for name, values in arrays.items():
            for seed, value in zip(config.seeds, values, strict=True):
                if value is not None and np.isfinite(value):
                    numbers.setdefault(name, {})[seed] = float(value)
    return found


def mean(methods: Methods, method: str, name: str) -> float | None:
    values = methods[method].get(name)
    return float(np.mean(list(values.values()))) if values else None


def differences(methods: Methods, method: str, name: str) -> list[float]:
    """Return the method's number minus that of infinite width, for each split that both have."""
    ours, theirs = methods.get(INFINITE_WIDTH, {}).get(name, {}), methods[method].get(name, {})
    return [value - ours[seed] for seed, value in theirs.items() if seed in ours]


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Correct p-values for their number: the k-th smallest of m counts m - k + 1 times, and never less than one before.

    Examples:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected: dict[str, float] = {}
    largest = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = round(largest, 12)
    return corrected


def compared(methods: Methods, name: str, better: int = 1) -> dict[str, Compared]:
    """Compare all other methods with infinite width by one number; ``better`` is -1 where a lower one is better."""
    others = {m: differences(methods, m, name) for m in methods if m != INFINITE_WIDTH}
    others = {method: values for method, values in others.items() if values}
    p = {method: _p_value(values) for method, values in others.items() if len(values) > 1}
    corrected = holm(p)
    return {m: Compared(better * float(np.mean(v)), len(v), corrected.get(m, 1.0)) for m, v in others.items()}


def _p_value(values: list[float]) -> float:
    """Return the two-sided p-value of Student's t; the same difference on every split is no chance, unless it is 0."""
    error = np.std(values, ddof=1) / len(values) ** 0.5
    centre = abs(np.mean(values))
    return float(2 * t.sf(centre / error, len(values) - 1)) if error > 0 else float(centre == 0)


def over_tables(found: Found, name: str) -> dict[str, Compared]:
    """Compare all other methods with infinite width by the means of one number on each table."""
    others: dict[str, list[float]] = {}
    for methods in found.values():
        for method in methods:
            if method != INFINITE_WIDTH and (values := differences(methods, method, name)):
                others.setdefault(method, []).append(float(np.mean(values)))
    p = {method: float(wilcoxon(values).pvalue) for method, values in others.items() if np.any(values)}
    corrected = holm(p)
    return {m: Compared(float(np.mean(np.sign(v))), len(v), corrected.get(m, 1.0)) for m, v in others.items()}


def higher(found: Found, method: str, name: str) -> tuple[int, int]:
    """Return on how many tables a method has the higher number than infinite width, and of how many."""
    each = [differences(methods, method, name) for methods in found.values() if method in methods]
    return sum(bool(np.mean(values) > 0) for values in each if values), sum(bool(values) for values in each)


def label(event: str, method: str) -> str:
    return OF_EVENT[event][method].label


def peers(entries: dict[str, Entry]) -> list[str]:
    """Return the methods that are neither ours nor the marginal Gaussian, which is a floor and no peer."""
    return [method for method, entry in entries.items() if not entry.ours and method != "marginal"]


def better_peers(found: Found, kind: str) -> dict[str, list[str]]:
    """Return, for each peer, the data sets on whose splits of a kind it is better than infinite width beyond chance."""
    name = f"{LL}: {kind}"
    marks = {dataset: compared(methods, name) for dataset, methods in found.items()}
    return {
        peer: [dataset for dataset, of in marks.items() if peer in of and of[peer].mark == BETTER]
        for peer in peers(REGRESSORS)
    }


def below_marginal(found: Found, method: str = INFINITE_WIDTH) -> list[tuple[float, str, str, int]]:
    """Return how far a method is above the marginal Gaussian, with data set, kind and split, the lowest first."""
    gaps = []
    for dataset, methods in found.items():
        for kind in KINDS:
            name = f"{LL}: {kind}"
            floor = methods.get("marginal", {}).get(name, {})
            of = methods.get(method, {}).get(name, {})
            gaps += [(of[seed] - floor[seed], dataset, kind, seed) for seed in of if seed in floor]
    return sorted(gaps)


def tables(results: Sequence[tuple[Config, Arrays]]) -> Iterator[Table]:
    yield from tables_of_values(found_of(results, VALUES_EVENT))
    yield from tables_of_classes(found_of(results, TABLES_EVENT))


def tables_of_values(found: Found) -> Iterator[Table]:
    """Make a table of the log-likelihoods for each kind of split, and one of all metrics over the data sets."""
    if not found:
        return
    for kind, tested in KINDS.items():
        name = f"{LL}: {kind}"
        marks = {dataset: compared(methods, name) for dataset, methods in found.items()}
        rows: list[tuple[Cell, ...]] = []
        for method in _present(REGRESSORS, found):
            cells = [_cell(methods, method, name, marks[dataset]) for dataset, methods in found.items()]
            rows.append((REGRESSORS[method].label, *cells))
        caption = f"Log-likelihood of a test row, {kind} splits: tested are {tested}. Targets are in units of the "
        caption += f"standard deviation of the training targets.{_legend(marks.values())}"
        yield Table(caption, ("method", *map(name_of, found)), tuple(rows))
    for kind in KINDS:
        yield _over_datasets(found, kind)


def _legend(marks: Iterable[dict[str, Compared]]) -> str:
    """Say what the marks of a table mean, where it has any."""
    return f" {MARKS}." if any(of.mark for some in marks for of in some.values()) else ""


def _present(entries: dict[str, Entry], found: Found) -> list[str]:
    return [method for method in entries if any(method in methods for methods in found.values())]


def _cell(methods: Methods, method: str, name: str, marks: dict[str, Compared], digits: int = 2) -> str:
    value = mean(methods, method, name) if method in methods else None
    mark = marks[method].mark if method in marks else ""
    return "–" if value is None else f"{_number(value, digits)} {mark}".strip()


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:,.0f}"


def _over_datasets(found: Found, kind: str) -> Table:
    """Make a table of all metrics over the data sets of one kind of split, the best mean rank first."""
    whole = [m for m in _present(REGRESSORS, found) if all(_has(methods, m, kind) for methods in found.values())]
    ranks = [
        rankdata([-(mean(methods, method, f"{LL}: {kind}") or 0.0) for method in whole]) for methods in found.values()
    ]
    rank = dict(zip(whole, np.mean(ranks, 0), strict=True))
    marks = over_tables(found, f"{LL}: {kind}")
    rows: list[tuple[Cell, ...]] = []
    for method in sorted(whole, key=lambda method: rank[method]):
        count = "{} of {}".format(*higher(found, method, f"{LL}: {kind}"))
        over = {
            metric: [mean(methods, method, f"{metric}: {kind}") or 0.0 for methods in found.values()]
            for metric in (LL, "RMSE", "coverage", "width")
        }
        gaps = [gap for gap, _, of_kind, _ in below_marginal(found, method) if of_kind == kind]
        rows.append(
            (
                REGRESSORS[method].label,
                f"{rank[method]:.1f}",
                f"{count} {marks[method].mark}".strip() if method in marks else "",
                f"{np.median(over[LL]):.2f}",
                _number(min(gaps), 1) if gaps else None,
                f"{np.mean(over['RMSE']):.2f}",
                f"{np.mean(over['coverage']):.2f}",
                f"{np.mean(over['width']):.2f}",
            )
        )
    caption = (
        f"{kind.capitalize()} splits, over the {len(found)} tables: mean rank by log-likelihood, on how many tables "
    )
    caption += (
        f"it is higher than that of infinite width ({BETTER} or {WORSE} where Wilcoxon's signed ranks over tables, "
    )
    caption += (
        "after Holm's correction, say better or worse at 5 %), its median, the lowest of any split minus that of "
    )
    caption += "the marginal Gaussian, and means of RMSE, of the coverage of 90 % intervals and of their width."
    columns = ("method", "mean rank", "higher than ours", LL, "lowest above marginal", "RMSE", "coverage", "width")
    return Table(caption, columns, tuple(rows))


def _has(methods: Methods, method: str, kind: str) -> bool:
    return method in methods and f"{LL}: {kind}" in methods[method]


def tables_of_classes(found: Found) -> Iterator[Table]:
    """Make a table for each data set, the lowest NLPD first."""
    for dataset, methods in found.items():
        names = {"NLPD": ("NLPD", -1), "accuracy": ("accuracy", 1), "ECE": ("ECE", -1)}
        of_unknown = {f"AUROC, {unknown}": (f"AUROC: {unknown}", 1) for unknown in UNKNOWN}
        sure = {"max p": ("confidence", 0), "max p, columns times 5": ("confidence: columns times 5", 0)}
        columns = {
            heading: (name, better)
            for heading, (name, better) in (names | of_unknown | sure).items()
            if any(name in numbers for numbers in methods.values())
        }
        marks = {name: compared(methods, name, better) if better else {} for name, better in columns.values()}
        rows: list[tuple[Cell, ...]] = []
        order = sorted(methods, key=lambda method: mean(methods, method, "NLPD") or np.inf)
        for method in order:
            cells = (_cell(methods, method, name, marks[name], 3) for name, _ in columns.values())
            rows.append((CLASSIFIERS[method].label, *cells, len(methods[method]["NLPD"])))
        caption = f"{name_of(dataset)}: known rows, unknown rows, and the mean of the largest probability near and far."
        caption += _legend(marks.values())
        yield Table(caption, ("method", *columns, "seeds"), tuple(rows))


def records(results: Sequence[tuple[Config, Arrays]]) -> Iterator[dict[str, Any]]:
    """Yield the numbers of summary.csv, but for seconds, and how much infinite width is above each."""
    for event in OF_EVENT:
        for dataset, methods in found_of(results, event).items():
            for method, numbers in methods.items():
                for name, values in numbers.items():
                    if name.startswith("seconds"):
                        continue
                    metric, _, unknown = name.partition(": ")
                    place = {"event": event, "data": dataset, "unknown": unknown or None, "method": method}
                    yield place | {"metric": metric} | _spread(list(values.values()))
                    ours = [-value for value in differences(methods, method, name)]
                    if metric in (LL, "NLPD", "AUROC") and method != INFINITE_WIDTH and ours:
                        yield place | {"metric": f"{metric} of infinite width minus it"} | _spread(ours)


def _spread(values: list[float]) -> dict[str, Any]:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std, "n": len(values)}


def in_words(results: Sequence[tuple[Config, Arrays]]) -> list[str]:
    """Say who is better than infinite width, in whole sentences."""
    return losses_of_values(found_of(results, VALUES_EVENT)) + losses_of_classes(found_of(results, TABLES_EVENT))


def losses_of_values(found: Found) -> list[str]:
    """Say for each kind of split who has the higher log-likelihood, on how many tables, and what is beyond chance."""
    if not any(INFINITE_WIDTH in methods for methods in found.values()):
        return []
    lines = []
    for kind in KINDS:
        name = f"{LL}: {kind}"
        others = [method for method in _present(REGRESSORS, found) if method not in (INFINITE_WIDTH, DRAWS)]
        counts = {method: higher(found, method, name) for method in others}
        by_count: dict[tuple[int, int], list[str]] = {}
        for peer, (k, n) in sorted(counts.items(), key=lambda item: -item[1][0]):
            if k:
                by_count.setdefault((k, n), []).append(called(REGRESSORS[peer].label))
        lines.append(_higher_than_ours(kind, by_count))
        marks = over_tables(found, name)
        if beyond := [called(REGRESSORS[m].label) for m in others if m in marks and marks[m].mark == BETTER]:
            lines[-1] += (
                f" Over all tables {listed(beyond)} {'is' if len(beyond) == 1 else 'are'} better beyond chance."
            )
        elif by_count:
            lines[-1] += " Over all tables none of this is beyond chance."
        alone = {peer: datasets for peer, datasets in better_peers(found, kind).items() if datasets}
        if alone:
            each = [f"{called(REGRESSORS[m].label)} on {listed([*map(name_of, names)])}" for m, names in alone.items()]
            lines[-1] += f" On single tables it is: {'; '.join(each)}."
    if gaps := below_marginal(found):
        gap, dataset, kind, split = gaps[0]
        many = sum(value < -1 for value, *_ in gaps)
        lines.append(
            f"Infinite width is more than one nat below the marginal Gaussian on {many} of {len(gaps)} splits; its "
            f"lowest difference is {gap:+.2f}, on {name_of(dataset)}, {kind} split {split}."
        )
    return lines


def second_in_words(found: Found) -> str:
    """Say what the second configuration, an average over draws, changes on tables of values."""
    told = []
    for kind in KINDS:
        name = f"{LL}: {kind}"
        k, n = higher(found, DRAWS, name)
        of = over_tables(found, name).get(DRAWS)
        told.append(f"on {k} of {n} tables of {kind} splits{' (beyond chance)' * bool(of and of.mark == BETTER)}")
    below = {method: below_marginal(found, method) for method in (INFINITE_WIDTH, DRAWS)}
    many = {method: sum(gap < -1 for gap, *_ in gaps) for method, gaps in below.items()}
    gap, dataset, kind, split = below[DRAWS][0]
    return (
        f"It has the higher log-likelihood than the first {listed(told)}. It is more than one nat below the marginal "
        f"Gaussian on {many[DRAWS]} splits instead of {many[INFINITE_WIDTH]}, at most {-gap:.2f} instead of "
        f"{-below[INFINITE_WIDTH][0][0]:.2f} nats ({name_of(dataset)}, {kind} split {split})."
    )


def _higher_than_ours(kind: str, by_count: dict[tuple[int, int], list[str]]) -> str:
    """Say who has the higher log-likelihood, by the number of tables, and of how many."""
    if not by_count:
        return f"On {kind} splits nobody has a higher log-likelihood than infinite width on any table."
    ((k, n), first), *others = by_count.items()
    have = f"{listed(first)} {'has' if len(first) == 1 else 'have'}"
    most = f"On {kind} splits {have} a higher log-likelihood than infinite width on {k} of {n} tables"
    return "; ".join([most, *(f"{listed(peers)} on {k} of {n}" for (k, n), peers in others)]) + "."


def losses_of_classes(found: Found) -> list[str]:
    """Say on each data set where another method has the best NLPD, ECE or AUROC."""
    lines = []
    for dataset, methods in found.items():
        if INFINITE_WIDTH not in methods:
            continue
        winners: dict[str, list[str]] = {}
        for name, better in {"NLPD": -1, "ECE": -1, **{f"AUROC: {u}": 1 for u in UNKNOWN}}.items():
            means = {m: value for m in methods if (value := mean(methods, m, name)) is not None}
            best = max(means, key=lambda m: better * means[m], default=INFINITE_WIDTH)
            if best != INFINITE_WIDTH and f"{means[best]:.3f}" != f"{means[INFINITE_WIDTH]:.3f}":
                metric = f"the {'highest' if better > 0 else 'lowest'} {name.replace(': ', ' against ')}"
                of_best = winners.setdefault(called(CLASSIFIERS[best].label), [])
                of_best.append(f"{metric} ({means[best]:.3f}, ours {means[INFINITE_WIDTH]:.3f})")
        told = "; ".join(f"{who} has {listed(metrics)}" for who, metrics in winners.items())
        lines.append(f"On {name_of(dataset)} {told or 'nothing is better than infinite width'}.")
    return lines


def target(found: Found) -> str:
    """Say whether a peer is better beyond chance on too many tables with several splits, and which is on the most."""
    parts, worst = [], 0
    for kind in KINDS:
        ahead = better_peers(found, kind)
        judged = sum(len(of.get(INFINITE_WIDTH, {}).get(f"{LL}: {kind}", {})) > 1 for of in found.values())
        most = max(ahead, key=lambda peer: len(ahead[peer]))
        who = f"{called(REGRESSORS[most].label)} on {len(ahead[most])}" if ahead[most] else "nobody on any"
        parts += [f"{who} of {judged} tables of {kind} splits"] * bool(judged)
        worst = max(worst, len(ahead[most]))
    if not parts:
        return "not decided, with one split of each kind."
    return f"{'met' if worst <= MOST_TABLES else 'missed'}: most often better is {listed(parts)}."


def not_run(values: Found, classes: Found) -> list[str]:
    """Name what the protocol has and the results have not, with its data set."""
    gaps = []
    for found, entries in ((values, REGRESSORS), (classes, CLASSIFIERS)):
        gaps += [
            f"{entries[m].label} on {name_of(data)}"
            for data, methods in found.items()
            for m in entries
            if m not in methods
        ]
    return gaps
