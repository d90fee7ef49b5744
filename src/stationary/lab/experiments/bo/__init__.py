"""Bayesian optimisation: kernels of stationary networks beside BoTorch's surrogates, on 2 to 100 inputs.

Every surrogate has the same initial designs, the same acquisition function, the logarithm of expected improvement, and
the same optimiser of it. ``functions`` has what is optimised, ``surrogates`` the models, ``run`` the loop.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, NeedsData, ReportModule, RunModule
    from stationary.lab.experiments.bo import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
    DATA: NeedsData = run
