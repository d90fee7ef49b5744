"""The report of Bayesian optimisation: regret curves, ranks, and paired differences from the Matérn process."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from scipy.stats import rankdata

from stationary.lab.experiments.bo.config import FUNCTIONS, SURROGATES, TITLE, Config
from stationary.lab.experiments.paired import decided, mean_difference
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.lab.runs.store import Arrays

USUAL = "matern gp"  # the surrogate that differences are taken from
RIVALS = (USUAL, "one length-scale", "rbf gp", "relu network")  # over all functions, from these
NETWORKS = ("matern network 1", "matern network 3")  # by ranges of steps, these
RANGES = ((1, 10), (11, 20), (21, 40), (41, 60))  # the first and the last step
STYLES = {  # networks have solid lines, processes broken ones
    "random": ("0.6", "-"),
    "infinite width": (plots.COLORS[5], "-"),
    "relu network": (plots.COLORS[1], "-"),
    "matern network 1": (plots.COLORS[0], "-"),
    "matern network 3": (plots.COLORS[2], "-"),
    "sine-cosine": (plots.COLORS[3], "-"),
    "rbf gp": ("0.4", ":"),
    USUAL: ("black", "--"),
    "one length-scale": (plots.COLORS[4], "--"),
}
Curves: TypeAlias = "np.ndarray[Any, Any]"  # (seeds, 1 + steps) regrets
Found: TypeAlias = dict[str, dict[str, Curves]]  # by function and surrogate
Steps: TypeAlias = tuple[int, int]


def by_function(results: list[tuple[Config, Arrays]], name: str = "regret") -> Found:
    """Return the numbers of a name by function and surrogate, of the seeds that all surrogates of a function have."""
    found: dict[str, dict[str, dict[int, Any]]] = {}
    for config, arrays in results:
        seeds = found.setdefault(config.dataset, {}).setdefault(config.method, {})
        seeds.update(zip(config.seeds, arrays[name], strict=True))
    shared = {function: sorted(set.intersection(*map(set, methods.values()))) for function, methods in found.items()}
    return {
        function: {method: np.array([values[seed] for seed in shared[function]]) for method, values in methods.items()}
        for function, methods in found.items()
        if shared[function]
    }


def ranks(methods: dict[str, Curves]) -> dict[str, Curves]:
    """Return the ranks by the last regret, (seeds,) for each surrogate; 1 is the best, and equal ones share theirs."""
    last = np.stack([curves[:, -1] for curves in methods.values()])
    return dict(zip(methods, rankdata(last, axis=0), strict=True))


def left(curves: Curves, steps: Steps | None = None) -> Curves:
    """Return the share of the initial design's regret that is left, the mean over some steps or all, (seeds,)."""
    first, last = steps or (1, curves.shape[1] - 1)
    start, some = curves[:, :1], curves[:, first : last + 1]
    return np.divide(some, start, out=np.zeros_like(some), where=start > 0).mean(1)


def paired(methods: dict[str, Curves], method: str, rival: str = USUAL, steps: Steps | None = None) -> Curves:
    """Return what is left minus what a rival leaves, (seeds,); nothing for itself, and where a curve is missing."""
    if rival not in methods or method not in methods or method == rival:
        return np.zeros(0)
    if steps and methods[method].shape[1] <= steps[1]:
        return np.zeros(0)
    return left(methods[method], steps) - left(methods[rival], steps)


def compared(pairs: Curves) -> int:
    """Return 1 if a surrogate leaves less than its rival, -1 if more, by 95 % of Student's t; 0 otherwise."""
    return -decided(pairs)


def over_all(found: Found, method: str, rival: str, steps: Steps | None = None) -> Curves:
    """Return the paired differences of all seeds of all functions, (pairs,); of steps, where they were all taken."""
    return np.concatenate([paired(methods, method, rival, steps) for methods in found.values()])


def report(results: list[tuple[Config, Arrays]]) -> Section:
    found = by_function(results)
    return Section(
        title=TITLE,
        paper="The paper does not optimise. It gives the kernels of networks that are as stationary as those of "
        "Bayesian optimisation; here they are its surrogates, beside BoTorch's own.",
        ours="\n\n".join([_of_all(found), *(_in_words(function, methods) for function, methods in found.items())]),
        figures={"bo": figure(found)},
        captions={
            "bo": "Regret, the distance to the largest value, by number of evaluations: median over seeds, and "
            "between the quartiles."
        },
        tables=tuple(tables(results)),
        records=tuple(records(results)),
    )


def tables(results: list[tuple[Config, Arrays]]) -> Iterator[Table]:
    """Make five tables: ranks, paired differences, these over all functions, by step, and regrets at the end."""
    found = by_function(results)
    order = [method for method in SURROGATES if any(method in methods for methods in found.values())]
    heads = tuple(f"{FUNCTIONS[name].label}, {FUNCTIONS[name].dims}" for name in found)
    by_rank = {function: ranks(methods) for function, methods in found.items()}
    mean = {
        method: float(np.mean([by_rank[function][method].mean() for function in found if method in found[function]]))
        for method in order
    }
    order.sort(key=lambda method: mean[method])
    rows: list[tuple[Cell, ...]] = [
        (
            SURROGATES[method],
            *(float(by_rank[function][method].mean()) if method in found[function] else None for function in found),
            mean[method],
        )
        for method in order
    ]
    yield Table(
        f"Rank by the regret at the end, mean over seeds; 1 is the best of {len(order)}. The number of dimensions is "
        "beside the name.",
        ("surrogate", *heads, "mean"),
        tuple(rows),
    )
    differences: list[tuple[Cell, ...]] = [
        (
            SURROGATES[method],
            *(mean_difference(paired(methods, method)) for methods in found.values()),
        )
        for method in order
    ]
    yield Table(
        f"Share of the initial regret that is left, mean over the steps, minus that of {SURROGATES[USUAL]}: mean and "
        "standard error over paired seeds. Below 0 is better than it.",
        ("surrogate", *heads),
        tuple(differences),
    )
    pooled: list[tuple[Cell, ...]] = [
        (SURROGATES[method], *(mean_difference(over_all(found, method, rival)) for rival in RIVALS)) for method in order
    ]
    yield Table(
        f"The same over all functions, {_pairs(found)} pairs with the same initial design, minus each of four rivals.",
        ("surrogate", *(f"minus {SURROGATES[rival]}" for rival in RIVALS)),
        tuple(pooled),
    )
    by_step: list[tuple[Cell, ...]] = [
        (
            f"{SURROGATES[method]}, minus {SURROGATES[rival]}",
            *(_marked(over_all(found, method, rival, steps)) for steps in RANGES),
        )
        for method in NETWORKS
        for rival in RIVALS
    ]
    yield Table(
        "The same by range of steps, of the functions that have so many; with a star what is decided by 95 % of "
        "Student's t.",
        ("surrogate and rival", *(f"steps {first} to {last}" for first, last in RANGES)),
        tuple(by_step),
    )
    seconds = [by_function(results, f"seconds {part}") for part in ("fit", "search")]
    at_end: list[tuple[Cell, ...]] = [
        (
            SURROGATES[method],
            *(
                Measured.over(found[function][method][:, -1]) if method in found[function] else None
                for function in found
            ),
            _per_step(found, seconds, method),
        )
        for method in order
    ]
    yield Table(
        "Regret at the end, mean and standard deviation over seeds; and wall seconds of a step, fit and search.",
        ("surrogate", *heads, "seconds"),
        tuple(at_end),
    )


def _marked(pairs: Curves) -> str | None:
    """Write a mean difference and its standard error, with a star where it is decided."""
    found = mean_difference(pairs)
    if found is None:
        return None
    return f"{found.mean:.3f} ± {found.std:.3f}{' *' * abs(compared(pairs))}".replace("-", "−")


def _per_step(found: Found, seconds: list[Found], method: str) -> float:
    """Return the mean seconds of a step over all functions."""
    per_function = [
        sum(part[function][method].mean() for part in seconds) / (methods[method].shape[1] - 1)
        for function, methods in found.items()
        if method in methods
    ]
    return float(np.mean(per_function))


def records(results: list[tuple[Config, Arrays]]) -> Iterator[dict[str, Any]]:
    """Yield the numbers of summary.csv."""
    failures = by_function(results, "failed fits")
    for function, methods in by_function(results).items():
        by_rank = ranks(methods)
        for method, curves in methods.items():
            numbers = {
                "regret of the initial design": curves[:, 0],
                "regret at the end": curves[:, -1],
                "share left": left(curves),
                "rank": by_rank[method],
                "failed fits": failures[function][method],
            }
            place = {"function": function, "surrogate": method}
            for name, values in numbers.items():
                value = Measured.over(values)
                yield place | {"metric": name, "mean": value.mean, "std": value.std, "n": len(values)}


def _in_words(function: str, methods: dict[str, Curves]) -> str:
    by_rank = {method: float(values.mean()) for method, values in ranks(methods).items()}
    best = min(by_rank, key=lambda method: by_rank[method])
    seeds = len(methods[best])
    text = f"{FUNCTIONS[function].label}, {FUNCTIONS[function].dims} dimensions, {seeds} seed{'s' * (seeds > 1)}: "
    text += f"the best mean rank is that of {SURROGATES[best]}, {by_rank[best]:.1f}"
    if USUAL in methods:
        text += f"; {SURROGATES[USUAL]} has {by_rank[USUAL]:.1f}. Over all steps, by 95 % of paired seeds, "
        text += _better_and_worse({method: compared(paired(methods, method)) for method in methods})
    return text + "."


def _of_all(found: Found) -> str:
    texts = [
        _better_and_worse({method: compared(over_all(found, method, rival)) for method in SURROGATES}, rival)
        for rival in RIVALS
    ]
    return f"Over all functions, {_pairs(found)} pairs, by 95 % of Student's t: {'. '.join(texts)}."


def _pairs(found: Found) -> int:
    return sum(len(methods[USUAL]) for methods in found.values() if USUAL in methods)


def _better_and_worse(signs: dict[str, int], rival: str = USUAL) -> str:
    ahead, behind = ("; ".join(SURROGATES[m] for m, sign in signs.items() if sign == one) for one in (1, -1))
    return f"better than {SURROGATES[rival]}: {ahead or 'nobody'}. Worse: {behind or 'nobody'}"


def figure(found: Found) -> Figure:
    """Draw the median regret of each surrogate and its quartiles, a panel for each function."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    drawn, axes = plots.panels(rows, columns, width=4 * columns, height=3 * rows + 0.8)
    for ax, (function, methods) in zip(np.ravel(axes), found.items(), strict=False):
        for method, (color, line) in STYLES.items():
            if method not in methods:
                continue
            low, middle, high = np.quantile(methods[method], (0.25, 0.5, 0.75), axis=0)
            n = np.arange(len(middle)) + FUNCTIONS[function].n_initial
            ax.fill_between(n, low, high, color=color, alpha=0.1, linewidth=0)
            ax.plot(n, middle, line, color=color, linewidth=1.5, label=SURROGATES[method])
        ax.set(yscale="log", xlabel="evaluations", ylabel="regret")
        ax.yaxis.set_minor_formatter(LogFormatter())  # "6", not "6 x 10^0", where an axis has less than a decade
        ax.set_title(f"{FUNCTIONS[function].label}, {FUNCTIONS[function].dims}", fontsize=plots.TITLE)
    for ax in np.ravel(axes)[len(found) :]:
        ax.set_axis_off()
    drawn.legend(
        *np.ravel(axes)[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return drawn
