"""The report of the active-learning experiment: curves by number of labels, against random rows, and seconds."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stationary.lab.experiments.active.config import SECONDS, TITLE, WAYS, Config
from stationary.lab.experiments.paired import decided
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.lab.runs.store import Arrays

BETTER = {"accuracy": 1, "RMSE": -1, "NLPD": -1}  # 1: higher is better
STYLES = {  # label and colour of what is drawn, by score and batch
    (None, "joint"): ("random rows", "0.5"),
    ("bald", "joint"): ("bald, chosen together", plots.COLORS[0]),
    ("bald", "top"): ("bald, one by one", plots.COLORS[4]),
}


class Ways(NamedTuple):
    """What is known of one data set.

    Args:
        counts: the numbers of labelled rows.
        curves: by way of asking and quantity, (seeds, counts) in the order of the seeds.
        seeds: by way of asking, the seeds.
        seconds: by step of a round, (seeds, rounds) seconds.
    """

    counts: tuple[int, ...]
    curves: dict[str, Arrays]
    seeds: dict[str, list[int]]
    seconds: Arrays


def by_dataset(results: list[tuple[Config, Arrays]]) -> dict[str, Ways]:
    """Join the results of all seeds, by data set."""
    found: dict[str, Ways] = {}
    for config, arrays in results:
        ways = found.setdefault(config.dataset, Ways(config.counts, {}, {}, {}))
        timed = config.method == SECONDS
        known = ways.seconds if timed else ways.curves.setdefault(config.method, {})
        for name, values in arrays.items():
            known[name] = np.concatenate([known[name], values]) if name in known else values
        if not timed:
            ways.seeds.setdefault(config.method, []).extend(config.seeds)
    return found


def measures(ways: Ways) -> list[str]:
    return [name for name in BETTER if name in next(iter(ways.curves.values()))]


def asking(method: str) -> str:
    """How a method asks, without its learner: "random", "bald" and so on."""
    return method.removeprefix(f"{WAYS[method].learner} ")


def random_of(method: str) -> str:
    """The same learner, which asks for random rows."""
    way = WAYS[method]
    return f"{way.learner} random new fits" if way.always_new else f"{way.learner} random"


def measured(values: "np.ndarray[Any, Any]") -> Measured:
    """Mean and standard error over seeds; a single seed has none."""
    return Measured(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None)


def difference(ways: Ways, method: str, name: str) -> "np.ndarray[Any, Any]":
    """(seeds, counts) a quantity of a method minus that of its learner with random rows, for each seed of both."""
    other = random_of(method)
    seeds = [seed for seed in ways.seeds[method] if seed in ways.seeds[other]]
    ours, random = (
        ways.curves[each][name][[ways.seeds[each].index(seed) for seed in seeds]] for each in (method, other)
    )
    return ours - random


def compared(ways: Ways) -> list[str]:
    """The methods that do not ask for random rows, and whose learner also did."""
    return [method for method in ways.curves if method != random_of(method) in ways.curves]


def learner_of(method: str) -> str:
    """The learner of a method, and whether its numbers are chosen again in every round."""
    return WAYS[method].learner + (", new fits" if WAYS[method].always_new else "")


def judged(pairs: "np.ndarray[Any, Any]", name: str) -> str:
    """Judge paired differences (seeds,) of a quantity: "better", "worse" or "undecided", by 95 % of Student's t."""
    return ("undecided", "better", "worse")[decided(pairs) * BETTER[name]]


def enough(ways: Ways, method: str, name: str) -> int | None:
    """The number of labels from which on the mean is at least as good as that of random rows at the end."""
    level = BETTER[name] * ways.curves[random_of(method)][name].mean(0)[-1]
    reached = BETTER[name] * ways.curves[method][name].mean(0) >= level
    last = np.flatnonzero(~reached)
    place = last[-1] + 1 if len(last) else 0
    return ways.counts[place] if place < len(ways.counts) else None


def report(results: list[tuple[Config, Arrays]]) -> Section:
    found = by_dataset(results)
    drawn = {dataset: ways for dataset, ways in found.items() if ways.curves}  # of the others only seconds are known
    figures = {"active": 0, "active_nlpd": 1} if drawn else {}
    return Section(
        title=TITLE,
        paper="Not in the paper.",
        ours="\n\n".join(_in_words(dataset, ways) for dataset, ways in drawn.items()) or "Only seconds are known.",
        figures={name: figure(drawn, place) for name, place in figures.items()},
        captions={
            name: f"{('Accuracy or RMSE', 'NLPD')[place]} by number of labels: mean and standard error over seeds."
            for name, place in figures.items()
        },
        tables=(*overviews(found), *(table for item in drawn.items() for table in tables(*item))),
        records=tuple(record for item in drawn.items() for record in records(*item)),
    )


def overviews(found: dict[str, Ways]) -> Iterator[Table]:
    """Make a table of what "bald" gains over random rows for each kind of error, and one of seconds."""
    rows: dict[str, list[tuple[Cell, ...]]] = {}  # by kind of error, since their sizes have nothing in common
    for dataset, ways in found.items():
        for method in (method for method in compared(ways) if asking(method) in ("bald", "bald new fits")):
            first, nlpd = measures(ways)
            ends = (measured(ways.curves[each][first][:, -1]) for each in (random_of(method), method))
            gains = (measured(difference(ways, method, name).mean(1)) for name in (first, nlpd))
            row = (f"{dataset}, {first}", learner_of(method), *ends, *gains, enough(ways, method, first))
            rows.setdefault(first, []).append(row)
    caption = (
        "Asking by bald beside random rows: at the end; the mean over all rounds minus that of random rows, paired "
    )
    caption += (
        "by seed; and from how many labels on it is as good as random rows at the end. Standard errors over seeds."
    )
    columns = ("data", "learner", "random", "bald", "bald minus random", "the same of NLPD", "labels enough")
    for of_kind in rows.values():
        yield Table(caption, columns, tuple(of_kind))
    timed = {dataset: ways.seconds for dataset, ways in found.items() if ways.seconds}
    if timed:
        steps = list(next(iter(timed.values())))
        yield Table(
            "Seconds of the processor for a step of a round, the mean over rounds; all steps in turn in one process.",
            ("step", *timed),
            tuple(
                (step.removeprefix("seconds: "), *(measured(seconds[step].mean(1)) for seconds in timed.values()))
                for step in steps
            ),
        )


def tables(dataset: str, ways: Ways) -> Iterator[Table]:
    """Make a table of the errors of every way of asking, with paired differences to random rows."""
    names = measures(ways)
    rows: list[tuple[Cell, ...]] = []
    for method, arrays in ways.curves.items():
        beside = method in compared(ways)
        rows.append(
            (
                method,
                *(measured(arrays[name][:, -1]) for name in names),
                *(measured(difference(ways, method, name).mean(1)) if beside else None for name in names),
                enough(ways, method, names[0]) if beside else None,
                len(ways.seeds[method]),
            )
        )
    caption = (
        f"{dataset}: {' and '.join(names)} with {ways.counts[-1]} labels; their mean over all rounds minus that of "
    )
    caption += "the same learner with random rows, paired by seed; and from how many labels on it is as good as random "
    caption += "rows at the end. Standard errors over seeds."
    columns = ("method", *names, *(f"{name} minus random" for name in names), "labels enough", "seeds")
    yield Table(caption, columns, tuple(rows))


def records(dataset: str, ways: Ways) -> Iterator[dict[str, Any]]:
    """Yield the numbers of summary.csv but seconds: at the end, and the mean over rounds, alone and minus random."""
    for method, arrays in ways.curves.items():
        for name in measures(ways):
            parts = {"": arrays[name]}
            if method in compared(ways):
                parts["random"] = difference(ways, method, name)
            for minus, values in parts.items():
                for when, of in (("end", values[:, -1]), ("mean over rounds", values.mean(1))):
                    found = measured(of)
                    place = {"data": dataset, "method": method, "metric": name, "labels": when, "minus": minus}
                    yield place | {"mean": found.mean, "standard error": found.std, "n": len(of)}


def _in_words(dataset: str, ways: Ways) -> str:
    """Say of each learner which ways of asking are better than random rows, over all rounds."""
    parts = []
    for name in measures(ways):
        found: dict[str, list[str]] = {}
        for method in compared(ways):
            word = judged(difference(ways, method, name).mean(1), name)
            found.setdefault(word, []).append(method)
        said = (f"{word}: {', '.join(methods)}" for word, methods in found.items())
        parts.append(f"by {name} over all rounds, beside random rows, {'; '.join(said) or 'nothing to compare'}")
    return f"{dataset}: {'. And '.join(parts)}."


def figure(found: dict[str, Ways], place: int) -> Figure:
    """Draw the curves of the first measure (0) or of NLPD (1): a row for each data set, a column for each learner."""
    learners = list(dict.fromkeys(map(learner_of, WAYS)))
    drawn, axes = plots.panels(len(found), len(learners), width=11, height=2.2 * len(found) + 0.8, sharey="row")
    axes = np.reshape(axes, (len(found), len(learners)))
    for row, (dataset, ways) in zip(axes, found.items(), strict=True):
        name = measures(ways)[place]
        row[0].set_ylabel(f"{dataset}: {name}")
        for method, arrays in ways.curves.items():
            if WAYS[method][1:3] in STYLES:
                draw(row[learners.index(learner_of(method))], ways.counts, arrays[name], STYLES[WAYS[method][1:3]][1])
    for learner, column in zip(learners, axes.T, strict=True):
        column[0].set_title(learner, fontsize=plots.TITLE)
        column[-1].set_xlabel("labels")
    labels, colors = zip(*STYLES.values(), strict=True)
    lines = [Line2D([], [], color=color) for color in colors]
    drawn.legend(lines, labels, loc="outside lower center", ncols=len(lines), frameon=False)
    return drawn


def draw(ax: Any, counts: tuple[int, ...], values: "np.ndarray[Any, Any]", color: str) -> None:
    """Draw the mean of values (seeds, counts) and its standard error."""
    mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    ax.plot(counts, mean, color=color, linewidth=1.4)
    ax.fill_between(counts, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
