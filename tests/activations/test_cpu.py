"""The fast versions: they save only their input, agree with the plain definition, and survive the compilers."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import stationary as st
from stationary._pieces import PIECE

NUS = (0.3, 0.5, 0.8, 1.5, 2.2, 2.5, 3.5, 8.5, 9.5, 50.0, math.inf)
each_nu = pytest.mark.parametrize("nu", NUS)


SAVE_ONLY_INPUT = {
    "matern-2.5": partial(st.matern, nu=2.5),
    "matern-2.2": partial(st.matern, nu=2.2),
    "matern-centered": partial(st.matern, nu=1.5, centered=True),
    "matern-dim3": partial(st.matern, nu=1.5, dim=3),
    "exponential-surrogate": partial(st.exponential, surrogate=0.1),
    "rbf": st.rbf,
    "step-surrogate": partial(st.step, surrogate=0.1),
    "erf": st.erf,
    "sine": st.sine,
    "cosine": st.cosine,
    "sincos": st.sincos,
    "triangle_wave": st.triangle_wave,
    "periodic_relu": st.periodic_relu,
}


@pytest.mark.parametrize("function", SAVE_ONLY_INPUT.values(), ids=SAVE_ONLY_INPUT)
def test_saves_the_input_and_nothing_else(function):
    saved = []
    x = torch.randn(50, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        function(x)
    assert [t.data_ptr() for t in saved] == [x.data_ptr()]


MEMORY_SCRIPT = """
import resource, sys, torch, torch.nn.functional as F
import stationary as st
from stationary._pieces import PIECE
torch.set_num_threads(1)
matern = lambda x: st.matern(x, 2.5 if sys.argv[1] == "matern52" else 2.2)
function = F.gelu if sys.argv[1] == "gelu" else matern
def run(size):
    x = torch.randn(size, requires_grad=True)
    function(x).backward(torch.ones(size))
run(1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # with the modules that the first run imports
run(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("name", ["matern52", "matern22"])
def test_peak_memory_is_that_of_gelu(name):
    """Forward and backward over 64 MiB: one more tensor kept would be seen as 64 MiB more."""
    peak = {
        n: int(
            subprocess.run([sys.executable, "-c", MEMORY_SCRIPT, n], capture_output=True, text=True, check=True).stdout
        )
        for n in ("gelu", name)
    }
    assert abs(peak[name] - peak["gelu"]) / 1024 < 16


@each_nu
@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, 2 * PIECE + 17])
def test_pieces_do_not_show(nu, size):
    x = torch.randn(size, requires_grad=True)
    y = st.matern(x, nu)
    y.backward(torch.ones_like(y))
    some = torch.arange(0, size, max(1, size // 5))
    part = x.detach()[some].requires_grad_()
    z = st.matern(part, nu)
    z.backward(torch.ones_like(z))
    torch.testing.assert_close(y[some], z)
    torch.testing.assert_close(x.grad[some], part.grad)


def test_learnable_parameters_get_their_gradient_from_every_piece():
    x = torch.rand(2 * PIECE + 5, dtype=torch.float64)
    nu, lengthscale = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.2, 0.8))
    st.matern(x, nu, lengthscale).sum().backward()
    expected = torch.func.grad(lambda n, s: st.matern(x, n, s).sum(), argnums=(0, 1))(nu.detach(), lengthscale.detach())
    torch.testing.assert_close((nu.grad, lengthscale.grad), expected)


# On a GPU


@pytest.mark.gpu
@each_nu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("centered", [False, True])
def test_triton_agrees_with_float64(nu, dtype, centered):
    nu = max(nu, 1.5) if centered else nu  # an infinite slope amplifies the rounding of x + shift without bound
    x = (4 * torch.randn(100_003, device="cuda")).to(dtype)
    info = torch.finfo(dtype)
    special = torch.tensor([0.0, math.inf, -math.inf, math.nan, info.max, -info.max, info.smallest_normal / 4])
    x[:7] = special.to(dtype)
    low, high = x.clone().requires_grad_(), x.double().requires_grad_()
    y, exact = st.matern(low, nu, centered=centered), st.matern(high, nu, centered=centered)
    y.backward(torch.ones_like(y))
    exact.backward(torch.ones_like(exact))
    assert torch.equal(y.isnan(), exact.isnan())
    finite = x.isfinite()
    assert low.grad[finite].isfinite().all()
    for value, reference in ((y, exact), (low.grad, high.grad)):
        value, reference = value.detach().double()[7:], reference.detach()[7:]
        scale = reference.abs().max()
        # half an ulp of the result, and in float32 the rounding of an exponent of size nu
        tolerance = info.eps / 2 * reference.abs() + (1 + nu if nu < math.inf else 1) * 20 * 2**-24 * scale
        assert ((value - reference).abs() <= tolerance * 1.01).all()


@pytest.mark.gpu
@pytest.mark.parametrize("nu", [0.3, 0.5, 0.7, 1.5, 2.2, 2.5, math.inf])
def test_triton_ends_at_the_largest_float16_as_the_cpu_does(nu):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    x = x[x.isfinite()]
    on_cpu, on_gpu = x.clone().requires_grad_(), x.cuda().requires_grad_()
    for leaf in (on_cpu, on_gpu):
        y = st.matern(leaf, nu, 1e-5)
        y.backward(torch.ones_like(y))
    assert on_gpu.grad.isfinite().all() and on_gpu.grad.abs().max() == torch.finfo(torch.float16).max
    torch.testing.assert_close(y.cpu(), st.matern(x, nu, 1e-5), rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(on_gpu.grad.cpu(), on_cpu.grad, rtol=2e-3, atol=0.1)


@pytest.mark.gpu
def test_triton_layouts_and_sizes():
    for shape in ((0,), (1,), (1025,), (3, 5, 7)):
        x = torch.randn(shape, device="cuda", requires_grad=True)
        torch.testing.assert_close(st.matern(x, 2.5).cpu(), st.matern(x.detach().cpu(), 2.5))
    x = torch.randn(4, 8, 5, 6, device="cuda")
    for layout in (x.to(memory_format=torch.channels_last), x.transpose(0, 2), x[:, ::2], x[0].expand(3, 8, 5, 6)):
        layout = layout.detach().requires_grad_()
        contiguous = layout.detach().contiguous().requires_grad_()
        weights = torch.randn(layout.shape, device="cuda")
        (st.matern(layout, 2.2) * weights).sum().backward()
        (st.matern(contiguous, 2.2) * weights).sum().backward()
        torch.testing.assert_close(layout.grad, contiguous.grad)
    channels_last = x.to(memory_format=torch.channels_last)
    assert st.matern(channels_last, 2.5).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@each_nu
def test_cuda_double_backward_and_compile(nu):
    x = torch.randn(64, device="cuda", dtype=torch.float64)
    x = x[x.abs() > 0.05].requires_grad_()
    assert torch.autograd.gradgradcheck(partial(st.matern, nu=nu), x)
    single = x.detach().float().requires_grad_()
    torch.testing.assert_close(torch.compile(partial(st.matern, nu=nu), fullgraph=True)(single), st.matern(single, nu))


@pytest.mark.gpu
@pytest.mark.parametrize("nu", [2.2, 2.5])
def test_cuda_peak_memory_is_that_of_gelu(nu):
    peaks = []
    for function in (F.gelu, partial(st.matern, nu=nu)):
        x = torch.randn(2**24, device="cuda", requires_grad=True)
        grad = torch.ones_like(x)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(x).backward(grad)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]
