"""Fig. 2 of the paper: Gaussian processes and small networks on a one-dimensional regression task with a gap.

Top: exact GP regression (its function, without the noise). Middle: networks of one hidden layer with 50 units, dropout
0.2, squared error, 1000 samples; mean and standard deviation are averaged over 20 repeats. The length-scale is 1 and
activations have unit variance. Bottom, beyond the paper: the local networks with the restored prior, and sine-cosine.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.regression import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
