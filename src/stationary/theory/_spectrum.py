"""What is to be factorised: a kernel with its spectral density, given either of the two."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stationary.theory._panels import EPS, Array, Function, Panels, UnresolvedError, octaves
from stationary.theory.factors import Callback

FAR = 1e4  # in bandwidths: the highest frequency at which a kernel's density is asked for

ADMIXTURE = 'use phase="zero", or factorise (1 - 1e-3) * kernel + 1e-3 * Matérn, with tail = the nu of that Matérn'
NO_DENSITY = (
    "so it has no spectral density (a periodic, linear or constant kernel has none) and no activation; "
    "give a kernel that decays, for example its product with a Matérn kernel"
)


@dataclass(frozen=True)
class Spectrum:
    """A kernel and its density in units of its own length and height.

    kernel(r) = height covariance(r / length), S(omega) = height length density(length omega). The density is known to
    ``noise`` (0: to rounding) and stands above it, or above underflow, up to the frequency ``cut``.
    """

    name: str
    covariance: Function
    density: Function
    noise: float
    cut: float
    length: float
    height: float


def _on_arrays(name: str, callback: Callback) -> Function:
    """The callback on NumPy arrays, with its values checked."""

    def function(x: Array) -> Array:
        values = callback(torch.tensor(x))
        if not isinstance(values, Tensor) or values.shape != x.shape:
            got = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(
                f"{name} must return a tensor of the shape of its argument, {x.shape}, got {got}; "
                f"write it with torch functions, for example lambda r: torch.exp(-r.abs())"
            )
        array = values.detach().double().cpu().numpy()
        if not np.isfinite(array).all():
            where = x[~np.isfinite(array)][0]
            raise ValueError(
                f"{name} must be finite, got {array[~np.isfinite(array)][0]} at {where:g}; extend it there"
            )
        return array

    at = np.geomspace(1e-3, 1e2, 61)
    right, left = function(at), function(-at)
    if np.abs(right - left).max() > 1e-6 * np.abs(right).max():
        worst = at[np.argmax(np.abs(right - left))]
        raise ValueError(f"{name} must be even, got different values at {worst:g} and {-worst:g}; use abs()")
    return function


def from_kernel(callback: Callback) -> Spectrum:
    kernel = _on_arrays("kernel", callback)
    lags = np.append(0.0, np.geomspace(1e-12, 1e12, 2401))
    values = kernel(lags)
    height, worst = float(values[0]), int(np.argmax(np.abs(values)))
    if height <= 0 or abs(values[worst]) > height * (1 + 1e-6):
        raise ValueError(
            f"kernel must be a covariance, |kernel(r)| <= kernel(0), got kernel(0) = {height:g} and {values[worst]:g} "
            f"at r = {lags[worst]:g}; a linear kernel is not stationary and has no spectral density"
        )
    if not (values < height / 2).any():
        raise ValueError(f"kernel never falls below kernel(0) / 2, {NO_DENSITY}")
    length = float(lags[np.argmax(values < height / 2)])

    def covariance(r: Array) -> Array:
        return kernel(r * length) / height

    reach = _reach(covariance, length)
    eps = float(torch.finfo(callback(torch.zeros(1, dtype=torch.float64)).dtype).eps)
    try:
        panels = Panels.resolve(covariance, octaves(1 / 16, reach), eps)
    except UnresolvedError:
        raise ValueError(
            f"kernel has not decayed by the end of the grid, r = {1e3 * length:.3g}, or has too much detail; pass "
            f"spectral_density instead. If it is band-limited, as sinc is, it has no causal factor either: {ADMIXTURE}"
        ) from None

    def density(omega: Array) -> Array:
        return 2 * panels.cosine_transform(omega)

    grid = np.geomspace(1e-4, FAR, 400)
    sampled = density(grid)
    lowest = float(sampled.min())
    if lowest < -1e-6 * sampled.max():
        raise ValueError(
            f"kernel must be positive semi-definite, got the spectral density S = {height * length * lowest:.3g} at "
            f"omega = {grid[np.argmin(sampled)] / length:.3g}; check its formula"
        )
    noise = max(16 * eps * float(np.diff(panels.edges) @ np.abs(panels.series[:, 0])), -2 * lowest)
    return Spectrum("kernel", covariance, density, noise, end_of(density, 1e3 * noise, FAR), length, height)


def _reach(covariance: Function, length: float) -> float:
    """The lag beyond which the kernel is 0 to rounding."""
    spread = np.modf(np.arange(1, 513) * (math.sqrt(5) - 1) / 2)[0]  # equidistributed, in step with no period

    def envelope(lag: float) -> float:
        return float(np.abs(covariance(lag * (1 + spread))).max())

    if envelope(1e6) > max(1e-9, 0.9 * envelope(1e3)):
        raise ValueError(
            f"kernel does not decay, still {envelope(1e6):.2g} kernel(0) at r = {1e6 * length:.3g}, {NO_DENSITY}"
        )
    reach = 2.0
    while envelope(reach) > EPS / 16 and reach < 2.0**52:
        reach *= 2
    if envelope(reach) > 8 * EPS:
        raise ValueError(
            f"kernel has not decayed by the end of the grid, still {envelope(reach):.1g} kernel(0) at r = "
            f"{reach * length:.3g}; pass spectral_density instead, or multiply it by a long Matérn kernel"
        )
    return reach


def from_density(callback: Callback) -> Spectrum:
    function = _on_arrays("spectral_density", callback)
    omega = np.append(0.0, np.geomspace(1e-12, 1e12, 8193))
    sampled = function(omega)
    if sampled.min() < 0:
        raise ValueError(
            f"spectral_density must not be negative, got {sampled.min():.3g} at omega = "
            f"{omega[np.argmin(sampled)]:.3g}; a kernel with such a density is not positive semi-definite"
        )
    top = int(np.argmax(omega * sampled))
    if not 1 < top < len(omega) - 1:
        raise ValueError(
            "spectral_density must have a finite positive integral, got one that is 0 or does not fall off faster "
            "than 1 / omega; check its formula"
        )
    length, height = 1 / float(omega[top]), float(omega[top] * sampled[top])

    def density(w: Array) -> Array:
        return function(w / length) / (height * length)

    end = end_of(density, 1e-30)
    panels = Panels.resolve(density, _around_peaks(omega * length, sampled, end))
    ends = np.maximum(density(np.array([end / 2, end])), 1e-290)
    power = math.log2(ends[0] / ends[1])
    rest = float(ends[1]) * end / (power - 1) if power > 1 else 0.0  # what a power law has beyond the end, at lag 0

    def covariance(r: Array) -> Array:
        return (panels.cosine_transform(r) + np.where(r == 0, rest, 0.0)) / math.pi

    return Spectrum("spectral_density", covariance, density, 0.0, end_of(density, 1e-280, 1e6), length, height)


def _around_peaks(grid: Array, sampled: Array, end: float) -> Array:
    """Octaves, finer around the highest local maxima, which may be too narrow for bisection to hit."""
    peaks = np.flatnonzero((sampled[1:-1] > sampled[:-2]) & (sampled[1:-1] >= sampled[2:])) + 1
    peaks = peaks[np.argsort(-(grid * sampled)[peaks])][:8]
    widths = 2.0 ** -np.arange(1, 13)
    around = np.outer(grid[peaks], np.concatenate([1 - widths, [1.0], 1 + widths])).ravel()
    return np.unique(np.concatenate([octaves(2.0**-20, end), around[around < end]]))


def end_of(density: Function, floor: float, limit: float = 1e12) -> float:
    """The first frequency from which the density stays below the floor, or the limit."""
    grid = np.geomspace(1e-4, limit, 401 if limit == FAR else 8001)  # a density that is an integral costs more
    return float(grid[min(np.flatnonzero(density(grid) > floor)[-1] + 1, len(grid) - 1)])
