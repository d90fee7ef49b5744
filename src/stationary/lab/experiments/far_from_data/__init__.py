"""What a ReLU and a Matérn network predict far from their training data: the reason for stationary activations.

The task is classification with two classes in one dimension. The network is that of the paper's toy examples: one
hidden layer of 50 units with dropout 0.2, trained by Adam on all rows at once, with a learning rate of 0.02 that is
divided by 10 at the epochs 250, 500 and 1000. Each line of the figure is one network with its own random start, whose
probability is averaged over MC dropout.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.far_from_data import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
