"""The C versions: as accurate as the PyTorch ones, in their place where they can be, and absent without a trace."""

import math
import os
import pickle
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import mpmath
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import stationary as st
from stationary import _native
from stationary.activations.functional import matern_twin, periodic_twin

EPS = torch.finfo(torch.float32).eps
NUS = (0.3, 0.5, 0.8, 1.5, 2.2, 2.5, 3.5, 4.5, 8.5, 9.5, 50.0, math.inf)
needs_c = pytest.mark.skipif(_native.compiled() is None, reason="no gcc, or a processor without AVX2")
PERIODIC = ("sine", "cosine", "sincos", "triangle_wave", "periodic_relu")


def value_and_slope(function, x):
    x = x.clone().requires_grad_()
    y = function(x)
    y.backward(torch.ones_like(y))
    return y.detach(), x.grad


# Accuracy


@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("centered", [False, True])
def test_matern_agrees_with_float64_to_a_few_ulp(engine, nu, centered):
    if centered and nu < 2.5:
        pytest.skip("an infinite derivative amplifies the rounding of x + shift without bound")
    x = torch.cat([torch.linspace(-3, 30, 50_001), torch.logspace(-30, 30, 50_001)])
    function = partial(st.matern, nu=nu, centered=centered)
    # One rounding for each of nu factors, or of an exponent of that size; a centred x is rounded too.
    ulps = (4 + nu if nu < math.inf else 4) * (2 if nu >= 0.5 else 10)
    for ours, exact in zip(value_and_slope(function, x), value_and_slope(function, x.double()), strict=True):
        assert (ours.double() - exact).abs().max() <= ulps * EPS * exact.abs().max()


@pytest.mark.parametrize("nu", [1.5, 2.5, 3.5, 5.5, 8.5])
@pytest.mark.parametrize("n", [64, 61])  # whole vectors, and some numbers after them
def test_matern_in_float64_agrees_with_30_digits(engine, nu, n):
    """Relative to the value: a rounding for each factor, and the exponent, of the size x, is rounded too."""
    x = torch.linspace(0.01, 90, n, dtype=torch.float64)
    ours = value_and_slope(partial(st.matern, nu=nu), x)
    with mpmath.workdps(30):
        rate, p = mpmath.sqrt(2 * nu), mpmath.mpf(nu) - 0.5
        amplitude = mpmath.sqrt((2 * rate) ** (2 * nu) / mpmath.gamma(2 * nu))
        values = [amplitude * mpmath.mpf(z) ** p * mpmath.exp(-rate * mpmath.mpf(z)) for z in x.tolist()]
        slopes = [value * (p / mpmath.mpf(z) - rate) for value, z in zip(values, x.tolist(), strict=True)]
    size = torch.tensor(
        [float(value * (p / mpmath.mpf(z) + rate)) for value, z in zip(values, x.tolist(), strict=True)]
    )
    tolerance = torch.finfo(torch.float64).eps * (10 + 2 * nu * (1 + x * float(rate)))
    for got, exact, scale in zip(ours, (values, slopes), (torch.tensor([*map(float, values)]), size), strict=True):
        error = torch.tensor([float(abs(mpmath.mpf(a) - b)) for a, b in zip(got.tolist(), exact, strict=True)])
        assert (error <= tolerance * scale.abs()).all()


@pytest.mark.parametrize("nu", [1.5, 2.5, 8.5])
def test_matern_in_float64_at_the_ends(engine, nu):
    """0 on the negative side and where the exponential underflows, and NaN for what is not a number."""
    x = torch.tensor([-math.inf, -1e300, -1.0, 0.0, 1e300, math.inf, math.nan] * 3, dtype=torch.float64)
    value, slope = value_and_slope(partial(st.matern, nu=nu), x)
    assert value.isnan().equal(x.isnan()) and slope.isnan().equal(x.isnan())
    assert not value.nan_to_num().any() and not slope.nan_to_num().any()


def periodic_oracle(name, phase):
    """The activation and its slope in the phase, from sines: asin(sin) is the triangle wave."""
    sin, cos = phase.sin(), phase.cos()
    triangles, directions = (sin.asin(), cos.asin()), (cos.sign(), -sin.sign())
    return {
        "sine": (sin, cos),
        "cosine": (cos, -sin),
        "sincos": (sin + cos, cos - sin),
        "triangle_wave": tuple(math.pi / math.sqrt(8) * t for t in (triangles[0], directions[0])),
        "periodic_relu": tuple(math.pi / 4 * sum(t) for t in (triangles, directions)),
    }[name]


@pytest.mark.parametrize("name", PERIODIC)
@pytest.mark.parametrize("frequency", [1.0, 30.0, pytest.param(0.37, marks=pytest.mark.slow)])
def test_periodic_activations_are_within_4_ulp_up_to_a_phase_of_10000(engine, name, frequency):
    function = partial(getattr(st, name), frequency=frequency)
    x = torch.linspace(-1e4, 1e4, 200_001) / frequency
    value, slope = periodic_oracle(name, x.double() * frequency)
    away_from_kinks = (x.double() * frequency * 2).sin().abs() > 1e-6 if name in PERIODIC[3:] else True
    y, gradient = value_and_slope(function, x)
    assert (y.double() - value).abs().max() <= 4 * EPS
    assert ((gradient.double() - frequency * slope).abs() * away_from_kinks).max() <= 4 * EPS * frequency
    for form in (torch.func.vmap(function), torch.compile(function, backend="aot_eager")):
        assert (form(x).double() - value).abs().max() <= 4 * EPS


@pytest.mark.parametrize("name", PERIODIC)
@pytest.mark.parametrize("frequency", [1.0, 1e30])
def test_periodic_activations_are_bounded_at_every_float32(engine, name, frequency):
    x = torch.logspace(-45, 38, 10_001, dtype=torch.float64).float()
    y, slope = value_and_slope(partial(getattr(st, name), frequency=frequency), torch.cat([x, -x]))
    assert y.abs().max() <= 1.75 and slope.abs().max() <= 2.3 * frequency  # pi^2 / sqrt(32), pi / 2 sqrt(2)
    infinite = torch.tensor([math.inf, -math.inf, math.nan])
    assert getattr(st, name)(infinite).isnan().all()


def test_a_frequency_learns():
    x, frequency = torch.linspace(-3, 3, 50), torch.tensor(1.3, requires_grad=True)
    st.sine(x, frequency).sum().backward()
    torch.testing.assert_close(frequency.grad, (x * torch.cos(1.3 * x)).sum())


# What PyTorch must see


@needs_c
def test_c_is_used_for_plain_tensors_on_the_cpu_alone():
    twin = matern_twin(2.5, 1.0, 1.0, centered=False)
    x = torch.randn(10)
    assert twin.on_device(x) is not None and twin.on_device(torch.nn.Parameter(x)) is not None
    assert twin.on_device(x.half()) is None and twin.on_device(x, torch.ones(10).double()) is None
    assert twin.on_device(x.double()) is not None  # for whole powers; not for any nu, and for no periodic function
    assert matern_twin(2.2, 1.0, 1.0, centered=False).on_device(x.double()) is None
    assert periodic_twin(0, 1.0, 1.0, 0.0).on_device(x.double()) is None
    assert twin.on_device(x.to("meta")) is None and twin.on_device(torch._neg_view(x)) is None
    with FakeTensorMode() as mode:
        assert st.matern(mode.from_tensor(x)).shape == (10,)


@pytest.mark.parametrize("function", [st.matern, st.sincos], ids=["matern", "sincos"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracers_record_operations_and_not_a_constant(function):
    x, other = torch.randn(20), torch.randn(20)
    for traced in (make_fx(lambda x: function(x))(x), torch.jit.trace(function, x)):
        torch.testing.assert_close(traced(other), function(other))


@pytest.mark.parametrize("function", [st.matern, st.sincos], ids=["matern", "sincos"])
def test_negated_views_count_as_what_they_show(function):
    x = torch.randn(20)
    torch.testing.assert_close(function(torch._neg_view(x)), function(-x))


# Threads and processes


@needs_c
@pytest.mark.parametrize("size", [2 * 16384 + 1, 100_003])
def test_threads_do_not_show(size):
    x, before = torch.randn(size), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(torch.stack([*value_and_slope(st.matern, x), *value_and_slope(st.sincos, x)]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_threads_of_the_caller_and_pickles():
    x = torch.randn(1000)
    expected, results = st.matern(x), []
    threads = [threading.Thread(target=lambda: results.append(st.matern(x))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(torch.equal(r, expected) for r in results)
    assert torch.equal(pickle.loads(pickle.dumps(matern_twin(2.5, 1.0, 1.0, centered=False))).value(x), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_computes_too():
    """As a worker of a DataLoader, which has one thread."""
    script = """
import os, torch, stationary as st
x = torch.randn(100_000)
expected = st.matern(x)
if (child := os.fork()) == 0:
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(st.matern(x), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


# Compiling


@needs_c
def test_compiled_once_into_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    assert _native.compiled.__wrapped__() is not None
    (file,) = (tmp_path / "cache").iterdir()
    assert file.suffix == ".so"
    monkeypatch.setattr(subprocess, "run", None)  # so that a second compilation would fail
    assert _native.compiled.__wrapped__() is not None


def failing_compiler(folder, text):
    path = folder / "gcc"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


@pytest.mark.parametrize("trouble", ["switched off", "no compiler", "compiler fails", "writes nonsense", "no folder"])
def test_without_it_nothing_is_missing(trouble, tmp_path, monkeypatch):
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    if trouble == "switched off":
        monkeypatch.setenv("STATIONARY_NATIVE", "0")
    elif trouble == "no compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif trouble == "compiler fails":
        monkeypatch.setenv("PATH", failing_compiler(tmp_path, "#!/bin/sh\nexit 1\n"))
    elif trouble == "writes nonsense":
        monkeypatch.setenv("PATH", failing_compiler(tmp_path, "#!/bin/sh\necho nonsense > native.so\n"))
    else:
        Path(tmp_path / "cache").write_text("a file in the place of the folder")
    assert _native.compiled.__wrapped__() is None
    if (tmp_path / "cache").is_dir():
        assert trouble == "writes nonsense" or not list((tmp_path / "cache").iterdir())
