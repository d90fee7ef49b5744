"""The causal factor of a spectral density by its cepstrum, the Fourier series of log S in an angle of frequency."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.fft import dct
from scipy.linalg import lstsq

from stationary.theory._panels import EPS, Array, Function, Panels, nodes, octaves
from stationary.theory._spectrum import ADMIXTURE, Spectrum
from stationary.theory.factors import CausalFactor


def _slopes(spectrum: Spectrum) -> tuple[float, float]:
    """By how much log S falls over the last two octaves before the cut: alike for a power law."""
    ends = spectrum.density(spectrum.cut * np.array([0.25, 0.5, 1.0]))
    before, last = np.diff(-np.log(np.maximum(ends, max(spectrum.noise, 1e-290))))
    return float(before), float(last)


def _power_law(spectrum: Spectrum, tail: float | None) -> float | None:
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


def causal_model(spectrum: Spectrum, tail: float | None) -> _Model:
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


def _continued(spectrum: Spectrum, tail: float) -> Function:
    """The density with the power law in place of the noise beyond the cut."""

    def density(w: Array) -> Array:
        inside, outside = np.minimum(w, spectrum.cut), np.maximum(w, spectrum.cut)
        return spectrum.density(inside) * ((1 + spectrum.cut**2) / (1 + outside**2)) ** (tail + 0.5)

    return density


def _fitted_model(spectrum: Spectrum, tail: float | None) -> tuple[_Model, float]:
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
