"""Radar emitters: a hundred known ones, and unknown ones that are similar to them or different.

The simulator is ours (``lab.data.radar``); the network and its training are the paper's. Two settings, ``spread`` and
``error``, say how hard it is to tell the emitters apart. With their values the ReLU network has about the paper's
accuracy of 59 % on a simulation that is used for nothing else (seed ``VALIDATION``); they were fixed before any result
with unknown emitters (``docs/radar.md``).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule
    from stationary.lab.experiments.radar import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
