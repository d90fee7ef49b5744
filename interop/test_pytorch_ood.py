"""Our scores as a detector of pytorch-ood, against its own detectors and metrics; and its detectors as our scores."""

import copy
import sys

import pytest
import torch
from pytorch_ood.api import Detector, RequiresFittingException
from pytorch_ood.detector import (
    GEN,
    GMM,
    KNN,
    MCD,
    ODIN,
    RMD,
    SHE,
    EnergyBased,
    Entropy,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MahalanobisODIN,
    MaxLogit,
    MaxSoftmax,
    NNGuide,
    ViM,
)
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


# Its detectors as scores of ours


DETECTORS = {
    "MaxSoftmax": MaxSoftmax,
    "EnergyBased": EnergyBased,
    "Entropy": Entropy,
    "MaxLogit": MaxLogit,
    "GEN": GEN,
    "ODIN": lambda net: ODIN(net, temperature=10.0),
    "GradNorm": GradNorm,
    "KLMatching": KLMatching,
    "Mahalanobis": lambda net: Mahalanobis(net.trunk),
    "MahalanobisODIN": lambda net: MahalanobisODIN(net.trunk),
    "RMD": lambda net: RMD(net.trunk),
    "GMM": lambda net: GMM(net.trunk),
    "KNN": lambda net: KNN(net.trunk, k=10),
    "SHE": lambda net: SHE(net.trunk, net.head),
    "NNGuide": lambda net: NNGuide(net.trunk, net.head),
    "ViM": lambda net: ViM(nn.Sequential(net.trunk, net.head.hidden), 10, net.head.output.weight, net.head.output.bias),
}


def rows(n, seed, scale=1.0):
    x = scale * torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def learned(name, model):
    """Their detector, fitted to the training data where it learns."""
    return DETECTORS[name](model).to("cpu").fit(DataLoader(TensorDataset(*rows(300, 2)), 50))


@pytest.mark.parametrize("name", DETECTORS)
def test_its_detectors_are_scores_of_ours(model, name):
    """Threshold, p-values and alarms by their definition, from their own scores of a network in eval mode."""
    theirs = learned(name, model)
    (x, _), (new, _) = rows(199, 3), rows(100, 4)
    fitted = st.OODDetector(model, score=theirs, batch_size=64)
    model.train()  # theirs run a network in the mode it is in
    fitted.fit(x, accept=0.95)
    found, p = fitted.predict(new), fitted.p_value(new)
    assert model.training and not fitted.scores(new).requires_grad
    model.eval()
    known, scores = (theirs(some).detach().double() for some in (x, new))
    near = (scores[:, None] - known).abs().amin(1) < 1e-5 * scores.abs() + 1e-9  # which rounding decides
    by_hand = torch.tensor([(1 + (known >= score).sum().item()) / 200 for score in scores]).double()
    torch.testing.assert_close(p[~near], by_hand[~near])
    assert torch.equal(found[~near] == 1, (scores <= known.sort().values[189])[~near]) and near.sum() < 50
    assert (fitted.predict(x) == 1).sum() >= 190
    torch.testing.assert_close(fitted.scores(new).double(), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Mahalanobis", "KNN", "GMM"])
def test_what_is_far_is_an_alarm_with_a_rate(model, name):
    """Half of the batch is far away; at most 10 % of the alarms are false on average, here of 30 batches."""
    theirs = learned(name, model)
    false = []
    for seed in range(30):
        fitted = st.OODDetector(model, score=theirs).fit(rows(200, 100 + seed)[0])
        batch = torch.cat([rows(50, 200 + seed)[0], rows(50, 300 + seed, scale=30.0)[0]])
        alarms = fitted.discoveries(batch, 0.1)
        false.append((alarms[:50].sum() / alarms.sum().clamp(min=1)).item())
    error = torch.tensor(false).std().item() / 30**0.5
    assert sum(false) / 30 < 0.1 * 0.5 + 4 * error, "half of the rows are known"
    assert name == "KNN" or alarms[50:].float().mean() > 0.7  # KNN looks at directions alone


def test_its_detectors_of_a_regression():
    x, _ = rows(300, 5)
    network = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 1))
    theirs = KNN(network[:2], k=10, normalize=False).to("cpu").fit(DataLoader(TensorDataset(x, torch.zeros(300)), 50))
    wide = st.InfiniteWidth(lengthscale=1.0, variance=1.0).posterior(network, (x, x.prod(1, keepdim=True)))
    for known in (network, wide):
        fitted = st.OODDetector(known, theirs).fit(rows(199, 6)[0])
        assert (fitted.predict(rows(50, 7, scale=100.0)[0]) == -1).float().mean() > 0.9
        assert fitted.p_value(rows(200, 8)[0]).mean().item() == pytest.approx(0.5, abs=0.1)  # uniform: .02 and .02


def test_its_detectors_must_be_fitted_before(model):
    with pytest.raises(RequiresFittingException, match="call fit"):
        st.OODDetector(model, Mahalanobis(model.trunk)).fit(rows(100, 3)[0])


def test_its_detectors_on_a_table():
    X, y = (part.numpy() for part in rows(500, 9))
    clf = st.StationaryClassifier((30, 20), max_iter=30, random_state=0).fit(X[:300], y[:300])
    (network,) = clf.posterior_.networks
    data = TensorDataset(clf.inputs(X[:300]).float(), torch.as_tensor(y[:300]))
    theirs = Mahalanobis(lambda x: network.trunk(x.double()).float()).to("cpu").fit(DataLoader(data, 50))
    clf.fit_reject(X[300:], 0.9, theirs)
    assert not clf.accepts(1e3 * X).any() and clf.accepts(X[300:]).mean() >= 0.9
    assert st.OODDetector(clf, theirs).fit(X[300:]).p_value(1e3 * X).max().item() == pytest.approx(1 / 201)
