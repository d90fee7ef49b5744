"""How a network is trained."""

import math
from dataclasses import dataclass

from stationary._checks import check_finite


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate and a weight decay of their own.

    Args:
        prefix: what the names of these parameters start with.
        rate: factor on the learning rate for these parameters.
        decay: factor on the weight decay for these parameters.
    """

    prefix: str
    rate: float = 1.0
    decay: float = 1.0


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    Args:
        loss: "cross_entropy" (targets are class indices), "mse", or "own": the network has a method
            ``losses(x, y) -> (n,)``.
        epochs: passes over the data, at most.
        batch_size: None for full batches; a smaller last batch is kept.
        optimizer: "adam", "adamw" or "sgd".
        learning_rate: at the start.
        momentum, nesterov: of SGD; Adam has its own.
        weight_decay: times the weights is added to the gradient; "adamw" takes its own step instead, of the learning
            rate times the weight decay times the weights.
        groups: parameters that learn otherwise; a parameter belongs to the first group that names it.
        label_smoothing: share of the cross entropy that goes to all classes alike.
        schedule: of the learning rate: "steps" divides it by 10 at the milestones; "one_cycle" raises it from a small
            value to ``learning_rate`` and lowers it to almost 0 (Smith and Topin, 2018).
        milestones: after so many epochs the learning rate is divided by 10.
        warm_up: share of all steps after which "one_cycle" has reached ``learning_rate``.
        patience: stop a member after so many epochs without a lower validation loss, and go back to its best weights.
        validation_fraction: of the data, held out for ``patience`` when no validation data are given.
        precision: "float32", or "bfloat16": linear layers and convolutions compute in 16 bits (autocast), weights stay
            in 32.
        seed: of initialisation, order and masks; member k uses seed + k.
    """

    loss: str = "cross_entropy"
    epochs: int = 100
    batch_size: int | None = 200
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    groups: tuple[Group, ...] = ()
    label_smoothing: float = 0.0
    schedule: str = "steps"
    milestones: tuple[int, ...] = ()
    warm_up: float = 0.25
    patience: int | None = None
    validation_fraction: float = 0.1
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_finite("learning_rate", self.learning_rate, "0.001 is usual for Adam, 0.1 for SGD")
        steps, momentum_sgd = self.milestones, self.optimizer == "sgd" and self.momentum > 0
        rules = {
            "loss": (self.loss in ("cross_entropy", "mse", "own"), "'cross_entropy', 'mse' or 'own'"),
            "epochs": (_is_count(self.epochs), "a positive integer"),
            "batch_size": (
                self.batch_size is None or _is_count(self.batch_size),
                "a positive integer or None, for all",
            ),
            "optimizer": (self.optimizer in ("adam", "adamw", "sgd"), "'adam', 'adamw' or 'sgd'"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "nesterov": (momentum_sgd or not self.nesterov, "False unless optimizer='sgd' with momentum > 0"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a finite number, at least 0"),
            "groups": (
                isinstance(self.groups, tuple) and all(isinstance(group, Group) for group in self.groups),
                "a tuple of Group",
            ),
            "label_smoothing": (0 <= self.label_smoothing < 1, "in [0, 1)"),
            "schedule": (self.schedule in ("steps", "one_cycle"), "'steps' or 'one_cycle'"),
            "warm_up": (0 < self.warm_up < 1, "in (0, 1)"),
            "milestones": (isinstance(steps, tuple) and all(map(_is_count, steps)), "a tuple such as (150, 225)"),
            "patience": (self.patience is None or _is_count(self.patience), "a positive integer or None, for no stop"),
            "validation_fraction": (0 < self.validation_fraction < 1, "in (0, 1)"),
            "precision": (self.precision in ("float32", "bfloat16"), "'float32' or 'bfloat16'"),
            "seed": (self.seed == 0 or _is_count(self.seed), "an integer, at least 0"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{name} must be {rule}; got {getattr(self, name)!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
