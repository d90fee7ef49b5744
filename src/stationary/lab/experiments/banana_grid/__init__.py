"""The appendix's Banana grid: how the picture changes with hidden units and MC dropout samples.

Matérn-5/2 networks have 10, 50 and 500 hidden units, and their pictures are drawn with 10, 100 and 1000 samples. All
else is as in ``banana``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.banana_grid import config, report, run
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
