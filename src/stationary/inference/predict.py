"""The only prediction call."""

from typing import Any, overload

from torch import nn

from stationary.inference.base import Method, Posterior
from stationary.inference.exact_dropout import ExactDropout
from stationary.nn.running import Batches, Inputs, batches, device_of
from stationary.predictive import Categorical, P

DEFAULT: Method = ExactDropout()  # of everything that predicts with a network: no seed, no number of samples


@overload
def predict(
    model: nn.Module | Posterior,
    x: Inputs | Batches,
    method: Method | None = None,
    *,
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> Categorical: ...


@overload
def predict(
    model: nn.Module | Posterior,
    x: Inputs | Batches,
    method: Method | None = None,
    *,
    family: type[P],
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> P: ...


def predict(
    model: nn.Module | Posterior,
    x: Inputs | Batches,
    method: Method | None = None,
    *,
    family: type[Any] = Categorical,
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> Any:
    """The predictive distribution of a trained network or of a posterior.

    ``eval`` or ``train`` mode of the model does not matter: it is run in eval mode, and left as it was.

    Args:
        model: a trained network, or a posterior that ``fit`` has returned.
        x: inputs whose first dimension is the batch; a mapping of keyword arguments (Hugging Face); or an iterable of
            batches of either, such as a DataLoader, which go to the model's device, and whose targets are not looked
            at. NaN and infinity are refused on the CPU; on a GPU, looking would stall it, and they come out as NaN.
        method: for a network, how to predict: ``MCDropout(100)``, ``Point()``, ...; by default ``ExactDropout()``, the
            mean over all dropout masks in closed form.
        family: ``Categorical`` for a classifier, ``Gaussian`` for regression.
        batch_size: inputs at a time where x is a tensor; all at once by default.
        keep_samples: keep the members' outputs, O(samples n c) memory.
    """
    if isinstance(model, nn.Module):
        posterior = (DEFAULT if method is None else method).posterior(model)
    elif method is not None:
        raise ValueError(f"method is for a network; {type(model).__name__} already has its own: leave it out")
    else:
        posterior = model
    parts = batches(x, batch_size, device_of(posterior.networks[0]))
    return family.cat([posterior.predict(part, family, keep_samples=keep_samples) for part, _ in parts])
