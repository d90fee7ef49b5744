"""The tables of a report as CSV: every number with all the digits that mean something, for other programs to read."""

import csv
import io
from collections.abc import Callable
from typing import Any

from stationary.lab.report.content import Cell, Measured, Table

PARTS: dict[str, Callable[[Measured], float | None]] = {  # of a measured number, by the end of its column's heading
    "": lambda cell: cell.mean,
    " std": lambda cell: cell.std,
    " paper": lambda cell: cell.paper.mean if cell.paper else None,
    " paper std": lambda cell: cell.paper.std if cell.paper else None,
}


def render_table(table: Table) -> str:
    """Write one table as CSV; a column of measured numbers has beside it their spread and the paper's, where known."""
    heads: list[str] = []
    columns: list[list[Any]] = []
    for title, *cells in zip(table.columns, *table.rows, strict=True):
        for ending, part in PARTS.items() if any(isinstance(cell, Measured) for cell in cells) else [("", PARTS[""])]:
            values = [_value(cell, part, ending) for cell in cells]
            if not ending or any(value is not None for value in values):
                heads.append(f"{title}{ending}")
                columns.append(values)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(zip(*columns, strict=True))
    return buffer.getvalue()


def _value(cell: Cell, part: Callable[[Measured], float | None], ending: str) -> str | int | None:
    value = part(cell) if isinstance(cell, Measured) else cell
    if ending and not isinstance(cell, Measured):
        return None
    return f"{value:.6g}" if isinstance(value, float) else value
