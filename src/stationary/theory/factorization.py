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
from scipy.fft import dct
from scipy.linalg import lstsq
from torch import Tensor

from stationary._checks import check_finite
from stationary.theory._panels import (
    DEGREE,
    EPS,
    MAX_PANELS,
    WEIGHT,
    Array,
    Function,
    Panels,
    UnresolvedError,
    nodes,
    octaves,
)
from stationary.theory.factors import FLAT, Callback, CausalFactor, EvenFactor

FAR = 1e4  # in bandwidths: the highest frequency at which a kernel's density is asked for

ADMIXTURE = 'use phase="zero", or factorise (1 - 1e-3) * kernel + 1e-3 * Matérn, with tail = the nu of that Matérn'
NO_DENSITY = (
    "so it has no spectral density (a periodic, linear or constant kernel has none) and no activation; "
    "give a kernel that decays, for example its product with a Matérn kernel"
)

# The two ways in: a kernel, a density


@dataclass(frozen=True)
class _Spectrum:
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


def _from_kernel(callback: Callback) -> _Spectrum:
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
    return _Spectrum("kernel", covariance, density, noise, _end(density, 1e3 * noise, FAR), length, height)


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


def _from_density(callback: Callback) -> _Spectrum:
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

    end = _end(density, 1e-30)
    panels = Panels.resolve(density, _around_peaks(omega * length, sampled, end))
    ends = np.maximum(density(np.array([end / 2, end])), 1e-290)
    power = math.log2(ends[0] / ends[1])
    rest = float(ends[1]) * end / (power - 1) if power > 1 else 0.0  # what a power law has beyond the end, at lag 0

    def covariance(r: Array) -> Array:
        return (panels.cosine_transform(r) + np.where(r == 0, rest, 0.0)) / math.pi

    return _Spectrum("spectral_density", covariance, density, 0.0, _end(density, 1e-280, 1e6), length, height)


def _around_peaks(grid: Array, sampled: Array, end: float) -> Array:
    """Octaves, finer around the highest local maxima, which may be too narrow for bisection to hit."""
    peaks = np.flatnonzero((sampled[1:-1] > sampled[:-2]) & (sampled[1:-1] >= sampled[2:])) + 1
    peaks = peaks[np.argsort(-(grid * sampled)[peaks])][:8]
    widths = 2.0 ** -np.arange(1, 13)
    around = np.outer(grid[peaks], np.concatenate([1 - widths, [1.0], 1 + widths])).ravel()
    return np.unique(np.concatenate([octaves(2.0**-20, end), around[around < end]]))


def _end(density: Function, floor: float, limit: float = 1e12) -> float:
    """The first frequency from which the density stays below the floor, or the limit."""
    grid = np.geomspace(1e-4, limit, 401 if limit == FAR else 8001)  # a density that is an integral costs more
    return float(grid[min(np.flatnonzero(density(grid) > floor)[-1] + 1, len(grid) - 1)])


# The causal factor


def _slopes(spectrum: _Spectrum) -> tuple[float, float]:
    """By how much log S falls over the last two octaves before the cut: alike for a power law."""
    ends = spectrum.density(spectrum.cut * np.array([0.25, 0.5, 1.0]))
    before, last = np.diff(-np.log(np.maximum(ends, max(spectrum.noise, 1e-290))))
    return float(before), float(last)


def _power_law(spectrum: _Spectrum, tail: float | None) -> float | None:
    """The tail, where it is given or a density in closed form shows it; raise where there is no power law at all."""
    before, last = _slopes(spectrum)
    measured = (last / math.log(2) - 1) / 2
    allowed = math.inf if tail is None else 1.25 * (2 * tail + 1) * math.log(2) + 1
    if last > 1.5 * before + 1 and (tail is None or last > allowed):
        raise ValueError(
            f"{spectrum.name} has a density that falls off faster than any power of omega, so it has no causal factor "
            f"(Paley-Wiener: the integral of |log S| / (1 + omega^2) must be finite); {ADMIXTURE}"
            + ("" if tail is not None else "; or pass tail, if it is a power law after all")
        )
    if tail is None:
        nearest = round(2 * measured) / 2
        return None if spectrum.noise else nearest if abs(measured - nearest) < 1e-6 else measured
    if abs(last - before) < 0.02 * last and abs(measured - tail) > 0.1:
        raise ValueError(
            f"tail must be nu0 in S ~ omega^-(2 nu0 + 1), got {tail!r} where the density falls off as for "
            f"{measured:.2f}; pass that, or leave tail out"
        )
    return tail


@dataclass(frozen=True)
class _Model:
    """log S(omega) = sum_n a_n cos(n theta) - (tail + 1/2) log(rate^2 + omega^2), omega = rate tan(theta / 2)."""

    cepstrum: Array
    rate: float
    tail: float

    def density(self, omega: Array) -> Array:
        theta = 2 * np.arctan(omega / self.rate)
        log_ratio = np.polynomial.chebyshev.chebval(np.cos(theta), self.cepstrum)
        return np.exp(log_ratio - (self.tail + 0.5) * np.log(self.rate**2 + omega**2))

    def factor(self, length: float, height: float) -> CausalFactor:
        """The power series in z = e^(-i theta) of exp(a_0 / 2 + sum a_n z^n / 2), analytic in the disc, so causal."""
        n = 4 * len(self.cepstrum) + 256
        circle = np.exp(np.fft.fft(self.cepstrum / 2, n))
        series = np.fft.ifft(circle).real
        significant = np.flatnonzero(np.abs(series) > 4 * EPS * np.abs(series).max())[-1] + 1
        series = series[: min(significant, 2 * MAX_TERMS)]
        power = self.tail - 0.5
        series *= (-1.0) ** np.arange(len(series)) / math.gamma(power + 1)
        series *= math.sqrt(height / length) * length**-power
        return CausalFactor(torch.from_numpy(series), self.rate / length, power)


MAX_TERMS = 512  # each further one costs as much as a pass over the table
RATES = 2.0 ** np.arange(-5, 5.5, 0.5)


def _sampled_model(density: Function, tail: float) -> _Model:
    """The cepstrum by the discrete Fourier transform, at the rate for which it is shortest."""

    def cepstrum(rate: float, n: int) -> Array:
        omega = rate * np.tan(math.pi / 2 * (np.arange(n) + 0.5) / n)
        coefficients = dct(np.log(density(omega)) + (tail + 0.5) * np.log(rate**2 + omega**2)) / n
        coefficients[0] /= 2
        return coefficients

    def terms(cepstrum: Array) -> int:
        return int(np.flatnonzero(np.abs(cepstrum) > 1e-13 * max(1.0, np.abs(cepstrum).max()))[-1]) + 1

    rate = min(RATES, key=lambda rate: (terms(a := cepstrum(rate, 512)), np.abs(a[256:]).sum()))
    n = 512
    while terms(found := cepstrum(rate, n)) > n // 2 and n < 4 * MAX_TERMS:
        n *= 2
    return _Model(found[: min(terms(found), MAX_TERMS)], float(rate), tail)


def _causal_model(spectrum: _Spectrum, tail: float | None) -> _Model:
    tail = _power_law(spectrum, tail)
    if spectrum.noise == 0 and tail is not None:
        return _sampled_model(spectrum.density, tail)
    model, misfit = _fitted_model(spectrum, tail)
    nearest = round(2 * model.tail) / 2
    if tail is None and 0 < abs(model.tail - nearest) < 1e-3:  # most kernels have such a tail, and then no broken power
        refined, other = _fitted_model(spectrum, nearest)
        model, misfit = (refined, other) if other < 2 * misfit else (model, misfit)
    if misfit < 1e6:
        return model
    # A kink in log S, as that of the rational quadratic at 0, has no short cepstrum: take a long one.
    known = (_slopes(spectrum)[1] / math.log(2) - 1) / 2 if tail is None else tail
    return _sampled_model(_continued(spectrum, known), known)


def _continued(spectrum: _Spectrum, tail: float) -> Function:
    """The density with the power law in place of the noise beyond the cut."""

    def density(w: Array) -> Array:
        inside, outside = np.minimum(w, spectrum.cut), np.maximum(w, spectrum.cut)
        return spectrum.density(inside) * ((1 + spectrum.cut**2) / (1 + outside**2)) ** (tail + 0.5)

    return density


def _fitted_model(spectrum: _Spectrum, tail: float | None) -> tuple[_Model, float]:
    """The cepstrum by least squares, each sample of log S weighted by its own accuracy S / noise."""
    edges = octaves(2.0**-6, spectrum.cut)
    panels = Panels.resolve(spectrum.density, edges, floor=spectrum.noise)
    omega = nodes(panels.edges[:-1], panels.edges[1:]).ravel()
    sampled = spectrum.density(omega)
    omega, sampled = omega[sampled > 3 * spectrum.noise], sampled[sampled > 3 * spectrum.noise]
    order = np.argsort(-sampled)  # QR is accurate in every row, however small its weight, if the rows are sorted by it
    omega, sampled = omega[order], sampled[order]
    weight = sampled / spectrum.noise

    def fit(rate: float, terms: int) -> tuple[_Model, float]:
        theta = 2 * np.arctan(omega / rate)
        law = np.log(rate**2 + omega**2)
        columns = np.cos(np.outer(theta, np.arange(terms)))
        target = np.log(sampled) + (0.0 if tail is None else tail + 0.5) * law
        ridge = np.arange(terms, dtype=float) ** 2
        if tail is None:
            columns = np.column_stack([columns, -law])
            ridge = np.append(ridge, 0.0)
        rows = np.concatenate([weight[:, None] * columns, np.diag(ridge)])
        known = np.concatenate([weight * target, np.zeros(len(ridge))])
        solution = lstsq(rows, known, cond=1e-30, lapack_driver="gelsy")[0]
        model = _Model(solution[:terms], rate, float(solution[-1]) - 0.5 if tail is None else tail)
        return model, float(np.linalg.norm(rows @ solution - known))

    rate = float(min(RATES, key=lambda rate: fit(rate, 32)[1]))
    model, misfit = fit(rate, 32)
    for terms in (64, 128, 256, 512):
        if misfit < math.sqrt(len(omega)) or terms > len(omega):  # all that is left is noise
            break
        longer, other = fit(rate, terms)
        if other < misfit / 2:
            model, misfit = longer, other
    return model, misfit


# The even factor


def _even_factor(spectrum: _Spectrum, tail: float | None) -> EvenFactor:
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


def _without_noise(spectrum: _Spectrum, tail: float | None) -> tuple[Function, float, float, float]:
    """A density that has a root at every frequency, how much its end rings, the root's noise, and where it ends.

    Beyond what a kernel tells, that is the power law it follows, or else 0: sqrt would make 1e-8 of a noise of 1e-16.
    """
    if spectrum.noise == 0:
        return spectrum.density, 0.0, 0.0, _end(spectrum.density, 1e-40)
    try:
        model = _causal_model(spectrum, tail)
        return model.density, 0.0, 0.0, _end(model.density, 1e-40)
    except ValueError:
        floor = math.sqrt(10 * spectrum.noise)

    def faded(w: Array) -> Array:
        s = spectrum.density(w)
        return s * -np.expm1(-((s / (100 * spectrum.noise)) ** 4))

    return faded, floor / 100, floor / 30, _end(spectrum.density, 10 * spectrum.noise, FAR)


# What a kernel becomes


@dataclass(frozen=True)
class Factorised:
    """A factor of a kernel: a function whose autocorrelation is the kernel.

    Args:
        factor: the function, to all its accuracy.
        reach: where it has ended.
        spectrum: what was factorised.
    """

    factor: CausalFactor | EvenFactor
    reach: float
    spectrum: _Spectrum

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
        spectrum = _from_kernel(kernel) if kernel is not None else _from_density(cast(Callback, spectral_density))
        if phase == "causal":
            causal = _causal_model(spectrum, tail).factor(spectrum.length, spectrum.height)
            return Factorised(causal, _reach_of(causal), spectrum)
        even = _even_factor(spectrum, tail)
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

    def integral(lag: float, sign: int, edges: Array) -> float:
        u, weight = nodes(edges[:-1], edges[1:]).ravel(), np.outer(np.diff(edges) / 2, WEIGHT).ravel()
        left, right = function(torch.from_numpy(u)), function(torch.from_numpy(lag + sign * u))
        return float(weight @ (left * right).numpy())

    def even_integral(lag: float) -> float:
        between = 2 * integral(lag, -1, np.append(edges[edges < lag / 2], lag / 2)) if lag else 0.0
        return 2 * integral(lag, 1, edges) + between

    return np.array([even_integral(lag) if even else integral(lag, 1, edges) for lag in lags])
