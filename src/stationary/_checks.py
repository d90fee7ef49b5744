"""Checks of what users pass in: the error names the argument, the rule, the value and the next step."""

import math
from numbers import Real
from typing import Any

from torch import Tensor


def check_positive(name: str, value: Any, hint: str = "") -> None:
    """Raise an error unless value is a positive number; a tensor is trusted, since reading it would stall a GPU.

    Args:
        name: name of the argument, for the message.
        value: the value to check.
        hint: end of the message, which says what to do next.
    """
    if isinstance(value, Tensor) or (
        type(value) is float and value > 0
    ):  # the usual case comes first, since this runs in every forward pass
        return
    rule = f"{name} must be a positive number, got {value!r}" + (f"; {hint}" if hint else "")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(rule)
    if math.isnan(float(value)) or value <= 0:
        raise ValueError(rule)


def check_finite(name: str, value: Any, hint: str = "") -> None:
    """Raise an error unless value is a positive finite number; the arguments are those of ``check_positive``."""
    if type(value) is float and 0 < value < math.inf:  # the usual case
        return
    check_positive(name, value, hint)
    if not isinstance(value, Tensor) and math.isinf(float(value)):
        raise ValueError(f"{name} must be finite, got {value!r}" + (f"; {hint}" if hint else ""))


def is_number(value: object) -> bool:
    """Whether value can be compared with numbers: texts and None cannot."""
    return isinstance(value, Real)


def is_count(value: object) -> bool:
    """Whether value is a positive int; True is none, nor are NumPy's integers, which PyTorch often refuses."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
