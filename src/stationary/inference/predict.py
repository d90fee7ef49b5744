"""The only prediction call."""

from typing import Any, overload

from torch import nn

from stationary.inference.base import Inputs, Method, Posterior, batches
from stationary.inference.point import Point
from stationary.predictive import Categorical, P


@overload
def predict(
    model: nn.Module | Posterior,
    x: Inputs,
    method: Method | None = None,
    *,
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> Categorical: ...


@overload
def predict(
    model: nn.Module | Posterior,
    x: Inputs,
    method: Method | None = None,
    *,
    family: type[P],
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> P: ...


def predict(
    model: nn.Module | Posterior,
    x: Inputs,
    method: Method | None = None,
    *,
    family: type[Any] = Categorical,
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> Any:
    """The predictive distribution of a trained network.

    ``eval`` or ``train`` mode of the model does not matter: it is run in eval mode, and left as it was.

    Args:
        model: a trained network, or a posterior that ``method.fit`` has returned.
        x: inputs whose first dimension is the batch, or a mapping of keyword arguments (Hugging Face). NaN and
            infinity are refused on the CPU; on a GPU, looking would stall it, and they come out as NaN.
        method: ``MCDropout(100)``, ``ExactDropout()``, ...; by default ``Point()``, one deterministic pass.
        family: ``Categorical`` for a classifier, ``Gaussian`` for regression.
        batch_size: inputs at a time; all at once by default.
        keep_samples: keep the members' outputs, O(samples n c) memory.
    """
    if isinstance(model, nn.Module):
        posterior = (method or Point()).posterior(model)
    elif method is not None:
        raise ValueError(f"method is for a network; {type(model).__name__} already has its own: leave it out")
    else:
        posterior = model
    return family.cat([posterior.predict(part, family, keep_samples=keep_samples) for part in batches(x, batch_size)])
