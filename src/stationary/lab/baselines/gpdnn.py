"""GPDNN: a sparse GP on a network's features, trained together (Bradshaw, Matthews and Ghahramani, 2017)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stationary.lab.baselines.likelihoods import RobustMax
from stationary.lab.baselines.sparse import (
    RadialKernel,
    SparseGP,
    SparseMethod,
    check_data,
    check_hidden,
    check_settings,
    kmeans,
    relu_trunk,
    some_rows,
    typical_distance,
)

WEIGHT_STD, BIAS = 0.1, 0.1  # initial: standard deviation of the weights, and value of the biases


@dataclass(frozen=True)
class GPDNN(SparseMethod):
    """A ReLU network whose last layer is linear, a sparse GP on its outputs, and the RobustMax likelihood.

    Training starts as in the authors' example code: weights are truncated normal numbers of standard deviation 0.1,
    biases are 0.1, and inducing points are k-means centres of the untrained network's features of 5000 rows. With
    PyTorch's initial weights the features, and with them the length-scale, would be a hundred times smaller; a few
    steps of Adam would then carry the features so far from every inducing point that no gradient brings them back.

    The variational parameters are those of the function's values at the inducing points. With whitened ones a rare
    class may never be predicted, since RobustMax gives a class that others hide hardly a gradient. If a rare class is
    lost even so, lower the learning rate: on Covtype 1e-4 instead of 1e-3 raises AUC from 0.86 to 0.92.

    Args:
        nu: smoothness of the kernel: 0.5, 1.5, 2.5 or ``math.inf`` (RBF).
        n_inducing: number of inducing points; there are at most as many as rows.
        epsilon: probability, in the RobustMax likelihood, that a label is not that of the largest function. No
            prediction is surer than 1 - epsilon.
        hidden: widths of the network's layers; the last one is the number of features.
        lengthscale: initial length-scale of the kernel; None takes the mean distance between features.
        jitter: number added to the diagonal of the inducing points' correlations.
    """

    nu: float = 1.5
    n_inducing: int = 50
    epsilon: float = 0.1
    hidden: tuple[int, ...] = (1000, 1000, 500, 50)
    lengthscale: float | None = None
    jitter: float = 1e-4

    def __post_init__(self) -> None:
        check_settings(self.nu, {"n_inducing": self.n_inducing}, self.jitter, self.lengthscale)
        check_hidden(self.hidden)
        if not 0 < self.epsilon < 0.5:
            raise ValueError(f"epsilon must be in (0, 0.5), the share of wrong labels, got {self.epsilon!r}; use 0.1")

    def build(self, x: Tensor, n_classes: int) -> SparseGP:
        """Build a fresh module for training inputs x, (n, d), on their device."""
        check_data(x, n_classes)
        trunk = relu_trunk(x.shape[1], self.hidden)
        for layer in trunk:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=WEIGHT_STD, a=-2 * WEIGHT_STD, b=2 * WEIGHT_STD)
                nn.init.constant_(layer.bias, BIAS)
        with torch.no_grad():
            features = trunk.to(x)(some_rows(x))
        points = kmeans(features, self.n_inducing)
        kernel = RadialKernel(self.nu, self.lengthscale or typical_distance(features))
        likelihood = RobustMax(n_classes, self.epsilon)
        return SparseGP(trunk, kernel, points, likelihood, len(x), self.jitter, whitened=False).to(x)
