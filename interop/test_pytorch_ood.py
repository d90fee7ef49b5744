"""Our scores as a detector of pytorch-ood, against its own detectors and metrics."""

import copy
import sys

import pytest
import torch
from pytorch_ood.api import Detector
from pytorch_ood.detector import MCD, EnergyBased, Entropy, MaxSoftmax
from pytorch_ood.metrics import OODMetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stationary as st
from stationary import metrics
from stationary.adapters import pytorch_ood_detector
from stationary.ood import SCORES, score


@pytest.fixture(scope="module")
def model():
    """Trained on two classes."""
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = st.MLP(2, 2, hidden=(30, 20), dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def loader():
    """Labels below 0 are out of distribution, as pytorch-ood has them."""
    torch.manual_seed(1)
    x, x_out = torch.randn(200, 2), 5 * torch.randn(150, 2)
    y = torch.cat([(x[:, 0] * x[:, 1] > 0).long(), torch.full((150,), -1)])
    return DataLoader(TensorDataset(torch.cat([x, x_out]), y), batch_size=64)


@pytest.mark.parametrize("name", SCORES)
def test_its_metrics_of_our_scores_are_our_metrics(model, loader, name):
    """AUROC is the same. Its FPR95 accepts 95 % of what is out, ours of what is in: the same with the roles swapped.

    Its AUPR is the area by the trapezoidal rule, ours the average precision: near, never the same.
    """
    method = st.MCDropout(20)
    detector = pytorch_ood_detector(model, name, method)
    assert isinstance(detector, Detector) and detector.fit(loader) is detector
    found = OODMetrics()
    for x, y in loader:
        found.update(detector(x), y)
    x, y = loader.dataset.tensors
    scores = score(st.predict(model, x, method), name)
    inside, outside = scores[y >= 0], scores[y < 0]
    theirs = found.compute()
    assert theirs["AUROC"] == pytest.approx(metrics.auroc(inside, outside), abs=1e-6)
    assert theirs["FPR95TPR"] == pytest.approx(metrics.fpr95(-outside, -inside), abs=1e-6)
    assert theirs["AUPR-OUT"] == pytest.approx(metrics.aupr(inside, outside), abs=0.01)
    assert theirs["AUPR-IN"] == pytest.approx(metrics.aupr(inside, outside, positive="in"), abs=0.01)
    assert abs(theirs["AUROC"] - 0.5) > 0.02


@pytest.mark.parametrize(
    ("name", "theirs", "shift"),
    [("max_probability", MaxSoftmax, 1.0), ("entropy", Entropy, 0.0), ("energy", EnergyBased, 0.0)],
)
def test_of_a_single_pass_they_are_its_own_detectors(model, loader, name, theirs, shift):
    x = loader.dataset.tensors[0]
    ours = pytorch_ood_detector(model, name, st.Point()).predict(x)
    torch.testing.assert_close(ours, theirs(model).predict(x).detach() + shift, rtol=1e-5, atol=1e-6)


def test_of_many_passes_they_are_its_mc_dropout(model, loader):
    """Within five standard errors of the mean of 500 masks, where its trunk ran 500 times and ours once."""
    x, n = loader.dataset.tensors[0], 500
    net, passes = copy.deepcopy(model), []
    net.trunk.register_forward_hook(lambda *_: passes.append(1))
    method = st.MCDropout(n, shared_masks=False)
    ours = pytorch_ood_detector(net, "max_probability", method).predict(x)
    assert len(passes) == 1
    torch.manual_seed(0)
    theirs = MCD(net, samples=n, mode="mean").predict(x) + 1
    assert len(passes) == 1 + n
    spread = st.predict(model, x, method, keep_samples=True).samples.softmax(-1).std(0).amax(-1)
    assert ((ours - theirs).abs() <= 5 * spread * (2 / n) ** 0.5 + 1e-6).all()


def test_it_follows_its_device_and_needs_no_fit(model):
    detector = pytorch_ood_detector(copy.deepcopy(model).double())
    assert detector.to("cpu") is detector and detector.device == torch.device("cpu")
    assert not detector.requires_fit
    assert detector(torch.randn(3, 2, dtype=torch.float64)).shape == (3,)


def test_a_posterior(model, loader):
    x = loader.dataset.tensors[0]
    detector = pytorch_ood_detector(st.ExactDropout().posterior(model), "std")
    torch.testing.assert_close(detector(x), st.predict(model, x, st.ExactDropout()).std())


def test_errors_say_what_to_do(model, monkeypatch):
    with pytest.raises(ValueError, match=r"score must be one of std, variance, .*; got 'odin'"):
        pytorch_ood_detector(model, "odin")
    monkeypatch.setitem(sys.modules, "pytorch_ood.api", None)
    with pytest.raises(ImportError, match=r"pytorch_ood.* not installed: pip install pytorch-ood"):
        pytorch_ood_detector(model)
