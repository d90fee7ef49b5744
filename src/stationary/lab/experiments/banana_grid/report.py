"""The report of the Banana grid: the pictures, and the error that too few samples make."""

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from stationary.lab.experiments.banana_grid.config import TITLE, Config
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays


def report(results: list[tuple[Config, Arrays]]) -> Section:
    errors = _errors(results)
    return Section(
        title=TITLE,
        paper="More samples make the picture smoother, more units bring it nearer to the Gaussian process.",
        ours="More samples do: the mean error of the probability against the closed form falls from "
        + ", ".join(f"{error:.4f} with {n}" for n, error in errors.items())
        + ". Width changes how the rays between units fall; the numbers below say what it does to the error.",
        figures={"banana_grid": _grid(results)},
        captions={
            "banana_grid": "Total uncertainty of Matérn-5/2 networks, dark where they have no idea: columns "
            "by hidden units, rows by dropout samples."
        },
        tables=tables(results),
        verdicts=verdicts(results),
    )


def tables(results: list[tuple[Config, Arrays]]) -> tuple[Table, ...]:
    """Make a table of the errors on held-out points, and of the probability's error with few samples."""
    samples = results[0][0].n_samples
    rows: list[tuple[Cell, ...]] = [
        (
            config.hidden,
            *(Measured.over(arrays[name]) for name in ("accuracy", "nlpd")),
            *(arrays[f"error {n}"].item() for n in samples),
        )
        for config, arrays in _by_width(results)
    ]
    return (
        Table(
            "Error on the 4,900 held-out points over seeds (infinitely many samples), and the mean error of the "
            "probability on the grid with finitely many.",
            ("units", "accuracy", "NLPD", *(f"{n} samples" for n in samples)),
            tuple(rows),
        ),
    )


def verdicts(results: list[tuple[Config, Arrays]]) -> tuple[Verdict, ...]:
    """Judge whether more samples make the error smaller; this needs no maps."""
    errors = _errors(results)
    (few, first), *_, (many, last) = errors.items()
    return (
        Verdict(
            "More dropout samples make the picture smoother.",
            "appendix",
            f"The mean error of the probability falls from {first:.4f} with {few} samples to {last:.4f} with {many}.",
            judged(before > after for before, after in pairwise(errors.values())),
        ),
    )


def _errors(results: list[tuple[Config, Arrays]]) -> dict[int, float]:
    """Return the mean error of the probability by number of samples."""
    samples = results[0][0].n_samples
    return {n: float(np.mean([arrays[f"error {n}"] for _, arrays in results])) for n in samples}


def _by_width(results: list[tuple[Config, Arrays]]) -> list[tuple[Config, Arrays]]:
    return sorted(results, key=lambda pair: pair[0].hidden)


def _grid(results: list[tuple[Config, Arrays]]) -> Figure:
    samples = results[0][0].n_samples
    figure, axes = plots.panels(len(samples), len(results), width=8, height=8)
    axes = np.reshape(axes, (len(samples), len(results)))
    for column, (config, arrays) in zip(axes.T, _by_width(results), strict=True):
        extent = (-config.extent, config.extent) * 2
        for ax, n in zip(column, samples, strict=True):
            image = arrays[f"total {n}"]
            ax.imshow(image, origin="lower", extent=extent, cmap="gray_r", vmin=0, vmax=0.5, interpolation="bilinear")
            ax.contour(arrays["boundary"], levels=[0.5], extent=extent, colors=plots.COLORS[4], linewidths=1.2)
            ax.set_title(f"{config.hidden} units, {n} samples", fontsize=plots.TITLE)
            ax.set_axis_off()
    return figure
