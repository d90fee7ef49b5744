"""How the tables of a report become LaTeX, in pieces that fit a page."""

import textwrap
from collections.abc import Iterator, Sequence

from stationary.lab.report.content import Section
from stationary.lab.report.tables import Column, columns_of, rows_of

GAP = 3  # letters that the space between columns takes
ROWS = 40  # of a table that fit a page of it, below a caption of a few lines
LETTERS = 80  # of the small type that fit a line of LaTeX's article


def render_latex(sections: Sequence[Section]) -> str:
    """Write the tables of all sections in LaTeX, for a document that uses booktabs.

    What is too wide or too long for a page of the class article is continued in another table. Where many tables
    follow each other a page ends, since LaTeX keeps only some of them in mind.
    """
    blocks = ["% Needs \\usepackage{booktabs}"]
    for section in sections:
        blocks += [f"% {' '.join(section.title.split())}"] * bool(section.tables)
        for table in section.tables:
            parts = list(_parts(columns_of(table)))
            blocks += [_latex_part(_latex(table.caption + " (continued)" * bool(k)), p) for k, p in enumerate(parts)]
            blocks += ["\\clearpage"] * (len(parts) > 1 or table is section.tables[-1])
    return "\n\n".join(blocks) + "\n"


def _parts(columns: list[Column]) -> Iterator[list[Column]]:
    """Yield the parts of a table that fit a page: some of its columns, of some of its rows."""
    n = len(columns[0].cells)
    rows = -(-n // -(-n // ROWS)) if n else 1  # of which all parts have about as many
    for some in _that_fit(columns):
        for start in range(0, max(n, 1), rows):
            yield [column._replace(cells=column.cells[start : start + rows]) for column in some]


def _latex_part(caption: str, columns: list[Column]) -> str:
    align = "".join(("r" if column.numeric else "l") * len(column.parts) for column in columns)
    titles = _wrapped(columns)
    heads = [[_spanning(_latex(line[k]), len(column.parts)) for k, column in enumerate(columns)] for line in titles]
    if any(column.compared for column in columns):
        heads.append([_latex(part) for column in columns for part in column.parts])
    head, body = (
        [f"{' & '.join(line)} \\\\" for line in lines] for lines in (heads, rows_of(columns, _latex, "\\textbf{{{}}}"))
    )
    lines = [
        "\\begin{table}",
        "  \\centering\\small",
        f"  \\caption{{{caption}}}\\smallskip",
        f"  \\begin{{tabular}}{{@{{}}{align}@{{}}}}",
        *(f"    {line}" for line in ("\\toprule", *head, "\\midrule", *body, "\\bottomrule")),
        "  \\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines)


def _that_fit(columns: list[Column]) -> Iterator[list[Column]]:
    """Yield the columns in groups that fit a page, each with the leading columns of text, which name the rows."""
    names = next((k for k, column in enumerate(columns) if column.numeric or column.compared), len(columns))
    labels = columns[: min(names, 2)]
    taken = list(labels)
    for column in columns[len(labels) :]:
        if len(taken) > len(labels) and sum(map(_width, [*taken, column])) > LETTERS:
            yield taken
            taken = list(labels)
        taken.append(column)
    yield taken


def _width(column: Column) -> int:
    """Return the letters that a column takes, with the space between columns; a long heading is wrapped."""
    parts = [max(len(shown) for shown in texts) for texts in zip(column.parts, *_texts(column), strict=True)]
    words = max(map(len, column.title.split()), default=0)
    return max(sum(parts) + GAP * (len(parts) - 1), words) + GAP


def _texts(column: Column) -> list[list[str]]:
    return [[shown.text for shown in cells] for cells in column.cells]


def _wrapped(columns: list[Column]) -> list[list[str]]:
    """Return the lines of the headings, of which the last ones stand at the bottom."""
    wrapped = [
        textwrap.wrap(column.title, _width(column) - GAP, break_long_words=False, break_on_hyphens=False) or [""]
        for column in columns
    ]
    height = max(map(len, wrapped))
    return [list(line) for line in zip(*([""] * (height - len(lines)) + lines for lines in wrapped), strict=True)]


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
