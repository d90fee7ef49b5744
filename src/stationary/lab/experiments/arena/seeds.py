"""Numbers of methods by seed, and what they are over all seeds."""

import numpy as np

from stationary.lab.report.content import Measured

Values = dict[int, dict[str, float]]  # by seed, the numbers by name
Methods = dict[str, Values]


def over_seeds(values: Values, name: str) -> Measured:
    """Return mean and standard deviation over the seeds, divided by n - 1; a single seed has none."""
    return measured([numbers[name] for numbers in values.values()])


def measured(numbers: list[float]) -> Measured:
    return Measured(float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None)


def signed(found: Measured | None, digits: int) -> str | None:
    """Write a difference and its standard error."""
    if found is None:
        return None
    return f"{found.mean:+.{digits}f} ± {found.std or 0.0:.{digits}f}".replace("-", "\N{MINUS SIGN}")
