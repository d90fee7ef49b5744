"""The paper's UCI benchmarks (Table 1 and its appendix): four data sets, ten folds, networks and GP hybrids.

Choices that the paper leaves open were made before any run. The network's trunk is ReLU, and the activation is in the
50-unit layer only, scaled as in the authors' code: the variance is lambda / nu, and the RBF is exp(-x^2). SIREN is
sin(x). ``connect-4`` has 42 numeric columns, ``connect-4-onehot`` 126 binary ones. ``connect-4-codes`` and
``adult-scaled`` have the columns that give the paper's numbers, which was found later.

NLPD, ACC and std follow the authors' rules. NLPD is -E[log p] for networks, and -log E[p] for the GP models, which
average inside their likelihood. ACC is that of the pass without dropout. The std is over folds, divided by n. Our own
rule for NLPD, -log E[p] for all methods, is called ``NLPD mean-probability``. Every row of the data is tested once.

Every method trains for 20 epochs with batches of 500 rows. On a GPU the folds train together, and the networks' layers
compute in bfloat16; on a CPU the folds train one after the other, in float32.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.base import ConfigModule, NeedsData, ReportModule, RunModule
    from stationary.lab.experiments.uci import config, report, run

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
    DATA: NeedsData = run
