"""Optional dependencies: a missing one is reported with the extra that brings it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Inside, a failed import names the extra that brings the dependency: ``with extra("gp"): import gpytorch``."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed; it comes with the extra {name!r}: pip install 'stationary[{name}]'",
            name=error.name,
        ) from error


@cache
def has_triton() -> bool:
    """Whether Triton is installed and PyTorch is not built for ROCm, on which the kernels are not tested."""
    import torch

    return find_spec("triton") is not None and torch.version.hip is None
