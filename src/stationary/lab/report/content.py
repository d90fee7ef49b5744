"""What an experiment has to say: sections, tables, measured numbers. Nothing here draws or writes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Measured:
    """A number with its spread, over folds or seeds.

    Args:
        mean: over them.
        std: their standard deviation.
        paper: the same quantity in the paper, if it is there.
        better: 1 where larger is better, -1 where smaller is, 0 where neither.
    """

    mean: float
    std: float | None = None
    paper: "Measured | None" = None
    better: int = 0

    @classmethod
    def over(cls, values: Iterable[float], paper: "Measured | None" = None, better: int = 0) -> "Measured":
        """Mean and standard deviation of the values (divided by n, as the paper's is).

        There is no deviation of one value, or where one is infinite.
        """
        numbers = [float(value) for value in values]
        spread = len(numbers) > 1 and all(map(math.isfinite, numbers))
        return cls(fmean(numbers), pstdev(numbers) if spread else None, paper, better)

    @property
    def difference(self) -> float | None:
        """From the paper, in units of the paper's standard deviation."""
        if self.paper is None or not self.paper.std:
            return None
        return (self.mean - self.paper.mean) / self.paper.std


Cell: TypeAlias = str | int | float | Measured | None


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if lengths := {len(row) for row in self.rows} - {len(self.columns)}:
            raise ValueError(f"rows must have {len(self.columns)} cells, one for each column; got {max(lengths)}")


@dataclass(frozen=True)
class Section:
    """One experiment of the report. All texts are plain; in ``paper`` and ``ours`` a blank line starts a paragraph.

    Args:
        title: its heading.
        paper: what the paper shows or claims, in our words.
        ours: what our results say about it.
        figures: by file name; each has a caption as its key in ``captions``.
        captions: by the same names.
        tables: numbers.
        records: the same numbers for a CSV file, one each, all with the same keys.
    """

    title: str
    paper: str
    ours: str
    figures: "dict[str, Figure]" = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
