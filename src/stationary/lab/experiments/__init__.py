"""The experiments: a folder for each figure or table, with config.py, run.py and report.py as ``base`` describes them.

They share ``paper``, the names of activations and the paper's numbers; ``networks``, activations by name and the
training of small networks; and ``rows``, which sorts results into the rows of a table.
"""

from stationary.lab.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    name: Experiment(f"stationary.lab.experiments.{name}")
    for name in (
        "far_from_data",
        "banana",
        "banana_grid",
        "regression",
        "covariance",
        "digits",
        "uci",
        "cifar10",
        "radar",
        "arena",
        "active",
        "bo",
    )
}
