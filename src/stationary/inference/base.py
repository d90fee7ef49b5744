"""What every inference method shares: how it runs a network, and what a posterior promises."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from stationary.nn.heads import StationaryHead
from stationary.predictive import Members, P
from stationary.training import Training

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
Build: TypeAlias = Callable[[], nn.Module]
Data: TypeAlias = tuple[Tensor, Tensor]


class Posterior(Protocol):
    """Trained networks and how to predict with them."""

    def predict(self, x: Inputs, family: type[P], *, keep_samples: bool = False) -> P:
        """The predictive distribution of one batch, as a ``Categorical`` or a ``Gaussian``."""


class Method(Protocol):
    """A frozen dataclass: its own configuration, so it hashes and prints."""

    def fit(self, build: Build, data: Data, training: Training) -> Posterior:
        """Train: ``build()`` makes a fresh network, ``data`` is (x, y)."""

    def posterior(self, model: nn.Module) -> Posterior:
        """Wrap a network that is already trained."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode without gradients; afterwards every module is back in the mode it was in.

    Compiled parts run eagerly: what was compiled before does not see hooks.
    """
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    try:
        with torch.no_grad(), eager:
            yield
    finally:
        for module in training:
            module.training = True


def run(model: nn.Module, x: Inputs, restore_prior: bool | None) -> Members:
    """One pass of a network in its present mode, as the only member: its outputs, prior and noise.

    A network gives a tensor (n, c), an object with such a tensor as ``logits`` (Hugging Face), or for regression a
    pair: mean and noise variance.
    """
    head = head_to_restore(model, restore_prior)
    if head is None:
        return as_members(_call(model, x))
    variances: list[Tensor] = []
    handle = head.dropout.register_forward_pre_hook(lambda _, args: variances.append(head.missing_variance(args[0])))
    try:
        members = as_members(_call(model, x))
    finally:
        handle.remove()
    return members._replace(prior=variances[-1][None])


def as_members(result: Any) -> Members:
    """What a network returned, as one member."""
    noise = None
    if isinstance(result, tuple) and len(result) == 2:
        result, noise = result
    outputs = getattr(result, "logits", result)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        got = f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"model must return outputs of shape (n, c), an object with them as .logits, or a pair of mean and noise "
            f"variance; got {got}; wrap it in a module that returns (n, c)"
        )
    return Members(outputs[None], noise=None if noise is None else noise[None])


def head_to_restore(model: nn.Module, restore_prior: bool | None) -> StationaryHead | None:
    """The head whose missing prior variance is to be added: by default the one that ``calibrate_prior`` has seen."""
    if restore_prior is False:
        return None
    heads = [module for module in model.modules() if isinstance(module, StationaryHead) and module.calibrated]
    if restore_prior and not heads:
        raise ValueError(
            "restore_prior=True needs a StationaryHead that knows its prior; call first "
            "stationary.calibrate_prior(model, x_train)"
        )
    return heads[-1] if heads else None


def _call(model: nn.Module, x: Inputs) -> Any:
    return model(**x) if isinstance(x, Mapping) else model(x)


def batches(x: Inputs, size: int | None) -> list[Any]:
    """The inputs, ``size`` at a time, or all at once; a mapping gives mappings."""
    tensors = dict(x) if isinstance(x, Mapping) else {"x": x}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name} must be a tensor, got {type(tensor).__name__}; torch.as_tensor makes one of an array"
            )
    lengths = {len(tensor) for tensor in tensors.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"x must hold at least one input, and as many in each part; got {sorted(lengths)}")
    if size is not None and size < 1:
        raise ValueError(f"batch_size must be at least 1 or None, got {size!r}")
    for name, tensor in tensors.items():
        _check_finite(name, tensor)
    parts = zip(*(tensor.split(size or len(tensor)) for tensor in tensors.values()), strict=True)
    return [dict(zip(tensors, part, strict=True)) if isinstance(x, Mapping) else part[0] for part in parts]


def _check_finite(name: str, x: Tensor) -> None:
    if not x.is_cuda and x.is_floating_point() and not x.isfinite().all():
        row = (~x.isfinite()).reshape(len(x), -1).any(1).nonzero()[0].item()
        raise ValueError(f"{name} must be finite, got NaN or infinity in row {row}; impute or drop such rows")
