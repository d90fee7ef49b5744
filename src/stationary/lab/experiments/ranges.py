"""What the numbers of a configuration may be, which each configuration checks of itself before anything runs."""

import math
from collections.abc import Callable
from typing import Any

RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by kind of number, the rule in words and as a test
    "counts": ("an integer of at least 1", lambda n: isinstance(n, int) and n >= 1),
    "seeds": ("an integer of at least 0", lambda n: isinstance(n, int) and n >= 0),
    "positive": ("a positive number", lambda x: x > 0 and math.isfinite(x)),
    "not_negative": ("a number of at least 0", lambda x: x >= 0 and math.isfinite(x)),
    "probabilities": ("a number of at least 0 and below 1", lambda x: 0 <= x < 1),
}


def check(config: Any, **kinds: str) -> None:
    """Raise a ValueError if a number of a configuration is out of its range.

    Args:
        config: the configuration. Of a setting that is a tuple, every entry is checked, and one must be there.
        kinds: by kind of number, a key of ``RULES``, the names of the settings of that kind, with spaces between them.
    """
    for kind, names in kinds.items():
        rule, fits = RULES[kind]
        for name in names.split():
            value = getattr(config, name)
            if isinstance(value, tuple):
                if not value or not all(map(fits, value)):
                    raise ValueError(f"{name} must have at least one entry, and each must be {rule}; got {value}")
            elif not fits(value):
                raise ValueError(f"{name} must be {rule}; got {value!r}")
