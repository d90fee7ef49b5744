"""The report of the radar experiment, beside the paper's figure."""

import math
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as student

from stationary.lab.data.radar import PATTERNS, EmitterLibrary
from stationary.lab.experiments import paper
from stationary.lab.experiments.radar.config import GROUPS, ROWS, TITLE, Config
from stationary.lab.experiments.rows import Rows, joined_rows
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Holds, Measured, Section, Table, Verdict
from stationary.lab.runs.store import Arrays

SHOWN = ("relu", "matern52", "matern52 restored", "matern52 infinite width")  # rows that the figures show
MAIN = ("ACC known", "NLPD known", "ECE known")
SEPARATION = tuple(f"{metric} {group}" for metric in ("AUROC", "FPR95") for group in GROUPS[1:])
OTHER_SCORES = ("mutual_information", "std", "max_probability", "energy")


def report(results: list[tuple[Config, Arrays]]) -> Section:
    rows = joined_rows(arrays for _, arrays in results)
    config = results[0][0]
    shown = {row: rows[row] for row in SHOWN if row in rows} or dict(list(rows.items())[:2])
    return Section(
        title=TITLE,
        paper="With a private simulator of 100 emitters, ReLU and Matérn-5/2 networks are equally accurate (59.3 % and "
        "59.5 %), and the Matérn one separates unknown emitters, similar and different, better by predictive entropy.",
        ours=_in_words(rows, results),
        figures={
            "radar-entropy": _histograms(shown),
            "radar-examples": _examples(shown),
            "radar-noise": _by_noise(shown),
            "radar-patterns": _patterns(config),
        },
        captions={
            "radar-entropy": "Predictive entropy, by MC dropout but for infinite width, first seed: known emitters, "
            "unknown ones that are similar to them, and unknown ones that are different. The axis ends at the entropy "
            "of a guess.",
            "radar-examples": "One sample of each group: its first pulses, and what each network says about it, with "
            "the five most probable emitters. H is the entropy, MI the mutual information.",
            "radar-noise": "Accuracy and NLPD on known emitters by noise level, mean over seeds; at level 10 half the "
            "pulses are missed and as many false ones heard.",
            "radar-patterns": "The six patterns of pulse arrival times: one emitter each, without noise. Above the "
            "pulses, below the intervals between them.",
        },
        tables=tuple(_tables(rows)),
        records=tuple(_records(rows)),
        verdicts=tuple(_verdicts(results)),
    )


def _tables(rows: Rows) -> Iterator[Table]:
    seeds = max(len(arrays["ACC known"]) for arrays in rows.values())
    others = tuple(f"AUROC {group} {score}" for group in GROUPS[1:] for score in OTHER_SCORES)
    for metrics, caption in (
        ((*MAIN, *SEPARATION), "known emitters, and how well entropy tells unknown from known ones."),
        (others, "the same by other scores."),
    ):
        cells: list[tuple[Cell, ...]] = [
            (ROWS[row].label, *(_measured(row, metric, arrays) for metric in metrics)) for row, arrays in rows.items()
        ]
        columns = ("activation", *(metric.replace("_", " ") for metric in metrics))
        yield Table(f"Mean and std over {seeds} seeds: {caption}", columns, tuple(cells))


def _measured(row: str, metric: str, arrays: Arrays) -> Measured:
    return Measured.over(arrays[metric], paper.published("radar", "radar", row, "NN", metric))


def _in_words(rows: Rows, results: list[tuple[Config, Arrays]]) -> str:
    if not {"relu", "matern52"} <= set(rows):
        return "The paper's two networks have not both run."
    parts = []
    for group in GROUPS[1:]:
        ours, relu = (rows[row][f"AUROC {group}"] for row in ("matern52", "relu"))
        verdict = compared(*_paired(results, f"AUROC {group}"))
        parts.append(
            f"{group.capitalize()} emitters: AUROC of the entropy {ours.mean():.3f} with Matérn-5/2 and "
            f"{relu.mean():.3f} with ReLU; {verdict}."
        )
    accuracies = ", ".join(f"{ROWS[row].label} {rows[row]['ACC known'].mean():.3f}" for row in ("relu", "matern52"))
    return "\n\n".join(
        ["The simulator is ours, with the paper's description as its plan.", f"Accuracy: {accuracies}.", *parts]
    )


def _verdicts(results: list[tuple[Config, Arrays]]) -> Iterator[Verdict]:
    for group in GROUPS[1:]:
        matern, relu = _paired(results, f"AUROC {group}")
        if len(matern):
            text = compared(matern, relu)
            ends: dict[str, Holds] = {"holds here": "holds", "the other way round": "does not hold"}
            yield Verdict(
                f"By entropy a Matérn network tells unknown, {group} emitters apart better than ReLU.",
                "Fig. 5",
                f"AUROC {matern.mean():.3f} with Matérn-5/2 and {relu.mean():.3f} with ReLU, on our own simulator; "
                f"{text}.",
                next((word for end, word in ends.items() if text.endswith(end)), "not decided"),
            )


def _paired(results: list[tuple[Config, Arrays]], metric: str) -> list[np.ndarray[Any, Any]]:
    """Return a metric of Matérn-5/2 and of ReLU, each for the seeds that both have run with."""
    by_row: dict[str, dict[int, float]] = {"matern52": {}, "relu": {}}
    for config, arrays in results:
        for row, values in by_row.items():
            values.update(zip(config.seeds, arrays.get(f"{row}: {metric}", ()), strict=False))
    both = sorted(set.intersection(*map(set, by_row.values())))
    return [np.array([values[seed] for seed in both]) for values in by_row.values()]


def compared(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> str:
    """Say whether the first is larger, by the 95 % interval of Student's t for the paired differences."""
    differences = [float(d) for d in first - second]
    if not differences:
        return "no seed has run with both"
    n, mean = len(differences), fmean(differences)
    if n < 2:
        return f"Matérn-5/2 is {'better' if mean > 0 else 'worse'} by {abs(mean):.3f}, in one seed, which says little"
    half = float(student.ppf(0.975, n - 1)) * stdev(differences) / math.sqrt(n)
    wins = sum(d > 0 for d in differences)
    text = (
        f"the difference is {mean:+.3f}, with 95 % between {mean - half:+.3f} and {mean + half:+.3f}, and positive in "
    )
    text += f"{wins} of {n} seeds"
    if mean - half > 0:
        return f"{text}: the paper's claim holds here"
    return f"{text}: here it is the other way round" if mean + half < 0 else f"{text}: not decided by these seeds"


def _records(rows: Rows) -> Iterator[dict[str, Any]]:
    for row, arrays in rows.items():
        for metric, values in arrays.items():
            if values.ndim == 1:
                value = Measured.over(values)
                yield {"prior": row, "metric": metric, "mean": value.mean, "std": value.std}
            elif metric.endswith("by noise"):
                for level, at_level in enumerate(values.T):
                    value = Measured.over(at_level)
                    name = f"{metric.removesuffix('by noise')}known noise {level}"
                    yield {"prior": row, "metric": name, "mean": value.mean, "std": value.std}


# Figures


def _histograms(rows: Rows) -> Figure:
    figure, axes = plots.panels(1, len(rows), width=3 * len(rows), height=3)
    for ax, (row, arrays) in zip(np.atleast_1d(axes), rows.items(), strict=True):
        for group, color in zip(GROUPS, plots.COLORS, strict=False):
            counts = arrays[f"entropy {group}"][0]
            ax.stairs(
                counts / counts.sum(), arrays["edges"][0], fill=True, color=color, alpha=0.5, label=f"{group} emitters"
            )
        ax.set(title=ROWS[row].label, xlabel="predictive entropy (nats)", yticks=())
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("share of samples")
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=len(GROUPS), frameon=False)
    return figure


def _by_noise(rows: Rows) -> Figure:
    figure, axes = plots.panels(1, 2, width=8, height=2.6)
    for ax, metric in zip(axes, ("ACC", "NLPD"), strict=True):
        for (row, arrays), color in zip(rows.items(), plots.COLORS, strict=False):
            values = arrays[f"{metric} by noise"]
            ax.plot(values.mean(0), "o-", ms=3, color=color, label=ROWS[row].label)
        ax.set(xlabel="noise level", ylabel=f"{metric} known")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(rows), frameon=False)
    return figure


def _examples(rows: Rows) -> Figure:
    """Draw a row for each group: the pulses of a sample, then the most probable classes of each network."""
    figure, axes = plots.panels(
        3, 1 + len(rows), width=4 + 2.2 * len(rows), height=6.2, width_ratios=[2.2] + [1] * len(rows)
    )
    for line, group in zip(axes, GROUPS, strict=True):
        for ax, (row, arrays) in zip(line[1:], rows.items(), strict=True):
            emitter, count, entropy, information, *rest = arrays[f"example {group}"][0]
            classes, probs, times = rest[:5], rest[5:10], rest[10:]
            colors = [plots.COLORS[2] if (c == emitter and group == "known") else "0.7" for c in classes]
            ax.barh(range(5), probs, color=colors)
            ax.set(xlim=(0, 1), yticks=range(5), yticklabels=[f"emitter {int(c)}" for c in classes])
            ax.invert_yaxis()
            ax.tick_params(labelsize="x-small")
            ax.set_title(f"{ROWS[row].label}\nH {entropy:.2f}, MI {information:.2f}", fontsize="medium")
        _pulses(line[0], np.array(times[: min(int(count), 60)]))
        which = f" (emitter {int(emitter)})" if group == "known" else ""
        line[0].set_title(f"{group}{which}, first {min(int(count), 60)} of {int(count)} pulses", fontsize=plots.TITLE)
    axes[-1, 0].set_xlabel("ms")
    return figure


def _pulses(ax: Axes, times: np.ndarray[Any, Any]) -> None:
    ax.vlines(times / 1000, 0, 1, color=plots.COLORS[0], lw=0.9)
    ax.set(yticks=(), ylim=(0, 1.1))


def _patterns(config: Config) -> Figure:
    library = EmitterLibrary.generate(100, spread=config.spread, error=config.error)
    clean = library.simulate(1, 1, seed=0)
    figure, axes = plots.panels(2, len(PATTERNS), width=13, height=3.2)
    for k, name in enumerate(PATTERNS):
        found = np.flatnonzero((library.pattern[clean.emitter] == k) & (clean.count > 60))
        axes[0, k].set_title(name, fontsize=plots.TITLE)
        if len(found):
            times = clean.times[found[0]][:60]
            _pulses(axes[0, k], times[:20])
            axes[1, k].plot(np.diff(times), ".-", ms=3, lw=0.6, color=plots.COLORS[0])
            axes[1, k].set(xlabel="pulse", ylim=(0, 1.15 * np.diff(times).max()))
            axes[0, k].set_xlabel("ms", fontsize=plots.TITLE)
    axes[1, 0].set_ylabel("interval, µs")
    return figure
