"""Fig. 1 of the paper: Gaussian processes and small networks on Banana, and what they believe away from the data.

The top row has variational Gaussian processes with the kernels that the activations below them stand for. The bottom
row has networks of one hidden layer with 50 units and dropout 0.2, trained for 2000 epochs. The shading is sqrt(pq) of
the mean probability, which is the total uncertainty; the boundary comes from the pass without dropout. Activations are
scaled as in the authors' code.

Beyond the paper there are the errors on the 4,900 held-out points; total and epistemic uncertainty on circles around
the data, plain and with the restored prior, over several seeds; the sine-cosine activation, which does not decay; and
the limit of infinite width, on the two columns and on the features of a ReLU trunk, whose validation rows are a quarter
of the 400 points.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker sees that the modules keep the contract of ``base``
    from stationary.lab.experiments.banana import config, report, run
    from stationary.lab.experiments.base import ConfigModule, ReportModule, RunModule

    CONTRACT: tuple[ConfigModule, RunModule, ReportModule] = (config, run, report)
