"""The fused layers, loss and Adam of stacked networks equal PyTorch's."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_problems import QUICK, build_uci, differ, each, folds

import stationary as st


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["matern32", "rbf", "relu", "sine"])
def test_fused_layers_train_like_plain_ones(activation, monkeypatch):
    """Masks and order are the same; what differs is rounding."""
    x, y = ([part.cuda().float() if part.is_floating_point() else part.cuda() for part in parts] for parts in folds())
    training = replace(QUICK, precision="bfloat16", weight_decay=1e-3, learning_rate=1e-3)
    build = lambda: build_uci(activation)
    fused = each(build, x, y, training)
    monkeypatch.setattr(import_module("stationary.training.train"), "has_triton", lambda: False)
    plain = each(build, x, y, training)
    for a, b, inputs in zip(fused, plain, x, strict=True):
        assert differ(a, b) and all(p.dtype == torch.float32 for p in a.parameters())
        assert (a(inputs) - b(inputs)).norm() / b(inputs).norm() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(3, 9), (16, 8), (54, 1000), (500, 50)])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", [(7,), (5, 4)])
def test_fused_linear_layer(widths, relu, shape):
    """Against float64 with the same rounded weights; bf16 has 8 bits, and long sums may be added up in it."""
    from stationary.training import _stacked_triton as stacked

    k, (n_in, n_out) = 3, widths
    models = [nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU() if relu else nn.Identity()).cuda() for _ in range(k)]
    parameters, _ = torch.func.stack_module_state(models)
    parameters = {name: p.detach().bfloat16().float() for name, p in parameters.items()}
    assert stacked.fuse(models[0]) == ["0"]
    copy = stacked.half_copy(parameters["0.weight"])
    bias = parameters["0.bias"].clone().requires_grad_()
    x = torch.randn(k, *shape, n_in, device="cuda").bfloat16().requires_grad_()
    run = torch.func.vmap(lambda w, b, x: torch.func.functional_call(models[0], {"0.weight": w, "0.bias": b}, (x,)))
    weight = torch.randn(k, *shape, n_out, device="cuda").bfloat16()
    y = run(copy, bias, x)
    found = y, *torch.autograd.grad((y * weight).sum(), (x, copy, bias))
    inputs = [t.detach().double().requires_grad_() for t in (x, parameters["0.weight"], bias)]
    exact = torch.einsum("k...i,koi->k...o", *inputs[:2]) + inputs[2].view(k, *[1] * len(shape), n_out)
    exact = exact.relu() if relu else exact
    expected = exact, *torch.autograd.grad((exact * weight).sum(), inputs)
    assert found[2].shape[1] % 8 == 0 and found[2].shape[2] % 8 == 0
    for a, b in zip((found[0], found[1], found[2][:, :n_out, :n_in], found[3]), expected, strict=True):
        assert (a.double() - b).norm() / b.norm() < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("c", [2, 7, 8, 33, 2000])
def test_fused_cross_entropy(c):
    from stationary.training import _stacked_triton as stacked

    outputs = (3 * torch.randn(3, 5, c, device="cuda")).bfloat16()
    y, weight = torch.randint(c, (3, 5), device="cuda"), torch.rand(3, 5, device="cuda")
    losses, slope = stacked.cross_entropy(outputs, y, weight)
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
    assert stacked.fuse(model) == [] and isinstance(model[0], stacked.Activation)
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
    from stationary.training import _stacked_triton as stacked

    weight, bias = torch.randn(3, 9, 5, device="cuda"), torch.randn(3, 7, device="cuda")
    copy = stacked.half_copy(weight)
    own, reference = [[t.clone().requires_grad_() for t in (weight, bias)] for _ in range(2)]
    fused = stacked.Adam([{"params": own, "lr": 0.1, "weight_decay": decay}], {own[0]: copy})
    plain = torch.optim.Adam(reference, 0.01, weight_decay=decay)
    fused.param_groups[0]["lr"] = 0.01
    fused.load_rates()
    for _ in range(20):
        gradients = torch.randn(3, 16, 8, device="cuda").bfloat16(), torch.randn(3, 7, device="cuda")
        fused.zero_grad()
        torch.autograd.backward([copy, own[1]], gradients)
        reference[0].grad, reference[1].grad = gradients[0][:, :9, :5].float(), gradients[1]
        fused.step()
        plain.step()
    for a, b in zip(own, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(copy.detach()[:, :9, :5], own[0].detach().bfloat16())
    assert not copy.detach()[:, 9:].any() and not copy.detach()[:, :, 5:].any()
    fused.zero_grad()
    assert copy.grad is None and own[1].grad is None
