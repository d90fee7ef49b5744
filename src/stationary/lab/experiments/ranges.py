"""What the settings of a configuration may be, which each configuration checks of itself before anything runs."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by kind of number, the rule in words and as a test
    "counts": ("an integer of at least 1", lambda n: isinstance(n, int) and n >= 1),
    "grids": ("an integer of at least 2", lambda n: isinstance(n, int) and n >= 2),
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


def check_name(setting: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError if a name is none of those that are known.

    Args:
        setting: what the error message calls the name.
        name: the name.
        known: the names that it may be.
    """
    names = list(known)
    if name in names:
        return
    if len(names) > 30:
        rule = f"one of {len(names)} names, such as {', '.join(get_close_matches(name, names, 5, cutoff=0))}"
    else:
        rule = f"one of {', '.join(names)}"
    raise ValueError(f"{setting} must be {rule}; got {name!r}")
