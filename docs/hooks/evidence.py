"""Writes the small tables of the arena into README.md and docs/howto/beside_a_detector.md, from its summary.csv.

``mkdocs build`` calls it, or alone: python docs/hooks/evidence.py. A table stands between two comments, the first of
which names this file; the words around it are the page's own.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from stationary.lab.experiments.arena.config import TRAINING
from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH, PROTOCOL
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT
from stationary.lab.experiments.arena.words import name_of

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- begin: python docs/hooks/evidence.py -->", "<!-- end -->"
OURS = (INFINITE_WIDTH, "restored prior")
ALWAYS = {  # the methods of each page's table, besides those that are the best somewhere
    "README.md": ("energy",),
    "docs/howto/beside_a_detector.md": ("energy", "knn", "mahalanobis", "rmd", "lof", "isolation forest"),
}
KINDS = {  # data whose kinds of unknown inputs are columns of a page's table; without, a column is the mean over them
    "docs/howto/beside_a_detector.md": ("clinc150", "fashion-mnist"),
}


class Cell(NamedTuple):
    """The AUROC of a method, and over how many seeds."""

    mean: float
    seeds: int


def areas(root: Path = ROOT) -> dict[tuple[str, str], dict[str, Cell]]:
    """The AUROC of every head and detector, by data and kind of unknown inputs, both in the order of the file."""
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    with (root / "results" / "arena" / "summary.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "AUROC" and row["event"] not in (
                *OF_EVENT,
                TRAINING,
            ):  # tables have a page of their own
                cell = Cell(float(row["mean"]), int(row["n"]))
                found.setdefault((row["data"], row["unknown"]), {})[row["method"]] = cell
    return found


def shown(cell: Cell) -> str:
    return f"{cell.mean:.3f}"


def columns_of(kinds: Sequence[str], root: Path = ROOT) -> dict[str, dict[str, Cell]]:
    """The AUROC of every method by the heading of a column: each kind of unknown inputs of some data, or all data."""
    found = areas(root)
    if kinds:
        return {": ".join(map(name_of, key)): cells for key, cells in found.items() if key[0] in kinds}
    columns: dict[str, dict[str, Cell]] = {}
    for data in dict.fromkeys(data for data, _ in found):
        of_kinds = [cells for key, cells in found.items() if key[0] == data]
        of_all = [method for method in of_kinds[0] if all(method in cells for cells in of_kinds)]
        columns[name_of(data)] = {
            method: Cell(fmean(cells[method].mean for cells in of_kinds), of_kinds[0][method].seeds)
            for method in of_all
        }
    return columns


def table(always: Sequence[str], kinds: Sequence[str] = (), root: Path = ROOT) -> str:
    """Ours, the best of each column, and the methods that are always shown; the best of a column is bold."""
    columns = columns_of(kinds, root)
    best = {key: max(cells, key=lambda method: cells[method].mean) for key, cells in columns.items()}
    wanted = {*best.values(), *OURS, *always}
    ours_first = sorted(PROTOCOL, key=lambda name: not PROTOCOL[name].ours)
    methods = [name for name in ours_first if name in wanted and any(name in cells for cells in columns.values())]
    lines = [["AUROC", *columns], [":--", *("--:" for _ in columns)]]
    for name in methods:
        row = [PROTOCOL[name].label]
        for key, cells in columns.items():
            text = shown(cells[name]) if name in cells else "–"
            row.append(f"**{text}**" if text == shown(cells[best[key]]) else text)
        lines.append(row)
    tried = {method for cells in columns.values() for method in cells}
    seeds = sorted({cell.seeds for cells in columns.values() for cell in cells.values()})
    span = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    means = "" if kinds else " A column is the mean over the kinds of unknown inputs."
    second = '“From the network” is `InfiniteWidth(prior_mean="network", geometry="whitened")`.'
    said = f"{len(tried)} methods have run, each over {span} seeds; bold is the best of all of them.{means} {second}"
    return f"{grid}\n\n*{said}*"


def filled(name: str, root: Path = ROOT) -> str:
    """The page, with its table as the results are."""
    text = (root / name).read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    assert len(between.findall(text)) == 1, f"{name} has no place for the table, or two"
    return between.sub(lambda _: f"{BEGIN}\n{table(ALWAYS[name], KINDS.get(name, ()), root)}\n{END}", text)


def write(root: Path = ROOT) -> None:
    """Write the tables, unless they are as the results are."""
    for name in ALWAYS:
        text = filled(name, root)
        if (root / name).read_text(encoding="utf-8") != text:
            (root / name).write_text(text, encoding="utf-8")


def on_pre_build(*, config: Any) -> None:
    write()


if __name__ == "__main__":
    write()
