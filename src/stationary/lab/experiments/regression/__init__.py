"""Fig. 2 of the paper: Gaussian processes and small networks on a one-dimensional regression task with a gap.

The top row has exact GP regression, of which the function without noise is shown. The middle row has networks of one
hidden layer with 50 units and dropout 0.2, trained by squared error; they predict with 1000 samples, and mean and
standard deviation are averaged over 20 repeats. The length-scale is 1 and activations have unit variance. Beyond
the paper, the third row has the local networks with the restored prior, and sine-cosine; the last one has the limit of
infinite width, on the column itself.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.regression import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
