"""Writes the small tables of the arena into README.md and docs/howto/beside_a_detector.md, from its summary.csv.

``mkdocs build`` calls it, or alone: python docs/hooks/evidence.py. A table stands between two comments, the first of
which names this file; the words around it are the page's own.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from stationary.lab.experiments.arena.config import TRAINING
from stationary.lab.experiments.arena.protocol import FROM_NETWORK, INFINITE_WIDTH, PROTOCOL
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT, TABLES_EVENT
from stationary.lab.experiments.arena.words import listed, name_of

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- begin: python docs/hooks/evidence.py{} -->", "<!-- end -->"
README, DETECTOR = "README.md", "docs/howto/beside_a_detector.md"
OURS = (INFINITE_WIDTH, "restored prior")
ALWAYS = ("energy", "knn", "mahalanobis", "rmd", "lof", "isolation forest")  # besides the best of each column
KINDS = ("clinc150", "fashion-mnist")  # the data whose kinds of unknown inputs are the columns of the how-to
ON_TABLES = {INFINITE_WIDTH: "own", "lof": "LOF", "isolation forest": "isolation forest"}
SHOWN = {
    "restored prior": "ours: restored prior",
    INFINITE_WIDTH: "ours: infinite width",
    FROM_NETWORK: "ours: from the network",
}
PLAIN = {  # what is known, and what is not, for a reader who knows none of the data
    "clinc150": "questions to an assistant (CLINC150) / on other topics",
    "fashion-mnist": "clothes (Fashion-MNIST) / digits, letters",
    "cifar10": "CIFAR-10 / digits, letters, noise",
    "cifar10-imagenet": "the same; features trained on ImageNet",
    "cifar10-five": "5 classes of CIFAR-10 / the other 5; features trained on all 10",
    "cifar10-strict": "the same; features trained on the 5 alone",
    "cifar10-imagenet-five": "the same; features trained on ImageNet",
}
CONFIGURATION = (
    '"From the network" is `InfiniteWidth(prior_mean="network", geometry="whitened")`, added after the first results.'
)


class Cell(NamedTuple):
    """The AUROC of a method, and over how many seeds."""

    mean: float
    seeds: int


def areas(root: Path = ROOT, event: str = "") -> dict[tuple[str, str], dict[str, Cell]]:
    """The AUROC of every method, by data and kind of unknown inputs, both in the order of the file.

    Of one event; by default of all in which heads and detectors stand behind a trunk.
    """
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    with (root / "results" / "arena" / "summary.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            behind_a_trunk = row["event"] not in (*OF_EVENT, TRAINING)
            everywhere = row["method"] not in PROTOCOL or not PROTOCOL[row["method"]].only
            if row["metric"] == "AUROC" and everywhere and (row["event"] == event if event else behind_a_trunk):
                cell = Cell(float(row["mean"]), int(row["n"]))
                found.setdefault((row["data"], row["unknown"]), {})[row["method"]] = cell
    return found


def shown(cell: Cell) -> str:
    return f"{cell.mean:.3f}"


def mean_of(kinds: Sequence[dict[str, Cell]]) -> dict[str, Cell]:
    """The mean over kinds of unknown inputs, of methods that have run on all of them."""
    everywhere = [method for method in kinds[0] if all(method in cells for cells in kinds)]
    return {method: Cell(fmean(cells[method].mean for cells in kinds), kinds[0][method].seeds) for method in everywhere}


def how_many(columns: Sequence[dict[str, Cell]]) -> str:
    """How many methods have run, over how many seeds."""
    tried = {method for cells in columns for method in cells}
    seeds = sorted({cell.seeds for cells in columns for cell in cells.values()})
    return f"{len(tried)} methods, {f'{seeds[0]} to {seeds[-1]}' if len(seeds) > 1 else seeds[0]} seeds each"


def grid_of(lines: Sequence[Sequence[str]]) -> str:
    header, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, f"| :-- |{' --: |' * (len(lines[0]) - 1)}", *rows])


def at_best(text: str, best: float) -> str:
    """The number, bold if no other of its group reads higher."""
    return f"**{text}**" if text == f"{best:.3f}" else text


def overview(root: Path = ROOT) -> str:
    """A row for each data set: ours, energy, and the best of all other libraries' methods with its name."""
    found = areas(root)
    data = {name: mean_of([cells for key, cells in found.items() if key[0] == name]) for name in PLAIN}
    assert data.keys() == {name for name, _ in found}, "a data set has no plain name yet"
    lines = [["AUROC: known inputs / unknown inputs", *SHOWN.values(), "energy", "best other"]]
    for name, cells in data.items():
        others = {method: shown(cell) for method, cell in cells.items() if not PROTOCOL[method].ours}
        most, best = max(others.values()), max(cell.mean for cell in cells.values())
        winners = listed(PROTOCOL[method].label for method, text in others.items() if text == most)
        own = [at_best(shown(cells[method]), best) for method in (*SHOWN, "energy")]
        lines.append([PLAIN[name], *own, f"{at_best(most, best)} {winners}"])
    theirs = {method for cells in data.values() for method in cells if not PROTOCOL[method].ours}
    last = f"the last column is the best of the {len(theirs)} that are not ours, row by row."
    said = f"We ran {how_many(list(data.values()))}; {last}"
    return f"{grid_of(lines)}\n\n*{said} {CONFIGURATION}*"


def table(always: Sequence[str], kinds: Sequence[str], root: Path = ROOT) -> str:
    """Ours, the best of each kind of unknown inputs, and the methods that are always shown; a column's best is bold."""
    columns = {": ".join(map(name_of, key)): cells for key, cells in areas(root).items() if key[0] in kinds}
    best = {key: max(cell.mean for cell in cells.values()) for key, cells in columns.items()}
    winners = {m for key, cells in columns.items() for m in cells if shown(cells[m]) == f"{best[key]:.3f}"}
    wanted = {*winners, *OURS, *always}
    ours_first = sorted(PROTOCOL, key=lambda name: not PROTOCOL[name].ours)
    methods = [name for name in ours_first if name in wanted and any(name in cells for cells in columns.values())]
    lines = [["AUROC", *columns]]
    for name in methods:
        cells_of = [(cells.get(name), best[key]) for key, cells in columns.items()]
        lines.append([PROTOCOL[name].label, *(at_best(shown(cell), top) if cell else "–" for cell, top in cells_of)])
    configuration = f" {CONFIGURATION}" if FROM_NETWORK in methods else ""
    return f"{grid_of(lines)}\n\n*We ran {how_many(list(columns.values()))}; bold is the best of all.{configuration}*"


def rows_of_tables(root: Path = ROOT) -> str:
    """A row for each table and kind of unknown rows: AUROC, and the share found at 5 % false alarms."""
    found = json.loads((root / "results" / "benchmarks" / "beside_a_detector.json").read_bytes())["mean"]
    lines = [["table: unknown rows", *(f"AUROC: {name}" for name in ON_TABLES.values())]]
    lines[0] += [f"found: {name}" for name in ("own", "LOF", "both")]
    for (data, unknown), cells in areas(root, TABLES_EVENT).items():
        numbers = {method: cells[method].mean for method in ON_TABLES}
        area = [at_best(f"{mean:.3f}", max(numbers.values())) for mean in numbers.values()]
        shares = found[data][unknown].values()
        lines.append([f"{name_of(data)}: {unknown}", *area, *(f"{share:.0%}".replace("%", " %") for share in shares)])
    return grid_of(lines)


def filled(name: str, root: Path = ROOT) -> str:
    """The page, with its tables as the results are."""
    text = (root / name).read_text(encoding="utf-8")
    printed = (
        {"": overview(root)} if name == README else {"": table(ALWAYS, KINDS, root), " tables": rows_of_tables(root)}
    )
    for which, rows in printed.items():
        begin = BEGIN.format(which)
        parts = text.split(f"{begin}\n")
        assert len(parts) == 2, f"{name} has no place for the table{which}, or two"
        text = f"{parts[0]}{begin}\n{rows}\n{END}{parts[1].split(END, 1)[1]}"
    return text


def write(root: Path = ROOT) -> None:
    """Write the tables, unless they are as the results are."""
    for name in (README, DETECTOR):
        text = filled(name, root)
        if (root / name).read_text(encoding="utf-8") != text:
            (root / name).write_text(text, encoding="utf-8")


def on_pre_build(*, config: Any) -> None:
    write()


if __name__ == "__main__":
    write()
