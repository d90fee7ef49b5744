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
    return np.where(r == 0, 1.0, 2 ** (1 - nu) / special.gamma(nu) * z**nu * special.kv(nu, z))


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
