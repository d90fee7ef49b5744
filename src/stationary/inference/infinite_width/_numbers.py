"""The few numbers that the prior of infinite width has."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stationary.inference.infinite_width._noise import Noise


@dataclass(frozen=True)
class Numbers:
    """Length-scale, variances and prior mean.

    Args:
        lengthscale: length-scale of the kernel in the geometry, () or one for each column (d,).
        variance: prior variance of the outputs: one number for classes, (m,) for real values.
        temperature: factor on the variance of the outputs of classes, for their probabilities alone.
        offset: (c,) prior mean of the outputs.
        noise: (m,) noise variances of real values; None for classes.
        input_noise: the noise variance at each place, where it depends on it; far from the data it is ``noise``.
    """

    lengthscale: Tensor
    variance: Any
    temperature: float
    offset: Tensor
    noise: Tensor | None = None
    input_noise: Noise | None = None

    def noise_at(self, u: Tensor) -> Tensor:
        """The noise variances of real values at the places u (n, d): (m,), or (n, m) where they depend on it."""
        assert self.noise is not None
        return self.noise if self.input_noise is None else self.input_noise(u)
