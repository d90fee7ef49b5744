"""The paper's figures and tables: one file each, read from top to bottom.

Each has ``TITLE``; ``REPRODUCES``, what of the paper; ``DURATION``, in words for each scale; ``VERSION``, raised when
stored results become invalid; ``Config`` and ``configs(scale)`` for "smoke" (a moment), "demo" and "paper" (its own
settings); ``run(config, device) -> dict of arrays``, which computes and does no I/O; and
``report(results) -> Section``, which shows and judges what was computed.

``LOCKSTEP``, where there is one, names a tuple of the configurations, such as their folds. ``configs`` then gives one
entry each, which is what is stored; but those that differ in nothing else can run as one, as they do on a GPU: what
``run`` returns has one row for each entry.

``missing(configs)``, where there is one, says why these cannot run here and what to do about it, or None. It is asked
before they run, those that have a result left out; an experiment that is not named is then left out, too.
"""

from types import ModuleType

from stationary.lab.experiments import (
    banana,
    banana_grid,
    cifar10,
    covariance,
    digits,
    far_from_data,
    radar,
    regression,
    uci,
)

EXPERIMENTS: dict[str, ModuleType] = {
    "far_from_data": far_from_data,
    "banana": banana,
    "banana_grid": banana_grid,
    "regression": regression,
    "covariance": covariance,
    "digits": digits,
    "uci": uci,
    "cifar10": cifar10,
    "radar": radar,
}
