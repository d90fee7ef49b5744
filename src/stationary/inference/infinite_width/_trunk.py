"""The trunk: where the features of a network are, how they are read, and whether it is still the same network."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from stationary.nn.inputs import tensor_of
from stationary.nn.restored_prior import is_head
from stationary.nn.running import Inputs, call, evaluating
from stationary.predictive import Categorical, Gaussian
from stationary.training import Data
from stationary.training.data import is_pair, labelled, marks_of

Reader: TypeAlias = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Place:
    """Where the features of a network are: what enters one of its modules, or what leaves it, or a function's result.

    Args:
        name: name of the module; "" is the network itself.
        side: "input", "output" or "function".
        read: the function, where side is "function"; it takes a batch of inputs.
    """

    name: str
    side: str
    read: Reader | None = None

    def readout(self, network: nn.Module) -> nn.Module | None:
        """The module behind the features, where it is known: a linear layer or a head."""
        return network.get_submodule(self.name) if self.side == "input" else None


def find_place(network: nn.Module, x: Inputs, features: str | Reader | None) -> Place:
    """Where the features are: as the user says, else what enters the last linear layer or the head that it is in.

    Args:
        network: the network, in eval mode.
        x: a batch of inputs.
        features: name of the module whose output they are, a function of a batch of inputs, or None.
    """
    if callable(features):
        return Place("", "function", features)
    names = {module: name for name, module in network.named_modules()}
    if features is not None:
        if features not in names.values():
            some = ", ".join(name for name, _ in network.named_children())
            raise ValueError(
                f"features must be the name of a module of the network, a function or None; got {features!r}, and the "
                f"network has {some or 'no modules'}"
            )
        return Place(features, "output")
    heads = {module.output: module for module in names if is_head(module)}
    called: list[nn.Module] = []
    with ExitStack() as stack:
        for module in names:
            if isinstance(module, nn.Linear):
                stack.callback(module.register_forward_hook(lambda linear, *_: called.append(linear)).remove)
        call(network, x)
    if not called:
        raise ValueError(
            f"features must be given for a {type(network).__name__}, which calls no linear layer; pass the name of the "
            "module whose output they are, or a function of a batch"
        )
    last = called[-1]
    return Place(names[heads.get(last, last)], "input")  # type: ignore[call-overload]


def read(network: nn.Module, place: Place, x: Inputs) -> Tensor:
    """(n, d) the features of a batch; the network is in eval mode."""
    found: list[Tensor] = []
    if place.read is not None:
        found.append(place.read(x))
    else:
        module = network.get_submodule(place.name)
        if place.side == "input":
            handle = module.register_forward_pre_hook(
                lambda _, args, kwargs: found.append((*args, *kwargs.values())[0]), with_kwargs=True
            )
        else:
            handle = module.register_forward_hook(lambda _, args, output: found.append(_copied(output)))
        try:
            call(network, x)
        finally:
            handle.remove()
    n = (x if isinstance(x, Tensor) else next(iter(x.values()))).shape[0]  # not len, which torch.export would fix
    if not found or not isinstance(found[-1], Tensor) or found[-1].ndim < 2 or found[-1].shape[0] != n:
        got = f"{tuple(found[-1].shape)}" if found and isinstance(found[-1], Tensor) else "no tensor"
        raise ValueError(
            f"features must be a tensor (n, d) for a batch of {n} inputs, got {got}; pass features=, the name of "
            "a module whose output has that form, or a function of a batch; a single input is passed as x[None]"
        )
    return flat(found[-1])


def _copied(output: Any) -> Any:
    """A copy of a tensor, since the next layer may write into it; anything else is no features."""
    return output.clone() if isinstance(output, Tensor) else output


def outputs_of(network: nn.Module, place: Place, z: Tensor, family: type[Any]) -> Tensor:
    """(n, c) what the network itself makes of features (n, d), in float64; for classes their mean is 0 in each row."""
    readout = place.readout(network)
    if family is Gaussian or readout is None:
        raise ValueError(
            "prior_mean must be 'uniform' or 'frequencies' for a regression, and for features that do not enter the "
            "network's own last layer or head; got 'network'"
        )
    with evaluating(network):
        parameter = next(readout.parameters())
        outputs = readout(z.to(parameter)).to(z.device).double()
    return outputs - outputs.mean(1, keepdim=True) if family is Categorical else outputs


def flat(features: Tensor) -> Tensor:
    """(n, d) the features of each row, in 32 bits or 64."""
    z = features.flatten(1)
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) or not z.is_floating_point() else z


def has_trunk(network: nn.Module, place: Place) -> bool:
    """Whether features are those of something that was trained, so that its own training rows look too easy."""
    own = place.readout(network)
    behind = set() if own is None else {id(p) for p in own.parameters()}
    return any(id(p) not in behind for p in network.parameters())


@dataclass(frozen=True)
class Rows:
    """The rows that a posterior is made from.

    Args:
        z: (n, d) features.
        y: (n,) class indices, (n, c) labels or (n, m) real targets.
        weight: (n,) weights.
        marks: (n,) a number for the content of each input row, by which it is known again; None where nobody asks.
        numbers: (n,) the number of each row in the user's data; None where a loader may have changed their order.
        read: number of rows of the user's data, with those of weight 0, which are left out here.
    """

    z: Tensor
    y: Tensor
    weight: Tensor
    marks: Tensor | None = None
    numbers: Tensor | None = None
    read: int = 0

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, rows: Tensor | slice) -> "Rows":
        marks, numbers = (None if each is None else each[rows] for each in (self.marks, self.numbers))
        return Rows(self.z[rows], self.y[rows], self.weight[rows], marks, numbers, self.read)

    def __add__(self, other: "Rows") -> "Rows":
        if other.z.shape[1] != self.z.shape[1]:
            raise ValueError(f"data must have {self.z.shape[1]} features, as before; got {other.z.shape[1]}")
        pairs = ((self.z, other.z), (self.y, other.y), (self.weight, other.weight))
        z, y, weight = (torch.cat([a, b.to(a)]) for a, b in pairs)
        numbers = None
        if self.numbers is not None and other.numbers is not None:
            numbers = torch.cat([self.numbers, self.read + other.numbers.to(self.numbers)])
        return Rows(z, y, weight, None, numbers, self.read + other.read)

    def to(self, device: torch.device) -> "Rows":
        numbers = None if self.numbers is None else self.numbers.to(device)
        return replace(self, z=self.z.to(device), y=self.y.to(device), weight=self.weight.to(device), numbers=numbers)


def collect(
    network: nn.Module,
    place: Place | None,
    data: Data,
    *,
    features: str | Reader | None = None,
    sample_weight: Tensor | None = None,
    batch_size: int = 500,
    name: str = "data",
    store: str | None = None,
    marked: bool = False,
) -> tuple[Rows, Place]:
    """The features, targets and weights of all rows, by one pass over the data.

    Args:
        network: the trained network; it runs in eval mode.
        place: where the features are; None to find it by the first batch and ``features``.
        data: a pair of tensors, or batches of (x, y).
        features: as for ``find_place``.
        sample_weight: (n,) weights of the rows.
        batch_size: number of rows in a pass where the data are tensors.
        name: what error messages call the data.
        store: path of a file that holds the features, memory-mapped; None keeps them in memory.
        marked: whether to note by which numbers the input rows are known again.
    """
    in_order = _in_order(data)
    if sample_weight is not None and isinstance(data, DataLoader) and not in_order:
        raise ValueError(
            "sample_weight must meet its rows in the order of the data, got a DataLoader that may draw them otherwise; "
            "pass one with shuffle=False and no sampler of its own, or two tensors"
        )
    targets, marks = list[Tensor](), list[Tensor]()
    with evaluating(network), _Parts(store) as parts:
        for x, y in labelled(data, batch_size, network, name):
            place = find_place(network, x, features) if place is None else place
            z = read(network, place, x)
            finite = z.isfinite().all(-1)
            if not finite.all():
                row = parts.n + int((~finite).nonzero()[0])
                raise ValueError(
                    f"{name} must give finite features, got NaN or infinity in row {row}; drop such rows, or look at "
                    "what the network makes of them"
                )
            parts.add(z)
            targets.append(y)
            if marked:
                marks.append(marks_of(x))
    assert place is not None
    device = with_float64(parts.device)
    z, y = parts.joined().to(device), torch.cat(targets).to(device)
    weight = torch.ones(len(y)) if sample_weight is None else torch.as_tensor(tensor_of(sample_weight, "sample_weight"))
    if weight.shape != (len(y),) or not (weight.isfinite() & (weight >= 0)).all() or not weight.any():
        raise ValueError(
            f"sample_weight must be finite, at least 0, not all 0, and of shape ({len(y)},); got {tuple(weight.shape)}"
        )
    weight = weight.to(device).double()
    numbers = torch.arange(len(y), device=device) if in_order else None
    rows = Rows(z, y, weight, torch.cat(marks) if marked else None, numbers, len(y))
    return (rows if weight.all() else rows[weight > 0]), place


def check_labels(y: Tensor, name: str) -> None:
    """Raise an error unless the targets of several labels at once are zeros and ones; ``name`` is that of the data."""
    if ((y != 0) & (y != 1)).any():
        raise ValueError(
            f"{name} with integer targets (n, c) must have zeros and ones, one for each label; got others: use "
            "y.float() for a regression, or class indices (n,)"
        )


def with_float64(device: torch.device) -> torch.device:
    """The device, or the CPU for one without numbers of 64 bits (MPS), which leaves the head to it."""
    return torch.device("cpu") if device.type == "mps" else device


def _in_order(data: Data) -> bool:
    """Whether the rows come in an order that the user knows: not where something else may draw them."""
    if not isinstance(data, DataLoader):
        return is_pair(data) or isinstance(data, list | tuple)
    if data.batch_sampler is None:  # the dataset gives batches
        return type(data.sampler) is SequentialSampler
    batched, each = type(data.batch_sampler) is BatchSampler, getattr(data.batch_sampler, "sampler", None)
    return batched and type(each) is SequentialSampler and getattr(data, "in_order", True)


class _Parts:
    """Feature vectors as they come in, in memory or in a file that the operating system maps into it."""

    def __init__(self, store: str | None) -> None:
        self.parts: list[Tensor] = []
        self.n, self.device = 0, torch.device("cpu")
        self.path = None if store is None else Path(store).absolute()
        self.file: IO[bytes] | None = None

    def __enter__(self) -> "_Parts":
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_file():  # an older posterior may have mapped it, and keeps what is in it
                self.path.resolve().unlink()
            self.file = self.path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with suppress(OSError):  # what a full disk did not take
                self.file.close()

    def add(self, z: Tensor) -> None:
        if self.parts and z.shape[1] != self.parts[0].shape[1]:
            raise ValueError(f"features must be as many for every batch, got {z.shape[1]} and {self.parts[0].shape[1]}")
        if self.file is not None:
            z = z.cpu().contiguous()
            try:
                self.file.write(z.numpy().tobytes())
                self.file.flush()
            except OSError as error:  # that of a full disk names no file
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            self.parts = [z[:1]]
        else:
            self.parts.append(z)
            self.device = z.device
        self.n += len(z)

    def joined(self) -> Tensor:
        if self.path is None:
            return torch.cat(self.parts)
        [first] = self.parts
        size = self.n * first.shape[1]
        return torch.from_file(str(self.path), shared=True, size=size, dtype=first.dtype).view(self.n, -1)


@dataclass
class Fingerprint:
    """What a trunk looked like when the posterior was made: a digest of every number in it.

    Args:
        digest: the digest.
    """

    digest: str
    _seen: tuple[Any, ...] = field(default=(), repr=False)  # the tensors' addresses and versions at the last look

    @classmethod
    def of(cls, network: nn.Module, place: Place) -> "Fingerprint":
        made = cls(_digest(network, place))
        made._seen = _versions(network, place)
        return made

    def check(self, network: nn.Module, place: Place) -> None:
        """Raise an error if the trunk has changed since; it is only read where something has written to it."""
        now = _versions(network, place)
        if now == self._seen and None not in now:
            return
        if _digest(network, place) != self.digest:
            raise ValueError(
                "the trunk must be the one that the posterior was made of, got one whose weights or running statistics "
                "have changed since; make the posterior again: InfiniteWidth(...).posterior(model, data)"
            )
        self._seen = now

    def __getstate__(self) -> dict[str, Any]:
        return {"digest": self.digest, "_seen": ()}  # a copy has other addresses


def _tensors(network: nn.Module, place: Place) -> Iterator[tuple[str, Tensor]]:
    own = place.readout(network)
    behind = set() if own is None else {id(t) for t in (*own.parameters(), *own.buffers())}
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if id(tensor) not in behind:
            yield name, tensor


def _versions(network: nn.Module, place: Place) -> tuple[Any, ...]:
    """The address and the version of every tensor, of those behind the trunk too; several times as fast as names."""
    tensors = [t for m in network.modules() for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    return tuple(None if t.is_inference() else (t.data_ptr(), t._version) for t in tensors)


def _digest(network: nn.Module, place: Place) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in _tensors(network, place):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
