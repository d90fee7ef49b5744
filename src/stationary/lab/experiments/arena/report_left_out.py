"""What was left out of tables of classes, seed by seed: another class or another column is another task."""

from collections.abc import Iterator

import numpy as np

from stationary.lab.data import uci
from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH
from stationary.lab.experiments.arena.protocol_tables import CLASSIFIERS
from stationary.lab.experiments.arena.report_tables import Found, Methods
from stationary.lab.experiments.arena.tables import CLASS, REGION
from stationary.lab.experiments.arena.words import called, listed, name_of
from stationary.lab.report.content import Cell, Table


def columns(dataset: str) -> tuple[str, ...]:
    """Return the names of the numeric columns, of which the seed takes one."""
    if dataset == "covtype":
        return uci.COVTYPE_FEATURES
    table = uci.load(dataset)
    return tuple(name for name, numeric in zip(table.feature_names, table.numeric, strict=True) if numeric)


def classes(dataset: str) -> tuple[str, ...]:
    """Return the names of the classes, of which the seed leaves one out."""
    return tuple(str(name) for name in uci.EXPECTED[dataset][1])


def by_task(methods: Methods, unknown: str, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return by what was left out the AUROC of each method, the mean where several seeds left out the same."""
    name = f"AUROC: {unknown}"
    seeds = sorted({seed for numbers in methods.values() for seed in numbers.get(name, {})})
    found: dict[str, dict[str, float]] = {}
    for place in dict.fromkeys(seed % len(names) for seed in seeds):
        of = [seed for seed in seeds if seed % len(names) == place]
        found[names[place]] = {
            method: float(np.mean([numbers[name][seed] for seed in of]))
            for method, numbers in methods.items()
            if all(seed in numbers.get(name, {}) for seed in of)
        }
    return found


def tables(found: Found) -> Iterator[Table]:
    """Make a table for each data set and kind: a row for each method, a column for each class or column left out."""
    for dataset, methods in found.items():
        for unknown, names in ((CLASS, classes(dataset)), (REGION, columns(dataset))):
            tasks = by_task(methods, unknown, names)
            if not tasks:
                continue
            rows: list[tuple[Cell, ...]] = [
                (entry.label, *(f"{of[method]:.3f}" if method in of else None for of in tasks.values()))
                for method, entry in CLASSIFIERS.items()
                if method in methods
            ]
            what = "class that is left out" if unknown == CLASS else "column of which high values are left out"
            caption = f"{name_of(dataset)}: AUROC of the rows left out, by the {what}."
            yield Table(caption, ("method", *tasks), tuple(rows))


def in_words(found: Found) -> list[str]:
    """Say for each class that was left out who tells it best, and what ours has."""
    told = []
    for dataset, methods in found.items():
        best_of = []
        for name, auroc in by_task(methods, CLASS, classes(dataset)).items():
            best = max(auroc, key=lambda method: auroc[method])
            ours = "" if best == INFINITE_WIDTH else f", ours {auroc[INFINITE_WIDTH]:.3f}"
            best_of.append(f"{name} by {called(CLASSIFIERS[best].label)} ({auroc[best]:.3f}{ours})")
        if best_of:
            told.append(f"The classes of {name_of(dataset)} are told best: {listed(best_of)}.")
    return told
