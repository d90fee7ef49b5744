"""The even factor of a spectral density: the inverse Fourier transform of its root."""

import math

import numpy as np
import torch

from stationary.theory._causal import causal_model
from stationary.theory._panels import EPS, Array, Function, Panels, UnresolvedError, octaves
from stationary.theory._spectrum import FAR, Spectrum, end_of
from stationary.theory.factors import EvenFactor


def even_factor(spectrum: Spectrum, tail: float | None) -> EvenFactor:
    """The inverse transform of sqrt S."""
    density, ringing, floor, end = _without_noise(spectrum, tail)

    def root(w: Array) -> Array:
        return np.sqrt(np.maximum(density(w), 0.0))

    try:
        before, last = root(np.array([end / 2, end]))
        if end > 1e11 and before < 2.1 * last:  # sqrt S has no integral, or nearly so
            raise UnresolvedError
        roots = Panels.resolve(root, octaves(2.0**-6, end), max(spectrum.noise, EPS), floor)

        def sigma(x: Array) -> Array:
            return roots.cosine_transform(x) / math.pi

        peak, reach = float(sigma(np.zeros(1))[0]), 4.0
        # Beyond 1024 the nodes of the table get too far apart to follow a slow decay for its own sake.
        while reach < 2**13 and np.abs(sigma(np.linspace(reach / 2, reach, 64))).max() > (
            1e-10 * peak + ringing if reach < 1024 else 1e-4 * peak
        ):
            reach *= 2
        panels = Panels.resolve(sigma, octaves(2.0**-6, reach), 1e-13, max(1e-13 * peak, ringing / 30))
    except UnresolvedError:
        raise ValueError(
            f'{spectrum.name} is too rough for phase="zero": for a tail near 1/2 or below, that activation has no '
            'finite value at 0; use phase="causal"'
        ) from None
    series = panels.series * math.sqrt(spectrum.height / spectrum.length)
    return EvenFactor(torch.from_numpy(panels.edges * spectrum.length), torch.from_numpy(series))


def _without_noise(spectrum: Spectrum, tail: float | None) -> tuple[Function, float, float, float]:
    """A density that has a root at every frequency, how much its end rings, the root's noise, and where it ends.

    Beyond what a kernel tells, that is the power law it follows, or else 0: sqrt would make 1e-8 of a noise of 1e-16.
    """
    if spectrum.noise == 0:
        return spectrum.density, 0.0, 0.0, end_of(spectrum.density, 1e-40)
    try:
        model = causal_model(spectrum, tail)
        return model.density, 0.0, 0.0, end_of(model.density, 1e-40)
    except ValueError:
        floor = math.sqrt(10 * spectrum.noise)

    def faded(w: Array) -> Array:
        s = spectrum.density(w)
        return s * -np.expm1(-((s / (100 * spectrum.noise)) ** 4))

    return faded, floor / 100, floor / 30, end_of(spectrum.density, 10 * spectrum.noise, FAR)
