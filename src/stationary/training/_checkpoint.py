"""The state of a training after an epoch, in a file that is never half written, from which the training continues."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stationary._files import Pace, write_atomically
from stationary.training._members import Best, Named, Trainees, load
from stationary.training.config import Training

History: TypeAlias = list[tuple[int, float, float | None]]  # number, training loss and validation loss of each epoch


@runtime_checkable
class Remembering(Protocol):
    """An observer of a training whose memory a checkpoint holds, as it holds that of an optimizer."""

    def state_dict(self) -> Named:
        """What it has seen so far, as tensors by name."""

    def load_state_dict(self, state: Named) -> None:
        """Take what another one has seen as its own; the tensors are on the device of the training."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a file: tensors by name, and everything else as JSON. Nothing is pickled.

    Args:
        about: the configuration and the seeds, the reported losses of each epoch, the groups of the optimizer, the
            count of the schedule, and the lowest validation losses.
        tensors: the weights, the state of the optimizer, the states of the generators, the best weights, and what the
            observers have seen.
    """

    about: dict[str, Any]
    tensors: Named

    @classmethod
    def read(cls, path: Path, training: Training, seeds: Sequence[int]) -> "Checkpoint | None":
        """The checkpoint at this path, or None if there is no file.

        Args:
            path: path of the file.
            training: the configuration that the checkpoint must have been written with.
            seeds: the seeds that it must have been written with.

        Raises:
            ValueError: the file belongs to a training with other settings or seeds, or cannot be read.
        """
        if not path.exists():
            return None
        try:
            with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                tensors = {name: torch.from_numpy(archive[name]) for name in archive.files if name != "about"}
                about = json.loads(str(archive["about"]))
            tensors |= {name: tensors[name].bfloat16() for name in about.get("bfloat16", ())}
        except Exception as error:  # bytes that are not what was written can raise anything
            raise ValueError(f"checkpoint {path} cannot be read ({error}); delete it to start anew") from error
        if (about["training"], about["seeds"]) != (wanted := _identity(training, seeds)):
            raise ValueError(
                f"checkpoint {path} must belong to this training, {wanted}; it belongs to "
                f"{(about['training'], about['seeds'])}: delete it, or choose another path"
            )
        return cls(about, tensors)

    def load_networks(self, networks: list[nn.Module]) -> None:
        """Write the weights of the checkpoint into freshly built networks.

        Raises:
            ValueError: the checkpoint holds networks with other parameters.
        """
        for k, network in enumerate(networks):
            saved, own = self._part(f"network {k}: "), (*network.named_parameters(), *network.named_buffers())
            if {name: value.shape for name, value in own} != {name: value.shape for name, value in saved.items()}:
                raise ValueError(
                    f"the checkpoint must hold networks like those to be trained, {type(network).__name__}; its "
                    "tensors have other names or shapes: delete it, or choose another path"
                )
            load(network, saved)

    @property
    def history(self) -> History:
        """The number, the training loss and the validation loss of each epoch so far."""
        return [(epoch, loss, watched) for epoch, loss, watched in self.about["history"]]

    def load_rest(self, keeper: "Keeper") -> None:
        """Restore everything but the weights: optimizer, schedule, generators, best weights and observers."""
        way, members, optimizer, best = keeper.way, keeper.members, keeper.optimizer, keeper.best
        if self.about["way"] != way:
            raise ValueError(
                f"the checkpoint must come from a training that runs as this one does, {way}; it comes from "
                f"{self.about['way']}: continue on the device where it was written, or delete it"
            )
        keys = dict.fromkeys(name.split()[1] for name in self.tensors if name.startswith("optimizer "))
        state: dict[int | str, Named] = {
            int(key) if key.isdigit() else key: self._part(f"optimizer {key} state: ") for key in keys
        }
        for common in (part for key, part in state.items() if isinstance(key, str)):  # PyTorch moves the rest
            common.update({name: tensor.to(members.device) for name, tensor in common.items()})
        optimizer.load_state_dict({"state": state, "param_groups": self.about["groups"]})
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            for name, value in optimizer.state[parameter].items():
                if value.shape == parameter.shape:  # in the parameter's order in memory, which a fused step needs
                    optimizer.state[parameter][name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        keeper.schedule.last_epoch = self.about["schedule"]
        for k in range(len(members.models)):
            members.orders[k].set_state(self.tensors[f"order {k}"])
            members.masks[k].set_state(self.tensors[f"masks {k}"])
            best.states[k] = {n: t.to(members.device) for n, t in self._part(f"best {k}: ").items()}
        best.losses, best.waited, best.running = (self.about["best"][name] for name in ("losses", "waited", "running"))
        self._load_observers(keeper)
        _set_global_state(self.tensors, members.device)

    def _load_observers(self, keeper: "Keeper") -> None:
        for k, observer in enumerate(keeper.observers):
            seen = {n: t.to(keeper.members.device) for n, t in self._part(f"observer {k}: ").items()}
            if isinstance(observer, Remembering) != bool(seen):
                wanted, got = ("with", "without") if seen == {} else ("without", "with")
                raise ValueError(
                    f"the checkpoint must come from a training {wanted} an observer such as that of SWAG, as this one "
                    f"is; it comes from one {got}: delete it, or choose another path"
                )
            if isinstance(observer, Remembering):
                observer.load_state_dict(seen)

    def _part(self, prefix: str) -> Named:
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


@dataclass
class Keeper:
    """A training that is running, and the file that it writes its state to.

    Args:
        path: path of the file; None keeps nothing.
        training: the configuration.
        way: name of the way to train, which a training that continues must share.
        members, optimizer, schedule, best: the networks, and what else changes with the epochs.
        observers: what watches the training; what those that are ``Remembering`` have seen is part of the state.
    """

    path: Path | None
    training: Training
    way: str
    members: Trainees
    optimizer: Optimizer
    schedule: LRScheduler
    best: Best
    observers: Sequence[object]
    pace: Pace = field(default_factory=Pace)

    def resume(self) -> History:
        """Restore the state from the file, and return the epochs before; none where there is no file."""
        if self.path is None or not (saved := Checkpoint.read(self.path, self.training, self.members.seeds)):
            return []
        saved.load_rest(self)
        return saved.history

    def keep(self, history: History, *, last: bool) -> None:
        """Write the state after an epoch, unless that was done a while ago; after the last one if it is worth it."""
        if self.path is None or not self.pace.due(last=last):
            return
        tensors = self._tensors()
        if self.pace.affords(tensors.values()):
            write_checkpoint(self.path, self._about(history), tensors)
            self.pace.restart()

    def _about(self, history: History) -> dict[str, Any]:
        identity, seeds = _identity(self.training, self.members.seeds)
        best = self.best
        return {
            "training": identity,
            "seeds": seeds,
            "way": self.way,
            "history": history,
            "groups": self.optimizer.state_dict()["param_groups"],
            "schedule": self.schedule.last_epoch,
            "best": {"losses": best.losses, "waited": best.waited, "running": best.running},
        }

    def _tensors(self) -> Named:
        members, best = self.members, self.best
        tensors: Named = _global_state(members.device)
        for k in range(len(members.models)):
            tensors |= {f"network {k}: {name}": value for name, value in members.state(k).items()}
            tensors |= {f"best {k}: {name}": value for name, value in best.states[k].items()}
            tensors |= {f"order {k}": members.orders[k].get_state(), f"masks {k}": members.masks[k].get_state()}
        for i, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer {i} state: {name}": torch.as_tensor(value) for name, value in values.items()}
        for k, observer in enumerate(self.observers):
            if isinstance(observer, Remembering):
                tensors |= {f"observer {k}: {name}": value for name, value in observer.state_dict().items()}
        return tensors


def write_checkpoint(path: Path, about: dict[str, Any], tensors: Named) -> Path:
    """Write the state in place of that of an epoch before."""
    about["bfloat16"] = [name for name, value in tensors.items() if value.dtype == torch.bfloat16]
    arrays: dict[str, Any] = {name: _array(value) for name, value in tensors.items()}
    return write_atomically(path, lambda file: np.savez(file, allow_pickle=False, about=json.dumps(about), **arrays))


def _identity(training: Training, seeds: Sequence[int]) -> tuple[str, list[int]]:
    """The configuration, without its seed, and the seeds: a training that continues must have the same."""
    return repr(replace(training, seed=0)), [int(seed) for seed in seeds]


def _array(value: Tensor) -> Any:
    """The values as an array; bfloat16, which NumPy lacks, becomes float32, which holds the same numbers."""
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _global_state(device: torch.device) -> Named:
    """The state of the global generators, which a network may draw from by itself."""
    state = {"global": torch.get_rng_state()}
    return state | ({"global cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_global_state(tensors: Named, device: torch.device) -> None:
    torch.set_rng_state(tensors["global"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["global cuda"], device)
