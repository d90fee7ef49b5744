"""The methods' ranks by AUROC, on every kind of unknown inputs at one look."""

from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata

from stationary.lab.experiments.arena.protocol import PROTOCOL
from stationary.lab.experiments.arena.words import name_of
from stationary.lab.report import figures as plots

AUROC = "AUROC: "
Place: TypeAlias = tuple[str, str]  # a data set and its unknown inputs
Found: TypeAlias = dict[tuple[str, str], dict[str, dict[int, dict[str, float]]]]  # as ``report.by_dataset`` gives it


def ranks(found: Found) -> dict[Place, dict[str, int]]:
    """Return the rank of each method by data set and kind of unknown inputs.

    1 is the highest mean AUROC, and equal ones share theirs. What runs on some data sets alone has none.
    """
    places = {}
    for (_, dataset), methods in found.items():
        ranked = {method: values for method, values in methods.items() if not PROTOCOL[method].only}
        names = {name for values in ranked.values() for numbers in values.values() for name in numbers}
        for name in sorted(name for name in names if name.startswith(AUROC)):
            means = {method: np.mean([of[name] for of in values.values()]) for method, values in ranked.items()}
            of_means = rankdata([-mean for mean in means.values()], method="min")
            places[dataset, name.removeprefix(AUROC)] = dict(zip(means, map(int, of_means), strict=True))
    return places


def ordered(places: dict[Place, dict[str, int]]) -> dict[str, float]:
    """Return the mean rank of each method over the places where it has run, the lowest first."""
    methods = {method: [of[method] for of in places.values() if method in of] for method in PROTOCOL}
    means = {method: float(np.mean(numbers)) for method, numbers in methods.items() if numbers}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def _named(place: Place) -> str:
    return ": ".join(map(name_of, place))


def figure(found: Found) -> Figure:
    """Draw the ranks as a map, a row for each method and a column for each kind of unknown inputs; ours in orange."""
    places = ranks(found)
    methods = list(ordered(places))
    of_all = [[of.get(method, np.nan) for of in places.values()] for method in methods]
    drawn, ax = plots.panels(1, 1, width=2.5 + 0.55 * len(places), height=1.8 + 0.24 * len(methods))
    ax.imshow(np.array(of_all, dtype=float), cmap="Blues_r", aspect="auto", vmin=-len(methods) / 3, vmax=len(methods))
    for y, ranked in enumerate(of_all):
        for x, rank in enumerate(ranked):
            if not np.isnan(rank):
                ax.text(x, y, f"{rank:d}", ha="center", va="center", fontsize="small")
    ax.set_yticks(range(len(methods)), [PROTOCOL[method].label for method in methods], fontsize="small")
    for label, method in zip(ax.get_yticklabels(), methods, strict=True):
        label.set_color(plots.COLORS[4] if PROTOCOL[method].ours else "black")
    names = [_named(place) for place in places]
    ax.set_xticks(range(len(names)), names, rotation=45, ha="left", fontsize="small")
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    return drawn
