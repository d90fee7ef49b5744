"""A prediction of few inputs as one CUDA graph: launched as a whole, it costs what its arithmetic costs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
from torch import Tensor

from stationary.predictive import P

ROWS = 4096  # more keep a GPU busy while Python launches their operations one by one
SHAPES = 4  # shapes of inputs whose graphs are kept


@dataclass(frozen=True)
class _Graph(Generic[P]):
    graph: torch.cuda.CUDAGraph
    x: Tensor  # where the input is read
    prediction: P  # where the prediction is written


class Replayed(Generic[P]):
    """A function of one tensor (n, d), captured when a shape comes for the second time and replayed from then on.

    The first call of a shape runs the function as it is, in which libraries allocate memory and choose kernels.
    Threads take turns.

    Args:
        function: function that makes a prediction by operations on a GPU alone, without waiting for it.
    """

    def __init__(self, function: Callable[[Tensor], P]) -> None:
        self.function = function
        self.graphs: dict[Any, _Graph[P] | None] = {}
        self.lock, self.done = threading.Lock(), torch.cuda.Event()

    def __call__(self, x: Tensor) -> P:
        if len(x) > ROWS or torch.cuda.is_current_stream_capturing():
            return self.function(x)
        with self.lock, torch.cuda.device(x.device):
            key = x.shape, x.dtype, x.device
            if key not in self.graphs:
                while len(self.graphs) >= SHAPES:
                    del self.graphs[next(iter(self.graphs))]
                self.graphs[key] = None
                return self.function(x)
            known = self.graphs[key] = self.graphs[key] or self._captured(x)
            self.done.wait()  # another thread's stream may still read the last prediction
            known.x.copy_(x)
            known.graph.replay()
            made = known.prediction
            copies: dict[str, Any] = {name: value.clone() for name, value in made.tensors().items()}
            self.done.record()
            return replace(made, **copies)

    def _captured(self, x: Tensor) -> _Graph[P]:
        own, graph = x.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            prediction = self.function(own)
        return _Graph(graph, own, prediction)
