"""CIFAR-10 with five known classes and five unknown ones: does the network know what it does not know?

The trunk, a GoogLeNet, is trained first and then frozen. On its 1024 features an end of 512 units and 5 outputs is
trained on plane, car, bird, cat and deer, with dropout 0.2 of the 512 units; predictions average ten dropout samples.
In the setting "paper" the trunk has been trained on all ten classes, as the paper's was, so that it has seen the
unknown ones with their labels. In the setting "strict" it has been trained on the known ones alone. Trunks of the
settings "paper-held-out" and "strict-held-out" have not seen a tenth of the training images: these choose the numbers
of another end, the limit of infinite width.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, NeedsData, ReportModule, RunModule
    from stationary.lab.experiments.cifar10 import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
    DATA: NeedsData = run
