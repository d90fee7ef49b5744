"""What the experiments' figures share: panels, legends, files, and colours that colour-blind readers tell apart."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stationary._extras import extra
from stationary._files import write_atomically

with extra("experiments"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

TITLE = 12  # points of the titles of panels, about as large as the text of the page
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")  # the palette of Okabe and Ito


def panels(
    rows: int,
    columns: int,
    *,
    width: float,
    height: float,
    width_ratios: Sequence[float] | None = None,
    sharey: bool | Literal["row"] = False,
) -> tuple[Figure, Any]:
    """Make a figure and its axes, whose frames have no upper and right line.

    Args:
        rows: number of rows of axes.
        columns: number of columns of axes.
        width: width of the figure in inches.
        height: height of the figure in inches.
        width_ratios: relative widths of the columns; None makes them equal.
        sharey: whether all axes have the same y axis, or those of a row.

    Returns:
        The figure, and its axes as ``Figure.subplots`` returns them.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, width_ratios=width_ratios, sharey=sharey)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def smoothness_label(nu: float) -> str:
    """Write a smoothness nu as "5/2", as a decimal number, or as "∞ (RBF)"."""
    if math.isinf(nu):
        return "∞ (RBF)"
    return f"{round(2 * nu)}/2" if (2 * nu).is_integer() and round(2 * nu) % 2 else f"{nu:g}"


def line_legend(ax: Axes, styles: dict[str, dict[str, Any]]) -> None:
    """Add a legend of the given line styles, by label, whatever curves the axes have."""
    ax.legend([Line2D([], [], **style) for style in styles.values()], styles.keys(), frameon=False, fontsize="small")


def save_figure(path: Path, figure: Figure) -> list[Path]:
    """Write a figure as PNG and SVG files at this path, with those endings, and return their paths."""
    return [
        write_atomically(path.with_suffix(f".{kind}"), partial(figure.savefig, format=kind, dpi=160))
        for kind in ("png", "svg")
    ]
