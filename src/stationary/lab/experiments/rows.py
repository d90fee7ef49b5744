"""Results of several runs, sorted into the rows of a table."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]


def rows_of(results: Iterable[Arrays]) -> dict[str, Arrays]:
    """By row, its arrays by quantity, of arrays by "row: quantity"; several runs are joined, seed after seed."""
    parts: dict[str, list[Arrays]] = {}
    for arrays in results:
        own: dict[str, Arrays] = {}
        for name, array in arrays.items():
            row, quantity = name.split(": ")
            own.setdefault(row, {})[quantity] = array
        for row, quantities in own.items():
            parts.setdefault(row, []).append(quantities)
    return {
        row: {quantity: np.concatenate([run[quantity] for run in runs]) for quantity in runs[0]}
        for row, runs in parts.items()
    }
