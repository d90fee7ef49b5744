"""The second task of a trunk: what the losses are, and that the network learns both."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stationary as st


def network(n_classes=3):
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(pooled, nn.Linear(32, n_classes))


def test_the_loss_of_each_image_is_that_of_its_class_and_of_its_turned_copy():
    torch.manual_seed(1)
    learner = st.RotationPrediction(network(), weight=0.3).eval()
    x, y = torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    for i, found in enumerate(learner.losses(x, y)):
        turned = torch.rot90(x[i], i % 4, (1, 2))[None]
        turn = learner.turns(learner.network[0](turned))
        expected = F.cross_entropy(learner.network(x[i][None]), y[i][None])
        torch.testing.assert_close(found, expected + 0.3 * F.cross_entropy(turn, torch.tensor([i % 4])))
    assert torch.equal(learner(x), learner.network(x)) and not learner.network[1]._forward_pre_hooks


def bars(n):
    """Images with a bright row somewhere in the upper half, of class 0, or two of them, of class 1."""
    generator = torch.Generator().manual_seed(0)
    x, y = 0.1 * torch.rand(n, 1, 8, 8, generator=generator), torch.arange(n) % 2
    place = torch.randint(0, 2, (n,), generator=generator)
    x[torch.arange(n), 0, place] = 1.0
    x[y == 1, 0, 3] = 1.0
    return x, y


def test_classes_and_turns_are_both_learnt_by_the_usual_training():
    x, y = bars(256)
    training = st.Training(epochs=40, batch_size=32, learning_rate=0.01, loss="own")
    [learner] = st.fit(st.Point(), lambda: st.RotationPrediction(network(2)), (x, y), training).networks
    learner.eval()
    with torch.no_grad():
        assert (learner.network(x).argmax(-1) == y).float().mean() > 0.95
        turns = [learner.turns(learner.network[0](x.rot90(k, (2, 3)))).argmax(-1) == k for k in range(4)]
    assert torch.stack(turns).float().mean() > 0.9, "one row in four would be chance"


def test_a_head_and_a_named_layer_are_found():
    with_head = nn.Sequential(nn.Flatten(), st.StationaryHead(64, 2))
    assert st.RotationPrediction(with_head).turns.in_features == 64
    two = nn.ModuleDict({"first": nn.Linear(4, 5), "second": nn.Linear(5, 2)})
    assert st.RotationPrediction(two, name="second").turns.in_features == 5
    with pytest.raises(ValueError, match="name must be given, ModuleDict has no linear classifier"):
        st.RotationPrediction(two)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: st.RotationPrediction(network(), weight=0.0), "weight must be a positive number, got 0.0"),
        (lambda: st.RotationPrediction(network(), name="0.0"), "name must be that of a linear layer of Sequential"),
        (
            lambda: st.RotationPrediction(network()).losses(torch.rand(2, 1, 8, 9), torch.tensor([0, 1])),
            r"x must be square images \(n, channels, size, size\), got shape \(2, 1, 8, 9\)",
        ),
    ],
)
def test_bad_input(act, message):
    with pytest.raises(ValueError, match=message):
        act()
