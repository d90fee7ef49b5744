"""The posterior of classes and labels against brute force, Gaussian processes of scikit-learn, and samples."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from torch import nn
from torch.nn import functional as F

import stationary as st
from stationary.inference.infinite_width import _classes, _evidence, _search
from stationary.inference.infinite_width._basis import Basis, Passes, moments
from stationary.inference.infinite_width._sums import alone

VARIANCE = 4.0


def data(n=60, c=3, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return u, (u @ torch.randn(d, c, generator=generator, dtype=torch.float64)).argmax(1)


def task(u, y, m=15, variance=VARIANCE, weight=None, offset=None, memory=2**30):
    basis = Basis.of("matern52", torch.tensor(1.0, dtype=torch.float64), u[:m])
    passes = Passes(basis, lambda rows: u[rows], len(u), memory)
    c = y.shape[1] if y.ndim == 2 else int(y.max()) + 1
    offset = u.new_zeros(c) if offset is None else offset
    return _classes.Task(passes, y, u.new_ones(len(u)) if weight is None else weight, variance, offset, alone)


def brute_force(problem, u, several=False):
    """W by Newton's method with the whole Hessian from automatic differentiation, and H by its formula, row by row."""
    phi, y, s2 = problem.passes.basis(u), problem.targets, problem.variance
    a = (1 + math.pi / 8 * s2 * (1 - phi.square().sum(1)).clamp(min=0)) ** -0.5

    def outputs(w):
        return problem.offset + a[:, None] * (phi @ w.view(phi.shape[1], -1))

    def loss(w):
        z = outputs(w)
        each = (
            F.binary_cross_entropy_with_logits(z, y.double(), reduction="none").sum(1)
            if several
            else F.cross_entropy(z, y, reduction="none")
        )
        return problem.weight @ each + w.square().sum() / (2 * s2)

    w = torch.zeros(phi.shape[1] * len(problem.offset), dtype=torch.float64)
    for _ in range(30):
        gradient = torch.func.grad(loss)(w)
        w = w - torch.linalg.solve(torch.func.hessian(loss)(w), gradient)
    assert torch.func.grad(loss)(w).norm() < 1e-10
    z, eye = outputs(w), torch.eye(phi.shape[1], dtype=torch.float64) / s2
    if several:
        p = z.sigmoid()
        shares = (p * (1 - p)).T
    else:
        shares = (1 - z.softmax(1).square().sum(1))[None]
    H = [
        eye + sum(problem.weight[i] * a[i] ** 2 * share[i] * phi[i].outer(phi[i]) for i in range(len(phi)))
        for share in shares
    ]
    return w.view(phi.shape[1], -1), torch.stack(H)


@pytest.mark.parametrize("c", [2, 3, 6])
@pytest.mark.parametrize("memory", [2**30, 0], ids=["kept", "computed in every pass"])
@pytest.mark.parametrize("patience", [10**6, 0], ids=["conjugate gradients", "factorised"])
def test_classes_are_those_of_brute_force(monkeypatch, c, memory, patience):
    monkeypatch.setattr(_classes.Problem, "patience", patience)
    u, y = data(c=c)
    weight = torch.rand(len(u), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    problem = task(u, y, weight=weight, offset=torch.linspace(-1, 1, c, dtype=torch.float64), memory=memory)
    solution, (w, [H]) = _classes.solve(problem, tolerance=1e-11), brute_force(problem, u)
    assert solution.gradient < 1e-10
    torch.testing.assert_close(solution.mean, w, rtol=0, atol=1e-8)
    torch.testing.assert_close(solution.root @ solution.root.T, H, rtol=1e-8, atol=1e-8)


def test_labels_are_those_of_brute_force():
    u, y = data(c=3)
    labels = torch.stack([y == 0, u[:, 0] > 0.3, u[:, 1] > -1], 1).long()
    weight = torch.rand(len(u), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    problem = task(u, labels, weight=weight, offset=torch.linspace(-1, 1, 3, dtype=torch.float64))
    solution, (w, H) = _classes.solve(problem, tolerance=1e-11), brute_force(problem, u, several=True)
    assert solution.gradient < 1e-10
    torch.testing.assert_close(solution.mean, w, rtol=0, atol=1e-8)
    torch.testing.assert_close(solution.root @ solution.root.mT, H, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("variance", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("patience", [10**6, 5, 0])
def test_there_is_one_solution(monkeypatch, variance, patience):
    monkeypatch.setattr(_classes.Problem, "patience", patience)
    u, y = data(c=4, n=200)
    problem = task(u, y, m=50, variance=variance)
    plain = _classes.solve(problem, tolerance=1e-11)
    start = torch.randn(plain.mean.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    other = _classes.solve(problem, start * variance**0.5, 1e-11)
    scale = plain.mean.abs().max()
    torch.testing.assert_close(plain.mean / scale, other.mean / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kernel", "theirs"), [("matern52", Matern(1.5, nu=2.5)), ("rbf", RBF(1.5))])
def test_two_classes_are_those_of_a_gaussian_process_classifier(kernel, theirs):
    """Its kernel has twice the variance: it models the difference of two outputs, each of variance s^2."""
    u, y = data(c=2, n=80)
    network = nn.Linear(2, 2).double()
    method = st.InfiniteWidth(kernel, lengthscale=1.5, variance=VARIANCE, temperature=1.0, geometry="euclidean")
    mean, std = u.mean(0), u.std(0, correction=0)
    posterior = method.posterior(network, (u, y))
    gpc = GaussianProcessClassifier(
        ConstantKernel(2 * VARIANCE, "fixed") * theirs, optimizer=None, max_iter_predict=1000
    ).fit(((u - mean) / std).numpy(), y.numpy())
    x = 3 * torch.randn(200, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = torch.as_tensor(gpc.predict_proba(((x - mean) / std).numpy()))
    torch.testing.assert_close(st.predict(posterior, x).probs, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("c", [2, 3, 10])
def test_probabilities_are_those_of_samples(c):
    u, y = data(c=c, n=100)
    posterior = st.InfiniteWidth(lengthscale=1.0, variance=9.0, temperature=0.5).posterior(
        nn.Linear(2, c).double(), (u, y)
    )
    x = 2 * torch.randn(8, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    pred = st.predict(posterior, x)
    mean, variance = posterior.moments(x)
    noise = torch.randn(10**5, *mean.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    sampled = (mean + (0.5 * variance).sqrt() * noise).softmax(-1)
    error = 4.5 * sampled.std(0) / math.sqrt(len(noise)) + 1e-7
    assert ((pred.probs - sampled.mean(0)).abs() <= error).all()
    own = (mean + variance.sqrt() * noise).softmax(-1)
    entropies = torch.special.entr(own).sum(-1)
    information = torch.special.entr(own.mean(0)).sum(-1) - entropies.mean(0)
    torch.testing.assert_close(pred.mutual_information(), information, rtol=0, atol=0.01)
    torch.testing.assert_close(pred.output_variance, variance)


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
def test_a_row_of_weight_two_counts_as_two(several):
    u, y = data(c=3)
    y = F.one_hot(y) if several else y
    twice = torch.cat([u, u[:10]]), torch.cat([y, y[:10]])
    weight = torch.ones(60, dtype=torch.float64)
    weight[:10] = 2
    a, b = (_classes.solve(each, tolerance=1e-11) for each in (task(u, y, weight=weight), task(*twice)))
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(a.root, b.root, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("c", "error"), [(2, 0.1), (3, 0.4), (10, 0.2)])  # of six rows
def test_evidence_is_that_of_samples(c, error):
    """Few rows: the probability of the labels under the prior, by samples of it; more classes are more approximate."""
    u, y = data(c=c, n=6)
    problem = task(u, y, m=6, variance=1.0, offset=u.new_zeros(c))
    solution, phi = _classes.solve(problem, tolerance=1e-11), problem.passes.basis(u)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(100_000, 6, c, generator=generator, dtype=torch.float64)
    z = torch.einsum("nm,smc->snc", phi, w)
    exact = -F.cross_entropy(z.flatten(0, 1), y.repeat(len(w)), reduction="none").view(len(w), -1).sum(1)
    log_evidence = exact.logsumexp(0) - math.log(len(w))
    assert _evidence.log_evidence(problem, solution) == pytest.approx(float(log_evidence), abs=error)


@pytest.mark.parametrize(("kind", "share"), [("two classes", 0.1), ("labels", 0.1), ("classes", 0.5)])
def test_rows_left_out_are_those_of_a_fit_without_them(kind, share):
    """To first order: of the change of the outputs it misses a small share, for more than two classes half at most."""
    u, y = data(c=2 if kind == "two classes" else 3)
    if kind == "labels":
        y = F.one_hot(y)
    problem, some = task(u, y), torch.arange(0, 60, 5)
    solution = _classes.solve(problem)
    closed = _evidence.left_out(problem, solution, some)
    phi = problem.passes.basis(u[some])
    without = []
    for k, row in enumerate(some):
        weight = torch.ones(60, dtype=torch.float64)
        weight[row] = 0
        without.append(phi[k] @ _classes.solve(task(u, y, weight=weight)).mean)
    exact, kept = torch.stack(without), phi @ solution.mean
    assert (closed.mean - exact).norm() < share * (kept - exact).norm()
    known = moments(problem.passes.basis, solution.mean, solution.root, u[some], VARIANCE)[1]
    assert (closed.variance > known).all()


@pytest.mark.parametrize("own", [False, True])
def test_curvatures_of_classes_lead_to_the_same_minimum(own):
    u, y = data(c=4)
    problem = task(u, y, variance=100.0)
    rough = _classes.solve(problem, tolerance=1e-2)
    roots = _evidence.curvatures(problem, rough.mean) if own else None
    found = _classes.solve(problem, rough.mean, nearby=roots)
    torch.testing.assert_close(found.mean, _classes.solve(problem).mean, rtol=0, atol=1e-6)
    assert not own or roots.shape == (4, 15, 15)


def test_the_search_judges_fits_that_are_at_their_minimum():
    """Of separable rows with a large variance the evidence and what is left out change up to the end of a fit."""
    digits = load_digits()
    u, y = torch.tensor(digits.data[:200]) / 16, torch.tensor(digits.target[:200])
    passes = Passes(Basis.of("matern52", _search.typical_distance(u), u), lambda rows: u[rows], len(u), None)
    weight = torch.ones(len(u), dtype=torch.float64)
    problem = _classes.Task(passes, y, weight, 1e4, torch.zeros(10, dtype=torch.float64), alone)
    sample = _search.Sample("matern52", u, u, y, weight, problem.offset, None)
    fits = [_classes.solve(problem, tolerance=tolerance) for tolerance in (_search.ROUGH, 1e-10)]
    for judge in (_search._judged, _search._left_out):
        found, exact = (judge(sample, problem, fit, None)[1] for fit in fits)
        assert found == pytest.approx(exact, rel=1e-3)  # the search tells differences of about 1e-2
