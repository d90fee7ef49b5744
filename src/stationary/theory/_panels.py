"""Functions as polynomials on pieces short enough for them, and their Fourier transforms, which are then exact."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

EPS = float(np.finfo(float).eps)
DEGREE = 16
MAX_PANELS = 4096


class UnresolvedError(Exception):
    """A function that more than MAX_PANELS pieces do not resolve."""


def _legendre_rule() -> tuple[Array, Array, Array]:
    node, weight = np.polynomial.legendre.leggauss(DEGREE)
    transform = weight[:, None] * np.polynomial.legendre.legvander(node, DEGREE - 1) * (np.arange(DEGREE) + 0.5)
    return node, weight, transform


NODE, WEIGHT, TO_LEGENDRE = _legendre_rule()


@dataclass(frozen=True)
class Panels:
    """A function on [edges[0], edges[-1]] as a Legendre series per piece."""

    edges: Array
    series: Array

    @classmethod
    def resolve(cls, function: Function, edges: Array, noise: float = EPS, floor: float = 0.0) -> "Panels":
        """Halve the pieces until the last coefficients of each are rounding, or too small for an integral of size 1.

        Args:
            function: a function of about 1 in height and width.
            edges: ends of the first pieces.
            noise: error of the function relative to its peak in a piece.
            floor: absolute error of the function everywhere.
        """
        left, right = edges[:-1], edges[1:]
        done_left, done_series = [np.empty(0)], [np.empty((0, DEGREE))]
        while len(left):
            if len(left) + sum(map(len, done_left)) > MAX_PANELS:
                raise UnresolvedError
            values = function(nodes(left, right).ravel()).reshape(-1, DEGREE)
            series = values @ TO_LEGENDRE
            peak = np.abs(values).max(axis=1)
            # The ends, beyond the outermost nodes, may hide a kink.
            ends = np.abs([function(left) - series @ (-1.0) ** np.arange(DEGREE), function(right) - series.sum(axis=1)])
            rough = np.maximum(np.abs(series[:, -3:]).max(axis=1), ends.max(axis=0) / DEGREE)
            relative = noise * (8 + np.minimum(right, 1e3))  # a phase of right has a rounding of its own
            done = rough <= np.maximum(relative * peak + floor, noise / 16 / (right - left))
            done |= right - left <= 4 * EPS * right  # a jump
            done_left.append(left[done])
            done_series.append(series[done])
            middle = (left + right)[~done] / 2
            left, right = np.concatenate([left[~done], middle]), np.concatenate([middle, right[~done]])
        starts = np.concatenate(done_left)
        order = np.argsort(starts)
        return cls(np.append(starts[order], edges[-1]), np.concatenate(done_series)[order])

    def cosine_transform(self, omega: Array) -> Array:
        """The integral of f(x) cos(omega x), exact for the polynomials: that of P_n e^(i z t) is 2 i^n j_n(z)."""
        middle, half = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges) / 2
        result = np.empty_like(omega)
        for part in np.array_split(np.arange(len(omega)), len(omega) * len(middle) // 2**16 + 1):
            z, phase = np.outer(omega[part], half), np.outer(omega[part], middle)
            turns = (np.cos(phase), -np.sin(phase))
            total = np.zeros(len(part))
            for n, bessel in enumerate(spherical_bessels(z)):
                sign = (-1) ** (n // 2)
                total += (turns[n % 2] * bessel) @ (2 * sign * half * self.series[:, n])
            result[part] = total
        return result


def spherical_bessels(z: Array) -> Array:
    """j_0 to j_(DEGREE - 1) of z >= 0, (DEGREE, *z.shape), by j_(n - 1) + j_(n + 1) = (2 n + 1) / z j_n.

    The recurrence is stable upwards while n < z and downwards while n > z, so it starts at j_0 and j_1 where z is
    larger than every n, and elsewhere at the two last ones.
    """
    z = np.maximum(z, 1e-16)  # so that no j_n underflows; j_0 = 1 and j_1 = z / 3 change by less than their rounding
    result = np.empty((DEGREE, *z.shape))
    large = z > DEGREE
    for rows, orders in ((large, range(DEGREE)), (~large, range(DEGREE)[::-1])):
        x, step = z[rows], orders[1] - orders[0]
        found = {n: special.spherical_jn(n, x) for n in orders[:2]}
        for n in orders[1:-1]:
            found[n + step] = (2 * n + 1) / x * found[n] - found[n - step]
        for n in orders:
            result[n, rows] = found[n]
    result[0] = special.spherical_jn(0, z)  # near z = 0, where it is 1 and the last ones have lost digits
    return result


def nodes(left: Array, right: Array) -> Array:
    return (left + right)[:, None] / 2 + (right - left)[:, None] / 2 * NODE


def octaves(low: float, high: float) -> Array:
    """0, then the powers of two from low to high: a kernel changes over a length of the order of its lag."""
    return np.concatenate([[0.0], high * 2.0 ** -np.arange(math.ceil(math.log2(high / low)), -1, -1.0)])
