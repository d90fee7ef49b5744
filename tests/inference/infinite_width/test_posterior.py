"""What users do with a posterior of infinite width: predict, update, ask why, save and load, and make mistakes."""

import math
import os
import pickle
import warnings
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import stationary as st
from stationary.inference.infinite_width import _classes, _search
from stationary.inference.infinite_width._basis import moments
from stationary.inference.infinite_width._geometry import GEOMETRIES
from stationary.theory.isotropic import matern52

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
VALUES = torch.stack([X[:, 0] * X[:, 1], X[:, 2].sin()], 1)
GIVEN = st.InfiniteWidth(lengthscale=1.0, variance=5.0, temperature=0.5, noise=0.1, n_inducing=60)


class Net(nn.Module):
    """A trunk with BatchNorm, as networks have it, and a linear classifier."""

    def __init__(self, c=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.classify = nn.Linear(8, c)

    def forward(self, x):
        return self.classify(self.body(x).relu())


def network(c=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net(c)


# Where the features are


def test_the_network_is_not_touched_and_may_be_in_training_mode():
    model = network().train()
    before = deepcopy(model.state_dict())
    posterior = GIVEN.posterior(model, (X, LABELS))
    st.predict(posterior, X)
    assert model.training and model.body[1].training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_features_are_what_enters_the_last_linear_layer():
    model = network().eval()
    posterior = GIVEN.posterior(model, (X, LABELS))
    assert torch.equal(posterior.rows.z, model.body(X).relu().detach())
    by_name = replace(GIVEN, features="body").posterior(model, (X, LABELS))
    assert torch.equal(by_name.rows.z, model.body(X).detach())
    function = replace(GIVEN, features=lambda x: model.body(x).relu()).posterior(model, (X, LABELS))
    torch.testing.assert_close(st.predict(function, X).probs, st.predict(posterior, X).probs)


def test_features_of_a_head_are_what_enters_it():
    model = st.MLP(4, 3, hidden=(16, 8, 20)).eval()
    posterior = GIVEN.posterior(model, (X, LABELS))
    assert torch.equal(posterior.rows.z, model.trunk(X).detach())


def test_features_are_copied_before_the_next_layer_writes_into_them():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).eval()
    posterior = replace(GIVEN, features="0").posterior(model, (X, LABELS))
    assert torch.equal(posterior.rows.z, model[0](X).detach())


def test_a_name_that_is_no_module_is_an_error():
    with pytest.raises(
        ValueError, match=r"features must be the name of a module .* got 'nothing', and the network has body"
    ):
        replace(GIVEN, features="nothing").posterior(network(), (X, LABELS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trunks_in_half_precision(dtype):
    model = network().eval().to(dtype)
    posterior = GIVEN.posterior(model, (X.to(dtype), LABELS))
    pred = st.predict(posterior, X.to(dtype))
    assert posterior.rows.z.dtype == torch.float32 and pred.probs.dtype == torch.float32
    exact = st.predict(GIVEN.posterior(network().eval(), (X, LABELS)), X)
    assert (pred.probs - exact.probs).abs().max() < 0.2


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_no_class_is_impossible_in_float32(temperature):
    """Outputs are computed in float64, whose smallest probabilities float32 does not have."""
    posterior = GIVEN.posterior(network().eval(), (X, LABELS))
    posterior = replace(posterior, numbers=replace(posterior.numbers, temperature=temperature))
    mean, variance = torch.tensor([[300.0, 0.0, -300.0]]).double(), torch.tensor([[0.1]]).double()
    pred = posterior._prediction(mean, variance, None, torch.zeros(1))
    assert 0 < pred.probs.min() < 1e-30
    assert 80 < st.metrics.nlpd(pred, torch.tensor([2])) < 100


class OnMPS(torch.Tensor):
    """Stands for a tensor on a device that has no float64, from which it only goes to the CPU."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function is torch.Tensor.device.__get__:
            return torch.device("mps")
        if function is torch.Tensor.to and args[1:] == (torch.device("cpu"),):
            return result.as_subclass(torch.Tensor)
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        return result


def test_what_has_no_float64_leaves_the_head_to_the_cpu():
    weight, model = torch.rand(200, generator=torch.Generator().manual_seed(0)), network().eval()
    there = GIVEN.posterior(model, (X.as_subclass(OnMPS), LABELS), sample_weight=weight.as_subclass(OnMPS))
    assert type(there.mean) is torch.Tensor and there.mean.device == X.device
    here = GIVEN.posterior(model, (X, LABELS), sample_weight=weight)
    assert torch.equal(st.predict(there, X).probs, st.predict(here, X).probs)


def test_batches_give_the_posterior_of_tensors():
    model = network().eval()
    expected = st.predict(GIVEN.posterior(model, (X, LABELS)), X).probs
    loader = DataLoader(TensorDataset(X, LABELS), 33)
    torch.testing.assert_close(st.predict(GIVEN.posterior(model, loader), loader).probs, expected)
    small = replace(GIVEN, batch_size=7, memory=0).posterior(model, (X, LABELS))
    torch.testing.assert_close(st.predict(small, X, batch_size=11).probs, expected, rtol=0, atol=1e-5)


def test_a_file_may_hold_the_features(tmp_path):
    model = network().eval()
    posterior = replace(GIVEN, store=tmp_path / "features").posterior(model, (X, LABELS))
    assert (tmp_path / "features").stat().st_size == 200 * 8 * 4
    torch.testing.assert_close(st.predict(posterior, X).probs, st.predict(GIVEN.posterior(model, (X, LABELS)), X).probs)


def test_a_file_of_features_that_is_written_again_leaves_the_older_posterior_its_rows(tmp_path):
    method, model = replace(GIVEN, store=tmp_path / "new" / "features"), network().eval()
    older = method.posterior(model, (X, LABELS))
    rows = older.rows.z.clone()
    method.posterior(model, (X[:20] + 1, LABELS[:20]))
    assert torch.equal(older.rows.z, rows)
    assert torch.equal(method.posterior(model, (X, LABELS)).rows.z, rows)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk that is always full")
def test_a_full_disk_is_named():
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        replace(GIVEN, store="/dev/full").posterior(network().eval(), (X, LABELS))


# The trunk must stay the same


def test_a_trunk_that_has_changed_is_noticed():
    model = network().eval()
    posterior = GIVEN.posterior(model, (X, LABELS))
    with torch.no_grad():
        model.classify.weight += 1  # behind the features
    st.predict(posterior, X)
    with torch.no_grad():
        model.body[0].weight += 1e-3
    with pytest.raises(ValueError, match="the trunk must be the one that the posterior was made of"):
        st.predict(posterior, X)


def test_running_statistics_that_moved_are_noticed():
    model = network().eval()
    posterior = GIVEN.posterior(model, (X, LABELS))
    model.train()(X)
    with pytest.raises(ValueError, match="running statistics"):
        st.predict(posterior, X)


def test_a_copy_of_the_same_trunk_is_accepted():
    posterior = GIVEN.posterior(network().eval(), (X, LABELS))
    copied = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(st.predict(copied, X).probs, st.predict(posterior, X).probs)
    assert torch.equal(st.predict(deepcopy(posterior), X).probs, st.predict(posterior, X).probs)


# Kinds of targets


def test_several_labels_at_once():
    labels = torch.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 0] + X[:, 2] > 1], 1).long()
    pred = st.predict(replace(GIVEN, n_inducing=200).posterior(nn.Linear(4, 3), (X, labels)), X)
    assert isinstance(pred, st.Bernoulli) and pred.predict().dtype == torch.bool
    assert (pred.predict() == labels.bool()).float().mean() > 0.95
    assert (pred.entropy() >= pred.expected_entropy()).all() and (pred.mutual_information() > 0).all()
    far = st.predict(replace(GIVEN, n_inducing=200).posterior(nn.Linear(4, 3), (X, labels)), 1e4 * X)
    torch.testing.assert_close(far.probs, torch.full((200, 3), 0.5))


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_where_the_posterior_may_not_move_it_says_what_the_network_says(kind):
    """Near the data: a prior variance of 1e-8 around the network's outputs, all rows inducing, at a low temperature."""
    model = network().eval()
    y = LABELS if kind == "classes" else torch.eye(3).long()[LABELS]
    method = replace(GIVEN, prior_mean="network", n_inducing=200, variance=1e-8, temperature=1e-6, lengthscale=3.0)
    posterior = method.posterior(model, (X, y))
    outputs = model(X).detach()
    torch.testing.assert_close(
        st.predict(posterior, X).probs,
        outputs.softmax(1) if kind == "classes" else outputs.sigmoid(),
        rtol=0,
        atol=1e-5,
    )
    x = 1e4 * X
    x = x[model.body(x).relu().norm(dim=1) > 100]  # all but one: the longest of the training features has length 1.2
    far = st.predict(posterior, x)
    assert len(x) == 199 and model(x).softmax(1).amax(1).median() > 0.999  # the network is sure there
    torch.testing.assert_close(far.probs, torch.full_like(far.probs, 1 / 3 if kind == "classes" else 1 / 2))


def test_the_network_is_corrected_by_the_labels():
    model = network().eval()
    wrong = (LABELS + 1) % 3
    own = replace(GIVEN, prior_mean="network")
    methods = replace(own, variance=1e-6), replace(own, variance=1e4), replace(GIVEN, variance=1e4)
    fitted = (st.predict(method.posterior(model, (X, wrong)), X).predict() for method in methods)
    held, free, without = ((labels == wrong).float().mean() for labels in fitted)
    assert held == (model(X).argmax(1) == wrong).float().mean() < 0.4
    assert abs(free - without) <= 0.01 and free > 0.7


def test_the_variance_of_the_networks_outputs_is_unseen_too():
    """s_0^2 is the variance that makes the outputs at the inducing inputs likeliest, by the dense formula."""
    model = network().eval()
    posterior = replace(GIVEN, prior_mean="network", variance=1e-6, n_inducing=200).posterior(model, (X, LABELS))
    outputs = model(X).detach().double()
    outputs = outputs - outputs.mean(1, keepdim=True)
    u = posterior.geometry(posterior.rows.z)
    likeliest = (outputs * torch.linalg.solve(matern52(torch.cdist(u, u)), outputs)).sum() / (200 * 2)
    assert float(likeliest) == pytest.approx(posterior.numbers.variance - 1e-6, rel=1e-6)


def test_the_length_scale_of_the_labels_is_that_without_the_network():
    half = (X[:100], LABELS[:100]), (X[100:], LABELS[100:])
    method = st.InfiniteWidth(n_inducing=40)
    plain, own = (
        replace(method, prior_mean=mean).posterior(network(), half[0], validation=half[1]).numbers
        for mean in ("uniform", "network")
    )
    assert torch.equal(plain.lengthscale, own.lengthscale)


@pytest.mark.parametrize(
    ("settings", "targets"), [({"features": "body"}, LABELS), ({"features": lambda x: x}, LABELS), ({}, VALUES)]
)
def test_a_network_that_cannot_be_the_prior_mean(settings, targets):
    method = replace(GIVEN, prior_mean="network", **settings)
    with pytest.raises(
        ValueError, match=r"prior_mean must be 'uniform' or 'frequencies' for a regression, .*'network'"
    ):
        method.posterior(network(targets.shape[-1] if targets.ndim > 1 else 3), (X, targets))


def test_a_network_as_the_prior_mean_has_seen_the_rows():
    with pytest.warns(UserWarning, match="rows that the trunk was trained on"):
        st.InfiniteWidth(prior_mean="network", n_inducing=20).posterior(nn.Linear(4, 3), (X, LABELS))


# Where features are far from each other


def test_whitened_features_of_a_class_have_unit_covariance():
    """As scikit-learn shrinks the covariance within classes; rows of weight 2 count as two."""
    weight = 1.0 + (torch.arange(200) % 2)
    x = X @ torch.randn(4, 4, generator=torch.Generator().manual_seed(3)) + 5 * torch.eye(4)[LABELS]
    method = replace(GIVEN, geometry="whitened")
    posterior = method.posterior(nn.Linear(4, 3), (x, LABELS), sample_weight=weight)
    twice = torch.cat([x, x[1::2]]).double()
    labels = torch.cat([LABELS, LABELS[1::2]])
    means = torch.stack([twice[labels == label].mean(0) for label in range(3)])
    expected = OAS(assume_centered=True).fit((twice - means[labels]).numpy()).covariance_
    found = torch.linalg.inv(posterior.geometry.scale @ posterior.geometry.scale)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.geometry.shift, twice.mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("targets", [VALUES, torch.eye(3).long()[LABELS]], ids=["values", "labels"])
def test_without_classes_all_rows_are_whitened_together(targets):
    posterior = replace(GIVEN, geometry="whitened").posterior(nn.Linear(4, targets.shape[1]), (X, targets))
    expected = OAS().fit(X.double().numpy()).covariance_
    found = torch.linalg.inv(posterior.geometry.scale @ posterior.geometry.scale)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


def test_prior_mean_of_frequencies():
    labels = (X[:, 0] > 1).long()
    share = (labels.sum() + 1) / 202
    far = []
    for variance in (1e-6, 5.0, 1e6):
        method = replace(GIVEN, prior_mean="frequencies", variance=variance)
        far.append(st.predict(method.posterior(nn.Linear(4, 2), (X, labels)), 1e4 * X).probs[:, 1])
    noise = (0.5 * 5.0) ** 0.5 * torch.randn(
        10**5, 2, generator=torch.Generator().manual_seed(0)
    )  # GIVEN's temperature
    sampled = (torch.stack([1 - share, share]).log() + noise).softmax(1)[:, 1].mean()
    for probs, expected, error in zip(far, (share, sampled, 0.5), (1e-5, 4e-3, 1e-2), strict=True):
        assert (probs - expected).abs().max() < error
    uncertain = st.predict(GIVEN.posterior(nn.Linear(4, 2), (X, labels)), 1e4 * X).probs
    torch.testing.assert_close(uncertain, torch.full((200, 2), 0.5))


def test_class_weights():
    labels = (X[:, 0] > 1.3).long()
    plain, balanced, given = (
        st.predict(replace(GIVEN, class_weight=weights).posterior(nn.Linear(4, 2), (X, labels)), X).probs[:, 1].mean()
        for weights in (None, "balanced", (1.0, 5.0))
    )
    assert balanced > plain and given > plain
    counts, model = labels.bincount(), nn.Linear(4, 2)
    for weights, each in (((1.0, 5.0), torch.tensor([1.0, 5.0])), ("balanced", 200 / (2 * counts))):
        of_classes = replace(GIVEN, class_weight=weights).posterior(model, (X, labels))
        of_rows = GIVEN.posterior(model, (X, labels), sample_weight=each[labels].double())
        torch.testing.assert_close(st.predict(of_classes, X).probs, st.predict(of_rows, X).probs, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="update must be of a posterior without class_weight"):
        replace(GIVEN, class_weight="balanced").posterior(nn.Linear(4, 2), (X, labels)).update((X, labels))
    with pytest.raises(ValueError, match="class_weight must have a positive number for each of 2 classes"):
        replace(GIVEN, class_weight=(1.0,)).posterior(nn.Linear(4, 2), (X, labels))


def test_the_family_is_known():
    posterior = GIVEN.posterior(network(2), (X, VALUES))
    assert isinstance(st.predict(posterior, X), st.Gaussian)
    with pytest.raises(ValueError, match="family must be Gaussian for this posterior"):
        st.predict(posterior, X, family=st.Categorical)


# The search


def test_with_a_trunk_and_without_validation_rows_there_is_a_warning():
    with pytest.warns(UserWarning, match="rows that the trunk was trained on"):
        st.InfiniteWidth(n_inducing=50).posterior(network(), (X, LABELS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        st.InfiniteWidth(n_inducing=50).posterior(network(), (X, LABELS), validation=(X[:50], LABELS[:50]))
        st.InfiniteWidth(n_inducing=50).posterior(nn.Linear(4, 3), (X, LABELS))


def test_fewer_inducing_inputs_than_features_cannot_determine_a_network():
    many = lambda n, **other: replace(GIVEN, n_inducing=n, **other).posterior(nn.Linear(4, 3), (X, LABELS))
    with pytest.warns(UserWarning, match="n_inducing should be at least 4 .* got 3: pass n_inducing=12, or") as warned:
        many(3, prior_mean="network")
    assert warned[0].filename == __file__, "it points to the call"
    few = torch.cat([X[:5]] * 2, 1)
    with pytest.warns(UserWarning, match="at least 5 .* on 8 features .* got 3: pass n_inducing=5"):
        replace(GIVEN, n_inducing=3, prior_mean="network").posterior(nn.Linear(8, 3), (few, LABELS[:5]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many(4, prior_mean="network"), many(3)
        replace(GIVEN, prior_mean="network").posterior(nn.Linear(8, 3), (few, LABELS[:5]))


def test_the_search_is_deterministic_and_shows_itself(capsys):
    method = st.InfiniteWidth(n_inducing=50, verbose=True)
    a, b = (method.posterior(network().eval(), (X, LABELS), validation=(X[:80] + 0.3, LABELS[:80])) for _ in range(2))
    assert torch.equal(st.predict(a, X).probs, st.predict(b, X).probs)
    printed = capsys.readouterr().out
    assert "NLPD" in printed and "chosen: length-scale" in printed


def test_the_search_finds_a_lower_nlpd_than_its_start():
    held = torch.randn(300, 4, generator=torch.Generator().manual_seed(5))
    truth = (held[:, 0] > 0).long() + (held[:, 1] > 0.5).long()
    model = nn.Linear(4, 3)
    found = st.InfiniteWidth().posterior(model, (X, LABELS), validation=(held, truth))
    start = st.InfiniteWidth(lengthscale=2.5, variance=10.0, temperature=1.0).posterior(model, (X, LABELS))
    nlpd = [st.metrics.nlpd(st.predict(p, held), truth) for p in (found, start)]
    assert nlpd[0] < nlpd[1]


def test_a_search_keeps_no_curvatures_of_its_tries(monkeypatch):
    """They are (c, M, M) for each of about twenty tries; those of the last are where the fit begins."""
    tries, made, solve, nearby = [], _search._Tries.__init__, _classes.solve, []
    monkeypatch.setattr(_search._Tries, "__init__", lambda self, *args: [tries.append(self), made(self, *args)][-1])

    def noting(*args, **options):
        nearby.append(options.get("nearby"))
        return solve(*args, **options)

    monkeypatch.setattr(_classes, "solve", noting)
    st.InfiniteWidth(n_inducing=50).posterior(nn.Linear(4, 3), (X, LABELS))
    kept = [value for each in tries for found in each.found.values() for value in vars(found).values()]
    assert max(value.numel() for value in kept if isinstance(value, torch.Tensor)) == 50 * 3
    assert nearby[-1].shape == (3, 50, 50)


def test_given_numbers_stay():
    method = st.InfiniteWidth(variance=7.0, temperature=0.3, n_inducing=50)
    numbers = method.posterior(nn.Linear(4, 3), (X, LABELS)).numbers
    assert numbers.variance == 7.0 and numbers.temperature == 0.3


def test_the_search_looks_at_no_more_rows_than_it_may(monkeypatch):
    looked, search = [], _search.search
    monkeypatch.setattr(
        _search, "search", lambda sample, *args, **more: [looked.append(sample), search(sample, *args, **more)][1]
    )
    method = st.InfiniteWidth(n_inducing=50, search_rows=40)
    method.posterior(network(), (X, LABELS), validation=(X[:60] + 1, LABELS[:60]))
    [sample] = looked
    assert len(sample.u) == len(sample.y) == len(sample.validation[0]) == 40
    assert st.InfiniteWidth().search_rows == 5000


def test_the_rows_that_chose_are_remembered():
    posterior = st.InfiniteWidth(n_inducing=50, search_rows=40).posterior(
        network(), (X, LABELS), validation=(X[:60] + 1, LABELS[:60])
    )
    assert posterior.validation_rows.shape == (40,) and len(posterior.validation_rows.unique()) == 40


# More data


def blobs(centre, n, label, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return centre + 0.3 * torch.randn(n, 2, generator=generator), torch.full((n,), label)


def test_an_update_of_what_begins_with_the_network_is_refused():
    posterior = replace(GIVEN, prior_mean="network").posterior(network(), (X, LABELS))
    with pytest.raises(ValueError, match=r"update must be of a posterior whose prior_mean is not 'network'.* train it"):
        posterior.update((X, LABELS))


def test_a_new_region_is_learnt_and_old_answers_are_kept():
    old = [blobs(torch.tensor([0.0, 0.0]), 200, 0), blobs(torch.tensor([2.0, 0.0]), 200, 1)]
    x, y = (torch.cat(parts) for parts in zip(*old, strict=True))
    method = st.InfiniteWidth(lengthscale=0.7, variance=20.0, temperature=1.0, n_inducing=100)
    posterior = method.posterior(nn.Linear(2, 2), (x, y))
    new, label = blobs(torch.tensor([30.0, 30.0]), 300, 1)
    updated, fixed = posterior.update((new, label)), posterior.update((new, label), max_new_inducing=0)
    probe = torch.tensor([[30.0, 30.0], [30.2, 29.9]])
    assert (st.predict(posterior, probe).probs - 0.5).abs().max() < 1e-6
    assert (st.predict(updated, probe).probs[:, 1] > 0.95).all()
    assert (st.predict(fixed, probe).probs - 0.5).abs().max() < 1e-6  # which is why inducing inputs are added
    assert (st.predict(updated, x).probs - st.predict(posterior, x).probs).abs().max() < 1e-4


def test_a_new_class_is_learnt():
    x, y = X[:, :2], (X[:, 0] > 0).long()
    method = st.InfiniteWidth(lengthscale=1.0, variance=20.0, temperature=1.0, n_inducing=100)
    posterior = method.posterior(nn.Linear(2, 2), (x, y))
    updated = posterior.update(DataLoader(TensorDataset(*blobs(torch.tensor([8.0, 8.0]), 300, 2)), 50))
    pred = st.predict(updated, torch.tensor([[8.0, 8.0], [1.5, 0.0], [-1.5, 0.0]]))
    assert pred.predict().tolist() == [2, 1, 0] and pred.probs.shape == (3, 3)


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_an_update_of_weighted_frequencies_is_a_fit_of_all_rows(kind):
    """The same inducing inputs and geometry: those of the first rows, of which the last are copies."""
    method = replace(GIVEN, prior_mean="frequencies", n_inducing=400, temperature=1.0)
    x, weight = torch.cat([X, X]).double(), torch.rand(400, generator=torch.Generator().manual_seed(4)).double() + 0.1
    weight[200:] = 3 * weight[:200]
    y = torch.arange(400) % 4 if kind == "classes" else (torch.arange(1200).view(400, 3) % 7 == 0).long()
    if kind == "classes":
        y[:200] = y[:200] % 3  # the fourth is new
    first = method.posterior(nn.Linear(4, 3).double(), (x[:200], y[:200]), sample_weight=weight[:200])
    updated = first.update((x[200:], y[200:]), sample_weight=weight[200:])
    whole = method.posterior(nn.Linear(4, 4 if kind == "classes" else 3).double(), (x, y), sample_weight=weight)
    torch.testing.assert_close(updated.numbers.offset, whole.numbers.offset, rtol=1e-12, atol=0)
    probe = torch.cat([x, 1e4 * x])
    torch.testing.assert_close(st.predict(updated, probe).probs, st.predict(whole, probe).probs, rtol=0, atol=1e-7)


def test_an_update_that_cannot_be_is_refused():
    labels = torch.eye(3).long()[LABELS]
    posterior = GIVEN.posterior(nn.Linear(4, 3), (X, labels))
    with pytest.raises(ValueError, match=r"data with integer targets .* must have zeros and ones"):
        posterior.update((X, 2 * labels))
    with pytest.raises(ValueError, match="max_new_inducing must be an integer from 0 or None, got -1"):
        posterior.update((X, labels), max_new_inducing=-1)


def test_an_update_of_real_values_is_a_fit_of_all_rows():
    method = st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.01, n_inducing=40)
    x, y = X.double(), VALUES.double()
    first = method.posterior(nn.Linear(4, 2).double(), (x[:150], y[:150]))
    updated = first.update((x[150:] + 5, y[150:]))
    assert updated.basis.size > first.basis.size
    whole = type(first).fitted(
        method, first.networks[0], first.place, first.fingerprint, first.geometry,
        type(first.basis).of("matern52", first.numbers.lengthscale, updated.basis.inducing), first.numbers,
        st.Gaussian, updated.rows,
    )  # fmt: skip
    a, b = st.predict(updated, x + 2), st.predict(whole, x + 2)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(a.epistemic_variance, b.epistemic_variance, rtol=0, atol=1e-8)


# Why


def test_the_rows_that_an_answer_rests_on():
    posterior = GIVEN.posterior(nn.Linear(4, 3), (X, LABELS))
    near = posterior.nearest(X[:20] + 1e-4, k=3)
    assert near.rows[:, 0].tolist() == list(range(20)) and (near.similarity[:, 0] > 0.999).all()
    assert (near.similarity.diff(dim=1) <= 0).all()
    distances = torch.cdist(X[:20] / X.std(0, correction=0), X / X.std(0, correction=0))
    assert torch.equal(near.rows, distances.topk(3, largest=False).indices)
    assert (posterior.nearest(1e4 * X[:2]).similarity < 1e-6).all()
    with pytest.raises(ValueError, match="k must be an integer from 1 to the number of training rows, 200; got 0"):
        posterior.nearest(X, 0)


def test_rows_have_their_numbers_in_the_data(tmp_path):
    """Also behind rows of weight 0, after an update, and in a file."""
    weight = (torch.arange(200) >= 100).double()  # the last row as well: what follows begins at 200
    weight[-1] = 0
    posterior = GIVEN.posterior(nn.Linear(4, 3), (X, LABELS), sample_weight=weight)
    more = X[:50] + 20
    updated = posterior.update((more, LABELS[:50]), sample_weight=(torch.arange(50) != 0).double())
    model = updated.networks[0]
    for made in (updated, st.InfiniteWidth.load(updated.save(tmp_path / "a.safetensors"), model)):
        assert made.nearest(torch.cat([X[100:110], more[1:11]]), 1).rows[:, 0].tolist() == [
            *range(100, 110), *range(201, 211)
        ]  # fmt: skip


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[i], LABELS[i]) for i in torch.randperm(200, generator=torch.Generator().manual_seed(0))])


ROWS = TensorDataset(X, LABELS)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(ROWS, 50, shuffle=True),
        DataLoader(ROWS, 50, sampler=WeightedRandomSampler(torch.ones(200), 200)),
        DataLoader(ROWS, 50, sampler=SubsetRandomSampler(range(200))),
        DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 50, False)),
        DataLoader(Stream(), 50),
        (batch for batch in DataLoader(ROWS, 50)),
    ],
    ids=["shuffle", "weighted", "subset", "batch_sampler", "stream", "generator"],
)
def test_what_may_shuffle_has_no_row_numbers(loader):
    posterior = GIVEN.posterior(nn.Linear(4, 3), loader)
    with pytest.raises(ValueError, match=r"nearest needs training rows in the order of the data.*shuffle=False"):
        posterior.nearest(X)
    if isinstance(loader, DataLoader):
        with pytest.raises(
            ValueError, match=r"sample_weight must meet its rows in the order of the data.*shuffle=False"
        ):
            GIVEN.posterior(nn.Linear(4, 3), loader, sample_weight=torch.rand(200))


@pytest.mark.parametrize("data", [DataLoader(ROWS, 50), list(DataLoader(ROWS, 50))], ids=["loader", "list"])
def test_what_keeps_the_order_has_row_numbers(data):
    assert GIVEN.posterior(nn.Linear(4, 3), data).nearest(X[:20], 1).rows[:, 0].tolist() == list(range(20))


# Files


@pytest.mark.parametrize("kind", ["classes", "labels", "values"])
def test_saved_and_loaded(tmp_path, kind):
    y = {"classes": LABELS, "labels": torch.stack([LABELS, 1 - LABELS], 1).clamp(0, 1), "values": VALUES}[kind]
    model = network(3 if kind == "classes" else 2).eval()
    posterior = GIVEN.posterior(model, (X, y), validation=None)
    small, whole = (
        posterior.save(tmp_path / "small.safetensors", rows=False),
        posterior.save(tmp_path / "a.safetensors"),
    )
    assert small.stat().st_size < whole.stat().st_size
    expected = st.predict(posterior, X)
    for path in (small, whole):
        again = st.InfiniteWidth.load(path, model)
        pred = st.predict(again, X)
        assert all(torch.equal(value, pred.tensors()[name]) for name, value in expected.tensors().items())
        assert again.method == replace(GIVEN)
    assert again.update((X[:5], y[:5])).basis.size >= posterior.basis.size
    with pytest.raises(ValueError, match="update needs the training rows"):
        st.InfiniteWidth.load(small, model).update((X, y))
    other = network(3)
    with torch.no_grad():
        other.body[0].weight += 1
    with pytest.raises(ValueError, match="the trunk must be the one"):
        st.InfiniteWidth.load(whole, other)


def test_saved_and_loaded_in_whitened_geometry_from_the_network(tmp_path):
    model = network().eval()
    method = replace(GIVEN, geometry="whitened", prior_mean="network")
    posterior = method.posterior(model, (X, LABELS))
    again = st.InfiniteWidth.load(posterior.save(tmp_path / "a.safetensors"), model)
    assert torch.equal(st.predict(again, 3 * X).probs, st.predict(posterior, 3 * X).probs) and again.method == method


# Mistakes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: DataLoader([], 5), "at least one batch"),
        (lambda: (X, LABELS + 5), "data must have class indices 0 to 2, as the network has 3 outputs; got 7"),
        (lambda: (X, LABELS - 1), "data must have class indices 0 to 2, .*; got -1"),
        (lambda: (X.index_fill(0, torch.tensor([17]), math.nan), LABELS), "finite, got NaN or infinity in row 17"),
        (lambda: (X * 0 + 1, LABELS), "features that differ between rows"),
        (lambda: (X, VALUES.index_fill(0, torch.tensor([1]), math.nan)), "finite targets"),
        (lambda: X.split(10), "inputs without targets"),
        (lambda: None, "data must be the training data for InfiniteWidth"),
        (lambda: (X, LABELS[:7]), "as many inputs as targets, got 200 and 7"),
    ],
)
@pytest.mark.filterwarnings("ignore:InfiniteWidth chooses")
def test_bad_data(data, message):
    with pytest.raises(ValueError, match=message):
        st.InfiniteWidth(n_inducing=20).posterior(network().eval(), data())


@pytest.mark.parametrize("name", ["data", "validation"])
@pytest.mark.parametrize("batches", [False, True], ids=["tensors", "loader"])
def test_inputs_that_are_not_finite_name_the_data_and_the_row(name, batches):
    """The row of the data, not of the batch."""
    bad = X.index_fill(0, torch.tensor([170]), math.nan), LABELS
    bad = DataLoader(TensorDataset(*bad), 50) if batches else bad
    data, validation = (bad, None) if name == "data" else ((X, LABELS), bad)
    with pytest.raises(ValueError, match=f"^{name} must be finite, got NaN or infinity in row 170"):
        GIVEN.posterior(network().eval(), data, validation=validation)


def test_features_that_are_not_finite_name_the_row():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4) * 3e38)
    x = torch.zeros(10, 4)
    x[6] = 1e3
    with pytest.raises(ValueError, match="finite features, got NaN or infinity in row 6"):
        GIVEN.posterior(model, (x, LABELS[:10]))


@pytest.mark.parametrize("settings", [{}, {"noise": "input"}, {"trunk": True}], ids=["", "input", "trunk"])
def test_a_constant_column_of_targets_is_no_obstacle(settings):
    """Its mean over the rows differs from it by rounding; the spread is that of a prior of variance 1."""
    trunk = settings.get("trunk", False)
    model = network(2).eval() if trunk else nn.Linear(4, 2)
    method = st.InfiniteWidth(n_inducing=40, noise=settings.get("noise"))
    y = torch.stack([torch.full((200,), 0.1, dtype=torch.float64), X[:, 0].double()], 1)
    for targets in (y, y[:, :1]):
        validation = (X[:50] + 0.1, targets[:50]) if trunk else None
        pred = st.predict(method.posterior(model, (X, targets), validation=validation), X)
        assert (pred.mean[:, 0] - 0.1).abs().max() < 1e-6 and pred.std().isfinite().all()
        assert (pred.std()[:, 0] > 1e-4).all() and (pred.std()[:, 0] < 0.1).all()


def test_few_rows_repeated_rows_and_features_of_zero():
    x = torch.cat([X[:5], X[:5], torch.zeros(2, 4)])
    for geometry in GEOMETRIES:
        posterior = replace(GIVEN, geometry=geometry).posterior(nn.Linear(4, 3), (x, LABELS[:12]))
        assert posterior.basis.size <= 6
        pred = st.predict(posterior, torch.cat([x, torch.tensor([[3e38, -3e38, 0, 1.0]])]))
        assert pred.probs.isfinite().all() and pred.mutual_information().isfinite().all()


@pytest.mark.parametrize("geometry", ["polar", "euclidean", "whitened"])
@pytest.mark.parametrize("targets", [LABELS, VALUES], ids=["classes", "values"])
def test_what_overflows_in_a_trunk_of_16_bits_is_far(geometry, targets):
    """Finite inputs of which it makes infinities, and with one layer more NaN."""
    model = network(3 if targets.ndim == 1 else 2).eval()
    with torch.no_grad():
        model.body[3].weight *= 100
    model.half()
    posterior = replace(GIVEN, geometry=geometry).posterior(model, (X.half(), targets))
    x = torch.tensor([[3e4, 0, 0, 0], [0, 3e4, -3e4, 0], [-3e4, 3e4, 3e4, 3e4]]).half()
    z = model.body(x).relu()
    assert z.isinf().any(1).all()
    for features in (z, z - z):
        pred, prior = posterior._of_features(features.float()), posterior.prior()
        for name, value in prior.tensors().items():
            found = getattr(pred, name)
            torch.testing.assert_close(found, value.to(found).expand_as(found), msg=name)
    mean, _ = st.exact_predictor(posterior)(x)
    assert mean.isfinite().all()


def test_a_feature_vector_of_zero_does_not_blur_the_others():
    x = torch.cat([X, torch.zeros(1, 4)])
    posterior = replace(GIVEN, geometry="polar", n_inducing=201).posterior(
        nn.Linear(4, 3), (x, torch.zeros(201).long())
    )
    z = posterior.basis.inducing
    torch.testing.assert_close(posterior.basis.similarity(z), matern52(torch.cdist(z, z)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "matern"}, "kernel must be one of 'matern12'"),
        ({"geometry": "flat"}, "geometry must be one of None, 'polar'"),
        ({"lengthscale": -1.0}, "lengthscale must be a positive number, got -1.0"),
        ({"n_inducing": 0}, "n_inducing must be a positive integer, got 0"),
        ({"prior_mean": "zero"}, "prior_mean must be one of 'uniform'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        st.InfiniteWidth(**arguments)


@pytest.mark.parametrize("class_weight", ["auto", {0: 1.0, 1: 2.0}, 2.0, ("one", "two")])
def test_class_weights_of_another_kind(class_weight):
    with pytest.raises(
        TypeError, match="class_weight must be 'balanced', None or a tuple with a number for each class"
    ):
        st.InfiniteWidth(class_weight=class_weight)


@pytest.mark.parametrize("kind", [np.float32, torch.tensor], ids=["NumPy", "PyTorch"])
def test_numbers_of_other_libraries_count_and_go_to_a_file(tmp_path, kind):
    numbers = {"lengthscale": 1.0, "variance": 5.0, "temperature": 0.5, "noise": 0.125}
    method = st.InfiniteWidth(**{name: kind(value) for name, value in numbers.items()}, class_weight=[kind(1), kind(2)])
    assert method == st.InfiniteWidth(**numbers, class_weight=(1.0, 2.0))
    model = nn.Linear(4, 1)
    posterior = replace(method, class_weight=None).posterior(model, (X, VALUES[:, 0]))
    torch.testing.assert_close(posterior.numbers.noise[0].float(), 0.125 * VALUES[:, 0].var(correction=0))
    again = st.InfiniteWidth.load(posterior.save(tmp_path / "a.safetensors"), model)
    assert again.method == posterior.method


def test_a_file_that_is_none_of_ours(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(ValueError, match=r"must be written by InfiniteWidthPosterior\.save, .* cannot be read"):
        st.InfiniteWidth.load(tmp_path / "a", network())


@pytest.mark.parametrize("targets", [LABELS, VALUES], ids=["classes", "values"])
def test_a_fit_within_inference_mode(targets):
    model, method = nn.Linear(4, 3 if targets.ndim == 1 else 2), st.InfiniteWidth(n_inducing=40)
    expected = method.posterior(model, (X, targets))
    with torch.inference_mode():
        found = method.posterior(model, (X * 1, targets * 1), sample_weight=[1.0] * 200)
    assert torch.equal(found.mean, expected.mean)


def test_samples_are_refused():
    with pytest.raises(ValueError, match="keep_samples must be False for InfiniteWidth"):
        st.predict(GIVEN.posterior(nn.Linear(4, 3), (X, LABELS)), X, keep_samples=True)


def test_a_distributed_fit_without_processes():
    with pytest.raises(ValueError, match=r"distributed=True needs torch\.distributed"):
        replace(GIVEN, distributed=True).posterior(nn.Linear(4, 3), (X, LABELS))


@pytest.mark.parametrize("labels", [torch.arange(60) % 3, torch.eye(3).long().repeat(20, 1)], ids=["classes", "labels"])
def test_products_are_the_solved_systems(labels):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    method = st.InfiniteWidth(lengthscale=2.0, variance=5.0, temperature=0.5)
    posterior = method.posterior(torch.nn.Linear(4, 3), (x, labels))
    u = posterior.geometry(2 * torch.randn(50, 4, generator=torch.Generator().manual_seed(1)))
    parts = posterior.basis, posterior.mean, posterior.root, u, posterior.numbers.variance
    assert posterior._products.roots.shape == (3 if labels.ndim == 2 else 1, 60, 60)
    for product, solved in zip(posterior._products(posterior.basis.similarity(u)), moments(*parts), strict=True):
        torch.testing.assert_close(product, solved, rtol=1e-9, atol=1e-9)
    assert "_products" not in vars(pickle.loads(pickle.dumps(posterior)))


@pytest.mark.parametrize(
    ("labels", "prior_mean"),
    [
        *((labels, mean) for labels in ("classes", "labels", "values") for mean in ("uniform", "frequencies")),
        ("classes", "network"),
        ("labels", "network"),
    ],
)
def test_the_prior_is_the_prediction_far_away(labels, prior_mean):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator).double()
    y = {
        "classes": (torch.rand(80, generator=generator) < 0.2).long() + (torch.arange(80) % 3 == 0),
        "labels": (torch.rand(80, 3, generator=generator) < 0.2).long(),
        "values": torch.randn(80, 3, generator=generator).double(),
    }[labels]
    numbers = {"noise": 0.1} if labels == "values" else {"temperature": 0.5}
    method = st.InfiniteWidth(lengthscale=1.0, variance=4.0, prior_mean=prior_mean, **numbers)
    posterior = method.posterior(nn.Linear(2, 3).double(), (x, y))
    prior, far = posterior.prior(), st.predict(posterior, torch.full((1, 2), 1e6).double())
    assert type(prior) is type(far) and len(prior) == 1
    for name, value in far.tensors().items():
        torch.testing.assert_close(getattr(prior, name), value, msg=name)
