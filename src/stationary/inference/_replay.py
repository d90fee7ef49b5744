"""A prediction of few inputs as one CUDA graph: launched as a whole, it costs what its arithmetic costs."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from stationary.nn.running import modules_of, turn_with
from stationary.predictive import P

ROWS = 4096  # more keep a GPU busy while Python launches their operations one by one
SHAPES = 4  # shapes of inputs whose graphs are kept


@dataclass(frozen=True)
class _Graph(Generic[P]):
    graph: torch.cuda.CUDAGraph
    x: Tensor  # where the input is read
    prediction: P  # where the prediction is written


class Replayed(Generic[P]):
    """A function of one tensor (n, ...), captured when a shape comes for the second time and replayed from then on.

    The first call of a shape runs the function as it is, in which libraries allocate memory and choose kernels.
    Threads take turns.
    """

    def __init__(self) -> None:
        self.graphs: dict[Any, _Graph[P] | None] = {}
        self.lock, self.done = threading.Lock(), torch.cuda.Event()

    def __call__(self, function: Callable[[Tensor], P], x: Tensor) -> P:
        """The result of the function, the same one in every call, which waits for nothing on the GPU."""
        if len(x) > ROWS or torch.cuda.is_current_stream_capturing():
            return function(x)
        with self.lock, torch.cuda.device(x.device):
            key = x.shape, x.dtype, x.device
            if key not in self.graphs:
                while len(self.graphs) >= SHAPES:
                    del self.graphs[next(iter(self.graphs))]
                self.graphs[key] = None
                return function(x)
            known = self.graphs[key] = self.graphs[key] or _captured(function, x)
            self.done.wait()  # another thread's stream may still read the last prediction
            known.x.copy_(x)
            known.graph.replay()
            made = known.prediction
            copies: dict[str, Any] = {name: value.clone() for name, value in made.tensors().items()}
            self.done.record()
            return replace(made, **copies)


def _captured(function: Callable[[Tensor], P], x: Tensor) -> _Graph[P]:
    own, graph = x.detach().clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prediction = function(own)
    return _Graph(graph, own, prediction)


# Predictions of a whole network


@dataclass(frozen=True)
class _Known:
    state: tuple[Any, ...]  # of the network, when its graphs were made
    held: list[Any]  # what the state names, so that nothing else takes its place in memory
    replayed: Replayed[Any]


_graphs: WeakKeyDictionary[nn.Module, dict[Hashable, _Known]] = WeakKeyDictionary()


def of_network(network: nn.Module, key: Hashable, function: Callable[[Tensor], tuple[P, bool]], x: Any) -> P:
    """A prediction of a network, as a CUDA graph where that is the same.

    That is so where the network consists of PyTorch's and this library's own layers, whose passes depend on their
    tensors and settings alone, and where the function says that it waits for nothing on the GPU. New values in the same
    tensors are seen; another tensor, setting, layer or hook makes the graphs be made anew.

    Args:
        network: the network.
        key: what else the prediction depends on: the method and the kind of the prediction.
        function: function that makes the prediction, and says whether it can be captured.
        x: the inputs.
    """
    if (
        not (isinstance(x, Tensor) and x.is_cuda)
        or torch.is_autocast_enabled("cuda")
        or torch.is_inference_mode_enabled()
    ):
        return function(x)[0]
    with turn_with(
        network
    ):  # before the turn with its graphs, as everywhere, so that no two threads wait for each other
        state, held = state_of(network)
        if state is None:
            return function(x)[0]
        of_this = _graphs.setdefault(network, {})
        known = of_this.get(key)
        if known is None or known.state != state:
            prediction, capturable = function(x)
            if capturable:
                of_this[key] = _Known(state, held, Replayed())
            return prediction
        return known.replayed(lambda x: function(x)[0], x)


def state_of(network: nn.Module) -> tuple[tuple[int, ...] | None, list[Any]]:
    """What a pass of the network depends on, but for the values in its tensors, as numbers; and the objects they name.

    None where that cannot be told: for layers of others, and layers with hooks.
    """
    held: list[Any] = []
    addresses: list[int] = []
    for module in modules_of(network):
        own = module.__dict__
        if not as_it_comes(module):
            return None, []
        held += own.values()
        for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
            held.append(tensor)
            addresses.append(0 if tensor is None else tensor.data_ptr())
    return (*map(id, held), *addresses), held


def as_it_comes(module: nn.Module) -> bool:
    """Whether a layer is one of PyTorch's or of this library, without hooks and with the forward of its class."""
    own = module.__dict__
    changed = "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]
    return not changed and _is_known(type(module).__module__, type(module).__name__)


@cache
def _is_known(room: str, name: str) -> bool:
    """Whether a class of layers is one of PyTorch's or of this library, whose passes have no state of their own."""
    layers = (
        "activation",
        "batchnorm",
        "container",
        "conv",
        "dropout",
        "flatten",
        "linear",
        "normalization",
        "pooling",
    )
    plain = room in {f"torch.nn.modules.{layer}" for layer in layers} and name != "MultiheadAttention"
    return plain or room.startswith(f"{__name__.split('.')[0]}.")
