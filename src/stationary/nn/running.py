"""Running a network: in eval mode, batch by batch, whatever form its inputs and outputs have."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stationary._checks import is_count
from stationary._shared import Shared
from stationary.nn.inputs import device_of, first_tensor, is_array, prepared, tensor_of

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
Batches: TypeAlias = Iterable[Any]  # batches of inputs, or of pairs of inputs and targets, as of a DataLoader
# PyTorch's words for it
MISFIT = re.compile("mat1 and mat2|scalar type|same dtype|Input type|not implemented for|Expected \\dD")
PRODUCT = re.compile(r"\(\d+x(\d+) and (\d+)x\d+\)")  # and for the sizes of two matrices


_EAGER = Shared(lambda: torch.compiler.set_stance("force_eager"))
_turns: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # a lock for each model


def turn_with(model: nn.Module) -> AbstractContextManager[Any]:
    """Inside, no other thread is inside with this model."""
    turn: AbstractContextManager[Any] = _turns.setdefault(model, RLock())
    return turn


@contextmanager
def evaluating(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Inside, the model is in eval mode, without gradients; afterwards every module is back in the mode it was in.

    Compiled parts of the model run eagerly inside, since code that was compiled before does not call hooks. Threads
    take turns with a model: its mode and its hooks are those of all of them.

    Args:
        model: the model.
        gradients: whether gradients are recorded inside, after all.
    """
    with turn_with(model):
        training = [module for module in modules_of(model) if module.training]
        if training:
            model.eval()
        try:
            with torch.set_grad_enabled(gradients), _EAGER if "torch._dynamo" in sys.modules else nullcontext():
                yield
        finally:
            for module in training:
                module.training = True


def wants_gradients(x: Inputs) -> bool:
    """Whether somebody differentiates in the inputs."""
    tensors = x.values() if isinstance(x, Mapping) else [x]
    return torch.is_grad_enabled() and any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Every module of the model once, as ``model.modules()`` gives them, in a third of the time: it makes no names.

    A prediction asks several times, and for a small network on a GPU that counts.
    """
    found: dict[nn.Module, None] = {}  # a dictionary keeps the order

    def add(module: nn.Module | None) -> None:
        if module is not None and module not in found:
            found[module] = None
            for child in module._modules.values():
                add(child)

    add(model)
    return list(found)


def call(model: nn.Module, x: Inputs) -> Any:
    """The result of the model for x; a mapping holds keyword arguments, as in Hugging Face."""
    try:
        return model(**x) if isinstance(x, Mapping) else model(x)
    except RuntimeError as error:
        if not MISFIT.search(str(error)):
            raise
        raise ValueError(_misfit(model, x, error)) from error


def _misfit(model: nn.Module, x: Inputs, error: RuntimeError) -> str:
    """What to say where the inputs have a shape or a type that the network does not take."""
    parts = list(x.items()) if isinstance(x, Mapping) else [("x", x)]
    got = ", ".join(f"{name} {tuple(part.shape)} {part.dtype}" for name, part in parts)
    own = first_tensor(model, floating=True)
    first = "" if own is None else f", whose first weights are {tuple(own.shape)} {own.dtype}"
    if not all(part.is_floating_point() for _, part in parts):
        instead = "x.float() makes real numbers of integers"
    elif "Long" in str(error):
        instead = "x.long() makes integers, as embeddings take them"
    elif sizes := PRODUCT.search(str(error)):
        instead = f"a layer of it takes {sizes[2]} columns and gets {sizes[1]}"
    else:
        instead = "the error above says in which layer they do not fit"
    return f"inputs must have the columns and the type that {type(model).__name__} takes{first}; got {got}: {instead}"


def outputs_of(result: Any) -> Tensor:
    """The outputs (n, c) in the result of a network: a tensor, or an object with that tensor as ``logits``."""
    outputs = getattr(result, "logits", result)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        got = f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"model must return outputs of shape (n, c), an object with them as .logits, or, for predictions and "
            f"loss='beta_nll', a pair of mean and noise variance; got {got}; wrap it in a module that returns (n, c), "
            "and pass a single input as x[None]"
        )
    return outputs


def to_device(x: Any, device: torch.device | None) -> Any:
    """The tensor, or every tensor of the mapping, on this device; unchanged where the device is None."""
    if device is None:
        return x
    if isinstance(x, Mapping):
        return {name: to_device(value, device) for name, value in x.items()}
    if not isinstance(x, Tensor):
        return x
    return x.to(device, non_blocking=device.type != "cpu")  # to the CPU, it would be read before it has arrived


def batches(
    x: Inputs | Batches, size: int | None = None, model: nn.Module | None = None, name: str = "x"
) -> Iterator[tuple[Any, Tensor | None]]:
    """The inputs and their targets, one batch at a time; the targets are None where there are none.

    Args:
        x: a tensor or an array; a mapping of these; or an iterable of batches, which are one of these, or pairs of one
            of these and targets.
        size: number of inputs in a batch where x is a tensor, an array or a mapping; by default all are one batch. It
            must be None for an iterable, which has batches of its own.
        model: network that the inputs are for. Real numbers get its floating-point type; arrays and the batches of an
            iterable are moved to its device, and a tensor or a mapping of tensors stays where it is.
        name: what error messages call x; the parts of a mapping have their own names.
    """
    if size is not None and not is_count(size):
        raise ValueError(f"batch_size must be a positive integer or None, got {size!r}")
    if isinstance(x, Tensor | Mapping) or is_array(x):
        yield from ((part, None) for part in _split(prepared(x, model, name), size, name))
        return
    if (isinstance(x, tuple) and len(x) == 2) or not isinstance(x, Iterable):
        of_pair = "of a pair (x, y) pass x alone, and two batches as a list"
        instead = "pass a DataLoader of it" if isinstance(x, Dataset) else of_pair
        raise TypeError(
            f"{name} must be a tensor, an array, a mapping of these or an iterable of batches, got {_type(x)}; "
            f"{instead}"
        )
    if size is not None:
        raise ValueError(
            f"batch_size must be None for an iterable, which has its own batches; got {size!r}: leave it out"
        )
    first, device = 0, None if model is None else device_of(model)
    for batch in x:
        inputs, targets = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
        if isinstance(inputs, tuple | list) and len(inputs) == 1:
            [inputs] = inputs  # as a DataLoader of a TensorDataset with one tensor gives them
        [part] = _split(prepared(to_device(inputs, device), model, name), None, name, first)
        first += len(part if isinstance(part, Tensor) else next(iter(part.values())))
        yield part, to_device(tensor_of(targets, "y"), device)
    if not first:
        raise ValueError(
            f"{name} must hold at least one batch, the iterable gave none; if it is a generator that was used before, "
            "make a new one or pass a DataLoader"
        )


def _split(x: Inputs, size: int | None, name: str, first: int = 0) -> list[Any]:
    """The parts of the inputs, after a check; ``first`` is the number of their first row, for messages."""
    tensors = dict(x) if isinstance(x, Mapping) else {name: x}
    for part, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{part} must be a tensor or an array, got {_type(tensor)}; torch.tensor makes one of numbers, and an "
                "iterable must give batches that are tensors, arrays, mappings of them, or (inputs, targets)"
            )
        if not tensor.ndim:
            raise ValueError(
                f"{part} must have a first dimension, that of the inputs; got a single number: use {part}[None]"
            )
    lengths = {len(tensor) for tensor in tensors.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(
            f"{name} must hold at least one input, and each part of a mapping as many; got {sorted(lengths)} inputs"
        )
    for part, tensor in tensors.items():
        _check_finite(part, tensor, first)
    if size is None or size >= lengths.pop():
        return [tensors if isinstance(x, Mapping) else x]
    parts = zip(*(tensor.split(size) for tensor in tensors.values()), strict=True)
    return [dict(zip(tensors, part, strict=True)) if isinstance(x, Mapping) else part[0] for part in parts]


def _check_finite(name: str, x: Tensor, first: int) -> None:
    if x.is_cuda or not x.is_floating_point() or x.sum().isfinite():  # a sum is not, where a part of it is not
        return
    if not x.isfinite().all():
        row = first + (~x.isfinite()).reshape(len(x), -1).any(1).nonzero()[0].item()
        raise ValueError(f"{name} must be finite, got NaN or infinity in row {row}; impute or drop such rows")


def _type(x: object) -> str:
    return type(x).__name__
