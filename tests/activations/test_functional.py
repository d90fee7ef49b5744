"""The contract of every activation, over one list: add an entry and it gets every test."""

import copy
import math
import pickle
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnxruntime
import pytest
import torch
from scipy import stats
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import stationary as st
from stationary.activations import ACTIVATIONS

INF, NAN = math.inf, math.nan
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """An activation, its limits at -inf and inf (None: there is none), and where its slope jumps."""

    build: partial
    limits: tuple = (0.0, 0.0)
    kinks: tuple = (0.0,)
    smooth: bool = False  # twice differentiable away from the kinks, and everywhere at |x| < 4
    frequency: float = 1.0


def matern(nu, centered=False, **options):
    shift = 0.0 if math.isinf(nu) or not centered else -math.sqrt(nu / 2)
    return Case(partial(st.Matern, nu, centered=centered, **options), kinks=(shift,), smooth="surrogate" not in options)


def periodic(kind, frequency=1.0, kinks=()):
    return Case(partial(kind, frequency), (None, None), kinks, smooth=not kinks, frequency=frequency)


QUARTERS = tuple(math.pi / 2 * k for k in range(-4, 5))
ALL_ACTIVATIONS = {
    **{f"matern-{nu}": matern(nu) for nu in (0.3, 0.5, 0.8, 1.0, 1.5, 2.2, 2.5, 3.5, 8.5, 10.0, 50.0, INF)},
    **{f"matern-{nu}-centered": matern(nu, centered=True) for nu in (0.3, 0.5, 1.5, 2.2, 2.5, 50.0)},
    **{f"matern-{nu}-dim{dim}": matern(nu, dim=dim) for nu, dim in ((0.5, 3), (1.5, 3), (2.2, 5), (2.5, 21))},
    "matern-2.5-dim3-centered": matern(2.5, dim=3, centered=True),
    "matern-0.5-surrogate": matern(0.5, surrogate=0.1),
    "matern-2.2-learnable": matern(2.2, learnable=True),
    "matern-0.8-learnable-centered": matern(0.8, learnable=True, centered=True),
    "rbf": Case(partial(st.RBF, 0.5, 2.0), kinks=(), smooth=True),
    "rbf-learnable": Case(partial(st.RBF, 0.5, learnable=True), kinks=(), smooth=True),
    "erf": Case(partial(st.Erf), (-1.0, 1.0), kinks=(), smooth=True),
    "step": Case(partial(st.Step), (0.0, 1.0)),
    "step-surrogate": Case(partial(st.Step, surrogate=0.2), (0.0, 1.0)),
    "relu": Case(partial(st.ReLU), (0.0, INF), smooth=True),
    "leaky_relu": Case(partial(st.LeakyReLU), (-INF, INF), smooth=True),
    "sine": periodic(st.Sine),
    "siren": periodic(st.Sine, 30.0),
    "cosine": periodic(st.Cosine, 2.0),
    "sincos": periodic(st.SinCos),
    "triangle_wave": periodic(st.TriangleWave, kinks=QUARTERS),
    "periodic_relu": periodic(st.PeriodicReLU, kinks=QUARTERS),
}
each = pytest.mark.parametrize("case", ALL_ACTIVATIONS.values(), ids=ALL_ACTIVATIONS)
exact_gradient = {name: case for name, case in ALL_ACTIVATIONS.items() if "surrogate" not in name}
each_exact = pytest.mark.parametrize("case", exact_gradient.values(), ids=exact_gradient)
twice = {name: case for name, case in exact_gradient.items() if case.smooth}  # the others are piecewise linear
each_twice_differentiable = pytest.mark.parametrize("case", twice.values(), ids=twice)


class Together(nn.ModuleDict):
    """Several activations of the same input as one module, which a compiler or an exporter takes in one go."""

    def forward(self, x):
        return {name: activation(x) for name, activation in self.items()}


class RowByRow(nn.ModuleList):
    """Several activations as one module: each of its own row, so that one backward pass has the slopes of all."""

    def forward(self, x):
        return torch.stack([activation(row) for activation, row in zip(self, x, strict=True)])


def values_and_slopes(module, x, backend="aot_eager"):
    """Of every activation of a ``RowByRow``, at all x, as one compiled graph.

    The backend "eager" runs the graph as it was captured, and "aot_eager" captures the derivative as well, which takes
    as long again.
    """
    rows = x.expand(len(module), -1).clone().requires_grad_()
    y = torch.compile(module, fullgraph=True, backend=backend)(rows)
    y.backward(torch.ones_like(y))
    return y.detach(), rows.grad


def together(names):
    return Together({name.replace(".", "_"): ALL_ACTIVATIONS[name].build() for name in names})


NAMES = list(ALL_ACTIVATIONS)
each_part = pytest.mark.parametrize("names", [NAMES[i::4] for i in range(4)])
each_part_in_time = pytest.mark.parametrize(  # a fourth of them, of every family, each day; the others in make slow
    "names", [pytest.param(NAMES[i::4], marks=[pytest.mark.slow] if i else []) for i in range(4)]
)


def away_from_kinks(case, n=24, distance=0.02, bound=4.0):
    """Inputs at which finite differences do not cross a kink, nor see the floored slope."""
    x = torch.empty(n, dtype=torch.float64).uniform_(-bound, bound)
    for kink in case.kinks:
        x = x[(x - kink).abs() > distance]
    return x.requires_grad_()


# Values at the edges of the number range


def edges(dtype):
    info = torch.finfo(dtype)
    small = [0.0, info.smallest_normal * info.eps, info.smallest_normal, info.eps]
    magnitudes = [*small, 1e-3, 0.1, 1.0, 7.0, 30.0, 1e3, info.max / 60, info.max / 20, info.max]
    magnitudes = torch.tensor(magnitudes, dtype=torch.float64)
    return torch.cat([magnitudes, -magnitudes]).to(dtype)


def value_and_slope(activation, x, form):
    """The activation and its derivative as eager mode and torch.func see them."""
    if form == "torch.func":
        transformed = torch.func.vmap(torch.func.grad_and_value(activation))(x)
        return transformed[1].detach(), transformed[0].detach()
    x = x.clone().requires_grad_()
    y = activation(x)
    y.backward(torch.ones_like(y))
    return y.detach(), x.grad


@pytest.mark.usefixtures("engine")
@each
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["eager", "torch.func"])
def test_every_finite_input_gives_finite_value_and_gradient(case, dtype, form):
    x = edges(dtype)
    y, slope = value_and_slope(case.build(), x, form)
    assert y.dtype == dtype and y.isfinite().all(), list(zip(x.tolist(), y.tolist(), strict=True))
    assert slope.isfinite().all(), list(zip(x.tolist(), slope.tolist(), strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_phase_beyond_the_number_range_is_finite_in_every_form(dtype):
    names = ("siren", "cosine", "sincos", "triangle_wave", "periodic_relu")
    activations, x = RowByRow(type(st.activation(name))(frequency=30.0) for name in names), edges(dtype)
    y, slope = values_and_slopes(activations, x, "eager")
    rows = x.expand(len(names), -1)
    exported = torch.export.export(activations, (rows,)).module()(rows)
    for found in (y, slope, exported):
        assert found.isfinite().all(), found.isfinite().all(1).tolist()
    infinite, _ = values_and_slopes(activations, torch.full_like(x, INF), "eager")
    assert infinite.isnan().all()


STEEP = {
    **{f"matern-{nu}": partial(st.Matern, nu, 1e-5) for nu in (0.3, 0.5, 0.7, 1.5, 2.2, 2.5, INF)},
    "matern-1.5-centered": partial(st.Matern, 1.5, 1e-5, centered=True),
    "matern-2.5-dim5": partial(st.Matern, 2.5, 1e-5, dim=5),
    "matern-2.5-high": partial(st.Matern, 2.5, 1.0, 1e12),
    "matern-1.5-learnable": partial(st.Matern, 1.5, 1e-5, learnable=True),
    "exponential-surrogate": partial(st.Matern, 0.5, 1e-2, surrogate=1e-5),
    "step-surrogate": partial(st.Step, surrogate=1e-6),
    "rbf": partial(st.RBF, 1e-5),
    "rbf-learnable": partial(st.RBF, 1e-5, learnable=True),
}


def every_float16():
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    return x[x.isfinite()]


@pytest.mark.parametrize("build", STEEP.values(), ids=STEEP)
@pytest.mark.parametrize("form", ["eager", "torch.func"])
def test_what_float16_cannot_hold_is_its_largest_number(build, form):
    check_float16(build(), value_and_slope(build(), every_float16(), form))


def test_what_float16_cannot_hold_is_its_largest_number_when_compiled():
    activations = RowByRow(build() for build in STEEP.values())
    compiled = values_and_slopes(activations, every_float16(), "eager")
    for activation, *found in zip(activations, *compiled, strict=True):
        check_float16(activation, found)


def check_float16(activation, found):
    """Against float64, cut at 65504: at all 63488 finite numbers."""
    largest = torch.finfo(torch.float16).max
    exact = value_and_slope(activation, every_float16().double(), "eager")
    assert max(e.abs().max() for e in exact) > largest
    for ours, reference in zip(found, exact, strict=True):
        reference = reference.clamp(-largest, largest)
        assert ours.isfinite().all()
        rounding = torch.finfo(torch.float16).eps / 2 + 1e-4  # of the result, and of float32 in a centred x
        assert_close(ours.double(), reference, rounding, 1e-6 * reference.abs().max())


@pytest.mark.usefixtures("engine")
@each
@pytest.mark.parametrize("plain", [False, True], ids=["eager", "plain definition"])
def test_limits_and_nan(case, plain):
    x = torch.tensor([-INF, INF, NAN])
    activation = case.build()
    y = (torch.func.vmap(activation)(x) if plain else activation(x)).detach()
    for value, limit in zip(y[:2].tolist(), case.limits, strict=True):
        assert math.isnan(value) if limit is None else value == limit
    assert y[2].isnan()


@pytest.mark.usefixtures("engine")
@each
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_low_precision_agrees_with_float64_to_its_rounding(case, dtype):
    x = away_from_kinks(case, 2000).detach().to(dtype)
    for kink in case.kinks:
        x = x[(x.double() - kink).abs() > 0.01]
    activation = case.build()
    low = x.clone().requires_grad_()
    high = x.double().requires_grad_()
    y, exact = activation(low), activation(high)
    y.backward(torch.ones_like(y))
    exact.backward(torch.ones_like(exact))
    # One rounding of the result, and a few of float32 in an exponent of up to 100 and in a phase of frequency |x|.
    inner = 30 * torch.finfo(torch.float32).eps
    slack = inner * max(1.0, case.frequency)
    rounding = torch.finfo(dtype).eps / 2
    assert_close(y.double(), exact, rounding, slack * (1 + exact.abs().max()))
    # A slope near a singularity amplifies the rounding of x + shift.
    assert_close(low.grad.double(), high.grad, rounding + 100 * inner, slack * (1 + high.grad.abs().max()))


def assert_close(actual, expected, rtol, atol):
    expected = expected.detach()
    excess = (actual.detach() - expected).abs() - (rtol * expected.abs() + atol)
    assert excess.max() <= 0, f"{excess.max():.2e} over the tolerance"


# Derivatives


@each_exact
def test_gradients(case):
    """Reverse mode in eager (the fused version) and forward mode (the plain definition) against finite differences."""
    activation, x = case.build().double(), away_from_kinks(case)
    batched = not list(activation.parameters())
    assert gradcheck(activation, x, check_forward_ad=True, check_batched_grad=batched)


@each_twice_differentiable
def test_second_derivatives(case):
    x = away_from_kinks(case, distance=0.1)
    assert gradgradcheck(case.build().double(), x, fast_mode=True)


@each
def test_plain_definition_agrees_with_the_fused_version(case):
    activation, x = case.build().double(), away_from_kinks(case, 500).detach()
    y = activation(x)
    torch.testing.assert_close(torch.func.vmap(activation)(x), y, rtol=1e-13, atol=1e-14)
    _, tangent = torch.func.jvp(activation, (x,), (torch.ones_like(x),))
    reverse = x.clone().requires_grad_()
    activation(reverse).sum().backward()
    torch.testing.assert_close(tangent, reverse.grad, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(activation))(x), reverse.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("nu", [20.0, 100.0, 1e4])
@pytest.mark.parametrize("lengthscale", [1e-12, 1.0, 1e12])
def test_the_peak_of_a_smooth_one_at_every_scale(nu, lengthscale):
    """sigma^2 is the density of Gamma(2 nu, rate 2 lambda), whose factors overflow long before it does."""
    x = torch.tensor([0.9, 1.0, 1.1], dtype=torch.float64) * lengthscale * math.sqrt(nu / 2)
    density = stats.gamma(2 * nu, scale=lengthscale / math.sqrt(8 * nu)).pdf(x)
    np.testing.assert_allclose(st.matern(x, nu, lengthscale).square(), density, rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize("nu", [0.3, 0.6, 0.8, 1.0, 1.4])
def test_infinite_slope_is_taken_at_the_floor(nu):
    lengthscale = 2.0
    floor = torch.tensor([1e-3 * lengthscale], dtype=torch.float64, requires_grad=True)
    st.matern(floor, nu, lengthscale).backward()
    x = torch.tensor([1e-300, 1e-9, 1e-3 * lengthscale * 0.999], dtype=torch.float64, requires_grad=True)
    st.matern(x, nu, lengthscale).sum().backward()
    torch.testing.assert_close(x.grad, floor.grad.expand(3), rtol=1e-10, atol=0)


@pytest.mark.parametrize("nu", [0.3, 0.7, 1.5, 2.2, 2.5, 10.0])
@pytest.mark.parametrize("options", [{}, {"centered": True}, {"dim": 3}], ids=str)
def test_gradient_of_nu_lengthscale_and_variance(nu, options):
    x = torch.tensor([[0.15, 0.7], [1.6, 3.9]], dtype=torch.float64)
    parameters = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (nu, 0.7, 1.3)]
    function = partial(st.matern, **options)
    # In the fast mode each argument is checked alone, x along a random direction, which has a part of each element.
    assert gradcheck(function, (x.requires_grad_(), *parameters), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, (x, *parameters), fast_mode=True)


def test_parameters_per_feature():
    x = torch.rand(5, 3, dtype=torch.float64).requires_grad_()
    nu = torch.tensor([1.6, 2.0, 3.3], dtype=torch.float64, requires_grad=True)
    columns = torch.stack([st.matern(x[:, i], nu[i].item()) for i in range(3)], 1)
    torch.testing.assert_close(st.matern(x, nu), columns)
    assert gradcheck(st.matern, (x, nu))


def test_learnable_parameters_recover_a_known_activation():
    x = torch.linspace(-1, 6, 400)
    target = st.matern(x, 3.0, 1.5)
    activation = st.Matern(nu=1.8, lengthscale=0.7, learnable=True)
    optimizer = torch.optim.LBFGS(activation.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        total = (activation(x) - target).square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    assert activation.nu.item() == pytest.approx(3.0, abs=0.05)
    assert activation.lengthscale.item() == pytest.approx(1.5, abs=0.02)


# A network behind a jump


@pytest.mark.parametrize(
    ("plain", "with_surrogate"),
    [
        (st.Step(), st.Step(surrogate=0.3)),
        (st.Matern(0.5, lengthscale=30.0), st.Matern(0.5, lengthscale=30.0, surrogate=0.3)),
    ],
    ids=["step", "matern-1/2"],
)
def test_a_network_that_fails_without_a_surrogate_learns_with_it(plain, with_surrogate):
    """Two layers, the first of which must move its thresholds to the data: they start where no point is."""
    losses = {}
    x = torch.linspace(0, 1, 200)[:, None]
    target = (x > 0.3).float() - (x > 0.7).float()
    for name, activation in (("plain", plain), ("surrogate", with_surrogate)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(1, 8), activation, nn.Linear(8, 1))
        with torch.no_grad():
            network[0].weight.fill_(1.0)
            network[0].bias.copy_(torch.linspace(0.05, 0.5, 8))  # thresholds at x < 0
        optimizer = torch.optim.Adam(network.parameters(), 0.05)
        for _ in range(400):
            optimizer.zero_grad()
            loss = (network(x) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    constant = target.var().item()
    assert losses["plain"] > 0.5 * constant
    assert losses["surrogate"] < 0.1 * constant


def test_surrogate_gradient_is_that_of_the_blurred_function():
    width, x = 0.3, torch.linspace(-2, 3, 11, dtype=torch.float64, requires_grad=True)
    for function in (partial(st.step, surrogate=width), partial(st.exponential, lengthscale=0.5, surrogate=width)):
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        noise = torch.special.ndtri((torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000) * width
        blurred = lambda z: function((z[:, None] + noise).detach()).mean(1)
        difference = (blurred(x + 1e-2) - blurred(x - 1e-2)).detach() / 2e-2
        torch.testing.assert_close(gradient, difference, rtol=2e-3, atol=2e-3)


# Compilers, exporters, other modes


@each_part_in_time
def test_compiles_as_one_graph(names):
    x = torch.empty(400).uniform_(-4, 4)
    for kink in {kink for name in names for kink in ALL_ACTIVATIONS[name].kinks}:
        x = x[(x - kink).abs() > 0.02]
    activations = RowByRow(ALL_ACTIVATIONS[name].build() for name in names)
    for name, activation, y, slope in zip(names, activations, *values_and_slopes(activations, x), strict=True):
        expected, expected_slope = value_and_slope(activation, x, "eager")
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5, msg=lambda why: f"{name}: {why}")
        torch.testing.assert_close(slope, expected_slope, rtol=1e-4, atol=1e-4, msg=lambda why: f"{name}: {why}")


@pytest.mark.compiler
@pytest.mark.slow
@each
def test_compiles_with_inductor(case):
    activation = case.build()
    x = away_from_kinks(case, 300).detach().float()
    eager, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = activation(eager)
    y = torch.compile(activation, fullgraph=True, backend="inductor")(compiled)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    expected.sum().backward()
    y.sum().backward()
    torch.testing.assert_close(compiled.grad, eager.grad, rtol=1e-4, atol=1e-4)


@each_part
def test_exports(names):
    activations, x = together(names).eval(), torch.linspace(-3, 3, 50)
    program = torch.export.export(activations, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    longer = torch.linspace(-4, 4, 81)
    torch.testing.assert_close(program.module()(longer), activations(longer), rtol=1e-5, atol=1e-5)


@each_part_in_time
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_runs_the_same(names, tmp_path):
    activations, x = together(names).eval(), torch.linspace(-3, 3, 50)[:, None]
    path = tmp_path / "activations.onnx"
    torch.onnx.export(activations, (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for y, (name, expected) in zip(found, activations(x).items(), strict=True):
        close = {"rtol": 1e-5, "atol": 1e-5, "msg": lambda why, name=name: f"{name}: {why}"}
        torch.testing.assert_close(torch.from_numpy(y), expected.detach(), **close)


@each
def test_autocast(case):
    network = nn.Sequential(nn.Linear(4, 16), case.build(), nn.Linear(16, 2))
    x = torch.randn(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = network(x)
        y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@each
def test_copies_and_state(case, tmp_path):
    activation, x = case.build(), torch.linspace(-2, 2, 20)
    for parameter in activation.parameters():
        parameter.data += 0.3
    expected = activation(x)
    fresh = case.build()
    fresh.load_state_dict(activation.state_dict())
    for twin in (copy.deepcopy(activation), pickle.loads(pickle.dumps(activation)), fresh):
        assert torch.equal(twin(x), expected)
    assert type(activation).__name__ in repr(activation)


@pytest.mark.usefixtures("engine")
@each
def test_shapes_and_layouts(case):
    activation = case.build()
    assert activation(torch.empty(0, 3)).shape == (0, 3)
    assert activation(torch.tensor(0.5)).shape == ()
    x = torch.randn(6, 8, 5, 7)
    for layout in (x.transpose(0, 2), x[:, ::2], x.to(memory_format=torch.channels_last), x[0].expand(3, 8, 5, 7)):
        layout = layout.detach().requires_grad_()
        contiguous = layout.detach().contiguous().requires_grad_()
        y, expected = activation(layout), activation(contiguous)
        torch.testing.assert_close(y, expected)
        (weights := torch.randn(y.shape)).requires_grad_(False)
        (y * weights).sum().backward()
        (expected * weights).sum().backward()
        torch.testing.assert_close(layout.grad, contiguous.grad)
    channels_last = x.to(memory_format=torch.channels_last)
    assert activation(channels_last).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("engine")
@each
def test_does_not_write_to_its_input(case):
    x = torch.randn(100)
    before = x.clone()
    case.build()(x)
    assert torch.equal(x, before)


# Names and bad input


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_by_name(name):
    assert isinstance(st.activation(name), nn.Module)


def test_names_mean_what_they_say():
    x = torch.linspace(-2, 3, 30)
    assert torch.equal(st.activation("matern32")(x), st.matern(x, 1.5))
    assert torch.equal(st.activation("exponential")(x), st.exponential(x))
    assert torch.equal(st.activation("matern12")(x), st.matern(x, 0.5))
    torch.testing.assert_close(st.activation("siren")(x), torch.sin(30 * x.double()).float())


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"matern32.*periodic_relu.*'mattern32'"):
        st.activation("mattern32")


@pytest.mark.parametrize("argument", ["nu", "lengthscale", "variance"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1.5, ValueError),
        (NAN, ValueError),
        ("1", TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.parametrize("call", [st.Matern, partial(st.matern, torch.zeros(1))], ids=["module", "function"])
def test_bad_matern_parameters(call, argument, value, error):
    with pytest.raises(error, match=f"{argument} must be a positive number, got {value!r}"):
        call(**{argument: value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.Matern(lengthscale=INF), "lengthscale must be finite, got inf"),
        (lambda: st.RBF(0), "lengthscale must be a positive number, got 0"),
        (lambda: st.Sine(-1), "frequency must be a positive number, got -1"),
        (lambda: st.sine(torch.zeros(1), NAN), "frequency must be a positive number, got nan"),
        (lambda: st.Matern(dim=2), "dim must be an odd positive integer, got 2: for even dim"),
        (lambda: st.matern(torch.zeros(1), dim=0), "dim must be an odd positive integer, got 0"),
        (lambda: st.Matern(1.5, surrogate=0.1), "surrogate is only for the jump at nu = 1/2, got nu = 1.5"),
        (lambda: st.Step(surrogate=-1), "surrogate must be a positive number, got -1"),
        (lambda: st.Matern(INF, learnable=True), "learnable needs a finite nu and no surrogate, got nu=inf"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize("x", [torch.arange(3), torch.zeros(2, dtype=torch.complex64), [1.0], 1.0, "x"])
@pytest.mark.parametrize("function", [st.matern, st.rbf, st.step, st.sine, st.erf])
def test_input_must_be_a_floating_point_tensor(function, x):
    with pytest.raises(TypeError, match="x must be a floating-point tensor"):
        function(x)
