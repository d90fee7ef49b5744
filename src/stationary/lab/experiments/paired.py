"""How far apart two methods are on the same seeds, and whether that is decided."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from stationary.lab.report.content import Measured


def mean_difference(pairs: ArrayLike) -> Measured | None:
    """Return the mean of paired differences (n,) and its standard error; None if there are fewer than two."""
    differences = np.asarray(pairs, dtype=float)
    n = len(differences)
    return Measured(float(differences.mean()), float(differences.std(ddof=1) / n**0.5)) if n > 1 else None


def decided(pairs: "np.ndarray[Any, Any]") -> int:
    """Return the sign of the mean of paired differences (n,) where 95 % of Student's t decide it, otherwise 0."""
    found = mean_difference(pairs)
    if found is None:
        return 0
    far = float(student.ppf(0.975, len(pairs) - 1)) * (found.std or 0.0)
    return int(found.mean > far) - int(found.mean < -far)
