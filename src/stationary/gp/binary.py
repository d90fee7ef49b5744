"""Networks whose weights are signs, w in {-1, 1}^d (or all ones), with a Gaussian bias: the paper's setting.

For fixed w the pre-activations are s = w'x + b and s' = w'x' + b, and only b is left to integrate over.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from stationary.activations import RBF, Matern
from stationary.gp._base import NetworkKernel, distances, is_symmetric, mirror, upper_indices
from stationary.theory.duals import NoClosedForm
from stationary.theory.special import shifted_half_line_integral, unit_matern_covariance
from stationary.theory.spectral import number

MAX_DIMS = 12  # 2^12 signs


class BinaryNetworkKernel(NetworkKernel):
    """The exact kernel of the Matérn or RBF activation with binary weights, or with all weights one.

    For the Matérn, with m = min(s, s'), r = |s - s'|, t = 2 lambda bias_std - m / bias_std, p = nu - 1/2,

        k = (2 lambda)^(2 nu) / (Gamma(2 nu) sqrt(2 pi)) e^(-lambda r - m^2 / 2 bias_std^2)
            bias_std^(2p) int R^p (R + r / bias_std)^p e^(-R^2 / 2 - t R) dR,

    a sum of parabolic cylinder functions for half-integer nu, every term of it positive; the mean over all 2^d signs.

    Args:
        activation: a ``Matern`` (any nu, also centred) or an ``RBF``.
        weights: "binary" for all signs, or "one" for all weights 1.
        kwargs: arguments of ``NetworkKernel``.
    """

    def __init__(self, activation: nn.Module, *, weights: str = "binary", **kwargs: Any) -> None:
        if not isinstance(activation, (Matern, RBF)) or getattr(activation, "dim", 1) > 1:
            raise NoClosedForm(f"the kernel of {activation!r} with {weights} weights and a Gaussian bias")
        super().__init__(activation, **kwargs)
        self.weights = weights

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        symmetric = is_symmetric(x1, x2, diag)
        u1, u2 = self._weighted(x1), self._weighted(x2)
        total = torch.zeros((), dtype=u1.dtype, device=u1.device)
        signs = sign_vectors(u1.shape[-1], self.weights)
        for sign in signs.to(u1):
            s1, s2 = u1 @ sign, u2 @ sign
            if symmetric:
                i, j = upper_indices(x1)
                s1, s2 = s1[..., i], s1[..., j]
            elif not diag:
                s1, s2 = s1[..., :, None], s2[..., None, :]
            total = total + self._of_bias(s1, s2, diag or symmetric)
        mean = total / len(signs)
        return (self._factor(diag) * (mirror(mean, x1.shape[-2]) if symmetric else mean)).to(x1.dtype)

    def _of_bias(self, s1: Tensor, s2: Tensor, flat: bool) -> Tensor:
        """E[sigma(s1 + b) sigma(s2 + b)]."""
        bias, lengthscale = self._hyper("bias_std", flat), self._hyper("lengthscale", flat)
        nu = number(self.activation.nu) if isinstance(self.activation, Matern) else math.inf
        if math.isinf(nu):
            return self.activation.variance * _rbf_over_bias(s1, s2, lengthscale, bias)
        if self.activation.centered:
            shift = lengthscale * math.sqrt(nu / 2)
            s1, s2 = s1 + shift, s2 + shift
        return self.activation.variance * _matern_over_bias(s1, s2, nu, lengthscale, bias)


def _matern_over_bias(s1: Tensor, s2: Tensor, nu: float, lengthscale: Tensor, bias: Tensor) -> Tensor:
    """In units of bias_std, L = lambda bias_std; exponents are added before they are taken, so nothing overflows."""
    rate = math.sqrt(2 * nu) * bias / lengthscale
    m, r = torch.minimum(s1, s2) / bias, (s1 - s2).abs() / bias
    t = 2 * rate - m
    # The integral comes times e^(-min(t, 0)^2 / 2); t^2 / 2 - m^2 / 2 = 2 L^2 - 2 L m.
    exponent = torch.where(t < 0, 2 * rate * (rate - m), -0.5 * m * m) - rate * r + 2 * nu * torch.log(2 * rate)
    constant = math.lgamma(2 * nu) + 0.5 * math.log(2 * math.pi)
    return torch.exp(exponent - constant) * shifted_half_line_integral(t, r, nu - 0.5) / bias


def _rbf_over_bias(s1: Tensor, s2: Tensor, lengthscale: Tensor, bias: Tensor) -> Tensor:
    """N((s + s') / 2; 0, bias_std^2 + ell^2 / 4) e^(-(s - s')^2 / 2 ell^2)."""
    v = bias**2 + lengthscale**2 / 4
    envelope = torch.exp(-((s1 + s2) ** 2) / (8 * v)) / torch.sqrt(2 * math.pi * v)
    return envelope * torch.exp(-((s1 - s2) ** 2) / (2 * lengthscale**2))


def sign_vectors(dims: int, weights: str) -> Tensor:
    """All of {-1, 1}^dims, or the one vector of ones."""
    if weights == "one":
        return torch.ones(1, dims)
    if dims > MAX_DIMS:
        raise ValueError(
            f"binary weights are summed over all 2^d signs, d at most {MAX_DIMS}; got {dims} input dimensions; "
            'use weights="gaussian", or monte_carlo_kernel'
        )
    return torch.tensor(list(itertools.product((1.0, -1.0), repeat=dims)))


class MaternEnvelopeKernel(NetworkKernel):
    """The paper's kappa_Mat-NN (its eq. 9): a Matérn kernel under Gaussian envelopes.

        e^(-|x|^2 / 2 sigma_m^2) kappa_Mat(|x - x'|) e^(-|x'|^2 / 2 sigma_m^2) / (sqrt(2 pi) bias_std),

    sigma_m^2 = 2 bias_std^2 + lengthscale^2, with the constant of the limit bias_std -> inf.

    It is an approximation to ``BinaryNetworkKernel`` in one dimension, good when bias_std is several length-scales. The
    largest error on [-3, 3]^2 relative to the peak, its constant fitted at the origin: 2 to 9 % for lengthscale 0.5,
    bias_std 1; 7 to 34 % for lengthscale 1, bias_std 1; at most 0.6 % for bias_std 5. In more dimensions it is not the
    kernel of binary weights, which is not isotropic.
    """

    def __init__(self, nu: float = 2.5, lengthscale: float = 1.0, variance: float = 1.0, **kwargs: Any) -> None:
        super().__init__(Matern(nu, lengthscale, variance), **kwargs)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        bias, lengthscale = self._hyper("bias_std", diag), self._hyper("lengthscale", diag)
        u1, u2 = self._weighted(x1), self._weighted(x2)
        distance = distances(u1, u2, diag)
        square1, square2 = u1.square().sum(-1), u2.square().sum(-1)
        squares = square1 + square2 if diag else square1[..., :, None] + square2[..., None, :]
        envelope = torch.exp(-squares / (2 * (2 * bias**2 + lengthscale**2)))
        stationary = unit_matern_covariance(distance / lengthscale, self.activation.nu)
        amplitude = self.activation.variance / (math.sqrt(2 * math.pi) * bias)
        return (self._factor(diag) * amplitude * envelope * stationary).to(x1.dtype)
