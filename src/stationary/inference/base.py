"""The contract: what a method is, what a posterior promises, and how both run a network."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stationary.nn.restored_prior import missing_variances
from stationary.nn.running import Inputs, call, outputs_of
from stationary.predictive import Joint, Members, P
from stationary.training import Data, Observer, Training

Networks = nn.Module | Sequence[nn.Module]
NAMED = "MCDropout(100), ExactDropout(), Point(), Ensemble(5), SWAG(), Laplace() or InfiniteWidth()"
NICKNAMES = {  # what people write for a method, and what they mean
    "mc": "MCDropout(100)",
    "mcdropout": "MCDropout(100)",
    "dropout": "MCDropout(100)",
    "exact": "ExactDropout()",
    "exactdropout": "ExactDropout()",
    "point": "Point()",
    "ensemble": "Ensemble(5)",
    "swag": "SWAG()",
    "laplace": "Laplace()",
    "infinitewidth": "InfiniteWidth()",
}

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


class Posterior(Protocol):
    """Trained networks, and how to predict with them."""

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """The trained networks; for most methods it is a single one."""

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        """The predictive distribution of one batch of inputs.

        Args:
            x: the inputs, a tensor whose first dimension is the batch, or a mapping of keyword arguments.
            family: ``Categorical`` for a classifier, ``Gaussian`` for a regression.
            keep_samples: whether the prediction keeps the outputs of the members.
        """


def joint_of(posterior: Posterior, x: Inputs, *, group_size: int | None = None) -> Joint:
    """The joint distribution of a posterior's outputs at all rows of x; an error where it has none.

    Args:
        posterior: the posterior; most have a method ``joint`` with the same arguments.
        x: one batch of inputs.
        group_size: number of consecutive rows in a group, each with a joint distribution of its own; None takes all
            rows together.
    """
    joint = getattr(posterior, "joint", None)
    if joint is None:
        raise ValueError(
            f"posterior must have a joint distribution, got {type(posterior).__name__}, which has none; use "
            "InfiniteWidth, ExactDropout, Laplace, MCDropout, Ensemble or SWAG"
        )
    return joint(x, group_size=group_size)


class Method(Protocol):
    """How to predict with trained networks: a frozen dataclass that is its own configuration, so it hashes and prints.

    It says how many networks it needs, may watch them train, and makes a posterior of them once they are trained.
    ``fit`` trains them; no method trains by itself.
    """

    @property
    def n_networks(self) -> int:
        """The number of trained networks that one posterior needs."""
        return 1

    def check(self, network: nn.Module, *, sample_weight: Tensor | None = None) -> None:
        """Raise an error if the method cannot use such a network, or such weights; ``fit`` asks before it trains."""
        return

    def trains(self, network: nn.Module) -> bool:
        """Whether the method needs such a network trained; ``fit`` does not train one of which it needs nothing."""
        return True

    def observer(self, training: Training) -> Observer | None:
        """A function to be called after each epoch of one network's training, or None, which is the default.

        A method that cannot use networks trained like this raises an error here, before anything is trained.
        """
        return None

    def posterior(
        self,
        networks: Networks,
        data: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        validation: Data | None = None,
        observed: Sequence[Any] | None = None,
    ) -> Posterior:
        """The posterior of trained networks.

        Args:
            networks: the trained network, or a sequence of the ``n_networks`` that the method needs.
            data: the data the networks were trained on, for a method that needs them.
            sample_weight: the weight of each row of the data in training.
            validation: data the networks were not trained on, for a method that chooses something by them.
            observed: the observers of the training, one for each network, for a method that watches training.
        """


def only_network(networks: Networks, method: Method) -> nn.Module:
    """The network itself, also out of a sequence of one; an error for several."""
    if isinstance(networks, nn.Module):
        return networks
    if len(networks) != 1:
        raise ValueError(
            f"{type(method).__name__} needs one network, got {len(networks)}; use Ensemble for several, or pass one"
        )
    return networks[0]


def check_method(method: object) -> None:
    """Raise an error that says what to write, unless this is a method."""
    if not isinstance(method, type) and hasattr(method, "posterior"):
        return
    if isinstance(method, type):
        got, instead = f"the class {method.__name__}", f"{method.__name__}(), with brackets"
    elif isinstance(method, int) and not isinstance(method, bool):
        got, instead = repr(method), f"MCDropout({method}) for as many samples"
    elif isinstance(method, torch.device) or (isinstance(method, str) and _DEVICE.fullmatch(method)):
        raise TypeError(
            f"method must be {NAMED}, or another method of inference; got the device {str(method)!r}: move the network "
            f"and its inputs there, model.to({str(method)!r}) and x.to({str(method)!r})"
        )
    elif getattr(method, "ndim", 0):  # a tensor or an array
        raise TypeError(
            f"method must be {NAMED}, or another method of inference; got {type(method).__name__}: targets go beside "
            "their inputs, as a pair (x, y)"
        )
    elif isinstance(method, str):
        close = get_close_matches(method.lower(), NICKNAMES, n=1, cutoff=0.5)
        got, instead = repr(method), NICKNAMES[close[0]] if close else "MCDropout(100)"
    else:
        got, instead = f"{type(method).__name__} {method!r}", "MCDropout(100)"
    raise TypeError(f"method must be {NAMED}, or another method of inference; got {got}: write stationary.{instead}")


def run(model: nn.Module, x: Inputs, restore_prior: bool | None) -> Members:
    """One pass of a network in its present mode, as a posterior of one member: its outputs, restored prior and noise.

    A network returns a tensor (n, c), an object with such a tensor as ``logits`` (Hugging Face), or for regression a
    pair of tensors: the mean and the noise variance (``MeanAndNoise``).

    Args:
        model: the network.
        x: its inputs.
        restore_prior: whether to add the restored prior, as for the methods.
    """
    with missing_variances(model, restore_prior) as variances:
        result = call(model, x)
    result, noise = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    prior = variances[-1][None] if variances else None
    return Members(outputs_of(result)[None], prior, None if noise is None else noise[None])
