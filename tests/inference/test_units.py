"""Classes from sums over units in C: the same as from a pass of the network, where the head is as it comes."""

import pytest
import torch
from torch import nn

import stationary as st
from stationary import _native
from stationary.inference import _units, exact_dropout


@pytest.fixture(autouse=True)
def _with_c():
    if _native.compiled() is None:
        pytest.skip("no gcc, or a processor without AVX2")


def network(c, *, hidden=(40,), size=1.0, calibrated=True, drop=0.2, **matern):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = st.MLP(5, c, hidden=hidden, activation=st.Matern(**matern), dropout=drop).double()
        nn.init.normal_(model.head.output.weight, std=size)
    return st.calibrate_prior(model, rows(200)) if calibrated else model


def rows(n, scale=1.0):
    return scale * torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


EXACT = st.ExactDropout(tolerance=1e-11)  # a pass chooses polynomials by these rows, C by all, both so exactly


def both(monkeypatch, model, x, method=EXACT):
    """The prediction by C, which must have made it, and by a pass of the network."""
    made = []
    noted = lambda *a: made.append(_units.of_classes(*a)) or made[-1]
    monkeypatch.setattr(exact_dropout, "of_classes", noted)
    by_c = st.predict(model, x, method)
    monkeypatch.setattr(exact_dropout, "of_classes", lambda *_: None)
    assert made and made[0] is not None
    return by_c, st.predict(model, x, method)


def same(a, b, rtol=1e-10, atol=1e-10):
    assert a.prior_restored == b.prior_restored
    for name, value in b.tensors().items():
        torch.testing.assert_close(
            a.tensors()[name], value, rtol=rtol, atol=atol, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("c", [2, 3, 10])
@pytest.mark.parametrize("n", [1, 31, 65], ids="{} rows".format)
@pytest.mark.parametrize("hidden", [(7,), (100,), (30, 600)], ids=str)
def test_as_by_a_pass_of_the_network(monkeypatch, c, n, hidden):
    same(*both(monkeypatch, network(c, hidden=hidden, size=0.3), rows(n, 2.0)))


@pytest.mark.parametrize("matern", [{"nu": 1.5}, {"nu": 7.5, "lengthscale": 3.0}, {"centered": True, "variance": 4.0}])
@pytest.mark.parametrize("method", [st.ExactDropout(restore_prior=False, tolerance=1e-11), EXACT])
@pytest.mark.parametrize("c", [2, 4])
def test_for_every_activation_and_setting(monkeypatch, c, matern, method):
    same(*both(monkeypatch, network(c, drop=0.4, **matern), rows(50), method))


@pytest.mark.parametrize("c", [2, 3])
def test_without_a_prior(monkeypatch, c):
    same(*both(monkeypatch, network(c, calibrated=False), rows(20)))


@pytest.mark.parametrize("size", [5.0, 3e4], ids=["heavy units", "logits that reach far"])
def test_units_of_any_weight(monkeypatch, size):
    by_c, by_pass = both(monkeypatch, network(2, size=size), rows(50), st.ExactDropout(tolerance=1e-9))
    torch.testing.assert_close(by_c.probs, by_pass.probs, rtol=0, atol=2e-9)
    torch.testing.assert_close(by_c.output_mean, by_pass.output_mean, rtol=1e-10, atol=1e-10)


def test_weights_that_change_are_seen(monkeypatch):
    model = network(3)
    before = st.predict(model, rows(9)).probs
    model.head.hidden.weight.data.mul_(1.1)
    by_c, by_pass = both(monkeypatch, model, rows(9), st.ExactDropout(restore_prior=False))
    same(by_c, by_pass)
    assert (by_c.probs - before).abs().max() > 1e-3


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def louder(model):
    model.head.hidden = Louder(5, 40).double()


def hooked(model):
    model.head.activation.register_forward_hook(lambda _, __, out: 2 * out)


def hooked_before(model):
    model.head.register_forward_pre_hook(lambda _, args: (2 * args[0],))


def patched(model):
    model.head.activation.forward = lambda x: x.exp()


def learnable(model):
    model.head.activation = st.Matern(learnable=True).double()


def in_single(model):
    model.float()


@pytest.mark.parametrize("change", [louder, hooked, hooked_before, patched, learnable, in_single])
def test_another_head_runs_as_it_is(monkeypatch, change):
    model = network(3, calibrated=False)
    change(model)
    x = rows(9).to(model.head.output.weight.dtype)
    assert _units.of_classes(model.eval(), x, st.ExactDropout()) is None
    outputs = st.predict(model, x).output_mean
    torch.testing.assert_close(outputs, model(x).detach())


def test_what_c_does_not_cover_is_left_alone():
    method, x = st.ExactDropout(), rows(9)
    assert _units.of_classes(network(3), {"x": x}, method) is None
    assert _units.of_classes(network(3), x[:, :4], method) is None
    assert _units.of_classes(network(2), x, st.ExactDropout(approximate=True)) is None
    assert _units.of_classes(network(3, calibrated=False), x, st.ExactDropout(restore_prior=True)) is None
    assert _units.of_classes(network(100), x, method) is None
    two = nn.Sequential(nn.Dropout(0.1), network(3))
    assert _units.of_classes(two, x, method) is None
