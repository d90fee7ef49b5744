"""The paper's figures and tables: one file each, with ``Config``, ``configs``, ``run`` and ``draw``.

``run(config) -> dict of arrays`` computes and does no I/O; ``draw(arrays) -> dict of figures`` shows what was computed.
"""

from types import ModuleType

from stationary.experiments import covariance, far_from_data

EXPERIMENTS: dict[str, ModuleType] = {"covariance": covariance, "far_from_data": far_from_data}
