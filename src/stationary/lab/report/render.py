"""How the sections of a report become a text: HTML, Markdown, LaTeX or CSV."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from decimal import Decimal
from importlib.resources import files
from statistics import median_high, median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from stationary._extras import extra
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.lab.runs.provenance import duration, seconds_of

with extra("experiments"):
    import jinja2
    import matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Formats


def render_html(sections: Sequence[Section], environments: Sequence[dict[str, Any]]) -> str:
    """Write the report as one HTML page, with its figures and its style inside, that loads nothing and has no script.

    Args:
        sections: the sections, in the order of the page.
        environments: where each run behind the sections was computed, as the run store has it.
    """
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    ).from_string(files("stationary.lab.report").joinpath("report.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        sections=sections,
        provenance=list(_provenance(environments)),
        columns_of=_columns,
        svg=_svg,
        paragraphs=lambda text: [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())],
    )


def render_markdown(sections: Sequence[Section]) -> str:
    """Write the tables of all sections in Markdown, for a README or an issue."""
    blocks = []
    for section in sections:
        if section.tables:
            blocks.append(f"## {_markdown(section.title)}")
        for table in section.tables:
            columns = _columns(table)
            heads = [_markdown(f"{c.title}, {part}" if part else c.title) for c in columns for part in c.parts]
            rules = ["--:" if column.numeric else ":--" for column in columns for _ in column.parts]
            lines = [heads, rules, *_rows(columns, _markdown, "**{}**")]
            blocks += [_markdown(table.caption), "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(blocks) + "\n"


def render_latex(sections: Sequence[Section]) -> str:
    """Write the tables of all sections in LaTeX, for a document that uses booktabs."""
    tables = [
        f"% {' '.join(section.title.split())}\n{_latex_table(table)}"
        for section in sections
        for table in section.tables
    ]
    return "\n\n".join(["% Needs \\usepackage{booktabs}", *tables]) + "\n"


def render_csv(section: Section) -> str:
    """Write the records of a section as CSV; a section without records has no CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(section.records[0]), lineterminator="\n")
    writer.writeheader()
    for record in section.records:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in record.items()})
    return buffer.getvalue()


def _latex_table(table: Table) -> str:
    columns = _columns(table)
    align = "".join(("r" if column.numeric else "l") * len(column.parts) for column in columns)
    heads = [[_spanning(_latex(column.title), len(column.parts)) for column in columns]]
    if any(column.compared for column in columns):
        heads.append([_latex(part) for column in columns for part in column.parts])
    head, body = (
        [f"{' & '.join(line)} \\\\" for line in lines] for lines in (heads, _rows(columns, _latex, "\\textbf{{{}}}"))
    )
    lines = [
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_latex(table.caption)}}}",
        f"  \\begin{{tabular}}{{{align}}}",
        *(f"    {line}" for line in ("\\toprule", *head, "\\midrule", *body, "\\bottomrule")),
        "  \\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~$&])", r"\\\1", " ".join(text.split()))


COMMANDS = "pm times cdot infty leq geq approx to ell alpha epsilon kappa lambda mu nu pi sigma omega Delta Sigma"
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"$\\{name}$" for character, name in zip("±×·∞≤≥≈→ℓαεκλμνπσωΔΣ", COMMANDS.split(), strict=True)}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "[": "{[}", "–": "--", "−": "$-$", "²": "$^2$", "½": r"$\frac12$"}
)


def _latex(text: str) -> str:
    return " ".join(text.split()).translate(LATEX)


def _spanning(text: str, columns: int) -> str:
    return text if columns == 1 else f"\\multicolumn{{{columns}}}{{c}}{{{text}}}"


# Tables


class _Shown(NamedTuple):
    """A cell as text.

    Args:
        text: what the cell shows.
        strong: whether it is a difference from the paper of more than two of the paper's standard deviations.
        better: whether it is a difference from the paper in the better direction.
    """

    text: str
    strong: bool = False
    better: bool = False


class _Column(NamedTuple):
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
    cells: list[tuple[_Shown, ...]]

    @property
    def compared(self) -> bool:
        return len(self.parts) > 1


def _columns(table: Table) -> list[_Column]:
    columns = []
    for j, title in enumerate(table.columns):
        cells = [row[j] for row in table.rows]
        compared = any(isinstance(cell, Measured) and cell.paper for cell in cells)
        shown = [_compared(cell, _decimals(cells)) if compared else (_shown(cell, _decimals(cells)),) for cell in cells]
        numeric = not any(isinstance(cell, str) for cell in cells)
        columns.append(_Column(title, ("ours", "paper", "Δ/std") if compared else ("",), numeric, shown))
    return columns


def _rows(columns: list[_Column], escape: Any, strong: str) -> Iterator[list[str]]:
    for cells in zip(*(column.cells for column in columns), strict=True):
        flat = [shown for cell in cells for shown in cell]
        yield [strong.format(escape(text)) if bold else escape(text) for text, bold, _ in flat]


def _compared(cell: Cell, decimals: int) -> tuple[_Shown, ...]:
    if not isinstance(cell, Measured):
        return _shown(cell, decimals), _Shown("–"), _Shown("–")
    apart, difference = _Shown("–"), cell.difference
    if difference is not None:
        apart = _Shown(_minus(f"{difference:+.1f}"), abs(difference) > 2, difference * cell.better > 0)
    return _shown(cell, decimals), _shown(cell.paper, decimals), apart


def _shown(cell: Cell, decimals: int) -> _Shown:
    if cell is None:
        return _Shown("–")
    if isinstance(cell, str):
        return _Shown(cell)
    if isinstance(cell, Measured):
        return _Shown(_number(cell.mean, decimals) + ("" if cell.std is None else f" ± {cell.std:.{decimals}f}"))
    return _Shown(_minus(f"{cell:,}") if isinstance(cell, int) else _number(cell, decimals))


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


# Figures


def _svg(figure: "Figure", prefix: str) -> str:
    """Write a figure as an ``<svg>`` element; its ids get a prefix, since matplotlib reuses ids between figures.

    Letters become paths, which look the same in every browser. The figure is copied before it is drawn, since its
    layout moves a little with every drawing.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "stationary"}):
        deepcopy(figure).savefig(buffer, format="svg", metadata=nothing, facecolor="none")
    text = re.sub(r"<!--.*?-->\n?", "", buffer.getvalue(), flags=re.DOTALL)
    return re.sub(r"""(\bid="|\bhref="#|url\(#)""", rf"\g<1>{prefix}-", text[text.index("<svg") :])


# Provenance


def _provenance(environments: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield, for each group of runs with equal environments, what they share, when they ran and how long they took."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in environments:
        shared = {
            key: value for key, value in one.items() if key not in ("time", "wall_s", "lockstep") and value is not None
        }
        groups.setdefault(json.dumps(shared, default=str), []).append(one)
    for shared_json, group in groups.items():
        times = sorted(str(one["time"]) for one in group if one.get("time"))
        seconds = [time for one in group if (time := seconds_of(one)) is not None]
        facts = {"Runs": str(len(group))}
        if times:
            facts["Finished"] = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
        if seconds:
            facts["Wall time"] = duration(sum(seconds))
        for key, value in json.loads(shared_json).items():
            text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            facts[key.upper() if key in ("cpu", "gpu") else key.replace("_", " ").capitalize()] = text
        yield facts
