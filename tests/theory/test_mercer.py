"""The operators behind the kernels: eigenpairs by quadrature and mpmath, Green's functions by their equations."""

import math

import mpmath
import numpy as np
import pytest
import torch

import stationary as st
from stationary.theory.mercer import RBFEigensystem, matern_operator

PAIRS = ((math.sqrt(2), 1.0), (1.0, 1.0), (0.7, 1.6), (0.05, 1.0), (3.0, 0.4))  # alpha, beta
PAPER = RBFEigensystem.from_alpha_beta(math.sqrt(2), 1.0)
EPS = np.finfo(float).eps


def double(x):
    return torch.as_tensor(x, dtype=torch.float64)


def density(x, beta):
    return beta / math.sqrt(math.pi) * np.exp(-((beta * x) ** 2))


def gaussian_grid(beta, n=4001):
    """Nodes and weights of the trapezoidal rule under the density: it converges geometrically for entire functions."""
    x = np.linspace(-16 / beta, 16 / beta, n)
    return x, density(x, beta) * (x[1] - x[0])


def eigenpair(j, x, alpha, beta):
    """The paper's formulas as they stand, in mpmath."""
    with mpmath.workdps(50):
        x, alpha, beta = mpmath.mpf(x), mpmath.mpf(alpha), mpmath.mpf(beta)
        s = mpmath.sqrt(1 + (2 * alpha / beta) ** 2)
        gamma = beta * alpha ** (2 * j) * (beta**2 / 2 * (1 + s) + alpha**2) ** -(j + mpmath.mpf(1) / 2)
        bump = mpmath.exp(-(s - 1) * beta**2 * x**2 / 2)
        h = mpmath.hermite(j, mpmath.sqrt(s) * beta * x)
        return gamma, mpmath.sqrt(mpmath.sqrt(s)) / mpmath.sqrt(mpmath.mpf(2) ** j * mpmath.factorial(j)) * bump * h


# Eigenpairs


def test_the_example_of_the_paper():
    x = np.linspace(-3, 3, 61)
    bump = np.exp(-(x**2))
    phi = [
        3**0.25 * bump,
        108**0.25 * x * bump,
        0.75**0.25 * (6 * x**2 - 1) * bump,
        3 * 3**0.25 * (2 * x**3 - x) * bump,
    ]
    np.testing.assert_allclose(PAPER.eigenvalues(4), [1 / 2, 1 / 4, 1 / 8, 1 / 16], rtol=4 * EPS)
    np.testing.assert_allclose(PAPER.eigenfunctions(double(x), 4), np.stack(phi, -1), rtol=0, atol=1e-14)
    assert PAPER.lengthscale == pytest.approx(0.5)  # alpha^2 = 1 / (2 lengthscale^2)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_formulas_of_the_appendix(alpha, beta):
    system, n = RBFEigensystem.from_alpha_beta(alpha, beta), 40
    x = np.array([-2.3, 0.0, 0.4, 1.0, 3.7]) / beta
    exact = [[eigenpair(j, v, alpha, beta)[1] for j in range(n)] for v in x]
    gamma = [eigenpair(j, 0, alpha, beta)[0] for j in range(n)]
    np.testing.assert_allclose(system.eigenvalues(n), np.array(gamma, float), rtol=1e-13)
    exact = np.array(exact, float)
    np.testing.assert_allclose(system.eigenfunctions(double(x), n), exact, rtol=0, atol=1e-12 * np.abs(exact).max())


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_orthonormal_under_the_density(alpha, beta):
    x, weight = gaussian_grid(beta)
    phi = RBFEigensystem.from_alpha_beta(alpha, beta).eigenfunctions(double(x), 60).numpy()
    np.testing.assert_allclose(phi.T @ (weight[:, None] * phi), np.eye(60), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_eigen_equation(alpha, beta):
    system, n = RBFEigensystem.from_alpha_beta(alpha, beta), 20
    y, weight = gaussian_grid(beta)
    x = np.linspace(-2, 2, 9) / beta
    kernel = np.exp(-(alpha**2) * (x[:, None] - y) ** 2)
    left = (kernel * weight) @ system.eigenfunctions(double(y), n).numpy()
    right = system.eigenvalues(n) * system.eigenfunctions(double(x), n)
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_eigenvalues_against_a_discretised_operator_and_the_trace(alpha, beta):
    system = RBFEigensystem.from_alpha_beta(alpha, beta)
    x, weight = gaussian_grid(beta, 1001)
    root = np.sqrt(weight)
    operator = root[:, None] * np.exp(-(alpha**2) * (x[:, None] - x) ** 2) * root
    np.testing.assert_allclose(system.eigenvalues(60), np.linalg.eigvalsh(operator)[::-1][:60], rtol=0, atol=1e-13)
    assert system.eigenvalues(4000).sum().item() == pytest.approx(1, abs=1e-13)


# Mercer's sum


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_truncated_sum_is_the_kernel_within_its_bound(alpha, beta):
    """|k - k_n| <= sqrt(r(x) r(y)) <= the bound, and the bound is of the right size, up to sqrt(n)."""
    system = RBFEigensystem.from_alpha_beta(alpha, beta)
    x = double(np.linspace(-2, 2, 41) / beta)
    y = x[:, None]
    exact = torch.exp(-(alpha**2) * (x - y) ** 2)
    rounding = 1e-14
    last = torch.ones(())
    for n in (1, 2, 3, 5, 10, 20, 40, 80):
        error = (exact - system.kernel(x, y, n)).abs()
        remainder = 1 - system.kernel(x, x, n)
        bound = system.truncation_bound(x, y, n)
        assert (remainder > -rounding).all()
        assert (error <= (remainder.clamp(min=0) * remainder.clamp(min=0)[:, None]).sqrt() + rounding).all()
        assert (error <= bound + rounding).all()
        assert (bound <= last).all() and bound.max() <= 1
        last = bound
        if error.max() > 1e-10:  # WKB: the mean of the oscillating phi_n^2 is its bound over sqrt(2 pi n)
            assert bound.max() < 3 * math.sqrt(2 * math.pi * n) * error.max()
    n = math.ceil(math.log(1e-13) / math.log(system.ratio)) + 30  # e^(beta^2 x^2) = e^4 at most
    assert (exact - system.kernel(x, y, n)).abs().max() < 2e-13


def test_the_steps_of_the_bound():
    """In the paper's example: phi_j^2 <= sqrt(3) e^(x^2), reached by phi_0 at 0, and the rest of the trace is 2^-n."""
    x = double(np.linspace(-6, 6, 1201))
    ratio = PAPER.eigenfunctions(x, 300).square() / (math.sqrt(3) * torch.exp(x**2))[:, None]
    assert ratio.max().item() == pytest.approx(1, rel=1e-14)
    y = double([0.0, 0.5, 3.0])
    expected = math.sqrt(3) / 2**20 * np.exp([0.0, 0.125, 4.5])  # sqrt(A(0) A(y))
    np.testing.assert_allclose(PAPER.truncation_bound(double(0.0), y, 20), expected, rtol=1e-13)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_mean_errors_of_the_truncated_sum(alpha, beta, n):
    system = RBFEigensystem.from_alpha_beta(alpha, beta)
    x, weight = map(double, gaussian_grid(beta, 1001))
    features = system.features(x, n)
    error = torch.exp(-(alpha**2) * (x - x[:, None]) ** 2) - features @ features.T
    b = system.ratio
    assert (weight @ error.diagonal()).item() == pytest.approx(b**n, abs=1e-13)
    mean_square = (weight @ error.square() @ weight).item()
    assert mean_square == pytest.approx(b ** (2 * n) * (1 - b) / (1 + b), rel=1e-8, abs=1e-28)


def test_far_and_high_functions_neither_overflow_nor_vanish():
    """At x = 30 the first function is e^-900, the polynomial of degree 200 is e^428; the product is right."""
    x = (0.0, 5.0, 12.0, 30.0, -30.0)
    phi = PAPER.eigenfunctions(double(x), 201)
    assert phi.isfinite().all()
    for i, v in enumerate(x):
        for j in (0, 1, 50, 149, 200):
            exact = float(eigenpair(j, v, mpmath.sqrt(2), 1)[1])
            assert phi[i, j].item() == pytest.approx(exact, rel=1e-11, abs=1e-300)
    assert 0 < phi[3, 200] < 1e-200
    assert PAPER.eigenfunctions(torch.tensor([1e30, -1e200, 0.0], dtype=torch.float64), 200).isfinite().all()
    assert PAPER.eigenfunctions(torch.linspace(-30, 30, 61), 200).dtype == torch.float32
    assert PAPER.features(torch.linspace(-30, 30, 61), 1000).isfinite().all()


def test_the_kernel_far_from_the_data():
    """At 42 standard deviations the sum needs 1,500 terms, of functions up to e^450, and is still the kernel."""
    x, y = double([30.0, 30.0]), double([30.0, 30.3])
    assert PAPER.kernel(x, y, 200).abs().max() < 1e-100
    np.testing.assert_allclose(PAPER.kernel(x, y, 1500), [1.0, math.exp(-2 * 0.3**2)], rtol=1e-11)


def test_gradients():
    x = torch.tensor([-1.3, 0.0, 0.4, 2.0, 6.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([-0.2, 0.7, 0.4, 1.0, 5.5], dtype=torch.float64, requires_grad=True)
    lengthscale, std = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.6, 0.9))
    for name in ("kernel", "truncation_bound", "greens_function"):
        assert torch.autograd.gradcheck(
            lambda x, y, a, b: getattr(RBFEigensystem(a, input_std=b), name)(x, y, 9), (x, y, lengthscale, std)
        )
    assert torch.autograd.gradcheck(
        lambda x, a: RBFEigensystem(a, input_std=std).eigenfunctions(x, 9), (x, lengthscale)
    )
    assert torch.autograd.gradcheck(lambda a, b: RBFEigensystem(a, input_std=b).eigenvalues(9), (lengthscale, std))
    far = torch.tensor([30.0, 1e200], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(PAPER.features(far, 200).sum(), far)
    assert slope.isfinite().all()


# Green's functions


def test_the_sum_over_inverse_eigenvalues_diverges():
    """In the paper's example the terms at 0 are 2 sqrt(3) binomial(2 m, m), each almost 4 times the last."""
    zero = double(0.0)
    total, partial_sums = 0, []
    for m in range(60):
        total += 2 * math.sqrt(3) * math.comb(2 * m, m)
        partial_sums.append(PAPER.greens_function(zero, zero, 2 * m + 1).item())
        assert partial_sums[-1] == pytest.approx(total, rel=1e-12)
    growth = np.array(partial_sums[1:]) / np.array(partial_sums[:-1])
    assert (growth > 2).all() and growth[-1] == pytest.approx(4, rel=0.01)
    inverse = (1 / PAPER.eigenvalues(50)).cumsum(0)
    np.testing.assert_allclose(inverse, 2.0 ** np.arange(2, 52) - 2, rtol=1e-13)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_greens_function_grows_geometrically_everywhere(alpha, beta):
    system = RBFEigensystem.from_alpha_beta(alpha, beta)
    x = double(np.linspace(-1, 1, 5) / beta)
    size = [system.greens_function(x, x[:, None], n).abs().log() for n in (40, 80)]
    rate = (size[1].diagonal() - size[0].diagonal()) / 40
    # b^-n / sqrt(n) takes log(2) / 80 from the rate, the oscillation of phi_j a few per cent.
    np.testing.assert_allclose(rate, -math.log(system.ratio), rtol=0.03, atol=math.log(2) / 40)
    assert (size[1] > size[0]).all()


def test_greens_function_inverts_the_kernel_on_the_span():
    n = 12
    y, weight = gaussian_grid(1.0)
    x, z = np.array([-1.0, 0.2, 0.9]), np.array([-0.6, 0.2, 1.4])
    kernel = np.exp(-2 * (x[:, None] - y) ** 2)
    product = (kernel * weight) @ PAPER.greens_function(double(y)[:, None], double(z), n).numpy()
    projection = PAPER.eigenfunctions(double(x), n) @ PAPER.eigenfunctions(double(z), n).T
    np.testing.assert_allclose(product, projection, rtol=0, atol=1e-11)


def test_computed_eigenvalues_cannot_be_inverted():
    """The paper's warning: an eigenvalue below the rounding of the matrix is noise, and so is all of its inverse."""
    x, weight = gaussian_grid(1.0, 401)
    root = np.sqrt(weight)
    computed = np.linalg.eigvalsh(root[:, None] * np.exp(-2 * (x[:, None] - x) ** 2) * root)[::-1][:80]
    error = np.abs(1 / computed / (1 / PAPER.eigenvalues(80).numpy()) - 1)
    assert error[:20].max() < 1e-8
    assert error[60:].min() > 0.5


NUS = (0.3, 0.5, 0.8, 1.5, 2.2, 2.5, 3.5)
HALF_INTEGERS = (0.5, 1.5, 2.5, 3.5)


def constants(nu, lengthscale):
    """The paper's q and lambda."""
    rate = math.sqrt(2 * nu) / lengthscale
    q2 = 2 * math.sqrt(math.pi) * rate ** (2 * nu) * math.gamma(nu + 0.5) / math.gamma(nu)
    return math.sqrt(q2), rate


def integral(function, scale):
    """Over (0, inf), by the trapezoidal rule in v, x = scale e^v, whatever the power at 0."""
    v = np.arange(-120, 6, 1 / 64)
    x = scale * np.exp(v)
    return np.sum(function(x) * x) / 64


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("lengthscale", [0.4, 2.0])
def test_laplace_transform_of_the_activation(nu, lengthscale):
    """(d/dx + lambda)^(nu + 1/2) sigma = q delta for every nu: the power multiplies the transform."""
    q, rate = constants(nu, lengthscale)
    sigma = lambda x: st.matern(double(x), nu, lengthscale).numpy()
    for s in np.array([0.0, 0.5, 4.0, 1j, -5j, 1 + 3j]) / lengthscale:
        transform = integral(lambda x: sigma(x) * np.exp(-s * x), lengthscale)
        assert transform * (s + rate) ** (nu + 0.5) / q == pytest.approx(1, rel=1e-9)


def test_laplace_transform_by_mpmath():
    """The same equation, with the quadrature of mpmath and one fractional power."""
    nu, lengthscale, s = 2.2, 0.7, 1.3
    q, rate = constants(nu, lengthscale)
    sigma = lambda x: st.matern(double(float(x)), nu, lengthscale).item()
    transform = mpmath.quad(lambda x: sigma(x) * mpmath.exp(-s * x), [0, 0.5, 2, 6, 20])
    assert float(transform) == pytest.approx(q * (s + rate) ** -(nu + 0.5), rel=1e-6)


@pytest.mark.parametrize("nu", HALF_INTEGERS)
@pytest.mark.parametrize("lengthscale", [0.4, 2.0])
def test_operator_on_exponentials_and_polynomials(nu, lengthscale):
    """e^(s x) is multiplied by (s + lambda)^(nu + 1/2) / q; derivatives beyond a polynomial's degree are 0."""
    q, rate = constants(nu, lengthscale)
    x = double(np.linspace(-1, 1, 7))
    for s in (-0.7, 0.0, 1.9):
        expected = (s + rate) ** (nu + 0.5) / q * torch.exp(s * x)
        torch.testing.assert_close(matern_operator(lambda x: torch.exp(s * x), x, nu, lengthscale), expected)
    order = int(nu + 0.5)
    expected = (x * rate**order + order * rate ** (order - 1)) / q
    torch.testing.assert_close(matern_operator(lambda x: x, x, nu, lengthscale), expected)


@pytest.mark.parametrize("nu", HALF_INTEGERS)
@pytest.mark.parametrize("lengthscale", [0.4, 2.0])
def test_operator_on_the_activation_is_zero_off_the_origin_and_jumps_by_q(nu, lengthscale):
    q, _ = constants(nu, lengthscale)
    sigma = lambda x: st.matern(x, nu, lengthscale)
    x = double([-3.0, -0.1, 0.05, 0.3, 1.0, 4.0]) * lengthscale
    # Terms of the size of the derivative of order nu + 1/2, about q rate at most, cancel; the operator divides by q.
    assert matern_operator(sigma, x, nu, lengthscale).abs().max() < 1e-12 / lengthscale
    derivative = sigma
    for _ in range(int(nu - 0.5)):
        derivative = lambda x, f=derivative: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]
    before, after = derivative(double([-1e-7, 1e-7]) * lengthscale)
    assert before == 0
    assert after.item() == pytest.approx(q, rel=1e-5)


@pytest.mark.parametrize("nu", HALF_INTEGERS)
@pytest.mark.parametrize("centre", [-0.3, 0.0, 0.8])
def test_operator_on_the_activation_is_delta_weakly(nu, centre):
    """The integral of sigma times the adjoint q^-1 (-d/dx + lambda)^(nu + 1/2) psi is psi(0)."""
    lengthscale = 0.7
    psi = lambda x: torch.exp(-2 * (x - centre) ** 2) * (1 + x)
    adjoint = lambda x: matern_operator(lambda u: psi(-u), -double(x), nu, lengthscale).numpy()
    left = integral(lambda x: st.matern(double(x), nu, lengthscale).numpy() * adjoint(x), lengthscale)
    assert left == pytest.approx(psi(double(0.0)).item(), abs=1e-10)


def test_gradients_of_the_operator():
    x = torch.tensor([-0.4, 0.3, 1.0], dtype=torch.float64, requires_grad=True)
    lengthscale = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, a: matern_operator(torch.sin, x, 1.5, a), (x, lengthscale))


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: RBFEigensystem(lengthscale=0.0), "lengthscale must be a positive number, got 0.0"),
        (lambda x: RBFEigensystem(input_std=math.inf), "input_std must be finite, got inf"),
        (lambda x: RBFEigensystem.from_alpha_beta(-1.0, 1.0), "alpha must be a positive number, got -1.0"),
        (lambda x: RBFEigensystem.from_alpha_beta(1.0, math.nan), "beta must be a positive number, got nan"),
        (lambda x: PAPER.eigenvalues(0), "n must be a positive integer, the number of terms, got 0"),
        (lambda x: PAPER.kernel(x, x, 2.0), "n must be a positive integer, the number of terms, got 2.0"),
        (lambda x: PAPER.truncation_bound(x, x, True), "n must be a positive integer, the number of terms, got True"),
        (lambda x: PAPER.eigenfunctions(x.long(), 3), "floating-point tensors, got torch.int64"),
        (lambda x: PAPER.greens_function(x, 0.5, 3), "floating-point tensors, got float"),
        (lambda x: matern_operator(torch.sin, x, nu=1.0), "nu must be a half-integer such as 0.5, 1.5 or 2.5, got 1.0"),
        (lambda x: matern_operator(torch.sin, x, nu=math.inf), "nu must be finite, got inf"),
        (lambda x: matern_operator(torch.sin, x, 0.5, -1.0), "lengthscale must be a positive number, got -1.0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2))


def test_wrong_type():
    with pytest.raises(TypeError, match="lengthscale must be a positive number, got '1'"):
        RBFEigensystem(lengthscale="1")
