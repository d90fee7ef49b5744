"""Fig. 3 of the paper and its Gram matrices: the Matérn activations and the kernels of their random networks.

Monte Carlo estimates over 10,000 hidden units are beside the exact kernels, for binary weights (-1 or 1) and for unit
Gaussian weights. The paper does not state the length-scale and the bias of its Fig. 3; we take those of its Gram
matrices, which are 0.5 and a standard deviation of 1. Kernels are multiplied by sqrt(2 pi) bias_std, so that a flat
bias would give 1 at the peak.

Beyond the paper there are functions drawn from finite networks of growing width, beside functions drawn from the
Gaussian process that they tend to.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.covariance import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
