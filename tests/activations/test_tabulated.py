"""Any kernel to its activation: autocorrelations by an independent quadrature, closed forms, the module's contract."""

import copy
import math
import pickle
from functools import cache

import numpy as np
import oracles
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck

from stationary.activations import activation_from_kernel
from stationary.theory import factorization
from stationary.theory.factors import CausalFactor, EvenFactor
from stationary.theory.spectral import matern_covariance, spectral_density

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
LAGS = np.array([0.0, 0.003, 0.05, 0.3, 0.8, 1.7, 4.0])


def matern(nu, lengthscale=1.0, weight=1.0, frequency=0.0):
    """A Matérn kernel times a cosine, its density, and its values by the oracle."""
    shifted = lambda w: spectral_density(w, nu, lengthscale, weight)
    return (
        lambda r: matern_covariance(r, nu, lengthscale, weight) * torch.cos(frequency * r),
        lambda w: (shifted(w - frequency) + shifted(w + frequency)) / 2,
        lambda r: weight * oracles.matern_kernel(r, nu, lengthscale) * np.cos(frequency * r),
    )


def mixed(*terms):
    return tuple(lambda x, i=i: sum(term[i](x) for term in terms) for i in range(3))


# A kernel, its density, its oracle; then the tail.
CAUSAL = {
    "matern-1/2": (matern(0.5), 0.5),
    "matern-3/2": (matern(1.5, 0.7, 2.5), 1.5),
    "matern-5/2": (matern(2.5, 3.0), 2.5),
    "matern-2.2": (matern(2.2), 2.2),
    "matern-0.8": (matern(0.8), 0.8),
    "matern-0.3": (matern(0.3), 0.3),
    "matern-1/2-cosine": (matern(0.5, frequency=4.0), 0.5),
    "matern-3/2-cosine": (matern(1.5, frequency=3.0), 1.5),
    "matern-5/2-cosine": (matern(2.5, frequency=3.0), 2.5),
    "matern-1/2 + matern-1/2": (mixed(matern(0.5, 1.0, 0.6), matern(0.5, 0.2, 0.4)), 0.5),
    "matern-1/2 + matern-3/2": (mixed(matern(0.5), matern(1.5)), 0.5),
    "matern-3/2 + matern-5/2": (mixed(matern(1.5), matern(2.5)), 1.5),
}
each_causal = pytest.mark.parametrize(("functions", "tail"), CAUSAL.values(), ids=CAUSAL)

SQRT2 = math.sqrt(2)
RBF = (
    lambda r: torch.exp(-r.square() / 2),
    lambda w: math.sqrt(2 * math.pi) * torch.exp(-w.square() / 2),
    lambda r: np.exp(-np.square(r) / 2),
)
RATIONAL_QUADRATIC = (
    lambda r: 1 / (1 + r.square() / 2),
    lambda w: math.pi * SQRT2 * torch.exp(-SQRT2 * w.abs()),
    lambda r: 1 / (1 + np.square(r) / 2),
)
SPECTRAL_MIXTURE = (
    lambda r: 0.7 * torch.exp(-r.square() / 2) * torch.cos(3 * r) + 0.3 * torch.exp(-2 * r.square()),
    lambda w: 0.35 * (RBF[1](w - 3) + RBF[1](w + 3)) + 0.15 * RBF[1](w / 2),
    lambda r: 0.7 * np.exp(-np.square(r) / 2) * np.cos(3 * r) + 0.3 * np.exp(-2 * np.square(r)),
)
NOT_CAUSAL = {"rbf": RBF, "rational quadratic": RATIONAL_QUADRATIC, "spectral mixture": SPECTRAL_MIXTURE}


def autocorrelation(sigma, r, even=False):
    """The integral of sigma(u) sigma(u + r), by Gauss-Legendre on pieces that shrink towards 0 and -r."""
    away = np.geomspace(1e-30, 2e3, 900)
    edges = np.unique(np.concatenate([[0.0], away, -away, -r + away, -r - away])) if even else np.append(0.0, away)
    node, weight = np.polynomial.legendre.leggauss(12)
    middle, half = (edges[1:] + edges[:-1])[:, None] / 2, (edges[1:] - edges[:-1])[:, None] / 2
    u = torch.from_numpy(middle + half * node)
    return float((sigma(u).numpy() * sigma(u + r).numpy() * weight * half).sum())


def error(sigma, exact, even=False):
    return max(abs(autocorrelation(sigma, r, even) - exact(r)) for r in LAGS) / exact(0.0)


@cache
def build(name, phase="causal"):
    functions, tail = CAUSAL[name] if name in CAUSAL else (NOT_CAUSAL[name], None)
    return activation_from_kernel(functions[0], tail=tail, phase=phase)


# The causal factor


@each_causal
def test_causal_from_density_and_tail(functions, tail):
    activation = activation_from_kernel(spectral_density=functions[1], tail=tail)
    assert error(activation.factor, functions[2]) < 1e-12
    assert activation.factorization_error < 1e-12
    measured = error(activation, functions[2])
    assert measured < 1.5 * activation.autocorrelation_error + 1e-13, "the stated error is that of the table"
    assert activation.autocorrelation_error < 1e-8


@each_causal
def test_causal_from_kernel_and_tail(functions, tail):
    activation = activation_from_kernel(functions[0], tail=tail)
    assert error(activation.factor, functions[2]) < 1e-10
    assert activation.factorization_error < 1e-10


@each_causal
@pytest.mark.parametrize("given", ["kernel", "spectral_density"])
def test_causal_without_tail(functions, tail, given):
    activation = activation_from_kernel(**{given: functions[("kernel", "spectral_density").index(given)]})
    assert error(activation.factor, functions[2]) < 1e-8
    assert activation.factor.power + 0.5 == pytest.approx(tail, abs=1e-4)


def test_a_spoilt_table_states_a_larger_error():
    """The error is measured: it must notice a table that is wrong."""
    factorised = factorization.factorise(CAUSAL["matern-3/2"][0][0], None, 1.5, "causal")
    activation = copy.deepcopy(build("matern-3/2"))
    activation.table *= 1.001
    assert factorised.errors(activation) == [pytest.approx(0.002, rel=0.01)]


@pytest.mark.parametrize("nu", [0.5, 0.8, 1.5, 2.2, 2.5])
def test_the_matern_kernel_gives_the_matern_activation(nu):
    x = np.array([-1.0, 0.0, 1e-6, 0.01, 0.3, 1.0, 4.0, 9.0])
    exact = [float(oracles.matern_activation(v, nu, 0.7)) for v in x]
    factor = activation_from_kernel(lambda r: matern_covariance(r, nu, 0.7), tail=nu).factor
    np.testing.assert_allclose(factor(torch.from_numpy(x)), exact, atol=1e-9)


def test_closed_form_of_the_damped_cosine():
    """e^(-r) cos(4 r): sqrt(2) e^(-x) (cos 4x + (sqrt(17) - 1) / 4 sin 4x)."""
    x = torch.linspace(0, 12, 500, dtype=torch.float64)[1:]
    exact = SQRT2 * torch.exp(-x) * (torch.cos(4 * x) + (math.sqrt(17) - 1) / 4 * torch.sin(4 * x))
    for options in (
        {"kernel": lambda r: torch.exp(-r.abs()) * torch.cos(4 * r), "tail": 0.5},
        {"spectral_density": lambda w: 1 / (1 + (w - 4).square()) + 1 / (1 + (w + 4).square()), "tail": 0.5},
    ):
        activation = activation_from_kernel(**options)
        torch.testing.assert_close(activation.factor(x), exact, rtol=0, atol=1e-10)
        torch.testing.assert_close(activation(x), exact, rtol=0, atol=1e-8)


def test_closed_form_of_two_exponentials():
    a, b, l1, l2 = 0.6, 0.4, 1.0, 5.0
    c = 2 * (a * l1 + b * l2)
    mu = math.sqrt(2 * l1 * l2 * (a * l2 + b * l1) / c)
    x = torch.linspace(0, 12, 500, dtype=torch.float64)[1:]
    exact = math.sqrt(c) * ((mu - l1) * torch.exp(-l1 * x) - (mu - l2) * torch.exp(-l2 * x)) / (l2 - l1)
    activation = activation_from_kernel(lambda r: a * torch.exp(-l1 * r.abs()) + b * torch.exp(-l2 * r.abs()), tail=0.5)
    torch.testing.assert_close(activation.factor(x), exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [1e-6, 1e5])
def test_any_length_and_variance(length):
    kernel = lambda r: 7 * torch.exp(-r.abs() / length)
    x = torch.tensor([-1.0, 0.01, 1.0, 3.0], dtype=torch.float64) * length
    exact = math.sqrt(14 / length) * torch.exp(-x / length) * (x > 0)
    for tail in (0.5, None):
        torch.testing.assert_close(activation_from_kernel(kernel, tail=tail)(x), exact, rtol=1e-6, atol=0)


def test_a_float32_kernel_is_factorised_to_its_own_rounding():
    activation = activation_from_kernel(lambda r: torch.exp(-r.abs()).float(), tail=0.5)
    assert activation.autocorrelation_error < 1e-6


# The even factor


def test_zero_phase_matern_closed_forms():
    x = torch.linspace(-8, 8, 401, dtype=torch.float64)
    for nu, exact in (
        (1.5, lambda y: torch.exp(-y)),
        (3.5, lambda y: math.sqrt(2 / 5) * (1 + y) * torch.exp(-y)),
    ):
        rate = math.sqrt(2 * nu)
        values = math.sqrt(rate) * exact(rate * x.abs())
        for given in (
            {"kernel": lambda r: matern_covariance(r, nu)},
            {"kernel": lambda r: matern_covariance(r, nu), "tail": nu},
            {"spectral_density": lambda w: spectral_density(w, nu)},
        ):
            activation = activation_from_kernel(phase="zero", **given)
            torch.testing.assert_close(activation.factor(x), values, rtol=0, atol=1e-7)
            torch.testing.assert_close(activation(x), values, rtol=0, atol=1e-7)
            assert activation.factorization_error < 1e-12 and activation.autocorrelation_error < 1e-8


def test_zero_phase_closed_forms_without_a_tail():
    x = torch.linspace(-6, 6, 401, dtype=torch.float64)
    # The root of a density that a kernel gives to 1e-16 is known to 1e-8 where it is small.
    bump = (2 / math.pi) ** 0.25 * torch.exp(-x.square())
    lorentzian = math.sqrt(SQRT2 / math.pi) * SQRT2 / 2 / (0.5 + x.square())
    for functions, exact, tolerance in ((RBF, bump, 1e-7), (RATIONAL_QUADRATIC, lorentzian, 2e-6)):
        for given in ({"kernel": functions[0]}, {"spectral_density": functions[1]}):
            activation = activation_from_kernel(phase="zero", **given)
            torch.testing.assert_close(activation(x), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_zero_phase_autocorrelation(name):
    functions = NOT_CAUSAL[name]
    # The rational quadratic's activation falls like 1 / x^2, so the end of the table shows.
    accuracy = 1e-6 if name == "rational quadratic" else 1e-9
    for given in ({"kernel": functions[0]}, {"spectral_density": functions[1]}):
        activation = activation_from_kernel(phase="zero", **given)
        assert error(activation, functions[2], even=True) < accuracy
        assert activation.autocorrelation_error < accuracy


def test_a_narrow_spectral_peak_is_found():
    """A density whose width is one hundredth of its frequency, and a kernel with many cycles."""
    for given in (
        {"spectral_density": lambda w: RBF[1](w.abs() - 100)},
        {"kernel": lambda r: RBF[0](r) * torch.cos(20 * r)},
    ):
        activation = activation_from_kernel(phase="zero", **given)
        assert activation.factorization_error < 1e-10 and activation.autocorrelation_error < 1e-6


# What has no factor


@pytest.mark.parametrize("name", NOT_CAUSAL)
@pytest.mark.parametrize("tail", [None, 0.5, 2.5])
def test_paley_wiener(name, tail):
    for given in ({"kernel": NOT_CAUSAL[name][0]}, {"spectral_density": NOT_CAUSAL[name][1]}):
        with pytest.raises(ValueError, match=r'Paley-Wiener.*phase="zero".*\(1 - 1e-3\) \* kernel \+ 1e-3 \* Matérn'):
            activation_from_kernel(tail=tail, **given)


@pytest.mark.parametrize("tail", [None, 2.5])
def test_band_limited(tail):
    with pytest.raises(ValueError, match=r'not decayed.*no causal factor.*phase="zero"'):
        activation_from_kernel(lambda r: torch.sinc(r), tail=tail)
    with pytest.raises(ValueError, match=r'Paley-Wiener.*phase="zero"'):
        activation_from_kernel(spectral_density=lambda w: (w.abs() < 1).double(), tail=tail)


@pytest.mark.slow
def test_band_limited_with_zero_phase():
    """A box of S = 1 below 1: sin(x) / (pi x), whose slow decay the table ends."""
    activation = activation_from_kernel(spectral_density=lambda w: (w.abs() < 1).double(), phase="zero")
    x = torch.linspace(-20, 20, 101, dtype=torch.float64)
    torch.testing.assert_close(activation(x), torch.sinc(x / math.pi) / math.pi, rtol=0, atol=1e-4)
    assert activation.autocorrelation_error < 5e-3


@pytest.mark.parametrize("name", ["rbf", "spectral mixture"])
def test_the_admixture_rescues(name):
    admixed = mixed(tuple(lambda x, f=f: 0.999 * f(x) for f in NOT_CAUSAL[name]), matern(2.5, weight=0.001))
    for given in ({"kernel": admixed[0]}, {"spectral_density": admixed[1]}):
        activation = activation_from_kernel(tail=2.5, **given)
        assert error(activation, admixed[2]) < 1e-9
        assert error(activation, NOT_CAUSAL[name][2]) < 2e-3


@pytest.mark.slow
def test_the_admixture_rescues_the_rational_quadratic():
    admixed = mixed(tuple(lambda x, f=f: 0.999 * f(x) for f in RATIONAL_QUADRATIC), matern(2.5, weight=0.001))
    activation = activation_from_kernel(spectral_density=admixed[1], tail=2.5)
    assert error(activation, admixed[2]) < 1e-5


@pytest.mark.parametrize("phase", ["causal", "zero"])
@pytest.mark.parametrize(
    "kernel",
    [
        torch.cos,
        lambda r: torch.exp(-2 * torch.sin(r / 2).square()),
        torch.ones_like,
        lambda r: 1 + r.abs(),
        lambda r: torch.exp(-r.abs()) + 0.1,
    ],
    ids=["cosine", "periodic", "constant", "linear", "with a constant"],
)
def test_no_spectral_density(kernel, phase):
    with pytest.raises(ValueError, match="no spectral density"):
        activation_from_kernel(kernel, phase=phase)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of kernel and spectral_density.*neither"),
        ({"kernel": torch.cos, "spectral_density": torch.cos}, "exactly one of kernel and spectral_density.*both"),
        ({"kernel": torch.cos, "phase": "minimum"}, 'phase must be "causal" or "zero", got \'minimum\''),
        ({"kernel": torch.cos, "tail": -1.0}, "tail must be a positive number, got -1.0"),
        ({"kernel": lambda r: (1 + r.square()) ** -0.05}, "kernel has not decayed by the end of the grid"),
        ({"kernel": lambda r: torch.exp(-r)}, "kernel must be even"),
        ({"kernel": lambda r: torch.sin(r) / r}, "kernel must be finite, got nan at 0"),
        ({"kernel": lambda r: torch.exp(-(r**4))}, "kernel must be positive semi-definite.*S = -"),
        ({"spectral_density": lambda w: torch.exp(-(w - 1).square())}, "spectral_density must be even"),
        ({"spectral_density": lambda w: (1 - w.square()) * RBF[1](w)}, "spectral_density must not be negative, got -"),
        ({"spectral_density": torch.ones_like}, "spectral_density must have a finite positive integral"),
        ({"spectral_density": torch.zeros_like}, "spectral_density must have a finite positive integral"),
        ({"kernel": CAUSAL["matern-1/2"][0][0], "tail": 2.5}, "tail must be nu0.*got 2.5.*0.50"),
        ({"spectral_density": CAUSAL["matern-3/2"][0][1], "tail": 0.5}, "tail must be nu0.*got 0.5.*1.50"),
        ({"kernel": CAUSAL["matern-1/2"][0][0], "phase": "zero"}, 'too rough.*phase="causal"'),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(options, message):
    with pytest.raises(ValueError, match=message):
        activation_from_kernel(**options)


@pytest.mark.parametrize("kernel", [lambda r: r.numpy(), lambda r: r.sum()])
def test_a_kernel_must_return_a_tensor_of_the_same_shape(kernel):
    with pytest.raises(TypeError, match="kernel must return a tensor of the shape of its argument"):
        activation_from_kernel(kernel)


# The module

MODULES = {
    "jump": ("matern-1/2-cosine", "causal"),
    "kink": ("matern-3/2", "causal"),
    "steep": ("matern-0.8", "causal"),
    "broken power": ("matern-2.2", "causal"),
    "unbounded": ("matern-0.3", "causal"),
    "even": ("rbf", "zero"),
    "even kink": ("matern-3/2", "zero"),
}
each_module = pytest.mark.parametrize("case", MODULES.values(), ids=MODULES)


@each_module
def test_what_it_is_made_of(case):
    activation = build(*case)
    assert isinstance(activation.factor, CausalFactor if case[1] == "causal" else EvenFactor)
    x = torch.linspace(-3, 3, 201, dtype=torch.float64)
    torch.testing.assert_close(activation(x), activation.factor(x), rtol=1e-7, atol=1e-8)
    assert "autocorrelation_error" in repr(activation)


@each_module
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_float_dtype_with_finite_value_and_gradient(case, dtype):
    info = torch.finfo(dtype)
    sizes = [0.0, info.smallest_normal * info.eps, info.smallest_normal, info.eps, 1e-3, 0.1, 1.0, 7.0, 60.0, info.max]
    x = torch.tensor([*sizes, *(-s for s in sizes)], dtype=torch.float64).to(dtype).requires_grad_()
    y = build(*case)(x)
    y.backward(torch.ones_like(y))
    assert y.dtype == dtype and y.isfinite().all() and x.grad.isfinite().all()
    away = x.detach()[x.detach().abs() >= 1e-3]
    exact = build(*case)(away.double())
    torch.testing.assert_close(build(*case)(away).double(), exact, rtol=2 * info.eps, atol=1e-5 * exact.abs().max())


@each_module
def test_nan_infinity_and_nothing(case):
    activation = build(*case)
    for function in (activation, torch.func.vmap(activation)):
        y = function(torch.tensor([math.nan, math.inf, -math.inf]))
        assert y[0].isnan() and y[1:].tolist() == [0.0, 0.0]
    assert activation(torch.empty(0, 3)).shape == (0, 3)
    x = torch.tensor([math.inf, -math.inf], requires_grad=True)
    activation(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


@each_module
def test_gradients(case):
    x = torch.empty(40, dtype=torch.float64).uniform_(-4, 4)
    x = x[x.abs() > 0.02].requires_grad_()
    assert gradcheck(build(*case), (x,), check_forward_ad=True)


@each_module
def test_value_and_slope_are_continuous_between_nodes_and_at_the_end(case):
    activation = build(*case)
    nodes = activation.step * torch.tensor([5.0, 77.0, len(activation.table) - 1.0], dtype=torch.float64)
    gap = 1e-9 * activation.step
    values, slopes = [], []
    for x in (nodes - gap, nodes + gap):
        x.requires_grad_()
        y = activation(x)
        values.append(y.detach())
        slopes.append(torch.autograd.grad(y.sum(), x)[0])
    torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-5, atol=1e-9)


def test_the_infinite_slope_is_floored_and_the_value_is_not():
    activation = build("matern-0.8")
    x = torch.tensor([1e-12, 1e-8], dtype=torch.float64, requires_grad=True)
    y = activation(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact = [float(oracles.matern_activation(v, 0.8)) for v in x.tolist()]
    np.testing.assert_allclose(y.detach(), exact, rtol=1e-6)
    assert slope[0] == slope[1] and 1 < slope[0] < 1000


@each_module
def test_transforms_compilation_and_export(case):
    activation = build(*case)
    x = torch.linspace(-2, 2, 30, dtype=torch.float64).reshape(5, 6)
    y = activation(x)
    assert torch.equal(torch.func.vmap(activation)(x), y)
    (reverse,) = torch.autograd.grad(activation(x.requires_grad_()).sum(), x)
    x = x.detach()
    _, forward = torch.func.jvp(activation, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(forward, reverse)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(activation(forward_ad.make_dual(x, torch.ones_like(x))))
    torch.testing.assert_close(dual.tangent, reverse)
    compiled = torch.compile(activation, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), y)
    torch.testing.assert_close(torch.export.export(activation, (x,)).module()(x), y)


@each_module
def test_copies_and_state(case):
    activation = build(*case)
    x = torch.linspace(-2, 2, 31)
    y = activation(x)
    for twin in (copy.deepcopy(activation), pickle.loads(pickle.dumps(activation))):
        assert torch.equal(twin(x), y) and twin.autocorrelation_error == activation.autocorrelation_error
    blank = copy.deepcopy(activation)
    blank.table.zero_()
    blank.load_state_dict(activation.state_dict())
    assert torch.equal(blank(x), y)
    assert not list(activation.parameters())


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "double"])
def test_a_network_that_is_cast_keeps_its_table(cast):
    network = getattr(nn.Sequential(nn.Linear(2, 2), copy.deepcopy(build("matern-3/2"))), cast)()
    assert torch.equal(network[1].table, build("matern-3/2").table)
    assert network(torch.ones(3, 2, dtype=network[0].weight.dtype)).dtype == network[0].weight.dtype
    assert network.to("meta")[1].table.is_meta


@pytest.mark.parametrize("case", [("matern-1/2-cosine", "causal"), ("rbf", "zero")])
def test_a_network_with_it_trains(case):
    x = torch.linspace(-2, 2, 64).unsqueeze(1)
    target = torch.sin(2 * x)
    network = nn.Sequential(nn.Linear(1, 64), build(*case), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
