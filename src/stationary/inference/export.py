"""Exact dropout or the head of infinite width as one plain network, for deployment: no sampling, ready for ONNX."""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from stationary.inference._forgotten import warn_if_stale
from stationary.inference._readout import dropout_variance
from stationary.inference.infinite_width import InfiniteWidthPosterior
from stationary.inference.infinite_width.export import predictor
from stationary.nn.mean_and_noise import MeanAndNoise
from stationary.nn.restored_prior import Head, only_head, prior_of


def exact_predictor(model: nn.Module | InfiniteWidthPosterior) -> nn.Module:
    """A copy of the model that returns the mean and the standard deviation of its outputs, in closed form.

    Of a network with a head they are those over all dropout masks (``ExactDropout``), with the restored prior where the
    head is calibrated; of a posterior of ``InfiniteWidth`` its own, at temperature 1. For a regression they are those
    of the function: the noise of the targets is not in them. Both come from plain layers, so that
    ``torch.onnx.export`` and ``torch.export`` take the copy as it is.

    Args:
        model: a trained network with one head, such as a ``StationaryHead``, whose output is the output of the network,
            with other dropout layers off; or the posterior of ``InfiniteWidth``, computed in float64. Where its
            features are what enters the last layer, that layer's output must be the output of the network.
    """
    if isinstance(model, InfiniteWidthPosterior):
        return _refusing(predictor(model))
    warn_if_stale([(only_head(model), model)])
    noisy = isinstance(model, MeanAndNoise)
    model = deepcopy(model.network if isinstance(model, MeanAndNoise) else model).eval()
    head: Any = only_head(model)
    if noisy:
        head.output = _first_half(head.output)
    name = next(name for name, module in model.named_modules() if module is head)
    if not name:
        return _refusing(MomentHead(head))
    model.set_submodule(name, MomentHead(head))
    return _refusing(model)


def _refusing(model: nn.Module) -> nn.Module:
    """The model, which refuses inputs of another type than its weights: what is deployed converts nothing."""
    model.register_forward_pre_hook(_refuse_other_types)
    return model


def _refuse_other_types(model: nn.Module, args: tuple[Any, ...]) -> None:
    known = {parameter.dtype for parameter in model.parameters()}
    for x in args:
        if known and isinstance(x, Tensor) and x.is_floating_point() and x.dtype not in known:
            own = next(model.parameters()).dtype
            raise ValueError(f"inputs must be {own}, as the weights of the network, got {x.dtype}; use x.to({own})")


def _first_half(linear: nn.Linear) -> nn.Linear:
    """The rows of a linear layer that give the means."""
    rows = nn.Linear(linear.in_features, linear.out_features // 2, linear.bias is not None).to(linear.weight)
    rows.load_state_dict({name: value[: rows.out_features] for name, value in linear.state_dict().items()})
    return rows


class MomentHead(nn.Module):
    """The head with its closed form: E = W phi + b, Var = p / (1 - p) phi^2 (W^2)^T + v."""

    head: Head

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features, drop = self.head.features(x), self.head.dropout.p
        variance = dropout_variance(features, self.head.output.weight, drop)
        if (prior := prior_of(self.head)) is not None:
            variance = variance + prior(features)
        return self.head.output(features), variance.sqrt()
