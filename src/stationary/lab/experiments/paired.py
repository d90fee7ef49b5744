"""Whether a difference is decided: two methods on the same seeds."""

from typing import Any

import numpy as np
from scipy.stats import t as student


def decided(pairs: "np.ndarray[Any, Any]") -> int:
    """Return the sign of the mean of paired differences (n,) where 95 % of Student's t decide it, otherwise 0."""
    if len(pairs) < 2:
        return 0
    far = float(student.ppf(0.975, len(pairs) - 1)) * float(pairs.std(ddof=1)) / len(pairs) ** 0.5
    return int(pairs.mean() > far) - int(pairs.mean() < -far)
