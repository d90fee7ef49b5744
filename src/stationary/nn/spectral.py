"""Layers that cannot stretch distances: an upper bound on the spectral norm of their weights."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from stationary._checks import check_finite, is_count
from stationary.nn.restored_prior import is_head

M = TypeVar("M", bound=nn.Module)

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
FIRST = 15  # power iterations at the start, as in torch.nn.utils.parametrizations.spectral_norm


class SpectralBound(nn.Module):
    """The parametrization W -> W c / max(c, sigma(W)) of a weight, where sigma is its largest singular value.

    The weight of a convolution counts as a matrix with a row for each output channel. Sigma comes from power iterations
    that go on at every use in training mode, as in ``torch.nn.utils.parametrizations.spectral_norm``; in eval mode
    nothing changes.

    Args:
        weight: (out, in, ...) the weight to start from.
        bound: the bound c.
        n_power_iterations: number of power iterations at every use.
    """

    bound: float
    n_power_iterations: int
    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor, bound: float, n_power_iterations: int) -> None:
        super().__init__()
        self.bound, self.n_power_iterations = bound, n_power_iterations
        matrix = weight.detach().flatten(1)
        self.register_buffer("left", F.normalize(torch.randn_like(matrix[:, 0]), dim=0))
        self.register_buffer("right", F.normalize(matrix.mT @ self.left, dim=0))
        self._iterate(matrix, FIRST)

    def _iterate(self, matrix: Tensor, n: int) -> None:
        for _ in range(n):
            self.left.copy_(F.normalize(matrix @ self.right, dim=0))
            self.right.copy_(F.normalize(matrix.mT @ self.left, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = weight.flatten(1)
        if self.training:
            with torch.no_grad():
                self._iterate(matrix, self.n_power_iterations)
        sigma = self.left.clone() @ matrix @ self.right.clone()  # copies, which the next use does not write to
        return weight / (sigma / self.bound).clamp(min=1)


def spectral_normalize(module: M, bound: float = 1.0, *, n_power_iterations: int = 1, skip: Sequence[str] = ()) -> M:
    """Keep the spectral norm of every linear and convolutional layer at ``bound`` or below, in training and after.

    A weight W becomes W c / max(c, sigma(W)), with the bound c and its largest singular value sigma: it shrinks where
    it stretches by more than c, and stays as it is elsewhere (Liu et al., 2020, SNGP). A residual block x + f(x) with
    c < 1 then keeps distances up to a factor; in a plain network the bound keeps them from growing. For a convolution
    the norm is that of its weight as a matrix, which bounds what the layer does up to the root of its kernel's size.

    The module is changed in place, and returned. Heads, such as a ``StationaryHead``, keep their weights as they are;
    a last layer that is plainly linear must be named in ``skip``. ``parametrize.remove_parametrizations(layer,
    "weight")`` of ``torch.nn.utils`` makes a layer plain again, with its present weight: PyTorch needs that to pickle a
    whole network, and not for ``state_dict`` and copies.

    Examples:
        >>> model = spectral_normalize(st.MLP(2, 2), bound=3.0)
        >>> model = spectral_normalize(torchvision.models.resnet18(), bound=3.0, skip=["fc"])

    Args:
        module: a network, or its trunk.
        bound: the bound c.
        n_power_iterations: number of power iterations for sigma in every pass in training mode. With 1 the norm may be
            a few per cent above the bound while the weights move fast.
        skip: names of modules to leave as they are, with all that is in them.
    """
    check_finite("bound", bound, "SNGP takes 0.9 for linear layers and 6 for convolutions")
    if not is_count(n_power_iterations):
        raise ValueError(f"n_power_iterations must be a positive integer, got {n_power_iterations!r}")
    names = {name for name, _ in module.named_modules()}
    if isinstance(skip, str) or not names.issuperset(skip):
        raise ValueError(f"skip must be a list of names of modules, got {skip!r}; named_modules() has the names")
    layers = list(_layers(module, frozenset(skip)))
    if not layers:
        raise ValueError(
            f"module must have a linear or convolutional layer outside its head, got {type(module).__name__}"
        )
    if any(parametrize.is_parametrized(layer, "weight") for layer in layers):
        raise ValueError("module must have plain weights, got parametrized ones; call spectral_normalize once")
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", SpectralBound(layer.weight, bound, n_power_iterations))
    return module


def _layers(module: nn.Module, skip: frozenset[str]) -> Iterator[Any]:
    """The layers to bound, each once."""
    left: list[Any] = [module.get_submodule(name) for name in skip] + [m for m in module.modules() if is_head(m)]
    inside = {id(part) for each in left for part in each.modules()}
    return (layer for layer in module.modules() if isinstance(layer, LAYERS) and id(layer) not in inside)
