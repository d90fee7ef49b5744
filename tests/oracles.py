"""Independent references: written from the definitions in mpmath or SciPy, never from the library's own formulas."""

import itertools
import math

import mpmath
import numpy as np
from scipy import integrate, special


def matern_kernel(r, nu, lengthscale=1.0):
    """The Matérn kernel by its Bessel function (eq. 6 of the paper)."""
    r = np.abs(np.asarray(r, dtype=float))
    z = np.sqrt(2 * nu) * np.where(r == 0, 1, r) / lengthscale
    near = (r == 0) | (z < (1e-8 if nu >= 1 else 1e-290))  # there it is 1, and the two factors leave the number range
    z = np.where(near, 1, z)
    return np.where(near, 1.0, 2 ** (1 - nu) / special.gamma(nu) * z**nu * special.kv(nu, z))


def matern_activation(x, nu, lengthscale=1.0, dim=1):
    """The activation in mpmath, from q and Gamma as the paper writes it; for dim > 1 with 1F1."""
    x, nu, lengthscale = mpmath.mpf(x), mpmath.mpf(nu), mpmath.mpf(lengthscale)
    if x <= 0:
        return mpmath.mpf(0)
    rate = mpmath.sqrt(2 * nu) / lengthscale
    half = mpmath.mpf(dim) / 2
    q = mpmath.sqrt(
        2 * mpmath.pi * mpmath.gamma(nu + half) * rate ** (2 * nu) / (mpmath.gamma(nu) * mpmath.gamma(half))
    )
    polynomial = mpmath.hyp1f1(mpmath.mpf(1 - dim) / 2, nu + 0.5, rate * x, zeroprec=1000)
    return q / mpmath.gamma(nu + 0.5) * x ** (nu - 0.5) * mpmath.exp(-rate * x) * polynomial


def autocorrelation(activation, r, start, scale):
    """The integral of activation(u) activation(u + r) over u > start, for an activation that is rough at ``start``.

    With u = start + scale e^v the trapezoidal rule converges geometrically, whatever the power at the end point.
    """
    v = np.arange(-160, 8, 1 / 16)
    u = scale * np.exp(v)
    return float(np.sum(activation(start + u) * activation(start + u + r) * u) / 16)


def gaussian_expectation(function, mean=0.0, std=1.0, breaks=()):
    """E[function(x)] for x ~ N(mean, std^2), by adaptive quadrature between the breaks."""
    edges = sorted({mean - 12 * std, mean + 12 * std, *breaks})
    density = lambda x: math.exp(-0.5 * ((x - mean) / std) ** 2) / (math.sqrt(2 * math.pi) * std)
    return sum(
        integrate.quad(lambda x: function(x) * density(x), a, b, limit=500, epsabs=1e-10, epsrel=1e-9)[0]
        for a, b in itertools.pairwise(edges)
    )


def gaussian_pair_expectation(activation, s1, s2, correlation, step=1 / 24):
    """E[f(z1) f(z2)] over z1, z2 > 0 of a Gaussian pair, by the trapezoidal rule in both logarithms."""
    v = np.arange(-34, 4, step)
    z = np.exp(v)
    f1, f2 = activation(s1 * z), activation(s2 * z)
    determinant = 1 - correlation**2
    exponent = -(z[:, None] ** 2 - 2 * correlation * z[:, None] * z[None] + z[None] ** 2) / (2 * determinant)
    density = np.exp(exponent) / (2 * np.pi * np.sqrt(determinant))
    return float((f1 * z) @ density @ (f2 * z)) * step**2


def over_bias(activation, s1, s2, bias_std, step=1 / 64):
    """E[f(s1 + b) f(s2 + b)], b ~ N(0, bias_std^2), for f zero left of 0, by the trapezoidal rule in log(b - start)."""
    low, r = min(s1, s2), abs(s1 - s2)
    u = np.exp(np.arange(-60, 4, step))
    density = np.exp(-0.5 * ((u - low) / bias_std) ** 2) / (np.sqrt(2 * np.pi) * bias_std)
    return float((activation(u) * activation(u + r) * density * u).sum()) * step
