"""An out-of-distribution example that is not in the paper: scikit-learn's digits, 0 to 4 known and 5 to 9 unknown.

It is a small copy of the paper's CIFAR-10 experiment that needs no download. The network has a ReLU trunk, the
activation in the last hidden layer, and dropout 0.2; five are trained for each activation. The question is which
measure tells unknown digits from known ones, plain, with the restored prior, and where the last hidden layer is
replaced by its limit of infinite width.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.digits import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
