"""Active learning, which is not in the paper: which rows of a pool to label next, and what a round of asking costs.

A learner starts with a few labelled rows, asks for a batch of labels by ``stationary.acquire``, learns them, and asks
again. Infinite width learns a batch by ``update``, which keeps the numbers of its prior; they are chosen again whenever
the labels have doubled. Networks with dropout and ensembles are trained from scratch in every round. Each learner is
compared with itself asking for random rows: the same first rows, the same pool, the same test rows.

Test rows choose nothing. Of classes, a quarter of the labelled rows chooses the numbers of infinite width, and then
``update`` learns that quarter too; networks learn all labelled rows. Of real values, the evidence of the labelled rows
chooses the numbers of infinite width; networks learn three quarters, and the last one shows how large the noise is.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.active import config, report, run
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
