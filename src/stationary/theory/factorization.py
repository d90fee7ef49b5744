"""From any stationary kernel to its activation: a function whose autocorrelation is the kernel.

Every sigma with |Fourier transform|^2 = S, the spectral density of the kernel, is one: the integral of
sigma(u) sigma(u + r) du is kernel(r). Two are worth having. The even one, "zero" phase, is the inverse transform of
sqrt S. The "causal" one is 0 for x <= 0, as the Matérn activation is; it exists where the integral of
|log S| / (1 + omega^2) is finite (Paley-Wiener), so where S falls like a power of omega, and not for an RBF.

All integrals run over ``Panels``: pieces short enough for a polynomial, whose Fourier transform is exact.
"""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from stationary._checks import check_finite
from stationary.theory._causal import causal_model
from stationary.theory._even import even_factor
from stationary.theory._panels import (
    DEGREE,
    MAX_PANELS,
    WEIGHT,
    Array,
    Panels,
    UnresolvedError,
    nodes,
    octaves,
)
from stationary.theory._spectrum import Spectrum, from_density, from_kernel
from stationary.theory.factors import FLAT, Callback, CausalFactor, EvenFactor


@dataclass(frozen=True)
class Factorised:
    """A factor of a kernel: a function whose autocorrelation is the kernel.

    Args:
        factor: the function, to all its accuracy.
        reach: the |x| beyond which the function is taken as 0.
        spectrum: the kernel and the density that were factorised.
    """

    factor: CausalFactor | EvenFactor
    reach: float
    spectrum: Spectrum

    def errors(self, *functions: Callback) -> list[float]:
        """How far the autocorrelation of each function is from the kernel, relative to kernel(0)."""
        length, height = self.spectrum.length, self.spectrum.height
        lags = np.concatenate([[0.0], np.geomspace(1e-3, 30, 48)])
        kernel = height * self.spectrum.covariance(lags)

        def scaled(x: Array) -> Array:
            return self.factor(torch.from_numpy(x * length)).numpy() * math.sqrt(length / height)

        edges = Panels.resolve(scaled, octaves(2.0**-6, self.reach / length), 1e-13, 1e-13).edges * length
        even = isinstance(self.factor, EvenFactor)
        return [
            float(np.abs(_autocorrelation(sigma, lags * length, edges, even) - kernel).max() / kernel[0])
            for sigma in functions
        ]


def factorise(kernel: Callback | None, spectral_density: Callback | None, tail: float | None, phase: str) -> Factorised:
    """A factor of a kernel, or of a spectral density; the arguments are those of ``activation_from_kernel``."""
    if phase not in ("causal", "zero"):
        raise ValueError(f'phase must be "causal" or "zero", got {phase!r}; "zero" works for every spectral density')
    if (kernel is None) == (spectral_density is None):
        got = "neither" if kernel is None else "both"
        raise ValueError(f"exactly one of kernel and spectral_density must be given, got {got}; pass one of them")
    if tail is not None:
        check_finite("tail", tail, "it is nu0 in S ~ omega^-(2 nu0 + 1), the nu of a Matérn kernel")
    try:
        spectrum = from_kernel(kernel) if kernel is not None else from_density(cast(Callback, spectral_density))
        if phase == "causal":
            causal = causal_model(spectrum, tail).factor(spectrum.length, spectrum.height)
            return Factorised(causal, _reach_of(causal), spectrum)
        even = even_factor(spectrum, tail)
        return Factorised(even, float(even.edges[-1]), spectrum)
    except UnresolvedError:
        raise ValueError(
            f"{'spectral_density' if kernel is None else 'kernel'} has more detail than {MAX_PANELS * DEGREE} samples "
            "resolve; smooth it"
        ) from None


def _reach_of(factor: CausalFactor) -> float:
    """Where the activation has fallen to 1e-11 of its peak."""
    x = torch.linspace(0, FLAT / factor.rate, 20001, dtype=torch.float64)[1:]
    value = factor(x).abs()
    return float(x[min(int((value > 1e-11 * value.max()).nonzero()[-1]) + 1, len(x) - 1)])


def _autocorrelation(function: Callback, lags: Array, edges: Array, even: bool) -> Array:
    """The integral of sigma(u) sigma(u + lag) du, piece by piece, for a function that is rough at 0 only."""

    def weighted(edges: Array) -> tuple[Array, Array]:
        u, weight = nodes(edges[:-1], edges[1:]).ravel(), np.outer(np.diff(edges) / 2, WEIGHT).ravel()
        return u, weight * function(torch.from_numpy(u)).numpy()

    def between(lag: float) -> float:
        u, left = weighted(np.append(edges[edges < lag / 2], lag / 2))
        return float(left @ function(torch.from_numpy(lag - u)).numpy())

    u, left = weighted(edges)
    parts = np.array_split(lags, len(lags) * len(u) // 2**16 + 1)
    beyond = np.concatenate([function(torch.from_numpy(part[:, None] + u)).numpy() @ left for part in parts])
    if not even:
        return beyond
    return 2 * beyond + np.array([2 * between(lag) if lag else 0.0 for lag in lags])
