"""The picture that shows why: what a ReLU and a Matérn network believe far from their training data.

Binary classification in one dimension with the network of the paper's toy examples: one hidden layer of 50 units,
dropout 0.2 before the output, Adam 0.02 divided by 10 at epochs 250, 500 and 1000, full batches. Each line is one
network from its own random start; its probability is averaged over MC dropout.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.far_from_data import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
