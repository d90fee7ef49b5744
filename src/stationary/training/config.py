"""The configuration of a training."""

import math
from dataclasses import dataclass

from stationary._checks import check_finite, is_count


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate and a weight decay of their own.

    Args:
        prefix: prefix of the names of these parameters, such as "head.".
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
        loss: loss to minimise: "cross_entropy", with class indices as targets; "mse", the mean squared error;
            "beta_nll", for a network that returns mean and noise variance (``MeanAndNoise``); or "own", which calls the
            network's own method ``losses(x, y)``, which returns the (n,) losses of a batch.
        epochs: largest number of passes over the data; ``patience`` may end the training earlier.
        batch_size: number of rows in a step, or None for all; the last batch of an epoch may be smaller.
        optimizer: "adam", "adamw" or "sgd".
        learning_rate: learning rate at the start for the schedule "steps", and the highest one for "one_cycle".
        momentum: momentum of SGD; it has no effect on the other optimizers.
        nesterov: whether SGD uses Nesterov's momentum.
        weight_decay: factor with which the weights are added to their gradient. With "adamw" the weights shrink by the
            learning rate times this factor at each step instead.
        groups: groups of parameters with a learning rate and a weight decay of their own; a parameter belongs to the
            first group whose prefix its name has.
        label_smoothing: share of each target's probability that is spread evenly over all classes, in [0, 1).
        beta: exponent of the weight in "beta_nll" (``stationary.beta_nll``), in [0, 1]. Validation rows are judged by
            the likelihood itself, as with 0: weights that depend on the prediction would favour small variances.
        schedule: schedule of the learning rate: "steps" divides it by 10 at the milestones; "one_cycle" raises it from
            a small value to ``learning_rate`` and lowers it to almost 0 (Smith and Topin, 2018).
        milestones: numbers of epochs after which the schedule "steps" divides the learning rate by 10.
        warm_up: share of all steps after which "one_cycle" has reached ``learning_rate``.
        patience: number of epochs without a lower validation loss after which a network stops and goes back to its best
            weights; None trains for all epochs.
        validation_fraction: share of the data that is held out for ``patience`` when no validation data are given.
        precision: "float32", or "bfloat16", where linear layers and convolutions compute in 16 bits (autocast) and the
            weights stay in 32; where a step on a GPU is one CUDA graph, Adam's moments have 16 bits too.
        seed: seed of the initialisation, of the order of the data and of the dropout masks; network k uses seed + k.
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
    beta: float = 0.5
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
            "loss": (
                self.loss in ("cross_entropy", "mse", "beta_nll", "own"),
                "'cross_entropy', 'mse', 'beta_nll' or 'own'",
            ),
            "epochs": (is_count(self.epochs), "a positive integer"),
            "batch_size": (
                self.batch_size is None or is_count(self.batch_size),
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
            "beta": (0 <= self.beta <= 1, "in [0, 1]"),
            "schedule": (self.schedule in ("steps", "one_cycle"), "'steps' or 'one_cycle'"),
            "warm_up": (0 < self.warm_up < 1, "in (0, 1)"),
            "milestones": (isinstance(steps, tuple) and all(map(is_count, steps)), "a tuple such as (150, 225)"),
            "patience": (self.patience is None or is_count(self.patience), "a positive integer or None, for no stop"),
            "validation_fraction": (0 < self.validation_fraction < 1, "in (0, 1)"),
            "precision": (self.precision in ("float32", "bfloat16"), "'float32' or 'bfloat16'"),
            "seed": (self.seed == 0 or is_count(self.seed), "an integer, at least 0"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{name} must be {rule}; got {getattr(self, name)!r}")
