"""The optimizer of a training, and the schedule of its learning rate."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, OneCycleLR

from stationary.training._adam import LightAdam
from stationary.training._epochs import Epochs
from stationary.training._members import Named
from stationary.training.config import Group, Training

if TYPE_CHECKING:
    from stationary.training._stacked_adam import Fused


def optimizer_of(training: Training, parameters: Named, fused: "Fused | None" = None) -> Optimizer:
    """The optimizer of the parameters.

    Args:
        training: the configuration.
        parameters: what to train, by name.
        fused: what there is to know of fused layers, whose parameters are among these; None without any.
    """
    if not parameters:
        raise ValueError("build must make a network with parameters to train, got one without any")
    rate, decay = training.learning_rate, training.weight_decay
    groups = []
    left = dict(parameters)
    for group in (*training.groups, Group("")):
        named = {name: parameter for name, parameter in left.items() if name.startswith(group.prefix)}
        if not named and group.prefix:
            raise ValueError(
                f"groups must have prefixes of parameter names, got {group.prefix!r}; those in no group yet "
                f"are {', '.join(left)}"
            )
        left = {name: parameter for name, parameter in left.items() if name not in named}
        settings = {"lr": rate * group.rate, "weight_decay": decay * group.decay, "rate": group.rate}
        groups.append({"params": list(named.values()), **settings})
    groups = [group for group in groups if group["params"]]
    if fused:
        from stationary.training import _stacked_adam

        return _stacked_adam.Adam(groups, fused)
    device = next(iter(parameters.values())).device.type
    if training.optimizer != "sgd" and device == "cpu":
        return LightAdam(groups, rate, decoupled=training.optimizer == "adamw")
    if training.optimizer != "sgd":
        kind = Adam if training.optimizer == "adam" else AdamW
        return kind(groups, rate, fused=True, capturable=device == "cuda")
    return SGD(groups, rate, training.momentum, nesterov=training.nesterov, fused=True)


def schedule_of(
    training: Training, optimizer: Optimizer, way: Epochs
) -> tuple[LRScheduler, Callable[[], object], Callable[[], object]]:
    """The schedule of the learning rate, and the functions to call after each step and after each epoch."""
    if training.schedule == "one_cycle":
        highest = [group["lr"] for group in optimizer.param_groups]
        steps = training.epochs * len(way)
        share = training.warm_up + 1e-9 * (training.warm_up * steps == 1)  # PyTorch divides by warm_up steps - 1
        cycle = OneCycleLR(optimizer, highest, steps, pct_start=share, cycle_momentum=False)
        return cycle, cycle.step, nothing
    steps_down = MultiStepLR(optimizer, training.milestones, gamma=0.1)
    return steps_down, nothing, steps_down.step


def nothing(*_: object) -> None:
    pass
