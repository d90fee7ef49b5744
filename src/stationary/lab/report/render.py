"""How the sections of a report become Markdown or CSV. ``latex`` and ``page`` make the other forms of them."""

import csv
import io
import re
from collections.abc import Sequence

from stationary.lab.report.content import Section, Table, what_held
from stationary.lab.report.tables import columns_of, rows_of


def render_markdown(sections: Sequence[Section]) -> str:
    """Write the verdicts and the tables of all sections in Markdown, for a README or an issue."""
    verdicts = what_held(sections)
    blocks = [f"## {verdicts.caption}", _table(verdicts)] if verdicts.rows else []
    for section in sections:
        if section.tables:
            blocks.append(f"## {_markdown(section.title)}")
        for table in section.tables:
            blocks += [_markdown(table.caption), _table(table)]
    return "\n\n".join(blocks) + "\n"


def _table(table: Table) -> str:
    columns = columns_of(table)
    heads = [_markdown(f"{c.title}, {part}" if part else c.title) for c in columns for part in c.parts]
    rules = ["--:" if column.numeric else ":--" for column in columns for _ in column.parts]
    lines = [heads, rules, *rows_of(columns, _markdown, "**{}**")]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def render_csv(section: Section) -> str:
    """Write the records of a section as CSV; a section without records has no CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(section.records[0]), lineterminator="\n")
    writer.writeheader()
    for record in section.records:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in record.items()})
    return buffer.getvalue()


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~$&])", r"\\\1", " ".join(text.split()))
