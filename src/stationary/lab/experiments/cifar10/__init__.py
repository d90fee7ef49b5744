"""CIFAR-10 with five known classes and five unknown ones: does the network know what it does not know?

A GoogLeNet trunk is frozen, and a 1024-512-5 end is trained on plane, car, bird, cat and deer. Dropped out of the 512
units are 20 %, in training and ten times over in prediction. In the setting "paper" the trunk has been trained on all
ten classes, as the paper's had, so that it has seen the unknown ones, with their labels. In the setting "strict" it has
been trained on the known ones alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it keeps the contract
    from stationary.lab.experiments.base import ConfigModule, NeedsData, ReportModule, RunModule
    from stationary.lab.experiments.cifar10 import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
    DATA: NeedsData = run
