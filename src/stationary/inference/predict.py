"""The only prediction call."""

from typing import Any, overload

from torch import nn

from stationary.inference._forgotten import remembered
from stationary.inference.base import Method, Posterior, check_method
from stationary.inference.exact_dropout import ExactDropout
from stationary.nn.running import Batches, Inputs, batches
from stationary.predictive import Categorical, P, Predictive

DEFAULT: Method = ExactDropout()  # it needs neither a seed nor a number of samples


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
    family: type[Any] | None = None,
    batch_size: int | None = None,
    keep_samples: bool = False,
) -> Any:
    """The predictive distribution of a trained network or of a posterior.

    The model runs in eval mode, whatever mode it is in, and is left in the mode it was in. Threads take turns with it.

    Args:
        model: a trained network, or a posterior that ``fit`` has returned.
        x: a tensor or an array of inputs whose first dimension is the batch; a mapping of keyword arguments (Hugging
            Face); or an iterable of batches of these, such as a list or a DataLoader. Real numbers get the model's
            floating-point type. Arrays and the batches of an iterable are moved to its device, and targets are
            ignored. NaN and infinity are an error on the CPU; on a GPU, where looking for them would stall it, the
            prediction of such an input is NaN.
        method: how to predict with a network: ``MCDropout(100)``, ``Point()``, ...; by default ``ExactDropout()``, the
            mean over all dropout masks in closed form. A posterior has its own method.
        family: kind of the prediction: ``Categorical`` for a classifier, ``Gaussian`` for a regression. By default it
            is the posterior's own, where it knows what its targets were (``InfiniteWidth``), else ``Categorical``.
        batch_size: number of inputs in a pass where x is a tensor or a mapping; by default all go in one.
        keep_samples: whether the prediction keeps the outputs of all s members, which takes O(s n c) memory.
    """
    posterior = as_posterior(model, method)
    kind = family or family_of(posterior)
    if not isinstance(kind, type) or not issubclass(kind, Predictive):
        raise TypeError(f"family must be stationary.Categorical, Gaussian or Bernoulli, the class; got {kind!r}")
    parts = batches(x, batch_size, posterior.networks[0])
    pred = kind.concatenate([posterior.predict(part, kind, keep_samples=keep_samples) for part, _ in parts])
    return remembered(pred, posterior)


def as_posterior(model: nn.Module | Posterior, method: Method | None = None) -> Posterior:
    """The posterior of a trained network by a method, ``ExactDropout()`` by default, or a posterior as it is."""
    if method is not None:
        check_method(method)
    if isinstance(model, nn.Module):
        return (DEFAULT if method is None else method).posterior(model)
    if not hasattr(model, "networks"):
        if hasattr(model, "predictive"):
            instead = "of an estimator use its own methods, such as predictive(X), or its posterior_ on its inputs(X)"
        elif hasattr(model, "best_estimator_"):
            instead = "of a search take what it found, search.best_estimator_"
        elif hasattr(model, "named_steps") and hasattr([*model.named_steps.values()][-1], "predictive"):
            instead = (
                "of a Pipeline take the last step, pipe[-1], on what the others make of X: "
                "pipe[-1].predictive(pipe[:-1].transform(X))"
            )
        else:
            instead = "stationary.fit makes one; for a table take StationaryClassifier or StationaryRegressor"
        raise TypeError(f"model must be a trained network or a posterior, got {type(model).__name__}; {instead}")
    if method is not None:
        raise ValueError(
            f"method must be None for a {type(model).__name__}, which has its own; got {method!r}: leave it out"
        )
    return model


def family_of(posterior: Posterior) -> type[Any]:
    """The kind of a posterior's predictions, where it knows what its targets were, else ``Categorical``."""
    kind: type[Any] = getattr(posterior, "family", Categorical)
    return kind
