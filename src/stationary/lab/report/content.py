"""The contents of a report: sections, tables and measured numbers. Nothing here draws or writes files."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Measured:
    """A measured number: the mean and the spread of a quantity over folds or seeds.

    Args:
        mean: mean of the quantity over folds or seeds.
        std: its standard deviation over them, or None if there is none.
        paper: the same quantity as the paper gives it, or None if the paper does not.
        better: 1 if larger values are better, -1 if smaller ones are, 0 if neither.
    """

    mean: float
    std: float | None = None
    paper: "Measured | None" = None
    better: int = 0

    @classmethod
    def over(cls, values: Iterable[float], paper: "Measured | None" = None, better: int = 0) -> "Measured":
        """Measure the mean and the standard deviation of the values, which is divided by n, as the paper's is.

        The standard deviation is None for a single value, and where a value is not finite.

        Args:
            values: one value for each fold or seed.
            paper: the same quantity as the paper gives it, or None.
            better: 1 if larger values are better, -1 if smaller ones are, 0 if neither.
        """
        numbers = [float(value) for value in values]
        spread = len(numbers) > 1 and all(map(math.isfinite, numbers))
        return cls(fmean(numbers), pstdev(numbers) if spread else None, paper, better)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's mean, in units of the paper's standard deviation; None where the paper has none."""
        if self.paper is None or not self.paper.std:
            return None
        return (self.mean - self.paper.mean) / self.paper.std


Holds: TypeAlias = Literal["holds", "in part", "not decided", "does not hold"]


@dataclass(frozen=True)
class Verdict:
    """What the results say about one claim, for the table on top of the report.

    Args:
        claim: the claim, a short sentence in plain words.
        where: where the paper makes it, such as "Fig. 1".
        found: what the results say, with the number that decides.
        holds: the verdict in a word.
    """

    claim: str
    where: str
    found: str
    holds: Holds


def judged(holds: Iterable[bool]) -> Holds:
    """Sum up the parts of a claim: it holds if all do, in part if half of them do; without any it is not decided."""
    parts = [bool(part) for part in holds]
    if not parts:
        return "not decided"
    return "holds" if all(parts) else "in part" if 2 * sum(parts) >= len(parts) else "does not hold"


Cell: TypeAlias = str | int | float | Measured | None


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Args:
        caption: the text above the table.
        columns: the headings of the columns.
        rows: the rows, each with one cell for each column.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if lengths := {len(row) for row in self.rows} - {len(self.columns)}:
            raise ValueError(
                f"rows must have {len(self.columns)} cells, one for each column; got a row of {max(lengths)}"
            )


@dataclass(frozen=True)
class Section:
    """The part of the report that is about one experiment.

    All texts are plain, without markup; in ``paper`` and ``ours`` a blank line starts a new paragraph.

    Args:
        title: the heading.
        paper: what the paper shows or claims, in our words.
        ours: what our results say about it.
        figures: the figures, by the name of their files without an ending.
        captions: the captions of the figures, by the same names.
        tables: the tables, in the order of the page.
        records: the measured numbers for a CSV file: one dictionary for each number, all with the same keys.
        verdicts: what the results say about each claim, for the table on top of the report.
    """

    title: str
    paper: str
    ours: str
    figures: "dict[str, Figure]" = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
    verdicts: tuple[Verdict, ...] = ()


def what_held(sections: Iterable[Section]) -> Table:
    """Return the verdicts of all sections as a table."""
    rows = tuple((v.claim, v.where, v.found, v.holds) for section in sections for v in section.verdicts)
    return Table("What held", ("claim", "where", "found", "verdict"), rows)
