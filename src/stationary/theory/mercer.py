"""Kernels as operators: the Mercer expansion of the RBF kernel and the Green's function of the Matérn family.

The paper asks (section 3.3) whether an activation could be read off the Green's function of the covariance operator,
K G = delta, G(x, y) = sum_j phi_j(x) phi_j(y) / gamma_j. It cannot: the eigenvalues gamma_j of the RBF kernel fall
geometrically, so that sum diverges (``RBFEigensystem.greens_function`` shows it). The Matérn activation sigma is the
Green's function of another operator, the causal root of the inverse of K (``matern_operator``); K itself is the
convolution of sigma with its mirror image.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stationary._checks import check_finite
from stationary.theory import spectral
from stationary.theory.spectral import Number, exp, log, sqrt


@dataclass(frozen=True)
class RBFEigensystem:
    """Eigenpairs of the RBF kernel e^(-(x - y)^2 / (2 lengthscale^2)) for inputs with the density N(0, input_std^2).

    The pairs solve E_y[k(x, y) phi_j(y)] = gamma_j phi_j(x), E[phi_i phi_j] = 1 if i = j else 0, for j = 0, 1, ...
    With s = sqrt(1 + (2 input_std / lengthscale)^2) and b = (s - 1) / (s + 1), the paper's appendix "Closed-form
    Expressions for the RBF Kernel" simplifies to

        gamma_j = (1 - b) b^j,
        phi_j(x) = s^(1/4) (2^j j!)^(-1/2) e^(-x^2 / ((1 + s) lengthscale^2)) H_j(x sqrt(s / 2) / input_std),

    H_j the physicists' Hermite polynomials. Its parameters are alpha = 1 / (sqrt(2) lengthscale) and
    beta = 1 / (sqrt(2) input_std), see ``from_alpha_beta``; its example alpha = sqrt(2), beta = 1 has s = 3, b = 1/2.

    Each method takes tensors x, y of any shape that broadcast, best in float64, and keeps their gradients and those of
    ``lengthscale`` and ``input_std``, floats or tensors.
    """

    lengthscale: Number = 1.0
    input_std: Number = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        check_finite("lengthscale", self.lengthscale)
        check_finite("input_std", self.input_std)

    @classmethod
    def from_alpha_beta(cls, alpha: Number, beta: Number) -> "RBFEigensystem":
        """The paper's parameters: the kernel e^(-alpha^2 (x - y)^2), the density beta / sqrt(pi) e^(-beta^2 x^2)."""
        check_finite("alpha", alpha)
        check_finite("beta", beta)
        return cls(math.sqrt(0.5) / alpha, input_std=math.sqrt(0.5) / beta)

    @property
    def _root(self) -> Number:
        return sqrt(1 + (2 * self.input_std / self.lengthscale) ** 2)

    @property
    def ratio(self) -> Number:
        """b = gamma_(j + 1) / gamma_j, written without the cancellation of s - 1 for a small input_std."""
        return (2 * self.input_std / (self.lengthscale * (1 + self._root))) ** 2

    def eigenvalues(self, n: int) -> Tensor:
        """The n largest eigenvalues, in float64; all of them sum to k(x, x) = 1."""
        _check_count(n)
        j = torch.arange(n, dtype=torch.float64, device=getattr(self.ratio, "device", None))
        return 2 / (1 + self._root) * self.ratio**j

    def eigenfunctions(self, x: Tensor, n: int) -> Tensor:
        """phi_0(x), ..., phi_(n - 1)(x) along a new last dimension."""
        return self._eigenfunctions(x, n, damping=1.0)

    def features(self, x: Tensor, n: int) -> Tensor:
        """sqrt(gamma_j) phi_j(x): the features whose inner product is the kernel. Their norm is at most 1.

        ``features(x, n) @ features(y, n).T`` is the truncated Gram matrix of vectors x and y.
        """
        return sqrt(2 / (1 + self._root)) * self._eigenfunctions(x, n, damping=sqrt(self.ratio))

    def kernel(self, x: Tensor, y: Tensor, n: int) -> Tensor:
        """k_n(x, y), the first n terms of Mercer's sum of gamma_j phi_j(x) phi_j(y), element by element."""
        return torch.linalg.vecdot(self.features(x, n), self.features(y, n))

    def truncation_bound(self, x: Tensor, y: Tensor, n: int) -> Tensor:
        """sqrt(A(x) A(y)) >= |k(x, y) - k_n(x, y)|, where A(x) = min(1, sqrt(s) b^n e^(x^2 / (2 input_std^2))).

        Proof: by Cauchy-Schwarz on the terms left out, |k - k_n|^2 <= r(x) r(y), r(x) the sum of gamma_j phi_j(x)^2
        over j >= n. Over all j the sum is k(x, x) = 1; and phi_j(x)^2 <= sqrt(s) e^(x^2 / (2 input_std^2)) because
        e^(-z^2 / 2) |H_j(z)| <= sqrt(2^j j!) (DLMF 18.14.9), while gamma_n + gamma_(n + 1) + ... = b^n.

        It is about sqrt(2 pi n) times the largest error; rounding comes on top. On average over the inputs
        E[r(x)] = b^n and E[(k - k_n)^2] = b^(2 n) (1 - b) / (1 + b).
        """
        _check_count(n)
        return torch.exp((self._log_remainder_bound(x, n) + self._log_remainder_bound(y, n)) / 2)

    def greens_function(self, x: Tensor, y: Tensor, n: int) -> Tensor:
        """G_n(x, y), the first n terms of the sum of phi_j(x) phi_j(y) / gamma_j; it has no limit.

        G_n inverts K on the span of the first n eigenfunctions: E_y[k(x, y) G_n(y, z)] is the projection onto it. But
        the values grow like b^(-n) / sqrt(n), and the rounding of a computed eigenvalue is amplified as much, which is
        why this is no way to an activation.
        """
        inverse = 1 / sqrt(self.ratio)
        terms = self._eigenfunctions(x, n, inverse), self._eigenfunctions(y, n, inverse)
        return (1 + self._root) / 2 * torch.linalg.vecdot(*terms)

    def _eigenfunctions(self, x: Tensor, n: int, damping: Number) -> Tensor:
        """damping^j phi_j(x), by the recurrence of normalised Hermite polynomials.

        The polynomials overflow where the Gaussian factor underflows, so each keeps its own power of two, which is
        exact, until the two meet.
        """
        _check_count(n)
        _check_floating(x)
        z = x * (sqrt(self._root / 2) / self.input_std)
        log_gaussian = -((x / self.lengthscale) ** 2) / (1 + self._root)
        before, now, power = torch.zeros_like(z), torch.ones_like(z), torch.zeros_like(z)
        functions = []
        for j in range(n):
            functions.append(now * torch.exp(log_gaussian + math.log(2) * power))
            after = damping * (math.sqrt(2 / (j + 1)) * z * now - damping * math.sqrt(j / (j + 1)) * before)
            shift = torch.frexp(torch.maximum(now.abs(), after.abs())).exponent.to(z.dtype)
            before, now, power = now * torch.exp2(-shift), after * torch.exp2(-shift), power + shift
        return sqrt(sqrt(self._root)) * torch.stack(functions, -1)

    def _log_remainder_bound(self, x: Tensor, n: int) -> Tensor:
        _check_floating(x)
        return (log(self._root) / 2 + n * log(self.ratio) + (x / self.input_std) ** 2 / 2).clamp(max=0.0)


def matern_operator(
    function: Callable[[Tensor], Tensor], x: Tensor, nu: Number = 2.5, lengthscale: Number = 1.0
) -> Tensor:
    """q^-1 (d/dx + lambda)^(nu + 1/2) applied to an element-wise function, at x; for half-integer nu.

    The Matérn activation is its Green's function: it solves q^-1 (d/dx + lambda)^(nu + 1/2) sigma = delta, 0 at every
    x != 0 with a jump of q in the derivative of order nu - 1/2 at 0. Applied to a sample path of the Matérn process
    it would return white noise. (Section 3.3 of the paper calls sigma the Green's function of K; it is that of this
    root of K^-1.) For other nu the power is fractional, and the equation reads q (s + lambda)^-(nu + 1/2) for the
    Laplace transform of sigma.

    Args:
        function: built from differentiable PyTorch operations, such as ``lambda x: matern(x, 1.5)``.
        x: the points at which to evaluate the result.
        nu: smoothness of the Matérn kernel, a half-integer: 0.5, 1.5, 2.5, ...
        lengthscale: length-scale of the Matérn kernel; q and lambda follow from it and nu.
    """
    check_finite("nu", nu)
    check_finite("lengthscale", lengthscale)
    if isinstance(nu, Tensor) or (nu + 0.5) % 1:
        raise ValueError(f"nu must be a half-integer such as 0.5, 1.5 or 2.5, got {nu!r}; other powers are fractional")
    _check_floating(x)
    rate = spectral.rate(nu, lengthscale)
    for _ in range(int(nu + 0.5)):
        function = _first_order(function, rate)
    return exp(-spectral.log_noise_density(nu, lengthscale) / 2) * function(x)


def _first_order(function: Callable[[Tensor], Tensor], rate: Number) -> Callable[[Tensor], Tensor]:
    def applied(x: Tensor) -> Tensor:
        value, slope = torch.func.jvp(function, (x,), (torch.ones_like(x),))[:2]
        return slope + rate * value

    return applied


def _check_count(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n must be a positive integer, the number of terms, got {n!r}")


def _check_floating(x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"x and y must be floating-point tensors, got {kind}; use torch.tensor(x, dtype=torch.float64)"
        )
