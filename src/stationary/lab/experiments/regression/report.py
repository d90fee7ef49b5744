"""The report of the regression experiment: curves, and their uncertainty between the data and far away."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stationary.lab.data import toy_regression
from stationary.lab.experiments import paper
from stationary.lab.experiments.regression.config import PLACES, PRIORS, TITLE, Config
from stationary.lab.experiments.rows import ByModel, by_model
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays


def report(results: list[tuple[Config, Arrays]]) -> Section:
    found = by_model(results)
    return Section(
        title=TITLE,
        paper="From left to right (ReLU, RBF, Matérn-5/2, 3/2, 1/2) functions become less stiff, Gaussian processes "
        "and networks alike; both are uncertain between the clusters and outside of them.",
        ours=_summary(found),
        figures={"regression": _figure(found)},
        captions={
            "regression": "A row for each model, a column for each prior. The Gaussian process is exact; that of ReLU "
            "has the kernel ArcCos-1. Mean and std of networks are averaged over repeats."
        },
        tables=tables(results),
        verdicts=verdicts(results),
    )


def tables(results: list[tuple[Config, Arrays]]) -> tuple[Table, ...]:
    """Make a table of how uncertain the functions are, at the data and elsewhere."""
    return (_places(by_model(results)),)


def verdicts(results: list[tuple[Config, Arrays]]) -> tuple[Verdict, ...]:
    """Judge the claims of the figure; this needs no curves."""
    return tuple(_verdicts(by_model(results)))


def _label(model: str, prior: str, kind: str = "plain") -> str:
    names = {**paper.NAMES, "relu": "ArcCos-1"} if model == "gp" else paper.NAMES
    return f"{'GP' if model == 'gp' else model}, {names[prior]}" + (", restored prior" if kind == "restored" else "")


def _roughness(arrays: Arrays, kind: str = "plain") -> float:
    """Return the sum of |second differences| of the mean curve, which is large for a function that is not stiff."""
    return float(np.abs(np.diff(arrays[f"mean, {kind}"].mean(0), 2)).sum())


def _summary(found: ByModel) -> str:
    """Say whether the uncertainty in the gap, large where functions are not stiff, grows from RBF to Matérn-1/2."""
    order = [prior for prior in PRIORS if prior != "relu"]
    texts = []
    for model, label in (("gp", "Gaussian processes"), ("network", "networks"), ("infinite width", "infinite width")):
        gaps = {paper.NAMES[prior]: _gap(found[model, prior][1]) for prior in order if (model, prior) in found}
        values = list(gaps.values())
        if not values:
            continue
        verdict = "rises at every step" if values == sorted(values) else "does not rise at every step"
        texts.append(f"for {label} it {verdict} ({', '.join(f'{name} {gap:.1f}' for name, gap in gaps.items())})")
    return (
        "Less stiff means more uncertainty in the gap. Relative to the uncertainty at the data, "
        + "; ".join(texts)
        + ". Far away (|x| = 20) the plain local networks are sure of their last bias; the restored prior corrects it."
        + " Infinite width returns to its prior there by itself." * any(model == "infinite width" for model, _ in found)
    )


def _verdicts(found: ByModel) -> Iterator[Verdict]:
    order = [prior for prior in PRIORS if prior != "relu"]
    gaps = {
        label: [_gap(found[model, prior][1]) for prior in order]
        for model, label in (("gp", "Gaussian processes"), ("network", "networks"))
        if all((model, prior) in found for prior in order)
    }
    if gaps:
        said = [f"{label} {', '.join(f'{gap:.1f}' for gap in values)}" for label, values in gaps.items()]
        yield Verdict(
            "From RBF to Matérn-1/2 functions become less stiff, Gaussian processes and networks alike.",
            "Fig. 2",
            f"Uncertainty in the gap, in units of that at the data, from RBF to Matérn-1/2: {'; '.join(said)}.",
            judged(values == sorted(values) for values in gaps.values()),
        )
    places = {
        model: [arrays["places, plain"].mean(0) for (kind, prior), (_, arrays) in found.items() if kind == model]
        for model in ("gp", "network")
    }
    if all(places.values()):
        edges, far = ({m: [p[k] / p[0] for p in each] for m, each in places.items()} for k in (2, 3))
        yield Verdict(
            "Outside of the data both are uncertain.",
            "Fig. 2",
            f"At the edges of the figure the uncertainty is {min(edges['gp']):.1f} to {max(edges['gp']):.1f} times "
            f"that at the data for Gaussian processes, {min(edges['network']):.1f} to {max(edges['network']):.1f} "
            f"times for networks; far away, at |x| = {PLACES['far away']:g}, down to {min(far['network']):.2f} times "
            "for networks, which forget their prior unless it is restored.",
            judged(ratio > 1 for each in edges.values() for ratio in each),
        )


def _gap(arrays: Arrays) -> float:
    near, gap, *_ = arrays["places, plain"].mean(0)
    return float(gap / near)


def _places(found: ByModel) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (model, prior), (_, arrays) in found.items():
        for kind in ("plain", "restored"):
            if f"places, {kind}" in arrays:
                values = arrays[f"places, {kind}"]
                near = values[:, :1].mean()
                ratios = [Measured(v.mean() / near, v.std() / near if len(v) > 1 else None) for v in values.T[1:]]
                rows.append((_label(model, prior, kind), float(near), *ratios, _roughness(arrays, kind)))
    return Table(
        "Standard deviation of the function at the data, and elsewhere in units of it (mean and std over repeats); "
        "roughness is the sum of |second differences| of the mean curve.",
        ("model", "std at the data", *PLACES, "roughness"),
        tuple(rows),
    )


def _figure(found: ByModel) -> Figure:
    """Draw a row for each model and a column for each prior; sine-cosine, which has only a network, is the last."""
    columns = (*PRIORS, "sincos")
    rows = {
        "Gaussian process": ("gp", "plain"),
        "network": ("network", "plain"),
        "network,\nrestored prior": ("network", "restored"),
        "infinite width": ("infinite width", "plain"),
    }
    figure, axes = plots.panels(len(rows), len(columns), width=13, height=8.5, sharey=True)
    for row, (label, (model, kind)) in zip(axes, rows.items(), strict=True):
        row[0].annotate(label, (-0.35, 0.5), xycoords="axes fraction", rotation=90, ha="right", va="center")
        shown = {ax: found.get((model, prior), (None, {}))[1] for ax, prior in zip(row, columns, strict=True)}
        drawn = [ax for ax, arrays in shown.items() if f"mean, {kind}" in arrays]
        for ax, arrays in shown.items():
            if ax in drawn:
                _curve(ax, arrays, kind)
            else:
                ax.set_axis_off()
        if drawn:
            drawn[0].tick_params(labelleft=True)
            drawn[0].set_ylabel("y")
    for ax, prior in zip(axes[0], columns, strict=True):
        ax.set_title(paper.NAMES[prior], fontsize=plots.TITLE)
    figure.supxlabel("x")
    styles: dict[str, dict[str, Any]] = {
        "mean": {"color": plots.COLORS[0], "linewidth": 1.2},
        "two standard deviations": {"color": plots.COLORS[5], "alpha": 0.4, "linewidth": 8},
        "true function": {"color": "black", "linestyle": ":", "linewidth": 0.8},
        "training data": {"color": plots.COLORS[4], "marker": "o", "linestyle": "none", "markersize": 4},
    }
    lines = [Line2D([], [], **style) for style in styles.values()]
    figure.legend(lines, list(styles), frameon=False, ncols=len(styles), loc="outside upper center")
    return figure


def _curve(ax: Axes, arrays: Arrays, kind: str) -> None:
    grid, mean, std = arrays["grid"], arrays[f"mean, {kind}"].mean(0), arrays[f"std, {kind}"].mean(0)
    ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color=plots.COLORS[5], alpha=0.4, linewidth=0)
    ax.plot(grid, mean, color=plots.COLORS[0], linewidth=1.2)
    ax.plot(grid, toy_regression.function(torch.from_numpy(grid)), "k:", linewidth=0.8)
    ax.scatter(arrays["x"], arrays["y"], s=2, color=plots.COLORS[4], linewidths=0, zorder=3)
    ax.set(xlim=(-2.7, 2.7), ylim=(-1.5, 2.2), xticks=(-2, -1, 0, 1, 2))
