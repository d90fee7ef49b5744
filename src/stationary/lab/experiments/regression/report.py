"""The report of the regression experiment: curves, and their uncertainty between the data and far away."""

from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.figure import Figure

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
            "regression": "Mean and two standard deviations of the function. Top: exact GP. Middle: networks, mean and "
            "std averaged over repeats; the same networks with the restored prior; sine-cosine. Bottom: infinite width."
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
        verdict = "grows all the way" if values == sorted(values) else "does not grow all the way"
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
    columns = list(PRIORS)
    rows = [
        [("gp", prior, "plain") for prior in columns],
        [("network", prior, "plain") for prior in columns],
        [("network", "sincos", "plain"), *(("network", prior, "restored") for prior in columns[1:])],
        [("infinite width", prior, "plain") for prior in columns],  # there is none of ReLU
    ]
    figure, axes = plots.panels(4, len(columns), width=12, height=9.5, sharey=True)
    for row, keys in zip(axes, rows, strict=True):
        for ax, (model, prior, kind) in zip(row, keys, strict=True):
            if (model, prior) not in found:
                ax.set_axis_off()
                continue
            _, arrays = found[model, prior]
            mean, std = arrays[f"mean, {kind}"].mean(0), arrays[f"std, {kind}"].mean(0)
            ax.fill_between(
                arrays["grid"], mean - 2 * std, mean + 2 * std, color=plots.COLORS[5], alpha=0.4, linewidth=0
            )
            ax.plot(arrays["grid"], mean, color=plots.COLORS[0], linewidth=1.2)
            ax.plot(arrays["grid"], toy_regression.function(torch.from_numpy(arrays["grid"])), "k:", linewidth=0.8)
            ax.scatter(arrays["x"], arrays["y"], s=2, color=plots.COLORS[4], linewidths=0, zorder=3)
            ax.set_title(_label(model, prior, kind).replace(", restored", "\nrestored"), fontsize=plots.TITLE)
            ax.set(ylim=(-1.5, 2.2), xticks=(-2, -1, 0, 1, 2))
    return figure
