"""The activation functions, each by its formula.

``_recompute`` runs the formula: in eager mode it keeps only the input for the backward pass; the compiler,
``torch.func`` and forward-mode differentiation see the formula itself. ``_cpu``, ``_periodic`` and ``_triton``
are the same functions again, faster.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu as leaky_relu
from torch.nn.functional import relu as relu

from stationary._checks import check_finite, check_positive
from stationary.activations._cpu import LARGE, LOG2_E, SMALL, MaternTwin
from stationary.activations._periodic import SINE, TRIANGLE, TWO_TRIANGLES, PeriodicTwin
from stationary.activations._recompute import bound_of, elementwise
from stationary.theory import spectral
from stationary.theory.spectral import Number, exp, log, sqrt

SLOPE_FLOOR = 1e-3  # in length-scales: nu < 3/2 has an infinite slope at 0+, so it is taken at this x or beyond
NU_HINT = "use 0.5 (rough) up to math.inf (smooth)"


# Matérn


def matern(
    x: Tensor,
    nu: Number = 2.5,
    lengthscale: Number = 1.0,
    variance: Number = 1.0,
    *,
    centered: bool = False,
    dim: int = 1,
    surrogate: float | None = None,
) -> Tensor:
    """The Matérn activation, sigma(x) = A x^(nu - 1/2) e^(-lambda x) for x > 0, else 0 (eq. 8 of the paper).

    Its autocorrelation, the integral of sigma(u) sigma(u + r) du, is ``variance`` times the Matérn kernel in r, for
    every nu > 0; lambda = sqrt(2 nu) / lengthscale and A^2 = variance (2 lambda)^(2 nu) / Gamma(2 nu).

    Value and slope at 0 are 0. For nu < 3/2 (except 1/2) the slope is infinite at 0+: gradients take it at
    x >= 0.001 lengthscale. For nu < 1/2 the function is unbounded at 0+. In float16, a value or a slope beyond 65504,
    the largest number there is, becomes that number: ``Matern(1.5, lengthscale=1e-3)`` has such slopes.

    Args:
        x: any floating-point tensor.
        nu: smoothness of the kernel, any positive number; ``math.inf`` is the centred limit, ``rbf``.
        lengthscale: length-scale of the kernel, positive. Slopes below a length-scale of 1e-20 overflow float32.
        variance: variance of the kernel, which is the integral of sigma squared; positive.
        centered: whether to shift the centre of mass of sigma squared, nu / lambda, to 0. That removes the dead
            half-line.
        dim: an odd number. Weights uniform on the unit sphere of R^dim and a flat bias then give exactly the isotropic
            ``dim``-dimensional Matérn kernel: sigma is multiplied by a Laguerre polynomial of degree (dim - 1) / 2.
        surrogate: standard deviation of the Gaussian noise that blurs the gradient at the jump of nu = 1/2, and only
            there: the value stays exact, and the gradient, which barely sees the threshold otherwise, becomes that of
            the blurred sigma.
    """
    check_positive("nu", nu, NU_HINT)
    check_finite("lengthscale", lengthscale)
    check_finite("variance", variance)
    check_dim(dim)
    check_surrogate(surrogate, nu)
    if not isinstance(nu, Tensor) and math.isinf(nu):
        return rbf(x, lengthscale, variance)
    has_twin = (
        dim == 1
        and surrogate is None
        and not isinstance(nu, Tensor)
        and not isinstance(lengthscale, Tensor)
        and not isinstance(variance, Tensor)
    )
    twin = (lambda: matern_twin(nu, lengthscale, variance, centered=centered)) if has_twin else None
    plain = partial(_matern, centered=centered, dim=dim, surrogate=surrogate, bound=bound_of(x))
    return elementwise(plain, x, nu, lengthscale, variance, twin=twin)


def exponential(
    x: Tensor, lengthscale: Number = 1.0, variance: Number = 1.0, *, surrogate: float | None = None
) -> Tensor:
    """The Matérn-1/2 activation, a step that decays exponentially: ``matern`` with nu = 1/2."""
    return matern(x, 0.5, lengthscale, variance, surrogate=surrogate)


def _matern(
    x: Tensor,
    nu: Number,
    lengthscale: Number,
    variance: Number,
    *,
    centered: bool,
    dim: int,
    surrogate: float | None,
    bound: float,
) -> Tensor:
    """The definition of record, for floats and tensors alike: compiled, transformed and differentiated as it is."""
    nu, lengthscale, variance = spectral.precise(nu), spectral.precise(lengthscale), spectral.precise(variance)
    rate = spectral.rate(nu, lengthscale)
    p, centre, degree = nu - 0.5, nu / rate, (dim - 1) // 2
    log_peak = spectral.log_amplitude(nu, lengthscale, dim=dim) + log(variance) / 2 + p * log(centre) - nu
    floor = _slope_floor(nu, lengthscale)
    floor_slope = exp(log_peak + p * log(floor / centre) - nu * (floor / centre - 1)) * (p / floor - rate)
    p, n, scale, log2_peak, centre, floor, floor_slope = (
        a.to(x.dtype) if isinstance(a, Tensor) else a
        for a in (p, nu * LOG2_E, 1 / centre, log_peak * LOG2_E, centre, floor, floor_slope)
    )
    if centered:
        x = x + centre
    positive = ~(x <= 0)  # so that NaN stays NaN

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        """u = x / centre, sigma, and for dim > 1 sigma without its Laguerre function; for x > 0."""
        u = torch.where(positive, x * scale, 1.0).clamp(torch.finfo(x.dtype).tiny, LARGE)
        exponent = p * torch.log2(u) - n * (u - 1) + log2_peak
        if degree == 0:
            return u, torch.exp2(exponent)
        rest = torch.exp2(exponent + n * u / 2)  # the Laguerre function has the other half of the decay
        return u, rest * _laguerre_function(u * (n / LOG2_E), p, degree), rest

    def value(x: Tensor) -> Tensor:
        return torch.where(positive, parts(x)[1], 0.0)

    def slope(x: Tensor) -> Tensor:
        u, y, *rest = parts(x)
        along = y * (p / u - n / LOG2_E)
        if degree:
            derivative = _laguerre_function(u * (n / LOG2_E), p + 1, degree - 1) * (degree / (p + 1))
            along = along - n / LOG2_E * rest[0] * derivative
        return torch.where(positive, scale * along, 0.0)

    if surrogate is not None and not torch.compiler.is_exporting():
        blurred = _blurred_exponential_slope(x, rate, variance, surrogate)
        return _with_slope(value(x).clamp(-bound, bound), x, blurred.clamp(-bound, bound))
    return _straightened(value, slope, x, (x < floor) & positive, floor_slope, bound)


def _straightened(
    value: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    x: Tensor,
    steep: Tensor,
    steepest: Number,
    bound: float,
) -> Tensor:
    """value(x), but with the slope ``steepest`` where ``steep``, and with no value or slope beyond ``bound``."""
    if math.isinf(bound):
        y, slopes = value(torch.where(steep, x.detach(), x)), steepest
    else:
        slopes = torch.where(steep, steepest, slope(x)).detach()
        steep = steep | (slopes.abs() > bound) | (value(x).detach().abs() > bound)
        y = value(torch.where(steep, x.detach(), x)).clamp(-bound, bound)
        slopes = slopes.clamp(-bound, bound)
    return y + torch.where(steep, slopes * (x - x.detach()), 0.0)


@lru_cache(maxsize=256)
def matern_twin(nu: float, lengthscale: float, variance: float, *, centered: bool) -> MaternTwin:
    """The faster version of ``matern`` with these parameters, or of ``rbf`` for nu = inf; its constants are kept."""
    if math.isinf(nu):
        log_amplitude = math.log(2 / math.pi) / 4 + math.log(variance / lengthscale) / 2
        return MaternTwin(nu=nu, rate=1 / lengthscale, log_amplitude=log_amplitude, offset=0.0, floor=0.0)
    rate = float(spectral.rate(nu, lengthscale))
    return MaternTwin(
        nu=nu,
        rate=rate,
        log_amplitude=float(spectral.log_amplitude(nu, lengthscale)) + math.log(variance) / 2,
        offset=nu / rate if centered else 0.0,
        floor=float(_slope_floor(nu, lengthscale)),
    )


def _slope_floor(nu: Number, lengthscale: Number) -> Number:
    """The x whose slope every smaller x gets: that of nu < 3/2 is infinite at 0, and 1/x overflows for every nu."""
    if isinstance(nu, Tensor):
        return torch.where((nu < 1.5) & (nu != 0.5), SLOPE_FLOOR, SMALL) * lengthscale
    return (SLOPE_FLOOR if nu < 1.5 and nu != 0.5 else SMALL) * lengthscale


def _laguerre_function(y: Tensor, alpha: Number, degree: int) -> Tensor:
    """e^(-y/2) 1F1(-degree; alpha + 1; y): a Laguerre polynomial by recurrence, scaled so that nothing overflows."""
    previous, current = torch.zeros_like(y), torch.exp2(-LOG2_E / 2 * y)
    for n in range(degree):
        previous, current = current, ((2 * n + 1 + alpha - y) * current - n * previous) / (n + 1 + alpha)
    return current


def _blurred_exponential_slope(x: Tensor, rate: Number, variance: Number, width: float) -> Tensor:
    """The derivative of E[sigma(x + e)], e ~ N(0, width^2), for nu = 1/2.

    The blurred function is sqrt(2 rate) e^(-rate x + (rate width)^2 / 2) Phi(x / width - rate width); each tail of Phi
    is written so that no factor overflows.
    """
    z = (rate * width - x / width) / math.sqrt(2)
    left = torch.exp(-0.5 * (x / width).square()) * torch.special.erfcx(z.clamp(min=0.0))
    start = rate * width**2  # where z = 0
    right = torch.exp(-rate * (x.clamp(min=start) - start / 2)) * torch.special.erfc(z.clamp(max=0.0))
    blurred = torch.where(x < start, left, right) / 2
    return sqrt(2 * rate * variance) * (_normal_density(x, width) - rate * blurred)


# The others


def rbf(x: Tensor, lengthscale: Number = 1.0, variance: Number = 1.0) -> Tensor:
    """The Gaussian bump (2 variance^2 / (pi lengthscale^2))^(1/4) e^(-(x / lengthscale)^2), Matérn with nu = inf.

    Its autocorrelation is variance e^(-r^2 / (2 lengthscale^2)). In float16, values and slopes end at 65504, as those
    of ``matern``.
    """
    check_finite("lengthscale", lengthscale)
    check_finite("variance", variance)
    has_twin = not isinstance(lengthscale, Tensor) and not isinstance(variance, Tensor)
    twin = (lambda: matern_twin(math.inf, lengthscale, variance, centered=False)) if has_twin else None
    return elementwise(partial(_rbf, bound=bound_of(x)), x, lengthscale, variance, twin=twin)


def _rbf(x: Tensor, lengthscale: Number, variance: Number, bound: float) -> Tensor:
    def value(x: Tensor) -> Tensor:
        end = math.sqrt(LARGE)
        u = (x / lengthscale).clamp(-end, end)  # so that u^2 stays finite
        return (2 / math.pi) ** 0.25 * sqrt(variance / lengthscale) * torch.exp2(-LOG2_E * u * u)

    def slope(x: Tensor) -> Tensor:
        return -2 * (x / lengthscale) / lengthscale * value(x)

    if math.isinf(bound):
        return value(x)
    return _straightened(value, slope, x, torch.zeros_like(x, dtype=torch.bool), 0.0, bound)


def erf(x: Tensor) -> Tensor:
    """The error function, a sigmoid from -1 to 1."""
    return elementwise(torch.erf, x)


def step(x: Tensor, *, surrogate: float | None = None) -> Tensor:
    """The Heaviside step, 0 at 0.

    Args:
        x: any floating-point tensor.
        surrogate: standard deviation of the Gaussian noise that blurs the gradient. The gradient of a step is 0
            everywhere, so nothing before it learns; with a surrogate the value stays exact and the gradient is that of
            the blurred step.
    """
    check_surrogate(surrogate)
    return elementwise(partial(_step, surrogate=surrogate, bound=bound_of(x)), x)


def _step(x: Tensor, surrogate: float | None, bound: float) -> Tensor:
    y = torch.where(x.isnan(), x, (x > 0).to(x.dtype))
    if surrogate is None or torch.compiler.is_exporting():
        return y
    return _with_slope(y, x, _normal_density(x, surrogate).clamp(max=bound))


def sine(x: Tensor, frequency: float = 1.0) -> Tensor:
    """sin(frequency x), the activation of SIREN, which uses the frequency 30.

    The error in float32, here and in the other periodic activations, is a few units in the last place of 1: on the CPU
    for every phase, since float64 takes whole turns away first, and on CUDA up to a phase of 10^7. Beyond, float32
    numbers are a radian apart, and the phase counts as 0. A float64 phase beyond the largest finite number is replaced
    by x: the value is then finite, though its phase means nothing.
    """
    return _periodic(_sine, SINE, 1.0, x, frequency)


def cosine(x: Tensor, frequency: float = 1.0) -> Tensor:
    """cos(frequency x)."""
    return _periodic(_cosine, SINE, 1.0, x, frequency, shift=0.25)


def sincos(x: Tensor, frequency: float = 1.0) -> Tensor:
    """sin(frequency x) + cos(frequency x): with Gaussian weights its kernel is exactly stationary for any bias."""
    return _periodic(_sincos, SINE, math.sqrt(2), x, frequency, shift=0.125)


def triangle_wave(x: Tensor, frequency: float = 1.0) -> Tensor:
    """A triangle wave whose fundamental is sqrt(2) sin(frequency x): piecewise linear, globally stationary."""
    return _periodic(_triangle_wave, TRIANGLE, math.pi**2 / math.sqrt(2), x, frequency)


def periodic_relu(x: Tensor, frequency: float = 1.0) -> Tensor:
    """Two triangle waves a quarter period apart: the piecewise linear version of ``sincos``, with its fundamental."""
    return _periodic(_periodic_relu, TWO_TRIANGLES, math.pi**2 / 2, x, frequency)


def _periodic(
    function: Callable[[Tensor, torch.dtype], Tensor],
    kind: int,
    height: float,
    x: Tensor,
    frequency: float,
    *,
    shift: float = 0.0,
) -> Tensor:
    """function(phase), the definition of record; kind, height and shift say the same to ``PeriodicTwin``."""
    check_finite("frequency", frequency)

    def plain(x: Tensor, frequency: float) -> Tensor:
        return function(_phase(x, frequency), x.dtype)

    def twin() -> PeriodicTwin | None:
        has_twin = _has_wider(x) and not isinstance(frequency, Tensor)
        return periodic_twin(kind, frequency, height, shift) if has_twin else None

    return elementwise(plain, x, frequency, twin=twin)


@lru_cache(maxsize=256)
def periodic_twin(kind: int, frequency: float, height: float, shift: float) -> PeriodicTwin:
    """The faster version of a periodic activation with these parameters; its constants are kept."""
    return PeriodicTwin(kind=kind, frequency=frequency, height=height, shift=shift)


def _has_wider(x: Tensor) -> bool:
    """Whether there is a dtype with more digits than that of x, on its device: Apple's GPUs have no float64."""
    return x.dtype != torch.float64 and x.device.type != "mps"


def _phase(x: Tensor, frequency: float) -> Tensor:
    """frequency x, less its whole turns in float64 where x is of another dtype.

    In float64, where frequency x overflows, it is x: there the phase is lost, and any finite number is as good.
    """
    if _has_wider(x):
        turns = x.double() * frequency / (2 * math.pi)
        return 2 * math.pi * (turns - turns.round())
    phase = frequency * x
    return phase if frequency <= 1 else torch.where(phase.isinf(), x, phase)


def _sine(phase: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.sin(phase.to(dtype))


def _cosine(phase: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.cos(phase.to(dtype))


def _sincos(phase: Tensor, dtype: torch.dtype) -> Tensor:
    return _sine(phase, dtype) + _cosine(phase, dtype)


def _triangle(phase: Tensor) -> Tensor:
    """Slope 1 through the origin, peaks of pi/2 at odd multiples of pi/2, period 2 pi."""
    return math.pi / 2 - (torch.remainder(phase + math.pi / 2, 2 * math.pi) - math.pi).abs()


def _triangle_wave(phase: Tensor, dtype: torch.dtype) -> Tensor:
    return (math.pi / math.sqrt(8) * _triangle(phase)).to(dtype)


def _periodic_relu(phase: Tensor, dtype: torch.dtype) -> Tensor:
    return (math.pi / 4 * (_triangle(phase) + _triangle(phase + math.pi / 2))).to(dtype)


def _with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """``value`` with the derivative ``slope`` in x; it works in every mode of differentiation and compilation."""
    return value.detach() + torch.where(x.isfinite(), slope.detach() * (x - x.detach()), 0.0)


def _normal_density(x: Tensor, std: float) -> Tensor:
    return torch.exp(-0.5 * (x / std).square()) / (math.sqrt(2 * math.pi) * std)


def check_dim(dim: int) -> None:
    if not isinstance(dim, int) or dim < 1 or dim % 2 == 0:
        raise ValueError(
            f"dim must be an odd positive integer, got {dim!r}: for even dim the activation has no finite polynomial "
            "form and decays only algebraically; use the next odd dim and leave the extra input at 0"
        )


def check_surrogate(surrogate: float | None, nu: Number = 0.5) -> None:
    if surrogate is None:
        return
    check_finite("surrogate", surrogate, "it is the width of the blur, for example 0.1 length-scales")
    if isinstance(nu, Tensor) or nu != 0.5:
        raise ValueError(f"surrogate is only for the jump at nu = 1/2, got nu = {nu!r}; leave it out")
