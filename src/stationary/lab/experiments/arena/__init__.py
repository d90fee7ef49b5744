"""The arena: our heads beside what people would pick instead, on the same features, splits and seeds.

``protocol`` says, for each method, what may be chosen, by which rule on validation rows, and by which one score it is
judged; it was written before any test row was looked at. A peer runs its own code. ``tasks`` has what every method
gets of an event, ``methods`` one file for each family of methods, ``trunks`` the networks whose features the events
with images need.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.arena import config, report, run
    from stationary.lab.experiments.base import ConfigModule, NeedsData, ReportModule, RunModule

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
    DATA: NeedsData = run
