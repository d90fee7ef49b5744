"""The steps of a long fit in a file: a fit that was stopped reads them instead of computing them again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from stationary._files import Pace, write_atomically

Named: TypeAlias = dict[str, Tensor]


class Journal:
    """What the steps of a fit have computed, in their order; nothing about a fit is random, so that tells them apart.

    Args:
        path: path of the file; None keeps nothing.
        fit: what tells the fit from others: its settings, and a digest of its network and its rows.
        device: device of the fit.
        say: function that takes a line of text for each step within a long step.

    Raises:
        ValueError: the file belongs to another fit, or cannot be read.
    """

    path: Path | None
    fit: str
    device: torch.device | None
    say: Callable[[str], object]
    pace: Pace
    steps: list[Named]
    taken: int
    begun: Named  # the state within the step that comes after those, or nothing

    def __init__(
        self,
        path: Path | None,
        fit: str = "",
        device: torch.device | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.path, self.fit, self.device, self.say, self.pace = path, fit, device, say, Pace()
        self.steps, self.taken, self.begun = [], 0, {}
        if path is not None and path.exists():
            *self.steps, self.begun = self._read(path)

    def step(self, compute: Callable[[], Named], *, last: bool = False) -> Named:
        """What the next step computes: read, where it was in the file, and else computed and written when it is time.

        Args:
            compute: function that takes the step, and returns its tensors by name.
            last: whether it is the last step of the fit.
        """
        self.taken += 1
        if self.taken <= len(self.steps):
            return self.steps[self.taken - 1]
        found = compute()
        if self.path is not None:
            self.steps.append({name: tensor.detach().clone() for name, tensor in found.items()})
            self.begun = {}
            self._keep(self.path, last=last)
        return found

    def within(self, state: Callable[[], Named]) -> None:
        """Note the state within a step that takes long; ``begun`` has it where a fit was stopped there.

        Args:
            state: function that returns the state as tensors by name; it is called when it is time to write.
        """
        if self.path is not None and self.pace.due(last=False):
            self.begun = {name: tensor.clone() for name, tensor in state().items()}
            self._keep(self.path, last=False)

    def _keep(self, path: Path, *, last: bool) -> None:
        every = [tensor for step in (*self.steps, self.begun) for tensor in step.values()]
        if self.pace.due(last=last) and self.pace.affords(every):
            self._write(path)
            self.pace.restart()

    def _write(self, path: Path) -> None:
        named, orders = Named(), list[dict[str, list[int]]]()
        for i, step in enumerate((*self.steps, self.begun)):
            orders.append({name: _order(tensor) for name, tensor in step.items()})
            named |= {f"{i} {name}": step[name].permute(order).cpu() for name, order in orders[-1].items()}
        about = {"fit": self.fit, "steps": json.dumps(orders)}
        content = safetensors.torch.save(named, about)
        write_atomically(path, lambda file: file.write(content))

    def _read(self, path: Path) -> list[Named]:
        try:
            with safetensors.safe_open(str(path), "pt") as file:
                about = file.metadata()
                orders: list[dict[str, list[int]]] = json.loads(about["steps"])
                steps = [
                    {
                        name: file.get_tensor(f"{i} {name}").clone().to(self.device).permute(_inverse(order))
                        for name, order in step.items()
                    }
                    for i, step in enumerate(orders)
                ]
        except Exception as error:  # bytes that are not what was written can raise anything
            raise ValueError(f"checkpoint {path} cannot be read ({error}); delete it to start anew") from error
        if about["fit"] != self.fit:
            raise ValueError(
                f"checkpoint {path} must belong to this fit; it belongs to one with other settings, rows or network: "
                "delete it, or choose another path"
            )
        return steps


def _order(tensor: Tensor) -> list[int]:
    """The dimensions by their place in memory, which products round by: what is read must have the same."""
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda dimension: -strides[dimension])


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda place: order[place])


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
