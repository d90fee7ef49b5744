"""SVGP: the sparse variational GP classifier of Hensman, Matthews and Ghahramani (2015), as GPflow has it."""

from dataclasses import dataclass

from torch import Tensor, nn

from stationary.lab.baselines.likelihoods import Bernoulli, Softmax
from stationary.lab.baselines.sparse import (
    RadialKernel,
    SparseGP,
    SparseMethod,
    check_data,
    check_settings,
    kmeans,
    some_rows,
    typical_distance,
)


@dataclass(frozen=True)
class SVGP(SparseMethod):
    """A sparse GP on the inputs: one latent function and the probit for two classes, else one per class and softmax.

    Inducing points start at k-means centres of 5000 rows. They are trained together with the length-scale and the
    variance.

    Args:
        nu: smoothness of the kernel: 0.5, 1.5, 2.5 or ``math.inf`` (RBF).
        n_inducing: number of inducing points; there are at most as many as rows.
        n_samples: number of random draws for the softmax, in training and in prediction; the probit needs none.
        lengthscale: initial length-scale; None takes the mean distance between rows. At GPflow's default of 1,
            standardised inputs in 50 dimensions, whose distances are about 10, would all be uncorrelated.
        ard: whether each column of x has a length-scale of its own (automatic relevance determination).
        jitter: number added to the diagonal of the inducing points' correlations. GPflow's 1e-6 is for float64: the
            largest eigenvalue of 500 correlations may be 500, which float32 rounds to 3e-5. On UCI data, with
            length-scales up to a hundred times the distances, factorizations fail below 1e-5.
        seed: seed of the random draws in prediction.
    """

    nu: float = 1.5
    n_inducing: int = 500
    n_samples: int = 100
    lengthscale: float | None = None
    ard: bool = False
    jitter: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        counts = {"n_inducing": self.n_inducing, "n_samples": self.n_samples}
        check_settings(self.nu, counts, self.jitter, self.lengthscale)

    def build(self, x: Tensor, n_classes: int) -> SparseGP:
        """Build a fresh module for training inputs x, (n, d), on their device."""
        check_data(x, n_classes)
        rows = some_rows(x)
        points = kmeans(rows, self.n_inducing)
        lengthscale, n_lengthscales = self.lengthscale or typical_distance(rows), x.shape[1] if self.ard else 1
        kernel = RadialKernel(self.nu, lengthscale, n_lengthscales=n_lengthscales)
        likelihood = Bernoulli() if n_classes == 2 else Softmax(n_classes, self.n_samples, self.n_samples)
        return SparseGP(nn.Identity(), kernel, points, likelihood, len(x), self.jitter).to(x)
