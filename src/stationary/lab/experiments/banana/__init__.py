"""Fig. 1 of the paper: Gaussian processes and small networks on Banana, and what they believe away from the data.

Top row: variational Gaussian processes with the kernels that the activations below stand for. Bottom row: networks of
one hidden layer with 50 units, dropout 0.2, trained for 2000 epochs. The shading is sqrt(pq) of the mean probability
(the total uncertainty), the boundary comes from the pass without dropout. Beyond the paper: error on the 4,900 held-out
points; total and epistemic uncertainty on circles around the data, plain and with the restored prior, over several
seeds; the sine-cosine activation, which does not decay. Activations are scaled as in the authors' code.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it keeps the contract
    from stationary.lab.experiments.banana import config, report, run
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
