"""What methods cost, from the benchmark ``benchmarks/arena_cost.py``."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT, TABLES_EVENT, VALUES_EVENT
from stationary.lab.experiments.arena.report_tables import label
from stationary.lab.report.content import Cell, Table


def tables(content: dict[str, Any]) -> Iterator[Table]:
    """Make a table of the cost of heads and detectors, and one for each kind of table, from the benchmark."""
    rounds = content["rounds"]

    def middle(event: str, name: str, key: str) -> float:
        return float(np.median([one[event][name][key] for one in rounds]))

    trunk = float(np.median([one["trunk_s"] for one in rounds]))
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            f"{middle('features', name, 'fit_s') / trunk:,.0f}",
            f"{middle('features', name, 'row_s') / trunk:.2f}",
            f"{middle('features', name, 'mib'):,.0f}",
            int(middle("features", name, "lines")),
        )
        for name in rounds[0]["features"]
    ]
    caption = "Heads and detectors on features: fit and prediction of a row in passes of one image through the trunk, "
    caption += "growth of memory in MiB, and lines of user code."
    yield Table(caption, ("method", "fit, passes", "a row, passes", "MiB", "lines"), tuple(rows))
    for event, data in ((VALUES_EVENT, "Kin8nm, values"), (TABLES_EVENT, "Adult, classes")):
        ours = {key: middle(event, INFINITE_WIDTH, key) for key in ("fit_s", "row_s")}
        of_event: list[tuple[Cell, ...]] = [
            (
                label(event, name),
                f"{middle(event, name, 'fit_s') / ours['fit_s']:.2f}",
                f"{middle(event, name, 'row_s') / ours['row_s']:.2f}",
                f"{middle(event, name, 'mib'):,.0f}",
                int(middle(event, name, "lines")),
            )
            for name in OF_EVENT[event]
            if name in rounds[0][event]
        ]
        caption = f"{data}: seconds of the fit, with all that it chooses, and of the prediction of a row, relative to "
        caption += "infinite width, growth of memory in MiB, and lines of user code without a loop over a grid."
        yield Table(caption, ("method", "fit", "a row", "MiB", "lines"), tuple(of_event))
