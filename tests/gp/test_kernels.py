"""Every kernel against GPyTorch's own test suite, its activation by Monte Carlo, and independent quadrature."""

import copy
import math
import pickle
import unittest
from dataclasses import dataclass, field

import mpmath
import numpy as np
import oracles
import pytest
import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

import stationary as st
from stationary.gp import kernel_of, kernels, ntk_of
from stationary.theory import duals
from stationary.theory.monte_carlo import monte_carlo_kernel, random_units

F64 = torch.float64
quickly = settings(max_examples=25, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    """A kernel, the activation and prior it belongs to (None: it has no such network), and its number of inputs."""

    build: object
    activation: nn.Module | None
    prior: dict = field(default_factory=dict)
    factor: float = 1.0
    dims: int = 2
    base_suite: bool = True


def network(activation, dims=2, base_suite=True, **prior):
    return Case(lambda **kw: kernel_of(activation, **prior, **kw), activation, prior, dims=dims, base_suite=base_suite)


def named(kernel, activation, factor=1.0, **arguments):
    return Case(lambda **kw: kernel(**arguments, **kw), activation, factor=factor)


ALL_KERNELS = {
    **{f"matern-{nu}-gaussian": network(st.Matern(nu, 0.7, 1.3)) for nu in (0.3, 0.5, 1.5, 2.2, 2.5, 3.5)},
    **{f"matern-{nu}-binary": network(st.Matern(nu, 0.7, 1.3), weights="binary") for nu in (0.3, 0.5, 1.5, 2.2, 2.5)},
    "matern-2.5-one": network(st.Matern(2.5, 0.7), weights="one", base_suite=False),
    "matern-2.5-binary-centered": network(st.Matern(2.5, 0.7, centered=True), weights="binary", base_suite=False),
    "matern-1.5-normalized": network(st.Matern(1.5, 0.7), normalize=True, base_suite=False),
    "matern-1.5-binary-normalized": network(st.Matern(1.5, 0.7), weights="binary", normalize=True, base_suite=False),
    "matern-inf-gaussian": network(st.Matern(math.inf, 0.7), base_suite=False),
    "rbf-gaussian": network(st.RBF(0.7, 1.3)),
    "rbf-binary": network(st.RBF(0.7, 1.3), weights="binary"),
    **{
        f"{name}-uniform-{weights}": network(activation, weights=weights, bias="uniform", bias_std=4.0)
        for weights in ("one", "binary", "gaussian")
        for name, activation in {
            "matern-1.5": st.Matern(1.5, 0.7, 1.3),
            "matern-2.2": st.Matern(2.2, 0.7),
            "rbf": st.RBF(0.7, 1.3),
        }.items()
    },
    "matern-2.5-uniform-centered": network(st.Matern(2.5, 0.7, centered=True), bias="uniform", bias_std=4.0),
    **{
        f"matern-{nu}-sphere-dim{d}": network(
            st.Matern(nu, 0.7, dim=d),
            dims=d,
            weights="sphere",
            bias="uniform",
            bias_std=6.0,
            normalize=True,
            base_suite=False,
        )
        for nu, d in ((0.5, 3), (2.5, 5))
    },
    "erf": network(st.Erf()),
    "step": network(st.Step()),
    "relu": network(st.ReLU()),
    "leaky_relu": network(st.LeakyReLU(0.2)),
    "sine": network(st.Sine(1.3)),
    "cosine": network(st.Cosine(0.8)),
    "sincos": network(st.SinCos(1.1)),
    "sincos-uniform": network(st.SinCos(1.0), bias="uniform", bias_std=math.pi / math.sqrt(3)),
    "sine-uniform": network(st.Sine(1.0), bias="uniform", bias_std=2 * math.pi / math.sqrt(3)),
    "cosine-uniform-binary": network(st.Cosine(1.0), weights="binary", bias="uniform", bias_std=math.pi / math.sqrt(3)),
    "ArcCos0": named(kernels.ArcCos0Kernel, st.Step(), factor=2),
    "ArcCos1": named(kernels.ArcCos1Kernel, st.ReLU(), factor=2),
    "ErfNN": named(kernels.ErfNNKernel, st.Erf()),
    "MaternNN": named(kernels.MaternNNKernel, st.Matern(1.5, 0.6), nu=1.5, lengthscale=0.6),
    "RidgeRBFNN": named(kernels.RidgeRBFNNKernel, st.RBF(0.6), lengthscale=0.6),
    "LeakyReLUNN": named(kernels.LeakyReLUNNKernel, st.LeakyReLU(0.1), negative_slope=0.1),
    "SineNN": named(kernels.SineNNKernel, st.Sine(2.0), frequency=2.0),
    "CosineNN": named(kernels.CosineNNKernel, st.Cosine(2.0), frequency=2.0),
    "SinCosNN": named(kernels.SinCosNNKernel, st.SinCos(2.0), frequency=2.0),
    "Matern-2.2": Case(lambda **kw: kernels.MaternKernel(2.2, **kw), None),
    "Matern-1.5": Case(lambda **kw: kernels.MaternKernel(1.5, **kw), None),
    "Matern-envelope": Case(lambda **kw: kernels.MaternEnvelopeKernel(2.5, lengthscale=0.7, **kw), None),
    "RBFNN": Case(lambda **kw: kernels.RBFNNKernel(0.7, centre_std=1.3, **kw), None),
    "deep-matern": network(st.Matern(2.5, 2.0), depth=3),
    "deep-erf": network(st.Erf(), depth=2),
    "ntk-matern": Case(lambda **kw: ntk_of(st.Matern(2.5, 2.0), depth=2, **kw), None),
    "ntk-relu": Case(lambda **kw: ntk_of(st.ReLU(), depth=2, **kw), None),
}
each = pytest.mark.parametrize("case", ALL_KERNELS.values(), ids=ALL_KERNELS)
one_layer = {n: c for n, c in ALL_KERNELS.items() if c.activation is not None and c.prior.get("depth", 1) == 1}


def make_suite(name, case):
    class Suite(BaseKernelTestCase, unittest.TestCase):
        def create_kernel_no_ard(self, **kwargs):
            return case.build(**kwargs)

        def create_kernel_ard(self, num_dims, **kwargs):
            return case.build(ard_num_dims=num_dims, **kwargs)

    Suite.__name__ = Suite.__qualname__ = f"Test_{name.replace('-', '_').replace('.', '_')}"
    return Suite


# The suite tests shapes: of kernels that differ in nu or in the activation alone some run each day, the others slow.
SLOW_SUITES = {f"matern-{nu}-gaussian" for nu in (0.3, 1.5, 3.5)} | {f"matern-{nu}-binary" for nu in (0.3, 1.5, 2.5)}
SLOW_SUITES |= {"matern-2.2-uniform-one", "rbf-uniform-one", "matern-1.5-uniform-binary", "rbf-uniform-binary"}
SLOW_SUITES |= {"matern-1.5-uniform-gaussian", "matern-2.2-uniform-gaussian", "Matern-1.5", "sine", "cosine"}
SLOW_SUITES |= {"erf", "step", "relu", "leaky_relu", "sincos", "rbf-gaussian"}  # the kernels that have names as well
assert ALL_KERNELS.keys() >= SLOW_SUITES
for _name, _case in ALL_KERNELS.items():
    if _case.base_suite:
        _suite = make_suite(_name, _case)
        _suite = pytest.mark.slow(_suite) if _name in SLOW_SUITES else _suite
        globals()[_suite.__name__] = _suite
del _suite  # so that it is collected once


@pytest.mark.parametrize("case", one_layer.values(), ids=one_layer)
def test_agrees_with_monte_carlo(case):
    x1, x2 = 0.8 * torch.randn(6, case.dims, dtype=F64), 0.8 * torch.randn(5, case.dims, dtype=F64)
    exact = case.build()(x1, x2).to_dense()
    mean, error = monte_carlo_kernel(case.activation, x1, x2, n_units=200_000, seed=1, **case.prior)
    z = (case.factor * mean - exact) / (case.factor * error + 1e-12)
    assert z.abs().max() < 4.5  # 30 correlated values, each N(0, 1)


def test_radial_units_agree_with_monte_carlo():
    kernel, x = kernels.RBFNNKernel(0.7, centre_std=1.3), torch.randn(6, 3, dtype=F64)
    centres = 1.3 * torch.randn(200_000, 3, dtype=F64)
    units = torch.exp(-torch.cdist(x, centres).square() / (2 * 0.7**2))
    products = units[:, None] * units[None]
    z = (products.mean(-1) - kernel(x).to_dense()) / (products.std(-1) / math.sqrt(len(centres)))
    assert z.abs().max() < 4.5


@each
def test_contract(case):
    """Diagonal, symmetry, copies, gradients in every hyperparameter and in the inputs, float32."""
    kernel = case.build().double()
    x = torch.randn(7, case.dims, dtype=F64)
    matrix = kernel(x).to_dense()
    torch.testing.assert_close(kernel(x, diag=True), matrix.diagonal(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(kernel(x, x.flip(0)).to_dense(), matrix.flip(1), rtol=1e-7, atol=1e-9)
    assert torch.equal(kernel(x[:3], x[3:]).to_dense(), copy.deepcopy(kernel)(x[:3], x[3:]).to_dense())
    assert torch.equal(pickle.loads(pickle.dumps(kernel))(x).to_dense(), matrix)
    single = case.build()(x.float()).to_dense()
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), matrix, rtol=1e-4, atol=1e-5)


@each
def test_gradients_in_hyperparameters(case):
    """Against central differences of the whole matrix, the diagonal and duplicated inputs included."""
    kernel = case.build().double()
    x = torch.randn(5, case.dims, dtype=F64)
    x[1] = x[0]
    weights = torch.randn(5, 5, dtype=F64)
    (kernel(x).to_dense() * weights).sum().backward()
    for parameter in kernel.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        step = 1e-5
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step
                values.append((kernel(x).to_dense() * weights).sum())
                parameter -= sign * step
        difference = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close(gradient.sum(), difference, rtol=1e-5, atol=1e-7)


smooth_in_x = {
    n: c for n, c in ALL_KERNELS.items() if "0.3" not in n and "0.5" not in n and n not in ("step", "ArcCos0")
}


@pytest.mark.parametrize("case", smooth_in_x.values(), ids=smooth_in_x)
def test_gradients_in_inputs(case):
    x1, x2 = (torch.randn(n, case.dims, dtype=F64, requires_grad=True) for n in (2, 1))
    kernel = case.build().double().requires_grad_(False)
    assert torch.autograd.gradcheck(lambda a, b: kernel(a, b).to_dense(), (x1, x2), rtol=1e-4, atol=1e-7)


def test_gradients_after_a_first_evaluation_in_inference_mode():
    duals._gauss_legendre.cache_clear()
    kernel, x = kernel_of("matern52"), torch.randn(3, 2, requires_grad=True)
    with torch.inference_mode():
        kernel(x).to_dense()
    kernel(x).to_dense().sum().backward()
    assert x.grad.abs().sum() > 0


@each
def test_positive_semi_definite_at_awkward_inputs(case):
    x = torch.cat([torch.randn(12, case.dims, dtype=F64), torch.zeros(1, case.dims, dtype=F64)])
    x = torch.cat([x, x[:4], x[:3] + 1e-9, 1e3 * x[:4], -x[:3]])
    kernel = case.build().double()
    matrix = kernel(x).to_dense()
    assert matrix.isfinite().all()
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    assert values.min() > -1e-9 * values.max()


@pytest.mark.parametrize("weights", ["gaussian", "binary"])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.2, 2.5])
@pytest.mark.parametrize("lengthscale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("bias_std", [1e-3, 1e3])
def test_extreme_hyperparameters_give_no_nan(weights, nu, lengthscale, bias_std):
    x = torch.cat([torch.randn(6, 2, dtype=F64), 1e3 * torch.randn(3, 2, dtype=F64), torch.zeros(1, 2, dtype=F64)])
    kernel = kernel_of(st.Matern(nu, lengthscale), weights=weights, bias_std=bias_std).double()
    matrix = kernel(x).to_dense()
    matrix.sum().backward()
    assert matrix.isfinite().all() and all(p.grad.isfinite().all() for p in kernel.parameters())
    values = torch.linalg.eigvalsh(matrix)
    assert values.min() >= -1e-8 * values.max()


# Independent quadrature


nus = some.sampled_from([0.5, 1.5, 2.5, 3.5]) | some.floats(0.6, 6.0)


@quickly
@given(nus, some.floats(0.2, 3.0), some.floats(0.2, 3.0), some.floats(-0.9, 0.95), some.floats(0.3, 3.0))
def test_gaussian_weights_against_quadrature(nu, s1, s2, correlation, lengthscale):
    from stationary.activations import dual_of

    k = [torch.tensor(v, dtype=F64) / lengthscale**2 for v in (s1**2, correlation * s1 * s2, s2**2)]
    ours = dual_of(st.Matern(nu, lengthscale)).value(*k).item() / lengthscale
    activation = lambda z: st.matern(torch.from_numpy(z), nu, lengthscale).numpy()
    exact = oracles.gaussian_pair_expectation(activation, s1, s2, correlation)
    assert ours == pytest.approx(exact, rel=1e-8, abs=1e-12)


def second_moment(nu, mean, std):
    """E[sigma(z)^2], z ~ N(mean, std^2): A^2 s^n e^(-mean^2 / 2 s^2) h_n(t) / sqrt(2 pi), n = 2 nu - 1."""
    n, t = 2 * nu - 1, 2 * math.sqrt(2 * nu) * std - mean / std
    log_h = mpmath.loggamma(n + 1) + mpmath.mpf(t) ** 2 / 4 + mpmath.log(mpmath.pcfd(-n - 1, t))
    log_amplitude = 2 * nu * math.log(2 * math.sqrt(2 * nu)) - math.lgamma(2 * nu)
    log_factor = log_amplitude + n * math.log(std) - (mean / std) ** 2 / 2
    return float(mpmath.exp(log_factor + log_h) / mpmath.sqrt(2 * mpmath.pi))


rough_and_smooth = pytest.mark.parametrize("nu", [0.04, 0.1, 0.3, 1.2, 7.3, 50.0])


@rough_and_smooth
@pytest.mark.parametrize("s", [0.1, 1.0, 1e3])
def test_variances_of_rough_and_of_smooth_ones(nu, s):
    k = torch.tensor(s**2, dtype=F64)
    assert duals.matern(nu).value(k, k, k).item() == pytest.approx(second_moment(nu, 0.0, s), rel=1e-7, abs=1e-30)


@rough_and_smooth
@pytest.mark.parametrize("bias_std", [0.5, 1.0, 128.0])
@pytest.mark.parametrize("s", [-4.0, 0.0, 8.0])
def test_variances_over_the_bias_of_rough_and_of_smooth_ones(nu, bias_std, s):
    kernel = kernel_of(st.Matern(nu), weights="one", bias_std=bias_std).double()
    kernel.bias_std, kernel.lengthscale = bias_std, 1.0  # in float64
    x = torch.tensor([[s]], dtype=F64) / kernel.weight_std.item()
    assert kernel(x).to_dense().item() == pytest.approx(second_moment(nu, s, bias_std), rel=1e-7, abs=1e-30)


@quickly
@given(nus, some.floats(-3, 3), some.floats(-3, 3), some.floats(0.3, 3.0), some.floats(0.2, 4.0))
def test_fixed_weights_against_quadrature(nu, s1, s2, lengthscale, bias_std):
    kernel = kernel_of(st.Matern(nu, lengthscale), weights="one", bias_std=bias_std).double()
    ours = kernel(torch.tensor([[s1]], dtype=F64), torch.tensor([[s2]], dtype=F64)).to_dense().item()
    activation = lambda z: st.matern(torch.from_numpy(z), nu, kernel.lengthscale.item()).numpy()
    exact = oracles.over_bias(activation, s1, s2, kernel.bias_std.item())
    assert ours == pytest.approx(exact, rel=1e-8, abs=1e-14)


@quickly
@given(some.sampled_from([0.5, 1.5, 2.5]) | some.floats(0.3, 6.0), some.floats(0.0, 20.0))
def test_uniform_bias_with_gaussian_weights_against_quadrature(nu, r):
    kernel = kernel_of(st.Matern(nu), bias="uniform", normalize=True)
    ours = kernel(torch.tensor([[r]], dtype=F64), torch.zeros(1, 1, dtype=F64)).to_dense().item()
    xi = np.exp(np.arange(-45, 3, 1 / 32))  # E over |xi|, in log xi
    density = np.sqrt(2 / np.pi) * np.exp(-0.5 * xi**2) * xi / 32
    assert ours == pytest.approx(float((oracles.matern_kernel(r * xi, nu) * density).sum()), rel=1e-7)


@rough_and_smooth
def test_uniform_bias_with_gaussian_weights_is_a_confluent_function(nu):
    """Gamma(nu + 1/2) / Gamma(nu) U(1/2, 1 - nu, nu r^2), which is 1 at r = 0."""
    r = [0.0, 1e-3, 0.1, 1.0, 5.0]
    exact = [float(mpmath.gammaprod([nu + 0.5], [nu]) * mpmath.hyperu(0.5, 1 - nu, nu * d * d)) for d in r[1:]]
    kernel = kernel_of(st.Matern(nu), bias="uniform", normalize=True).double()
    ours = kernel(torch.zeros(1, 1, dtype=F64), torch.tensor(r, dtype=F64)[:, None] / kernel.weight_std.item())
    np.testing.assert_allclose(ours.to_dense()[0].detach(), [1.0, *exact], rtol=1e-6)


@pytest.mark.parametrize("nu", [0.3, 0.5, 0.8, 1.5, 2.2, 2.5, 7.3, 10.5])
def test_stationary_matern_against_bessel(nu):
    r = torch.linspace(0, 6, 40, dtype=F64)[:, None]
    kernel = kernels.MaternKernel(nu).double()
    kernel.lengthscale = 0.8
    ours = kernel(r, torch.zeros(1, 1, dtype=F64)).to_dense()[:, 0].detach()
    np.testing.assert_allclose(
        ours, oracles.matern_kernel(r[:, 0].numpy(), nu, kernel.lengthscale.item()), rtol=1e-10, atol=1e-300
    )


def test_stationary_matern_is_gpytorchs_where_both_exist():
    from gpytorch.kernels import MaternKernel

    x = torch.randn(20, 3, dtype=F64)
    for nu in (0.5, 1.5, 2.5):
        ours, theirs = kernels.MaternKernel(nu).double(), MaternKernel(nu).double()
        torch.testing.assert_close(ours(x).to_dense(), theirs(x).to_dense(), rtol=1e-9, atol=1e-9)


def test_sphere_is_the_isotropic_matern():
    x = torch.randn(9, 3, dtype=F64)
    ours = kernel_of(st.Matern(1.5, 0.7, dim=3), weights="sphere", bias="uniform", normalize=True).double()
    theirs = kernels.MaternKernel(1.5).double()
    theirs.raw_lengthscale.data = ours.raw_lengthscale.data
    torch.testing.assert_close(ours(x).to_dense(), theirs(x).to_dense(), rtol=1e-6, atol=1e-9)


def test_sine_cosine_is_the_rbf_whatever_the_bias():
    x = torch.randn(9, 3, dtype=F64)
    expected = torch.exp(-0.5 * (2.0 * torch.cdist(x, x)) ** 2)
    for bias_std in (0.1, 3.0):
        kernel = kernel_of(st.SinCos(2.0), bias_std=bias_std).double()
        torch.testing.assert_close(kernel(x).to_dense(), expected, rtol=1e-6, atol=1e-9)


def test_binary_weights_are_not_isotropic():
    """Along the diagonal of the plane the kernel with a flat bias tends to one half, along an axis to 0."""
    kernel = kernel_of(st.Matern(1.5), weights="binary", bias="uniform", normalize=True)
    far = kernel(torch.tensor([[20.0, 20.0], [20.0, 0.0]]), torch.zeros(1, 2)).to_dense().flatten()
    assert far.tolist() == pytest.approx([0.5, 0.0], abs=1e-6)


def test_envelope_error_is_what_its_docstring_says():
    x = torch.linspace(-3, 3, 61, dtype=F64)[:, None]
    for lengthscale, bias_std, low, high in ((0.5, 1.0, 0.01, 0.10), (1.0, 1.0, 0.06, 0.35), (1.0, 5.0, 0.001, 0.007)):
        for nu in (0.5, 1.5, 2.5):
            exact = kernel_of(st.Matern(nu, lengthscale), weights="binary", bias_std=bias_std).double()(x).to_dense()
            envelope = (
                kernels.MaternEnvelopeKernel(nu, lengthscale=lengthscale, bias_std=bias_std).double()(x).to_dense()
            )
            envelope = envelope * exact[30, 30] / envelope[30, 30]
            error = (exact - envelope).abs().max() / exact.max()
            assert low < error < high


# Seams


@pytest.mark.parametrize("weights", ["gaussian", "binary"])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5, 3.5])
def test_half_integer_formulas_meet_the_general_ones(weights, nu):
    x = torch.randn(6, 2, dtype=F64)
    at, beside = (kernel_of(st.Matern(n, 0.8), weights=weights).double()(x).to_dense() for n in (nu, nu + 1e-9))
    torch.testing.assert_close(at, beside, rtol=3e-8, atol=1e-10)
    stationary_at, stationary_beside = (kernels.MaternKernel(n).double()(x).to_dense() for n in (nu, nu + 1e-9))
    torch.testing.assert_close(stationary_at, stationary_beside, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.2])
def test_vanishing_weights_leave_the_bias_alone(nu):
    """Weights -> 0: every entry tends to E[sigma(b)^2]."""
    from stationary.nn.init import second_moment

    x = torch.randn(4, 3, dtype=F64)
    kernel = kernel_of(st.Matern(nu, 0.8), weight_std=1e-7, bias_std=1.5).double()
    expected = second_moment(st.Matern(nu, kernel.lengthscale.item()), kernel.bias_std.item())
    torch.testing.assert_close(kernel(x).to_dense(), torch.full((4, 4), expected, dtype=F64), rtol=1e-6, atol=0)


# Depth and tangent kernels


def relu_layer(k11, k12, k22):
    """The recursion as published for ReLU: kappa_1 and kappa_0 of Cho and Saul, halved."""
    g = (k11 * k22).sqrt()
    c = (k12 / g).clamp(-1, 1)
    return g * ((1 - c * c).sqrt() + (math.pi - c.acos()) * c) / (2 * math.pi), (math.pi - c.acos()) / (2 * math.pi)


def erf_layer(k11, k12, k22):
    value = 2 / math.pi * (2 * k12 / ((1 + 2 * k11) * (1 + 2 * k22)).sqrt()).asin()
    return value, 4 / math.pi * ((1 + 2 * k11) * (1 + 2 * k22) - 4 * k12**2).rsqrt()


@pytest.mark.parametrize(("activation", "layer"), [(st.ReLU(), relu_layer), (st.Erf(), erf_layer)], ids=["relu", "erf"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_deep_kernels_against_the_published_recursions(activation, layer, depth):
    w2, b2 = 1.7, 0.3
    x1, x2 = torch.randn(5, 3, dtype=F64), torch.randn(4, 3, dtype=F64)
    k11, k22 = (b2 + w2 * (x * x).sum(-1) for x in (x1, x2))
    k12 = b2 + w2 * x1 @ x2.mT
    tangent = k12
    for _ in range(depth - 1):
        value, slope = layer(k11[:, None], k12, k22[None])
        k11, k22 = (b2 + w2 * layer(k, k, k)[0] for k in (k11, k22))
        k12 = b2 + w2 * value
        tangent = k12 + w2 * tangent * slope
    value, slope = layer(k11[:, None], k12, k22[None])
    options = {"depth": depth, "weight_std": math.sqrt(w2), "bias_std": math.sqrt(b2)}
    torch.testing.assert_close(
        kernel_of(activation, **options).double()(x1, x2).to_dense(), value, rtol=1e-5, atol=1e-6
    )
    tangent_kernel = ntk_of(activation, **options).double()
    torch.testing.assert_close(tangent_kernel(x1, x2).to_dense(), value + tangent * slope, rtol=1e-5, atol=1e-6)


def random_network(activation, width, depth, x, seed, weight_std, bias_std):
    """The features of the last hidden layer of a finite random network."""
    generator = torch.Generator().manual_seed(seed)
    z, fan_in = x, 1
    for _ in range(depth):
        w = weight_std * torch.randn(z.shape[1], width, generator=generator, dtype=F64) / math.sqrt(fan_in)
        z = activation(z @ w + bias_std * torch.randn(width, generator=generator, dtype=F64))
        fan_in = width
    return z


@pytest.mark.parametrize("nu", [1.5, 2.2])
def test_wide_networks_converge_to_the_deep_kernel_as_one_over_sqrt_width(nu):
    activation, x, depth = st.Matern(nu, 1.5), torch.randn(6, 3, dtype=F64), 2
    kernel = kernel_of(activation, depth=depth, weight_std=1.5, bias_std=0.5).double()(x).to_dense()
    widths, errors = [50, 200, 800], []
    for width in widths:
        draws = [random_network(activation, width, depth, x, seed, 1.5, 0.5) for seed in range(60)]
        estimates = torch.stack([z @ z.mT / width for z in draws])
        errors.append((estimates - kernel).square().mean().sqrt().item())
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.12)


@pytest.mark.parametrize("nu", [1.5, 2.5])
def test_tangent_kernel_against_a_finite_network(nu):
    """The Jacobian of a wide network in all its parameters, each layer in its own scale."""
    width, x, w_std, b_std = 1500, torch.randn(4, 2, dtype=F64), 1.3, 0.6
    activation = st.Matern(nu, 1.2)
    estimates = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        shapes = [(2, width), (width,), (width, width), (width,), (width, 1)]
        scales = [w_std, b_std, w_std / math.sqrt(width), b_std, 1 / math.sqrt(width)]
        parameters = [torch.randn(s, generator=generator, dtype=F64).requires_grad_() for s in shapes]
        gradients = []
        for i in range(4):
            w1, b1, w2, b2, v = (s * p for s, p in zip(scales, parameters, strict=True))
            out = activation(activation(x[i : i + 1] @ w1 + b1) @ w2 + b2) @ v
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(out.sum(), parameters)]))
        jacobian = torch.stack(gradients)
        estimates.append(jacobian @ jacobian.mT)
    estimates = torch.stack(estimates)
    exact = ntk_of(activation, depth=2, weight_std=w_std, bias_std=b_std).double()(x).to_dense()
    z = (estimates.mean(0) - exact) / (estimates.std(0) / math.sqrt(len(estimates)) + 3 / width * exact.abs())
    assert z.abs().max() < 4.5


# Monte Carlo, and bad input


def test_monte_carlo_error_is_honest():
    x = torch.randn(4, 2, dtype=F64)
    runs = torch.stack([monte_carlo_kernel(st.ReLU(), x, n_units=500, seed=s).mean for s in range(200)])
    _, error = monte_carlo_kernel(st.ReLU(), x, n_units=500)
    torch.testing.assert_close(runs.std(0), error, rtol=0.35, atol=0)


@pytest.mark.parametrize("weights", ["gaussian", "binary", "sphere", "one"])
def test_random_units_have_the_stated_distribution(weights):
    w, b = random_units(torch.zeros(1, 3, dtype=F64), 50_000, weights, "uniform", 2.0, 1.5, seed=0)
    assert b.abs().max() <= math.sqrt(3) * 1.5 and b.std() == pytest.approx(1.5, rel=0.02)
    expected = {"gaussian": 2.0 * math.sqrt(3), "binary": 2.0 * math.sqrt(3), "sphere": 2.0, "one": 2.0 * math.sqrt(3)}
    assert w.square().sum(0).mean().sqrt() == pytest.approx(expected[weights], rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_of(st.TriangleWave()), "monte_carlo_kernel"),
        (lambda: kernel_of(st.Matern(centered=True)), "monte_carlo_kernel"),
        (lambda: kernel_of(st.Matern(dim=3)), "monte_carlo_kernel"),
        (lambda: kernel_of(nn.Tanh()), "monte_carlo_kernel"),
        (lambda: kernel_of(st.ReLU(), weights="binary"), "monte_carlo_kernel"),
        (lambda: kernel_of(st.ReLU(), bias="uniform"), "monte_carlo_kernel"),
        (lambda: kernel_of(st.Matern(), weights="sphere"), "monte_carlo_kernel"),
        (lambda: kernel_of(st.Matern(), weights="binary", depth=2), "monte_carlo_kernel"),
        (lambda: kernel_of(st.Matern(), weights="gauss"), "weights must be one of 'gaussian', 'binary'"),
        (lambda: kernel_of(st.Matern(), bias="flat"), "bias must be one of 'gaussian', 'uniform'; got 'flat'"),
        (lambda: kernel_of(st.Matern(), bias_std=-1.0), "bias_std must be a positive number, got -1.0"),
        (lambda: kernel_of(st.Matern(), weight_std=0.0), "weight_std must be a positive number, got 0.0"),
        (lambda: kernel_of(st.Matern(), depth=0), "depth counts the hidden layers, a positive integer; got 0"),
        (lambda: kernels.MaternKernel(-1.0), "nu must be a positive number, got -1.0"),
        (lambda: kernels.MaternKernel(math.inf), "RBFKernel"),
        (lambda: ntk_of(st.Step()), "activation must be differentiable"),
        (lambda: ntk_of(st.Matern(0.8)), "nu = 0.8 <= 1"),
        (lambda: kernel_of(st.Matern(), weights="binary")(torch.zeros(2, 13)).to_dense(), "got 13 input dimensions"),
        (
            lambda: kernel_of(st.Matern(dim=3), weights="sphere", bias="uniform")(torch.zeros(2, 2)).to_dense(),
            "got 2 inputs and dim=3",
        ),
        (lambda: monte_carlo_kernel(st.ReLU(), torch.zeros(3)), r"x1 and x2 must be (n, d) and (m, d), got (3,)"),
        (
            lambda: monte_carlo_kernel(st.ReLU(), torch.zeros(3, 1), n_units=1),
            "n_units must be an integer of at least 2",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


def test_a_learnable_activation_gives_its_present_values():
    activation = st.Matern(1.7, 0.6, learnable=True)
    kernel = kernel_of(activation)
    assert kernel.lengthscale.item() == pytest.approx(0.6, rel=1e-6)
    assert [n for n, _ in kernel.named_parameters()] == ["raw_lengthscale", "raw_weight_std", "raw_bias_std"]


def test_gp_regression_learns_the_hyperparameters():
    """A GPyTorch model with our kernel: the likelihood rises, and the noise is found."""
    import gpytorch

    x = torch.linspace(-2, 2, 60, dtype=F64)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(60, dtype=F64)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel_of(st.Matern(2.5), normalize=True))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(likelihood).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert likelihood.noise.sqrt().item() == pytest.approx(0.1, abs=0.06)


def test_arrays_are_inputs():
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    kernel = kernel_of("matern52")
    assert torch.equal(kernel(x.numpy(), x[:2].numpy()).to_dense(), kernel(x, x[:2]).to_dense())
    assert torch.equal(kernel(x.numpy()).to_dense(), kernel(x).to_dense())
    expected = monte_carlo_kernel(st.Matern(2.5), x).mean
    for arrays in ((x.numpy(),), (x.numpy(), x.numpy())):
        assert torch.equal(monte_carlo_kernel(st.Matern(2.5), *arrays).mean, expected)
    with pytest.raises(ValueError, match=r"x1 and x2 must hold real numbers of one type, got torch.int64 and"):
        monte_carlo_kernel(st.Matern(2.5), x.long())


def test_kernels_of_an_activation_by_its_name():
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for of in (kernel_of, ntk_of):
        assert torch.equal(of("matern52").double()(x).to_dense(), of(st.Matern(2.5)).double()(x).to_dense())
    with pytest.raises(ValueError, match="activation name must be one of"):
        kernel_of("matern53")
