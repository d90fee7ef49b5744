"""The prior that a finite network forgets far from its data, and how its head learns it back after training."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from stationary.nn.inputs import tensor_of
from stationary.nn.running import Batches, Inputs, batches, call, evaluating, modules_of, outputs_of

QUANTILE = 0.05  # share of the training data with smaller features than the reference; v(x) = 0 for the other 95 %
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of as many bytes
FAR = 1e6  # distance at which a decaying activation must be near 0


class Head(Protocol):
    """A module with features, a dropout behind them and a linear readout, such as a ``StationaryHead``.

    ``forward`` must pass the features through ``dropout`` and then through ``output``.
    """

    activation: nn.Module
    dropout: nn.Dropout
    output: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """The (n, hidden) inputs of the readout, before dropout."""


class RestoredPrior(nn.Module):
    """The prior variance that a finite network lacks where its features vanish, for each output.

    It is v(x) = s^2 max(0, 1 - |phi(x)|^2 / k)^2, where s^2 is the prior variance of the outputs and k the 5 % quantile
    of |phi|^2 over the training data: 0 in distribution, and s^2 where no hidden unit is active. The square makes it
    rise gently at the edge of the data, so that the few test inputs there keep their predictions.

    Both s^2 and k are set by ``calibrate_prior``; until then they are None. They are buffers, so they travel with the
    ``state_dict`` of the network, and a network that loads one without them forgets its own. A third one knows the
    weights of the network again: after further training, also of the trunk alone, the prior is stale.
    """

    variance: Tensor | None  # s^2, (out_features,)
    reference: Tensor | None  # k, a scalar
    mark: Tensor | None  # (4,) what ``_mark`` says of the weights; None where nobody noted it
    place: Tensor  # empty; it shows the device of the module

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.empty(0), persistent=False)
        self.register_buffer("variance", None)
        self.register_buffer("reference", None)
        self.register_buffer("mark", None)

    @property
    def known(self) -> bool:
        """Whether ``calibrate_prior`` has set the prior."""
        return self.variance is not None

    def forward(self, features: Tensor) -> Tensor:
        return self.where(torch.linalg.vector_norm(features, dim=-1).square())

    def where(self, squares: Tensor) -> Tensor:
        """(..., c) the variance where the features have these squared norms."""
        assert self.variance is not None and self.reference is not None, "calibrate_prior comes first"
        share = (1 - squares / self.reference).clamp(min=0)
        return share.square()[..., None] * self.variance

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("variance", "reference", "mark"):
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved, device=self.place.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"known={self.known}"


def calibrate_prior(
    model: nn.Module, x_train: Inputs | Batches, y_train: Tensor | None = None, *, batch_size: int | None = None
) -> nn.Module:
    """Measure what "far away" means for the model's head; every method of ``predict`` then restores the prior there.

    The features of a local activation vanish far from the data, and with them every epistemic measure: a regression
    network becomes sure of its last bias. The infinite network it stands for keeps its prior variance. This function
    stores the two numbers that give it back (``RestoredPrior``): the 5 % quantile of the squared norm of the features
    over the training data, and the prior variance of the outputs. For regression that is the variance of the targets;
    for classification it is the variance over the data of the trained network's logits, centred over classes.

    "Far away" means far for the last hidden layer: a trunk that hides the distance, such as one with LayerNorm, defeats
    it, and inputs that are odd but near are not recognised. ``pred.prior_restored`` says whether a prediction used it.

    Args:
        model: a trained network with one head, such as a ``StationaryHead``, whose activation decays (Matérn, RBF).
        x_train: the training inputs, or a representative sample of them: a tensor, an array, a mapping, or a DataLoader
            of inputs or of (inputs, targets), which is read once.
        y_train: the targets of a regression, floating point, (n,) or (n, m). For a classification leave it out; class
            indices are ignored. A DataLoader of (inputs, targets) has its own.
        batch_size: number of inputs in a pass where x_train is a tensor or a mapping; by default all go in one.

    Returns:
        The same model; its head has three more buffers, which travel with its ``state_dict``. Call it again after
        further training; a prediction with the prior of other weights warns.
    """
    head = only_head(model)
    if not decays(head.activation):
        raise ValueError(
            f"calibrate_prior needs an activation that decays on both sides, got {head.activation}; its features do "
            "not vanish far away, so there is no prior to restore; use Matern, RBF or activation_from_kernel"
        )
    outputs, targets = [], [] if y_train is None else [tensor_of(y_train, "y_train")]
    with evaluating(model), _noting(head, lambda features: features.square().sum(-1).flatten()) as norms:
        for x, y in batches(x_train, batch_size, model):
            outputs.append(outputs_of(_mean(call(model, x))))
            if y is not None and y_train is None:
                targets.append(y)
    variance = _prior_variance(torch.cat(outputs), torch.cat(targets) if targets else None)
    prior = getattr(head, "restored_prior", None)
    prior = prior if isinstance(prior, RestoredPrior) else RestoredPrior().to(variance.device)
    quantile = np.quantile(torch.cat(norms).double().cpu().numpy(), QUANTILE)  # torch's takes 16 million at most
    with torch.inference_mode(False):  # gradients may need them later
        prior.variance = variance.clone()
        reference = torch.as_tensor(quantile).to(prior.variance)
        prior.reference = reference.clamp(min=torch.finfo(variance.dtype).tiny)
        prior.mark = torch.tensor(_mark(head, model), device=variance.device)
    head.restored_prior = prior  # type: ignore[attr-defined]  # where it has none yet, it becomes a submodule
    return model


def _prior_variance(outputs: Tensor, y: Tensor | None) -> Tensor:
    """(c,) the variance of each target, or for classes the mean variance of the logits centred over classes."""
    if y is None or not y.is_floating_point():
        if outputs.shape[1] == 1:  # one logit has no variance over classes
            raise ValueError(
                "y_train must be the real targets of a network with one output, a regression; got "
                f"{'none' if y is None else y.dtype}: pass them as floating-point numbers"
            )
        logits = outputs - outputs.mean(-1, keepdim=True)
        return logits.var(0, correction=0).mean().expand(outputs.shape[1]).clone()
    if len(y) != len(outputs):
        raise ValueError(f"y_train must have one row for each of the {len(outputs)} inputs, got {len(y)} rows")
    if not y.isfinite().all():
        raise ValueError("y_train must be finite, got NaN or infinity; drop such rows")
    variance = y.to(outputs).reshape(len(outputs), -1).var(0, correction=0)
    if len(variance) != outputs.shape[1]:
        raise ValueError(
            f"y_train must have {outputs.shape[1]} columns, as the outputs of the model; got {len(variance)}"
        )
    return variance


def _mean(result: Any) -> Any:
    """The result of a network without the noise variance of a regression."""
    return result[0] if isinstance(result, tuple) and len(result) == 2 else result


# Heads


def is_head(module: nn.Module) -> TypeGuard[Head]:
    """Whether a module has what the protocol ``Head`` asks for."""
    parts = module._modules  # not getattr: this runs for every module of a network at every prediction
    return (
        isinstance(parts.get("output"), nn.Linear)
        and isinstance(parts.get("dropout"), nn.Dropout)
        and isinstance(parts.get("activation"), nn.Module)
        and callable(getattr(module, "features", None))
    )


def only_head(model: nn.Module) -> Head:
    """The only head of the model; an error if it has none or several."""
    if not hasattr(model, "modules"):
        raise TypeError(
            f"model must be a network, an nn.Module; got {type(model).__name__}: an estimator has a posterior_, a "
            "calibrated posterior its base, and any posterior networks"
        )
    heads = [module for module in model.modules() if is_head(module)]
    if len(heads) != 1:
        raise ValueError(
            "model must have one head, a module with the parts activation, dropout (nn.Dropout) and output (nn.Linear) "
            f"and a method features(x), such as a StationaryHead; {type(model).__name__} has {len(heads)}: put one in "
            "place of the classifier with stationary.replace_head, and train it"
        )
    return heads[0]


def decays(activation: nn.Module) -> bool:
    """Whether the activation is near 0 a million units away, on both sides and at every phase."""
    parameter = next(activation.parameters(), torch.empty(0, dtype=torch.float64))
    near = torch.linspace(-10, 10, 2001, dtype=parameter.dtype, device=parameter.device)
    with torch.no_grad():
        far = torch.cat([activation(near + FAR), activation(near - FAR)]).abs().amax()
        return bool(far <= 1e-3 * activation(near).abs().amax())


@contextmanager
def missing_variances(model: nn.Module, restore_prior: bool | None) -> Iterator[list[Tensor]]:
    """Inside, each pass of the model appends the prior variance (n, c) that its outputs lack to the list.

    Args:
        model: any network.
        restore_prior: whether to note the variance. By default it is noted where ``calibrate_prior`` was called; True
            makes it an error where it was not, False leaves the list empty.
    """
    heads = [module for module in modules_of(model) if is_head(module) and prior_of(module) is not None]
    if restore_prior and not heads:
        raise ValueError(
            "restore_prior=True needs a head that knows its prior, and the model has none; call first "
            "stationary.calibrate_prior(model, x_train)"
        )
    if restore_prior is False or not heads:
        yield []
        return
    with _noting(heads[-1], prior_of(heads[-1]) or RestoredPrior()) as variances:
        yield variances


@contextmanager
def _noting(head: Head, note: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Inside, each pass appends ``note(features)`` to the list, for the features that reach the head's dropout."""
    found: list[Tensor] = []
    handle = head.dropout.register_forward_pre_hook(lambda _, args: found.append(note(args[0])))
    try:
        yield found
    finally:
        handle.remove()


def prior_of(head: Head) -> RestoredPrior | None:
    """The restored prior of a head, or None where it is not known."""
    prior = getattr(head, "restored_prior", None)
    return prior if isinstance(prior, RestoredPrior) and prior.known else None


# What a user may have forgotten

_HEADS: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()  # parents and names of the heads of networks
_DECAYS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # of activations that were asked
_SEEN: WeakKeyDictionary[RestoredPrior, tuple[Any, ...]] = WeakKeyDictionary()  # addresses and versions of the weights


def heads_of(network: nn.Module) -> list[Any]:
    """The heads of a network; they are looked for once, for it takes as long as a pass of a small network."""
    known = [(parent(), name) for parent, name in _HEADS.get(network, ())]
    found = [None if parent is None else parent._modules.get(name, parent) for parent, name in known]
    if not found or not all(head is not None and is_head(head) for head in found):
        parts = ((m, name, child) for m in modules_of(network) for name, child in m._modules.items())
        places = [(m, name) for m, name, child in parts if child is not None and is_head(child)]
        places += [(network, "")] * is_head(network)  # itself
        _HEADS[network] = [(ref(parent), name) for parent, name in places]
        found = [parent._modules.get(name, parent) for parent, name in places]
    return found


def lacks_prior(head: Head) -> bool:
    """Whether the features of a head vanish far from the data, and ``calibrate_prior`` was not called."""
    if prior_of(head) is not None:
        return False
    if head.activation not in _DECAYS:
        try:
            _DECAYS[head.activation] = decays(head.activation)
        except (RuntimeError, ValueError, TypeError, IndexError):  # it takes no plain vector, so nobody knows
            _DECAYS[head.activation] = False
    return _DECAYS[head.activation]


def has_stale_prior(head: Head, network: nn.Module) -> bool:
    """Whether the weights of a network have changed since ``calibrate_prior``; for each state it is said once.

    The weights are read only where something has written to them since the last look.

    Args:
        head: a head of the network.
        network: the network; of another one around the same head, or in another type, only the head is looked at.
    """
    prior = prior_of(head)
    if prior is None or prior.mark is None:
        return False
    weights = _weights(network)
    if any(weight.is_inference() for weight in weights):
        return False
    now = tuple((weight.data_ptr(), weight._version) for weight in weights)
    if _SEEN.get(prior) == now:
        return False
    _SEEN[prior] = now
    then, mark = prior.mark.tolist(), _mark(head, network)
    if then[1] != mark[1]:  # the network has another floating-point type now: these are the weights from now on
        prior.mark = prior.mark.new_tensor(mark)
        return False
    same = then[3:] == mark[3:]  # older files know the head alone
    return then[0] != mark[0] or (same and then[2] != mark[2])


def _weights(head: Any) -> list[Tensor]:
    return [weight for module in modules_of(head) for weight in module._parameters.values() if weight is not None]


def _mark(head: Any, network: nn.Module) -> list[int]:
    """A digest of the head's weights, the bits of their type, and a sum over all others with the bytes that they take.

    The sum is that of the bits of each number, read as an integer: it is exact in every order and on every device, and
    takes no copy of a large trunk.
    """
    weights, digest = _weights(head), hashlib.blake2b(digest_size=8)
    for weight in weights:
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    own = {id(weight) for weight in weights}
    others = [weight.detach().contiguous().reshape(-1) for weight in _weights(network) if id(weight) not in own]
    total = sum(int(weight.view(BITS[weight.element_size()]).sum(dtype=torch.int64)) for weight in others)
    return [
        int.from_bytes(digest.digest(), "little") >> 1,
        torch.finfo(weights[0].dtype).bits,
        total % 2**62,
        sum(weight.nbytes for weight in others),
    ]
