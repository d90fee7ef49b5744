"""The paper's figures and tables: one folder each, with config.py, run.py and report.py as ``base`` describes them.

What they share: ``paper``, names of activations and the paper's numbers; ``networks``, what is trained; ``rows``, how
results become the rows of a table.
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
    )
}
