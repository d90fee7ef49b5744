"""Periodic activations in float32 and half precision: an accurate phase, corners, and the same on a GPU."""

import math

import numpy as np
import pytest
import torch

import stationary as st

SCALES = {  # the largest value of each, and of its slope for frequency 1
    st.sine: (1.0, 1.0),
    st.cosine: (1.0, 1.0),
    st.sincos: (math.sqrt(2), math.sqrt(2)),
    st.triangle_wave: (math.pi**2 / math.sqrt(32), math.pi / math.sqrt(8)),
    st.periodic_relu: (math.pi**2 / 8, math.pi / 2),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
each_function = pytest.mark.parametrize("function", SCALES, ids=lambda f: f.__name__)
each_device = pytest.mark.parametrize("device", DEVICES)


def exact(function, x, frequency):
    """Value and slope by NumPy's 80 bits, whose phase is exact to 1e-15 where float64's would be."""
    phase = np.longdouble(frequency) * x.numpy().astype(np.longdouble)
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288")

    def triangle(phase):
        r = phase / turn - np.rint(phase / turn)
        fold = np.where(np.abs(r) > 0.25, np.sign(r) / 2 - r, r)
        return turn * fold, np.where(np.abs(r) > 0.25, -1, 1)

    sin, cos = np.sin(phase), np.cos(phase)
    if function in (st.sine, st.cosine, st.sincos):
        value, slope = {st.sine: (sin, cos), st.cosine: (cos, -sin), st.sincos: (sin + cos, cos - sin)}[function]
    elif function is st.triangle_wave:
        value, slope = (np.pi / math.sqrt(8) * part for part in triangle(phase))
    else:
        pairs = zip(triangle(phase), triangle(phase + turn / 4), strict=True)
        value, slope = (np.pi / 4 * (a + b) for a, b in pairs)
    return torch.tensor(value.astype(np.float64)), torch.tensor(slope.astype(np.float64)) * frequency


@each_device
@each_function
@pytest.mark.parametrize("frequency", [1.0, 0.3, 30.0, 1234.5])
@pytest.mark.parametrize("size", [20_000, 2**20 + 5])
def test_error_is_at_most_four_ulp_of_the_scale(function, frequency, device, size):
    """Up to a phase of 10^4, where a rounded phase alone would be wrong by thousands of ulp."""
    largest, steepest = SCALES[function]
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(size, generator=generator).mul_(2).sub_(1) * (1e4 / frequency)
    leaf = x.to(device, copy=True).requires_grad_()
    y = function(leaf, frequency)
    y.backward(torch.ones_like(y))
    some = torch.cat([torch.randperm(size, generator=generator)[:20_000], torch.arange(size - 20, size)])
    value, slope = exact(function, x[some], frequency)
    eps = torch.finfo(torch.float32).eps
    assert (y.detach().cpu()[some].double() - value).abs().max() <= 4 * eps * largest
    error = (leaf.grad.cpu()[some].double() - slope).abs()
    if function in (st.triangle_wave, st.periodic_relu):  # on which side of a corner is decided within 4 ulp of x
        corner = (error > 1e-3 * steepest * frequency).double().mean()
        assert corner <= 1e-5
        error = error[error <= 1e-3 * steepest * frequency]
    assert error.max() <= 4 * eps * steepest * frequency


@each_device
@each_function
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("frequency", [1.0, 30.0, 1e30])
def test_is_finite_everywhere(function, device, dtype, frequency):
    info = torch.finfo(dtype)
    x = torch.tensor([0.0, info.max, -info.max, info.max / 3, 12345.0, info.tiny, -info.tiny, 1.0]).to(device, dtype)
    leaf = x.requires_grad_()
    y = function(leaf, frequency)
    y.backward(torch.ones_like(y))
    assert y.isfinite().all() and (y.abs() <= 1.01 * SCALES[function][0]).all()
    if frequency < 1e30 or dtype != torch.float16:
        assert leaf.grad.isfinite().all()


@each_device
@each_function
def test_what_is_no_number_stays_none(function, device):
    x = torch.tensor([math.nan, math.inf, -math.inf], device=device)
    assert function(x).isnan().all()


@each_device
def test_a_corner_has_the_mean_of_its_slopes(device):
    x = torch.zeros(1, device=device, requires_grad=True)
    st.periodic_relu(x).sum().backward()
    assert x.grad.item() == pytest.approx(math.pi / 4)


@each_device
@each_function
def test_small_inputs_keep_their_relative_accuracy(function, device):
    if function in (st.cosine, st.sincos, st.periodic_relu):
        pytest.skip("it is not 0 at 0")
    x = torch.logspace(-30, -3, 50, device=device)
    slope = 1.0 if function is st.sine else math.pi / math.sqrt(8)
    torch.testing.assert_close(function(x) / x, torch.full_like(x, slope), rtol=1e-6, atol=0)


@pytest.mark.gpu
@each_function
def test_kernels_know_layouts_and_sizes(function):
    x = torch.randn(4, 8, 5, 6, device="cuda")
    whole = torch.randn(2**20 + 1, device="cuda")
    layouts = (
        x.to(memory_format=torch.channels_last),
        x.transpose(0, 2),
        x[:, ::2],
        x[0].expand(3, 8, 5, 6),
        whole[1:],
    )
    for layout in (*layouts, x[:0], whole[3:10], whole):
        layout = layout.detach().requires_grad_()
        contiguous = layout.detach().contiguous().clone().requires_grad_()
        weights = torch.randn(layout.shape, device="cuda")
        for leaf in (layout, contiguous):
            (function(leaf, 2.0) * weights).sum().backward()
        torch.testing.assert_close(layout.grad, contiguous.grad)
