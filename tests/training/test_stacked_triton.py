"""The fused layers, loss and Adam of stacked networks equal PyTorch's."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_problems import QUICK, build_seeded, build_uci, differ, each, folds

import stationary as st


def on_gpu(sets):
    return ([part.cuda().float() if part.is_floating_point() else part.cuda() for part in parts] for parts in sets)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["matern32", "rbf", "relu", "sine"])
def test_fused_layers_train_like_plain_ones(activation, monkeypatch):
    """Masks and order are the same; what differs is rounding."""
    x, y = on_gpu(folds())
    training = replace(QUICK, precision="bfloat16", weight_decay=1e-3, learning_rate=1e-3)
    build = lambda: build_uci(activation)
    fused = each(build, x, y, training)
    monkeypatch.setattr(import_module("stationary.training.train"), "has_triton", lambda: False)
    plain = each(build, x, y, training)
    for a, b, inputs in zip(fused, plain, x, strict=True):
        assert differ(a, b) and all(p.dtype == torch.float32 for p in a.parameters())
        assert (a(inputs) - b(inputs)).norm() / b(inputs).norm() < 0.1


def stacked_layers(build, k=3):
    """A fused network, the parameters of k stacked ones, rounded to bf16, and what the optimizer knows of them."""
    from stationary.training import _stacked_adam, _stacked_triton

    models = [build().cuda() for _ in range(k)]
    parameters, _ = torch.func.stack_module_state(models)
    parameters = {name: p.detach().bfloat16().float().requires_grad_(p.requires_grad) for name, p in parameters.items()}
    linears = _stacked_triton.fuse(models[0])
    fused = _stacked_adam.laid_out(parameters, linears)
    run = torch.func.vmap(lambda p, x: torch.func.functional_call(models[0], p, (x,)))
    return run, parameters, fused, linears


def near(a, b):
    return (a.double() - b).norm() / b.norm() < 2e-2  # bf16 has 8 bits, and long sums may be added up in it


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(3, 9), (16, 8), (54, 1000), (500, 50)])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", [(7,), (5, 4)])
def test_fused_linear_layer(widths, relu, shape):
    """Against float64 with the same rounded weights."""
    k, (n_in, n_out) = 3, widths
    build = lambda: nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU() if relu else nn.Identity())
    run, parameters, fused, linears = stacked_layers(build, k)
    assert [*linears] == ["0"] and {*fused.copies} == {"0.weight", "0.bias"} == {*parameters}
    x = torch.randn(k, *shape, n_in, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(k, *shape, n_out, device="cuda").bfloat16()
    y = run(parameters | fused.copies, x)
    (grad_x,) = torch.autograd.grad((y * weight).sum(), x)
    fused.layers[0].finish()
    grad_weight, grad_bias = fused.layers[0].grad_weight, fused.layers[0].grad_bias
    inputs = [t.detach().double().requires_grad_() for t in (x, parameters["0.weight"], parameters["0.bias"])]
    exact = torch.einsum("k...i,koi->k...o", *inputs[:2]) + inputs[2].view(k, *[1] * len(shape), n_out)
    exact = exact.relu() if relu else exact
    expected = exact, *torch.autograd.grad((exact * weight).sum(), inputs)
    assert grad_weight.shape[1] % 8 == 0 and grad_weight.shape[2] % 8 == 0
    assert not grad_weight[:, n_out:].any() and not grad_weight[:, :, n_in:].any()
    for a, b in zip((y, grad_x, grad_weight[:, :n_out, :n_in], grad_bias[:, :n_out]), expected, strict=True):
        assert near(a, b)


@pytest.mark.gpu
def test_gradients_of_a_layer_that_is_called_twice_add_up():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 12)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    run, parameters, fused, _ = stacked_layers(Twice)
    x = torch.randn(3, 7, 12, device="cuda")
    for _ in range(2):  # what was there before the pass does not count
        run(parameters | fused.copies, x).sum().backward()
        fused.layers[0].finish()
    inputs = [parameters[name].detach().double().requires_grad_() for name in ("layer.weight", "layer.bias")]
    apply = lambda x: x @ inputs[0].mT + inputs[1][:, None]
    expected = torch.autograd.grad(apply(torch.tanh(apply(x.double()))).sum(), inputs)
    assert near(fused.layers[0].grad_weight[:, :12, :12], expected[0])
    assert near(fused.layers[0].grad_bias[:, :12], expected[1])


@pytest.mark.gpu
def test_frozen_and_shared_layers_stay_plain():
    from stationary.training import _stacked_triton

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), *(nn.Linear(3, 3) for _ in range(5)), nn.Embedding(3, 3))
    model[0].requires_grad_(False)
    model[3].weight = model[2].weight
    model[4].bias = model[3].bias
    model[5].weight = model[7].weight
    model.append(model[6])  # one layer in two places
    assert _stacked_triton.fuse(model) == {} and not any(isinstance(m, _stacked_triton.Linear) for m in model.modules())
    model.append(nn.Linear(3, 3))
    assert [*_stacked_triton.fuse(model)] == ["9"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_frozen_layer_is_not_trained_and_shared_weights_stay_shared(precision):
    def build():
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3))
        model[0].requires_grad_(False)
        model[4].weight = model[2].weight
        return model

    x, y = on_gpu(folds())
    for k, model in enumerate(each(build, x, y, replace(QUICK, precision=precision))):
        before = build_seeded(build, k)
        assert torch.equal(model[0].weight.cpu(), before[0].weight) and model[4].weight is model[2].weight
        assert not torch.equal(model[5].weight.cpu(), before[5].weight)


@pytest.mark.gpu
@pytest.mark.parametrize("c", [2, 7, 8, 33, 2000])
def test_fused_cross_entropy(c):
    from stationary.training import _stacked_triton as stacked

    outputs = (3 * torch.randn(3, 5, c, device="cuda")).bfloat16()
    y, weight = torch.randint(c, (3, 5), device="cuda"), torch.rand(3, 5, device="cuda")
    losses = torch.full_like(weight, torch.nan)
    slope = stacked.cross_entropy(outputs, y, weight, losses)
    exact = outputs.double().requires_grad_()
    expected = F.cross_entropy(exact.flatten(0, 1), y.flatten(), reduction="none").view(3, 5) * weight
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    (expected_slope,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(slope.double(), expected_slope, rtol=2**-8, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["matern12", "matern32", "matern52", "rbf"])
@pytest.mark.parametrize("width", [8, 13])
def test_fused_activation_and_dropout(activation, width):
    from stationary.training import _stacked_triton as stacked

    plain = st.activation(activation)
    model = nn.Sequential(plain, nn.Identity())
    assert stacked.fuse(model) == {} and isinstance(model[0], stacked.Activation)
    model[1] = stacked.Dropout(0.3)
    x = torch.randn(3, 5, width, device="cuda").bfloat16().requires_grad_()
    keep = torch.rand(3, 5, width, device="cuda") > 0.3
    y = torch.func.vmap(lambda x, keep: torch.func.functional_call(model, {"1.drawn": keep}, (x,)))(x, keep)
    exact = x.detach().double().requires_grad_()
    expected = plain(exact) * keep / 0.7
    torch.testing.assert_close(y.double(), expected, rtol=2**-6, atol=1e-6)  # rounded twice
    weight = torch.randn_like(y)
    (grad,), (expected_grad,) = (torch.autograd.grad((f * weight).sum(), t) for f, t in ((y, x), (expected, exact)))
    torch.testing.assert_close(grad.double(), expected_grad, rtol=2**-6, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fused_adam(decay):
    """Against PyTorch's. Moments have 8 bits, so that a step may be wrong by 2^-7 of itself."""
    from stationary.training import _stacked_adam

    _, parameters, fused, _ = stacked_layers(lambda: nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 7)))
    parameters["other"] = torch.randn(3, 2, device="cuda", requires_grad=True)
    reference = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    names, rates, decays = (["0.weight", "0.bias", "other"], ["1.weight", "1.bias"]), (0.01, 0.002), (decay, 0.0)
    groups, theirs = (
        [
            {"params": [of[name] for name in some], "lr": rate, "weight_decay": weight_decay}
            for some, rate, weight_decay in zip(names, rates, decays, strict=True)
        ]
        for of in (parameters, reference)
    )
    ours, plain = _stacked_adam.Adam(groups, fused), torch.optim.Adam(theirs)
    for step in range(20):
        ours.zero_grad()
        for name, p in parameters.items():
            reference[name].grad = (torch.randn_like(p) + 1).bfloat16().float()
        for part, p in zip(fused.piece.parts(fused.piece.grad), fused.piece.parameters, strict=True):
            part.copy_(next(reference[name].grad for name, own in parameters.items() if own is p))
        parameters["other"].grad = reference["other"].grad.clone()
        ours.step()
        plain.step()
        if step == 9:  # as a checkpoint does
            ours.settle()
            before, ours = ours, _stacked_adam.Adam(groups, fused)
            ours.load_state_dict(before.state_dict())
            for group, rate in zip(ours.param_groups, rates, strict=True):
                group["lr"] = rate
            ours.load_rates()
    ours.settle()
    for name, p in parameters.items():
        step = 1e-4 if name == "other" else rates["1" in name] * 20 * 2**-7
        torch.testing.assert_close(p, reference[name], rtol=0.0, atol=step)
    torch.testing.assert_close(fused.piece.copy.float(), fused.piece.numbers, rtol=2**-8, atol=0.0)
    for whole, shape in zip(fused.piece.whole(fused.piece.numbers), fused.piece.shapes, strict=True):
        assert whole.count_nonzero() == whole[tuple(map(slice, shape))].count_nonzero()
    ours.zero_grad()
    assert parameters["other"].grad is None


@pytest.mark.gpu
def test_the_mean_square_is_rounded_right_on_average():
    """Rounded to the nearest, it would stay where a step changes it by less than 2^-9, at about half of its limit."""
    from stationary.training import _stacked_adam

    _, parameters, fused, _ = stacked_layers(lambda: nn.Sequential(nn.Linear(64, 64)))
    ours = _stacked_adam.Adam([{"params": [*parameters.values()], "lr": 0.0}], fused)
    fused.piece.grad.fill_(1.0)
    steps = 4000
    for _ in range(steps):
        ours.step()
    found = fused.piece.square.double()
    noise = 2**-8 / 12**0.5 * (500**0.5)  # of a rounding, relative, and those of the last steps together
    assert found.mean().item() == pytest.approx(1 - 0.999**steps, abs=4 * noise / len(found) ** 0.5 + 1e-4)
    assert found.std() < 2 * noise
    ours.state["all"]["count"].fill_(1.0)
    fused.piece.square.zero_()
    ours.step()
    again = fused.piece.square.clone()
    ours.state["all"]["count"].fill_(1.0)
    fused.piece.square.zero_()
    ours.step()
    assert torch.equal(fused.piece.square, again) and len(again.unique()) == 2  # the same in every run
