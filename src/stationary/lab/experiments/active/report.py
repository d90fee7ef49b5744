"""The report of the active-learning experiment: curves by number of labels, against random rows, and seconds."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from stationary.lab.experiments.active.config import SECONDS, TITLE, WAYS, Config
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.lab.runs.store import Arrays

BETTER = {"accuracy": 1, "RMSE": -1, "NLPD": -1}  # 1: higher is better
STYLES = {"random": "0.55", "entropy": plots.COLORS[2], "variance": plots.COLORS[3]}  # colours of the ways to ask
STYLES |= {"bald": plots.COLORS[0], "bald top": plots.COLORS[5], "bald new fits": plots.COLORS[4]}
CLEAR = 2.0  # standard errors from which on a difference counts


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
    return f"{WAYS[method].learner} random"


def measured(values: "np.ndarray[Any, Any]") -> Measured:
    """Mean and standard error over seeds; a single seed has none."""
    return Measured(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None)


def paired(ways: Ways, method: str, name: str) -> "np.ndarray[Any, Any] | None":
    """(seeds, counts) a quantity of a method minus that of its learner with random rows; None for random rows."""
    other = random_of(method)
    if method == other or other not in ways.curves:
        return None
    seeds = [seed for seed in ways.seeds[method] if seed in ways.seeds[other]]
    ours, random = (
        ways.curves[each][name][[ways.seeds[each].index(seed) for seed in seeds]] for each in (method, other)
    )
    return ours - random


def judged(difference: Measured, name: str) -> str:
    """Judge a difference: "better", "worse" or "as good", by two standard errors; "undecided" where there are none."""
    if difference.std is None:
        return "undecided"
    if abs(difference.mean) <= CLEAR * difference.std:
        return "as good"
    return "better" if difference.mean * BETTER[name] > 0 else "worse"


def enough(ways: Ways, method: str, name: str) -> int | None:
    """The number of labels from which on the mean is at least as good as that of random rows at the end."""
    level = BETTER[name] * ways.curves[random_of(method)][name].mean(0)[-1]
    reached = BETTER[name] * ways.curves[method][name].mean(0) >= level
    last = np.flatnonzero(~reached)
    place = last[-1] + 1 if len(last) else 0
    return ways.counts[place] if place < len(ways.counts) else None


def report(results: list[tuple[Config, Arrays]]) -> Section:
    found = {dataset: ways for dataset, ways in by_dataset(results).items() if ways.curves}
    return Section(
        title=TITLE,
        paper="Not in the paper.",
        ours="\n\n".join(_in_words(dataset, ways) for dataset, ways in found.items()),
        figures={"active": figure(found)},
        captions={"active": "By number of labels, mean and standard error over seeds; a column for each learner."},
        tables=tuple(table for item in found.items() for table in tables(*item)),
        records=tuple(record for item in found.items() for record in records(*item)),
    )


def tables(dataset: str, ways: Ways) -> Iterator[Table]:
    """Make a table of the errors, with paired differences to random rows, and one of seconds."""
    names = measures(ways)
    rows: list[tuple[Cell, ...]] = []
    for method, arrays in ways.curves.items():
        differences = (paired(ways, method, name) for name in names)
        rows.append(
            (
                method,
                *(measured(arrays[name][:, -1]) for name in names),
                *(None if each is None else measured(each.mean(1)) for each in differences),
                enough(ways, method, names[0]) if random_of(method) in ways.curves else None,
                len(ways.seeds[method]),
            )
        )
    caption = (
        f"{dataset}: {' and '.join(names)} with {ways.counts[-1]} labels; their mean over all rounds minus that of "
    )
    caption += "the same learner with random rows, paired by seed; standard errors over seeds. Labels enough: from how "
    caption += f"many on it has the {names[0]} that random rows have at the end."
    columns = ("method", *names, *(f"{name} minus random" for name in names), "labels enough", "seeds")
    yield Table(caption, columns, tuple(rows))
    if ways.seconds:
        steps = {name.removeprefix("seconds: "): values for name, values in ways.seconds.items()}
        base = steps["learn, infinite width, update"]
        yield Table(
            f"{dataset}: seconds of a step of a round, the mean over rounds, and how many updates take as long; all "
            "steps in turn in one process.",
            ("step", "seconds", "in updates"),
            tuple((name, measured(v.mean(1)), float(v.mean() / base.mean())) for name, v in steps.items()),
        )


def records(dataset: str, ways: Ways) -> Iterator[dict[str, Any]]:
    """Yield the numbers of summary.csv but seconds: at the end, and the mean over rounds, alone and minus random."""
    for method, arrays in ways.curves.items():
        for name in measures(ways):
            difference = paired(ways, method, name)
            for against, values in (("", arrays[name]), ("random", difference)):
                for when, of in (("end", -1), ("mean over rounds", slice(None))):
                    if values is not None:
                        found = measured(values[:, of].reshape(len(values), -1).mean(1))
                        place = {"data": dataset, "method": method, "metric": name, "labels": when, "minus": against}
                        yield place | {"mean": found.mean, "standard error": found.std, "n": len(values)}


def _in_words(dataset: str, ways: Ways) -> str:
    """Say of each learner which ways of asking are better than random rows, over all rounds."""
    parts = []
    for name in measures(ways):
        found: dict[str, list[str]] = {}
        for method in ways.curves:
            difference = paired(ways, method, name)
            if difference is not None:
                found.setdefault(judged(measured(difference.mean(1)), name), []).append(method)
        said = (f"{word}: {', '.join(methods)}" for word, methods in found.items())
        parts.append(f"by {name} over all rounds, beside random rows, {'; '.join(said) or 'nothing to compare'}")
    return f"{dataset}: {'. And '.join(parts)}."


def figure(found: dict[str, Ways]) -> Figure:
    """Draw the curves of the first measure and of NLPD, a row for each, a column for each learner and data set."""
    learners = list(dict.fromkeys(way.learner for way in WAYS.values()))
    rows = [(dataset, ways, name) for dataset, ways in found.items() for name in measures(ways)]
    drawn, axes = plots.panels(len(rows), len(learners), width=10, height=2.3 * len(rows))
    for line, (dataset, ways, name) in zip(axes, rows, strict=True):
        draw(line, ways, name, learners)
        line[0].set_ylabel(f"{dataset}\n{name}")
        if line is axes[0]:
            for ax, learner in zip(line, learners, strict=True):
                ax.set_title(learner, fontsize=plots.TITLE)
    for ax in axes[-1]:
        ax.set_xlabel("labels")
    labels = {name: {"color": color} for name, color in STYLES.items()}
    plots.line_legend(axes[0][0], labels)
    return drawn


def draw(line: Any, ways: Ways, name: str, learners: list[str]) -> None:
    """Draw the curves of one measure, a panel for each learner, all with the same limits."""
    means = [curves[name].mean(0) for curves in ways.curves.values()]
    low, high = min(mean.min() for mean in means), max(np.quantile(mean, 0.9) for mean in means)
    if BETTER[name] > 0:
        high = max(mean.max() for mean in means)
    for ax, learner in zip(line, learners, strict=True):
        for method in (method for method in ways.curves if WAYS[method].learner == learner):
            values = ways.curves[method][name]
            mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
            color = STYLES[asking(method)]
            ax.plot(ways.counts, mean, color=color, linewidth=1.4)
            ax.fill_between(ways.counts, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
