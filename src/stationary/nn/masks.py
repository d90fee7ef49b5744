"""Dropout whose masks are given by the caller, instead of being drawn in ``train()`` mode."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from stationary.nn.running import modules_of

SELU_FLOOR = -1.7580993408473766  # where AlphaDropout puts dropped units: the lower limit of SELU
WHOLE_DIMS = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3, nn.FeatureAlphaDropout: 1}
ONE = 2**16  # the probability 1, in units of the 16 bits that masks are cut from

Random: TypeAlias = "_DropoutNd | Noise"
Draw = Callable[[Random, Tensor], Tensor]


class Noise(nn.Module):
    """A module that returns ``n`` standard normal numbers for each element of x, or zeros in eval mode.

    The training loop draws the numbers itself, as it draws dropout masks.

    Args:
        n: number of draws for each element.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        """The numbers, of shape (n, *x.shape)."""
        draw = torch.randn if self.training else torch.zeros
        return draw(self.n, *x.shape, dtype=x.dtype, device=x.device)


def active_dropouts(model: nn.Module) -> dict[str, _DropoutNd]:
    """The dropout modules that drop something, by name: ``nn.Dropout`` and its relatives with p > 0.

    Dropout called as a function, inside ``nn.LSTM``, or by another name (stochastic depth) is not seen, and stays off.
    """
    return {name: m for name, m in model.named_modules() if is_active(m)}


def is_active(module: nn.Module) -> TypeGuard[_DropoutNd]:
    """Whether a module is dropout that drops something."""
    return isinstance(module, _DropoutNd) and module.p > 0


@contextmanager
def masked(model: nn.Module, draw: Draw) -> Iterator[None]:
    """Inside, every active dropout multiplies by the mask that ``draw(module, x)`` returns, and every noise returns it.

    The modules themselves must be in eval mode.
    """
    with masking(drawing(model), draw):
        yield


def drawing(model: nn.Module) -> tuple[Random, ...]:
    """The modules of a model that draw: its active dropouts and its noises."""
    modules = modules_of(model)
    dropouts = [module for module in modules if is_active(module)]
    return *dropouts, *(module for module in modules if isinstance(module, Noise))


@contextmanager
def masking(modules: Iterable[Random], draw: Draw) -> Iterator[None]:
    """``masked`` for these modules, where a loop need not look for them each time."""

    def hook(module: Random, args: tuple[Tensor, ...], _: Tensor) -> Tensor:
        drawn = draw(module, args[0])
        return drawn if isinstance(module, Noise) else apply_mask(module, args[0], drawn)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def apply_mask(module: _DropoutNd, x: Tensor, keep: Tensor) -> Tensor:
    """The output of a dropout module for x with this mask, in which 1 keeps and 0 drops."""
    keep = keep.to(x.dtype)  # for what comes next may be in half precision, and takes nothing else
    if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):  # it keeps the mean and the variance of SELU units
        scale = ((1 - module.p) * (1 + module.p * SELU_FLOOR**2)) ** -0.5
        return scale * (x * keep + SELU_FLOOR * (1 - keep - module.p))
    return x * keep * (1 / (1 - module.p))


def mask_shape(module: _DropoutNd, x: Tensor, *, shared: bool) -> tuple[int, ...]:
    """The shape of a mask: one number for each unit or channel of each input, or of all inputs if ``shared``."""
    shape = list(x.shape)
    if shared:
        shape[0] = 1
    for dim in range(x.ndim - WHOLE_DIMS.get(type(module), 0), x.ndim):
        if dim >= 2:
            shape[dim] = 1
    return tuple(shape)


def draw_shape(module: Random, x: Tensor, *, shared: bool) -> tuple[int, ...]:
    """The shape of the mask or noise that a module draws for x."""
    return (module.n, *x.shape) if isinstance(module, Noise) else mask_shape(module, x, shared=shared)


def drawn(
    module: Random, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A mask or noise of this shape for the module, drawn from the generator."""
    if isinstance(module, Noise):
        return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
    return keep_mask(shape, module.p, generator, dtype)


def keep_mask(
    shape: tuple[int, ...], drop: float, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A mask that is 0 with the probability ``drop``, else 1.

    On the CPU it is cut from random bits, 16 for each unit, which is several times faster than Bernoulli numbers; the
    probability is then rounded to a multiple of 2^-16.
    """
    threshold = round((1 - drop) * ONE)
    if generator.device.type != "cpu" or not 64 <= threshold <= ONE - 64:  # rounding would change a rare event
        return (torch.rand(shape, generator=generator, device=generator.device) >= drop).to(dtype)
    n = torch.Size(shape).numel()
    bits = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    out = torch.empty(shape, dtype=dtype)  # written directly: to make it of booleans would take four times as long
    return torch.lt(bits.view(torch.int16)[:n].view(shape), threshold - ONE // 2, out=out)
