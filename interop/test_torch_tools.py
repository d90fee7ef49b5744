"""What people do to networks with PyTorch's own tools, against all dropout masks, one by one.

Four hidden units with dropout 1/2 have 16 masks, all as probable: every sample is one of 16 functions, and mean and
standard deviation over them are exact.
"""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel

import stationary as st


class Masked(nn.Module):
    """Dropout with this mask."""

    def __init__(self, mask):
        super().__init__()
        self.mask = torch.tensor(mask)

    def forward(self, x):
        return x * self.mask / 0.5


class Adapted(nn.Linear):
    """A low-rank adapter, as loralib writes it."""

    def __init__(self, linear):
        super().__init__(linear.in_features, linear.out_features)
        self.load_state_dict(linear.state_dict())
        self.change = nn.Parameter(torch.ones(linear.out_features, 1) @ torch.randn(1, linear.in_features))

    def forward(self, x):
        return super().forward(x) + nn.functional.linear(x, self.change)


class Temperature(nn.Module):
    def __init__(self, model, in_place):
        super().__init__()
        self.model, self.in_place = model, in_place

    def forward(self, x):
        outputs = self.model(x)
        return outputs.div_(3) if self.in_place else outputs / 3


def changed(change):
    """The model after ``change(its last layer)``."""

    def apply(model):
        change(model.head.output)
        return model

    return apply


def adapted(model):
    model.head.output = Adapted(model.head.output)
    return model


def doubled(model):
    model.head.output.register_forward_hook(lambda module, args, output: 2 * output)
    return model


def watched(model):
    seen = []
    for module in model.modules():
        module.register_forward_hook(lambda module, args, output: seen.append(output))
    return model


def quantized(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


PLAIN = {  # the last layer is still weight @ features + bias, and gives the output
    "nothing": lambda model: model,
    "weight_norm": changed(parametrizations.weight_norm),
    "spectral_norm": changed(parametrizations.spectral_norm),
    "prune": changed(lambda layer: prune.l1_unstructured(layer, "weight", 0.25)),
    "AveragedModel": AveragedModel,
    "DataParallel": nn.DataParallel,
    "hooks that look": watched,
    "frozen": lambda model: model.requires_grad_(False),
    "float64": lambda model: model.double(),
}
OTHER = {  # it is not: samples only, through the whole network
    "quantize_dynamic": quantized,
    "temperature": lambda model: Temperature(model, in_place=False),
    "a low-rank adapter": adapted,
    "a hook that doubles": doubled,
}


@pytest.fixture
def x():
    return torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = st.MLP(3, 2, hidden=(20, 4), activation="rbf", dropout=0.5).eval()  # no unit is ever off
    nn.init.normal_(model.head.hidden.bias)
    nn.init.normal_(model.head.output.weight)
    return model


def all_functions(model, x):
    """(16, n, c), the outputs with each mask."""
    ((name, dropout),) = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Dropout))
    outputs = []
    for mask in product((0.0, 1.0), repeat=4):
        model.set_submodule(name, Masked(mask))
        outputs.append(model(x).detach())
    model.set_submodule(name, dropout)
    return torch.stack(outputs)


def check_samples(model, functions, x):
    samples = st.predict(model, x, st.MCDropout(100), keep_samples=True).samples
    distance = (samples[:, None] - functions).abs().amax((-2, -1))  # (100, 16)
    assert distance.amin(1).max() < 1e-4
    assert distance.argmin(1).unique().numel() > 12  # of 16; fewer are one in millions


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", PLAIN)
def test_samples_and_moments_over_all_masks(model, x, name, mode):
    network, x = PLAIN[name](model), x.double() if name == "float64" else x
    with mode():
        functions = all_functions(network, x)
        check_samples(network, functions, x)
        exact = st.predict(network, x, st.ExactDropout(), family=st.Gaussian)
    torch.testing.assert_close(exact.mean, functions.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(exact.std(), functions.std(0, correction=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", OTHER)
def test_samples_where_there_is_no_closed_form(model, x, name, mode):
    network = OTHER[name](model)
    with mode():
        check_samples(network, all_functions(network, x), x)
        with pytest.raises(ValueError, match="use MCDropout"):
            st.predict(network, x, st.ExactDropout())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outputs_that_are_changed_in_place(model, x, mode):
    network = Temperature(model, in_place=True)
    with mode():
        check_samples(network, all_functions(network, x), x)
