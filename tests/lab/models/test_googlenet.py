"""GoogLeNet: the published size and cost, the shape of every stage, and what users do with it: train, save, export."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stationary as st
from stationary.lab.models import GoogLeNet
from stationary.lab.models.googlenet import normalised


def images(n):
    return torch.randn(n, 3, 32, 32)


@pytest.fixture(scope="module")
def training():
    torch.manual_seed(1)
    model, x, y, losses = GoogLeNet(10), images(3), torch.tensor([0, 3, 9]), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for _ in range(6):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 1.0  # the statistics of these weights; those so far mix in the initial ones and hide the input
    with torch.no_grad():
        model(images(6))
    return losses, model.eval()


@pytest.fixture
def trained(training):
    """Weights and running statistics have moved; shared by the tests, which only read it."""
    return training[1]


# --------------------------------------------------------------------------------------------------------------------
# The published network


@pytest.mark.parametrize(("n_classes", "n_parameters"), [(10, 5_490_986), (5, 5_490_986 - 5 * 1025)])
def test_number_of_parameters(n_classes, n_parameters):
    assert sum(p.numel() for p in GoogLeNet(n_classes).parameters()) == n_parameters


def test_multiplications_for_one_image():
    """1.34e9, of which all but 10,240 are in the convolutions: 'same' padding, each output pixel sees a full filter."""
    model, counts = GoogLeNet(10).eval(), []
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            m.register_forward_hook(lambda m, _, y: counts.append(m.weight.numel() * y.shape[2] * y.shape[3]))
    with torch.no_grad():
        model(images(1))
    assert len(counts) == 1 + 9 * 6
    assert sum(counts) == pytest.approx(1.34e9, rel=0.01)


def test_shapes_of_every_stage():
    model, x = GoogLeNet(7).eval(), images(2)
    with torch.no_grad():
        assert model.features(x).shape == (2, 1024) and model(x).shape == (2, 7)
        for stage, shape in [
            (model.stem, (192, 32, 32)),
            (model.stage3, (480, 32, 32)),
            (model.stage4, (832, 16, 16)),
            (model.stage5, (1024, 8, 8)),
        ]:
            x = stage(x)
            assert x.shape == (2, *shape)


def test_every_convolution_is_followed_by_batch_norm_and_relu():
    leaves = [m for m in GoogLeNet(10).modules() if not list(m.children())]
    at = [i for i, m in enumerate(leaves) if isinstance(m, nn.Conv2d)]
    assert all(isinstance(leaves[i + 1], nn.BatchNorm2d) and leaves[i + 1].eps == 0.001 for i in at)
    assert all(isinstance(leaves[i + 2], nn.ReLU) for i in at)


def test_an_inception_block_is_its_four_branches():
    block, x = GoogLeNet(10).stage3[0].eval(), torch.randn(2, 192, 9, 9)

    def layer(x, branch):
        conv, norm, _ = branch
        x = F.conv2d(x, conv.weight, padding=conv.kernel_size[0] // 2) / (1 + 1e-3) ** 0.5  # fresh: mean 0, variance 1
        return x.mul(norm.weight[:, None, None]).add(norm.bias[:, None, None]).relu()

    one, three, five = layer(x, block.one), layer(x, block.three[0]), layer(x, block.five[0])
    pool = layer(F.max_pool2d(x, 3, stride=1, padding=1), block.pool[1])
    expected = torch.cat([one, layer(three, block.three[1]), layer(five, block.five[1]), pool], 1)
    torch.testing.assert_close(block(x), expected)


def test_features_are_the_mean_over_the_pixels_and_the_head_is_linear(trained):
    x = images(2)
    with torch.no_grad():
        maps = trained.stage5(trained.stage4(trained.stage3(trained.stem(x))))
        torch.testing.assert_close(trained.features(x), F.adaptive_avg_pool2d(maps, 1).flatten(1))
        torch.testing.assert_close(trained(x), trained.features(x) @ trained.head.weight.T + trained.head.bias)


# --------------------------------------------------------------------------------------------------------------------
# Training


def test_the_gradient_reaches_every_parameter():
    model = GoogLeNet(10)
    F.cross_entropy(model(images(2)), torch.tensor([1, 2])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_all_filters_start_with_the_same_norm():
    """Weights uniform in +-1/sqrt(fan_in): mean squared norm 1/3, with variance 4/45 over the number of weights."""
    for m in GoogLeNet(10).modules():
        if isinstance(m, nn.Conv2d):
            tolerance = 5 * (4 / 45 / m.weight.numel()) ** 0.5
            assert m.weight.square().flatten(1).sum(1).mean().item() == pytest.approx(1 / 3, abs=tolerance)


def test_sgd_reduces_the_loss(training):
    losses, _ = training
    assert 1.5 < losses[0] < 3.5 and losses[-1] < 0.2 * losses[0]  # it starts near log 10 = 2.3


def test_eval_does_not_depend_on_the_batch(trained):
    x = images(3)
    with torch.no_grad():
        together = trained(x)
        assert trained(x).equal(together)
        torch.testing.assert_close(trained(x[1:2]), together[1:2])


# --------------------------------------------------------------------------------------------------------------------
# Memory formats, precisions, files, compilers


def test_channels_last_gives_the_same_outputs(trained):
    x = images(2)
    model = copy.deepcopy(trained).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert model.stem(x.to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), trained(x))


LAYERS = 20  # on the longest path, and so many rounding errors at worst


def error(outputs, expected):
    return ((outputs - expected).norm() / expected.norm()).item()


def test_autocast_to_bfloat16(trained):
    x = images(2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs = trained(x)
    assert outputs.dtype == torch.bfloat16
    assert error(outputs.float(), trained(x)) < LAYERS * 2**-8


def test_float16_weights_go_through_a_safetensors_file(trained, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    half = {k: v.half() if v.is_floating_point() else v for k, v in trained.state_dict().items()}
    safetensors.save_file(half, tmp_path / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").stat().st_size < 11.2e6
    loaded = GoogLeNet(10).eval()
    loaded.load_state_dict(safetensors.load_file(tmp_path / "weights.safetensors"))
    x = images(2)
    with torch.no_grad():
        assert loaded(x).dtype == torch.float32 and 0 < error(loaded(x), trained(x)) < LAYERS * 2**-11


@pytest.mark.slow
def test_export(trained):
    x = images(3)
    program = torch.export.export(trained, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x[:2]), trained(x[:2]))


def test_the_papers_head_replaces_the_linear_one(trained):
    model = st.replace_head(copy.deepcopy(trained), st.StationaryHead(1024, 5, hidden=512))
    x = images(2)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.head(trained.features(x)))
    assert st.predict(model, x, st.ExactDropout(last_layer=True)).probs.shape == (2, 5)


# --------------------------------------------------------------------------------------------------------------------
# Inputs


def test_normalised():
    x = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    x[0, :, 0, :2] = torch.tensor([0, 255])
    y = normalised(x)
    assert y.dtype == torch.float32 and y.shape == x.shape
    for c, (mean, std) in enumerate([(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)]):
        assert y[0, c, 0, :2].tolist() == pytest.approx([-mean / std, (1 - mean) / std])
        torch.testing.assert_close((y[:, c] * std + mean) * 255, x[:, c].float())
    last = x.to(memory_format=torch.channels_last)
    assert normalised(last).is_contiguous(memory_format=torch.channels_last) and normalised(last).equal(y)


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (torch.zeros(2, 3, 32, 32), r"torch.float32 of shape \(2, 3, 32, 32\)"),
        (torch.zeros(2, 32, 32, 3, dtype=torch.uint8), r"torch.uint8 of shape \(2, 32, 32, 3\)"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), r"torch.uint8 of shape \(3, 32, 32\)"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8).numpy(), "a ndarray"),
    ],
)
def test_normalised_refuses(bad, got):
    with pytest.raises(ValueError, match=rf"images must be a uint8 tensor .*, got {got}; pass the raw bytes"):
        normalised(bad)


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), r"torch.uint8 of shape \(2, 3, 32, 32\)"),
        (torch.zeros(2, 3, 28, 28), r"torch.float32 of shape \(2, 3, 28, 28\)"),
        (torch.zeros(2, 1, 32, 32), r"torch.float32 of shape \(2, 1, 32, 32\)"),
        (torch.zeros(3, 32, 32), r"torch.float32 of shape \(3, 32, 32\)"),
    ],
)
def test_the_network_refuses(trained, bad, got):
    for call in (trained, trained.features):
        with pytest.raises(ValueError, match=rf"x must be a float tensor .*, got {got}; .*normalised"):
            call(bad)


@pytest.mark.parametrize("bad", [0, -1, 10.0, "10"])
def test_number_of_classes(bad):
    with pytest.raises(ValueError, match=f"n_classes must be a positive integer, got {bad!r}; CIFAR-10 has 10"):
        GoogLeNet(bad)
