"""The part of a network that has to run again for each dropout sample.

One pass with hooks finds it, so that any module works. If the only dropout is right before the last linear layer, that
layer and its input are all that a sample needs: a ``Readout``, whose moments have a closed form. Otherwise everything
that ends before the first dropout is run once, and its outputs are used again for each sample.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from stationary._extras import has_triton
from stationary.inference.base import run
from stationary.nn.masks import Draw, active_dropouts, is_active, masked
from stationary.nn.mean_and_noise import MeanAndNoise, bounded, split
from stationary.nn.running import Inputs, modules_of
from stationary.predictive import Members, at_least_float32

WIDE = 64  # with more classes, a c x c covariance for each input would cost more than the network


class Linear(NamedTuple):
    """A linear layer: weight (c, hidden) and bias (c,)."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Readout:
    """The last linear layer and the features it reads through dropout, at least in float32."""

    features: Tensor  # (n, hidden)
    weight: Tensor  # (c, hidden)
    bias: Tensor  # (c,)
    drop: float  # probability of dropping a feature
    members: Members  # the outputs without dropout, as a single member
    log_noise: Linear | None = None  # for the log variances of MeanAndNoise, whose means are the outputs

    @property
    def fusible(self) -> bool:
        """Whether Triton kernels can take over from here: in float32, on CUDA."""
        return self.features.is_cuda and self.features.dtype == torch.float32 and has_triton()

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean (n, c) and covariance (n, c, c) of the outputs over all masks and the restored prior.

        E = W phi + b; Cov = p / (1 - p) W diag(phi^2) W^T + v I.
        """
        c, pairs = len(self.weight), (self.weight[:, None] * self.weight).flatten(0, 1) * (self.drop / (1 - self.drop))
        covariance = (pairs @ self.features.square().mT).view(c, c, -1).permute(2, 0, 1)  # faster than its transpose
        if self.members.prior is not None:
            covariance = covariance + torch.diag_embed(self.members.prior[0])
        return self.members.outputs[0], covariance

    def noise(self) -> Tensor:
        """(n, c), the mean over all masks of the noise variance without that of the masks; 0 where there is none.

        The units are dropped independently, so the mean of exp(b + sum_k a_k z_k / (1 - p)), a_k = w_k phi_k, is the
        product exp(b) prod_k (p + (1 - p) exp(a_k / (1 - p))). It is exact but for the upper bound of the noise, which
        holds for the mean, not for each mask.
        """
        if self.log_noise is None:
            return torch.zeros_like(self.members.outputs[0])
        weight, bias = self.log_noise
        keep = 1 - self.drop
        logs = [
            torch.log1p(keep * torch.expm1(self.features * (row / keep))).sum(-1) + b
            for row, b in zip(weight, bias, strict=True)
        ]
        return (bounded(torch.stack(logs, -1)) - self._masks()).clamp(min=0)

    def _masks(self) -> Tensor:
        """(n, c), the variance of the outputs over all masks: training meets it as noise, and learns it as such."""
        return dropout_variance(self.features, self.weight, self.drop)

    def whole(self) -> Linear:
        """The layer as it is in the network, with the rows of the log variances."""
        own = Linear(self.weight, self.bias)
        return own if self.log_noise is None else Linear(*map(torch.cat, zip(own, self.log_noise, strict=True)))

    def sampled(self, outputs: Tensor) -> Members:
        """Outputs (s, n, ...) of the whole layer as members, their noise without the variance over the masks."""
        if self.log_noise is None:
            return Members(outputs, self.members.prior)
        mean, noise = split(outputs)
        return Members(mean, self.members.prior, noise - self._masks())

    def variance(self) -> Tensor:
        """(n, c), the diagonal of the covariance."""
        variance = self._masks()
        return variance if self.members.prior is None else variance + self.members.prior[0]


def dropout_variance(features: Tensor, weight: Tensor, drop: float) -> Tensor:
    """(n, c), the variance over all dropout masks of W phi: p / (1 - p) phi^2 (W^2)^T."""
    return features.square() @ (drop / (1 - drop) * weight.square()).mT


def find_readout(model: nn.Module, x: Inputs, *, last_layer: bool, restore_prior: bool | None) -> Readout | None:
    """The readout of a model, found by one pass over x, or None if dropout acts elsewhere too.

    Args:
        model: any network, in eval mode.
        x: its inputs.
        last_layer: whether only the last dropout counts; the others are off then.
        restore_prior: whether to add the restored prior, as for the methods.
    """
    if isinstance(model, MeanAndNoise):
        whole = find_readout(model.network, x, last_layer=last_layer, restore_prior=restore_prior)
        return None if whole is None else _halved(whole)
    modules = modules_of(model)
    called: list[tuple[_DropoutNd, Tensor]] = []
    readers: list[tuple[nn.Linear, Tensor, Tensor]] = []
    watched: set[nn.Module] = set()
    widths: set[int] = set()

    def watch(width: int) -> None:
        """Hooks for the layers that can read so many features: layers before the first dropout run without."""
        widths.add(width)
        for linear in filter(_is_plain, modules):
            if linear not in watched and linear.weight.shape[-1] == width:
                watched.add(linear)
                handles.append(linear.register_forward_hook(at_linear, prepend=True))

    def at_dropout(module: _DropoutNd, args: tuple[Tensor, ...], _: Tensor) -> Tensor:
        called.append((module, args[0]))
        readers.clear()
        if args[0].shape[-1] not in widths:
            watch(args[0].shape[-1])
        return args[0]  # the very same tensor, so that its reader is recognised

    def at_linear(module: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> None:
        if called and args[0] is called[-1][1]:
            before = output.clone() if output.is_inference() else output  # an inference tensor has no version counter
            readers.append((module, output, before))

    handles = [module.register_forward_hook(at_dropout) for module in filter(is_active, modules)]
    try:
        members = run(model, x, restore_prior)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise ValueError(_no_dropout(model))
    (dropout, features), is_last = called[-1], len(readers) == 1 and _same(*readers[0][1:], members.outputs)
    if not (type(dropout) is nn.Dropout and features.ndim == 2 and is_last and members.noise is None):
        if last_layer:
            raise ValueError(
                "last_layer=True needs an nn.Dropout whose output goes only into the linear layer that gives the "
                f"model's output; the last dropout is {_name(model, dropout)!r} ({dropout}), which does not: leave "
                "last_layer out"
            )
        return None
    if len(called) > 1 and not last_layer:
        return None
    last = readers[0][0]
    features, weight = at_least_float32(features), at_least_float32(last.weight)  # whose squares soon leave float16
    bias = weight.new_zeros(len(weight)) if last.bias is None else at_least_float32(last.bias)
    prior = None if members.prior is None else at_least_float32(members.prior)
    return Readout(features, weight, bias, dropout.p, Members(at_least_float32(members.outputs), prior))


def _halved(whole: Readout) -> Readout:
    """The readout of the means, beside that of the log variances."""
    outputs, noise = split(whole.members.outputs)
    means, log_noise = map(Linear, whole.weight.chunk(2), whole.bias.chunk(2))
    return Readout(whole.features, *means, whole.drop, Members(outputs, whole.members.prior, noise), log_noise)


class Replay:
    """The whole network, once for each sample; modules that end before the first dropout run for the first sample only.

    Args:
        model: any network, in eval mode.
        x: its inputs.
        restore_prior: whether to add the restored prior, as for the methods.
    """

    model: nn.Module
    x: Inputs
    restore_prior: bool | None

    def __init__(self, model: nn.Module, x: Inputs, restore_prior: bool | None) -> None:
        self.model, self.x, self.restore_prior = model, x, restore_prior
        self.kept: list[tuple[nn.Module, Any]] | None = None

    def sample(self, draw: Draw) -> Members:
        """One member: the network with the masks that ``draw`` gives."""
        with masked(self.model, draw), self._recording() if self.kept is None else self._replaying():
            return run(self.model, self.x, self.restore_prior)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Keep the output of the outermost modules that end before the first dropout begins."""
        kept: list[tuple[nn.Module, Any]] = []
        starts: list[int] = []
        first: list[nn.Module] = []

        def begin(module: nn.Module, *_: Any) -> None:
            starts.append(len(kept))
            if isinstance(module, _DropoutNd) and module.p > 0:
                first.append(module)

        def end(module: nn.Module, _: Any, output: Any) -> None:
            start = starts.pop()
            if not first:
                kept[start:] = [(module, _clone(output))]  # a copy: the network may go on in place

        with ExitStack() as stack:
            for module in self.model.modules():
                stack.callback(module.register_forward_pre_hook(begin).remove)
                stack.callback(module.register_forward_hook(end).remove)
            yield
        self.kept = kept

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        outputs: dict[nn.Module, deque[Any]] = {}
        for module, output in self.kept or ():
            outputs.setdefault(module, deque()).append(output)
        patched = {module: module.__dict__.get("forward") for module in outputs}  # others may have patched it as well
        for module, queue in outputs.items():
            module.forward = _replayed(queue, module.forward)
        try:
            yield
        finally:
            for module, before in patched.items():
                del module.forward
                if before is not None:
                    module.forward = before


def _replayed(queue: deque[Any], forward: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _clone(queue.popleft()) if queue else forward(*args, **kwargs)

    return call


def _clone(output: Any) -> Any:
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, output)


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """A linear layer that computes W x + b and nothing else: no subclass (LoRA, 8 bits) with a forward of its own."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward and "forward" not in vars(module)


def _same(output: Tensor, before: Tensor, outputs: Tensor) -> bool:
    """Whether the model returned this layer's output untouched; ``outputs`` is what it returned, as one member."""
    if output.data_ptr() != outputs.data_ptr() or output.shape != outputs.shape[1:]:
        return False
    return torch.equal(output, before) if output.is_inference() else output._version == 0


def _name(model: nn.Module, module: nn.Module) -> str:
    return next(name for name, m in active_dropouts(model).items() if m is module)


def check_dropout(model: nn.Module) -> None:
    """Raise an error if no dropout of the model drops anything."""
    if not active_dropouts(model):
        raise ValueError(_no_dropout(model))


def _no_dropout(model: nn.Module) -> str:
    dropouts = active_dropouts(model)
    found = f"has dropout at {', '.join(dropouts)}, but a pass does not go through it" if dropouts else "has none"
    return (
        f"model must have an active nn.Dropout (p > 0), {type(model).__name__} {found}; without it there is no "
        "uncertainty to sample: give it a StationaryHead (stationary.replace_head), use Ensemble, or Point() if one "
        "deterministic pass is what you want (dropout called as a function is not seen: make it a module)"
    )
