"""The cells of a table as text: how many digits numbers have, and the paper's beside ours."""

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from statistics import median_high, median_low
from typing import Any, NamedTuple

from stationary.lab.report.content import Cell, Measured, Table


class Shown(NamedTuple):
    """A cell as text.

    Args:
        text: what the cell shows.
        strong: whether it is a difference from the paper of more than two of the paper's standard deviations.
        better: whether it is a difference from the paper in the better direction.
    """

    text: str
    strong: bool = False
    better: bool = False


class Column(NamedTuple):
    """A column of a table; where the paper has numbers, three columns: ours, the paper's and the difference.

    Args:
        title: the heading.
        parts: the second headings of the columns; one empty text if there is only one column.
        numeric: whether no cell is a text, so that the column is aligned to the right.
        cells: for each row of the table, its cells in this column or these columns.
    """

    title: str
    parts: tuple[str, ...]
    numeric: bool
    cells: list[tuple[Shown, ...]]

    @property
    def compared(self) -> bool:
        return len(self.parts) > 1


def columns_of(table: Table) -> list[Column]:
    """Return the columns of a table as text, those that are compared with the paper's in three parts."""
    columns = []
    for j, title in enumerate(table.columns):
        cells = [row[j] for row in table.rows]
        compared = any(isinstance(cell, Measured) and cell.paper for cell in cells)
        shown = [_compared(cell, _decimals(cells)) if compared else (_shown(cell, _decimals(cells)),) for cell in cells]
        numeric = not any(isinstance(cell, str) for cell in cells)
        columns.append(Column(title, ("ours", "paper", "Δ/std") if compared else ("",), numeric, shown))
    return columns


def rows_of(columns: list[Column], escape: Any, strong: str) -> Iterator[list[str]]:
    for cells in zip(*(column.cells for column in columns), strict=True):
        flat = [shown for cell in cells for shown in cell]
        yield [strong.format(escape(text)) if bold else escape(text) for text, bold, _ in flat]


def _compared(cell: Cell, decimals: int) -> tuple[Shown, ...]:
    if not isinstance(cell, Measured):
        return _shown(cell, decimals), Shown("–"), Shown("–")
    apart, difference = Shown("–"), cell.difference
    if difference is not None:
        apart = Shown(_minus(f"{difference:+.1f}"), abs(difference) > 2, difference * cell.better > 0)
    return _shown(cell, decimals), _shown(cell.paper, decimals), apart


def _shown(cell: Cell, decimals: int) -> Shown:
    if cell is None:
        return Shown("–")
    if isinstance(cell, str):
        return Shown(cell)
    if isinstance(cell, Measured):
        return Shown(_number(cell.mean, decimals) + ("" if cell.std is None else f" ± {cell.std:.{decimals}f}"))
    return Shown(_minus(f"{cell:,}") if isinstance(cell, int) else _number(cell, decimals))


def _number(value: float, decimals: int) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{decimals}f}"
    if value and (float(text) == 0 or abs(value) >= 1e7):  # too small or too large for the decimals of this column
        text = f"{value:.1e}"
    return _minus(text)


def _decimals(cells: list[Cell]) -> int:
    """Return the number of decimals of a column.

    It is the number that the paper prints. Where the paper prints none, it shows two digits of the median spread, or
    three digits of the median number.
    """
    measured = [cell for cell in cells if isinstance(cell, Measured)]
    printed = [value for cell in measured if cell.paper for value in (cell.paper.mean, cell.paper.std)]
    exponents = [Decimal(str(float(value))).as_tuple().exponent for value in printed if value is not None]
    if decimals := [
        -exponent for exponent in exponents if isinstance(exponent, int)
    ]:  # the exponent of infinity is a letter
        return max(decimals)
    if spreads := _magnitudes(cell.std for cell in measured):
        needed = 1 - median_high(spreads)
    else:
        numbers = [cell.mean if isinstance(cell, Measured) else cell for cell in cells]
        needed = 2 - median_low(_magnitudes(v for v in numbers if not isinstance(v, str | int)) or [2])
    return min(max(needed, 0), 5)


def _magnitudes(values: Iterable[float | None]) -> list[int]:
    return [math.floor(math.log10(abs(value))) for value in values if value and math.isfinite(value)]


def _minus(text: str) -> str:
    return text.replace("-", "−")
