"""What users pass in becomes tensors of the type that a network takes, or an error that says what to write."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def is_array(value: object) -> bool:
    """Whether the value is an array or a table that NumPy can read, and not a tensor."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def tensor_of(value: Any, name: str) -> Any:
    """An array or a table of pandas as a tensor; anything else is returned as it is.

    Args:
        value: the array, whose memory is shared where that is possible.
        name: name of the argument, for the message.
    """
    if not is_array(value):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{name} must hold numbers, got {type(value).__name__} of {array.dtype}; encode its columns as numbers "
            "first, and where they are numbers of several kinds write .astype(float)"
        )
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C")  # PyTorch takes no others
    return torch.as_tensor(array)


def suited(x: Tensor, model: nn.Module | None) -> Tensor:
    """The inputs in the floating-point type of the model's first parameter.

    Integers stay, for embeddings take them, and so does a type that some part of the model has.
    """
    if model is None or not x.is_floating_point():
        return x
    own = first_tensor(model, floating=True)
    if own is None or own.dtype == x.dtype:  # the usual case, in microseconds
        return x
    types = {tensor.dtype for tensor in chain(model.parameters(), model.buffers())}
    return x if x.dtype in types else x.to(own.dtype)


def prepared(x: Any, model: nn.Module | None, name: str = "x") -> Any:
    """Arrays as tensors on the model's device, and tensors as ``suited`` gives them, of a mapping each of its parts."""
    if isinstance(x, Mapping):
        return {key: prepared(value, model, key) for key, value in x.items()}
    if is_array(x):
        x = tensor_of(x, name)
        x = x if model is None else x.to(device_of(model))
    return suited(x, model) if isinstance(x, Tensor) else x


def first_tensor(model: nn.Module, *, floating: bool = False) -> Tensor | None:
    """The first parameter of the model, or else its first buffer; None if it has neither.

    Args:
        model: any network.
        floating: whether integers are passed over.
    """
    for kind in ("_parameters", "_buffers"):
        left = [model]
        while left:  # not model.parameters(), which takes ten times as long: this runs at every prediction
            module = left.pop()
            for tensor in getattr(module, kind).values():
                if tensor is not None and (not floating or tensor.is_floating_point()):
                    return tensor
            left += [child for child in reversed(module._modules.values()) if child is not None]
    return None


def device_of(model: nn.Module) -> torch.device | None:
    """The device of the first parameter or buffer of the model; None if it has neither."""
    tensor = first_tensor(model)
    return None if tensor is None else tensor.device
