"""Results of several runs, sorted into the rows of a table."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from stationary.lab.runs.store import Arrays

Rows: TypeAlias = dict[str, Arrays]  # by name of a row, its arrays by quantity
ByModel: TypeAlias = dict[tuple[str, str], tuple[Any, Arrays]]  # by model and prior, the configuration and its arrays


def joined_rows(results: Iterable[Arrays]) -> Rows:
    """Collect the arrays that are stored under the name "row: quantity" by row, and join runs along the first axis.

    Arrays whose name has no row, such as the seconds that a run took, are left out.
    """
    parts: dict[str, list[Arrays]] = {}
    for arrays in results:
        own: Rows = {}
        for name, array in arrays.items():
            row, of_a_row, quantity = name.partition(": ")
            if of_a_row:
                own.setdefault(row, {})[quantity] = array
        for row, quantities in own.items():
            parts.setdefault(row, []).append(quantities)
    return {
        row: {quantity: np.concatenate([run[quantity] for run in runs]) for quantity in runs[0]}
        for row, runs in parts.items()
    }


def by_model(results: Iterable[tuple[Any, Arrays]]) -> ByModel:
    """Return results by the ``model`` and ``prior`` of their configurations, which must differ."""
    return {(config.model, config.prior): (config, arrays) for config, arrays in results}
