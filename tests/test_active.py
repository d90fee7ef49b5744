"""Which rows to label next: against explicit conditioning, and against every combination of classes."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stationary as st
from stationary import active

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 2, generator=GENERATOR, dtype=torch.float64)
Y = torch.stack([X[:, 0].sin(), X[:, 1] * X[:, 0]], 1)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
POOL = 2 * torch.randn(25, 2, generator=GENERATOR, dtype=torch.float64)


def infinite(y, outputs, **options):
    method = st.InfiniteWidth(**{"lengthscale": 1.0, "variance": 2.0, **options})
    return method.posterior(nn.Linear(2, outputs).double(), (X, y))


REGRESSION = infinite(Y, 2, noise=0.1)
CLASSES = infinite(LABELS, 3, temperature=0.5)
MANY_LABELS = infinite(torch.stack([LABELS > 0, X[:, 1] > 0], 1).long(), 2)


# Real values


def left_by_conditioning(joint, chosen):
    """(m, n) the variances that are left once noisy targets of some rows are known, by an explicit inverse."""
    result = []
    for k in range(joint.mean.shape[1]):
        K = joint.covariance[k]
        inverse = torch.linalg.inv(K[chosen][:, chosen] + torch.diag(joint.noise[chosen, k]))
        result.append((K - K[:, chosen] @ inverse @ K[chosen]).diagonal())
    return torch.stack(result)


@pytest.mark.parametrize("score", ["variance", "bald", "entropy"])
@pytest.mark.parametrize(
    "posterior", [infinite(Y, 2, noise=n) for n in (0.1, 3.0, "input")], ids=["little noise", "much", "varying"]
)
def test_a_batch_is_greedy_by_explicit_conditioning(score, posterior):
    joint = posterior.joint(POOL)
    noise, expected = joint.noise.mT, []
    worth = {
        "variance": lambda left: left.mean(0),
        "bald": lambda left: 0.5 * (1 + left / noise).log().sum(0),
        "entropy": lambda left: 0.5 * (2 * math.pi * math.e * (left + noise)).log().sum(0),
    }[score]
    for _ in range(20):
        gains = worth(left_by_conditioning(joint, expected))
        gains[expected] = -math.inf
        expected.append(int(gains.argmax()))
    assert st.acquire(posterior, POOL, 20, score).tolist() == expected
    assert st.acquire(posterior, POOL, 20, score, batch="top").tolist() != expected


def test_the_information_of_a_batch_is_a_determinant():
    """The gains add up to I(y_S; f) = log det(I + K_SS / n) / 2, the sum over outputs."""
    rows = st.acquire(REGRESSION, POOL, 6, "bald")
    joint, total = REGRESSION.joint(POOL), 0.0
    for i, row in enumerate(rows.tolist()):
        left = left_by_conditioning(joint, rows[:i].tolist())[:, row]
        total += float(0.5 * (left / joint.noise[row]).log1p().sum())
    chosen = REGRESSION.joint(POOL[rows])
    eye = torch.eye(6, dtype=torch.float64)
    determinants = [torch.logdet(eye + chosen.covariance[k] / chosen.noise[0, k]) / 2 for k in range(2)]
    assert total == pytest.approx(float(sum(determinants)), rel=1e-9)


def test_a_joint_batch_does_not_ask_twice():
    pool = torch.cat([torch.full((5, 2), 8.0), torch.full((5, 2), -8.0)]).double()
    pool += 1e-3 * torch.arange(10)[:, None]
    pool[5:] *= 0.2  # the other place is less unknown
    top, joint = (st.acquire(REGRESSION, pool, 2, batch=batch) for batch in ("top", "joint"))
    assert (pool[top, 0] > 0).tolist() == [True, True] and (pool[joint, 0] > 0).tolist() == [True, False]


@pytest.mark.parametrize(
    "method", [st.ExactDropout(), st.MCDropout(20), st.Ensemble(4)], ids=lambda m: type(m).__name__
)
def test_finite_networks(method):
    training = st.Training(epochs=3, loss="mse")
    posterior = st.fit(method, lambda: st.MLP(2, 2, hidden=(8, 16)).double(), (X, Y), training)
    joint = posterior.joint(POOL)
    for score in ("variance", "entropy"):
        rows = st.acquire(posterior, POOL, 3, score, family=st.Gaussian).tolist()
        assert len(set(rows)) == 3
        first = joint.variance().mean(-1) if score == "variance" else joint.variance().log().sum(-1)
        assert rows[0] == int(first.argmax())
    with pytest.raises(ValueError, match="posterior that knows no noise, got 'bald'"):
        st.acquire(posterior, POOL, 3, family=st.Gaussian)
    calibrated = st.calibrate(posterior, (X, Y), family=st.Gaussian)
    assert len(st.acquire(calibrated, POOL, 3)) == 3


# Classes


def exhaustive(probs, chosen):
    """H(y_S) and sum_i E[H(y_i | f)] by every combination of classes; probs (s, n, c)."""
    entropy = 0.0
    for classes in itertools.product(range(probs.shape[-1]), repeat=len(chosen)):
        p = torch.stack([probs[:, i, y] for i, y in zip(chosen, classes, strict=True)]).prod(0).mean()
        entropy -= float(p * p.log())
    doubt = sum(float(-(probs[:, i] * probs[:, i].log()).sum(-1).mean()) for i in chosen)
    return entropy, doubt


@pytest.mark.parametrize("score", ["bald", "entropy"])
def test_a_batch_of_classes_is_greedy_by_every_combination(score):
    outputs = CLASSES.joint(POOL).sample(64, generator=torch.Generator().manual_seed(3))
    probs, expected = outputs.softmax(-1), []
    for _ in range(4):
        gains = []
        for row in range(len(POOL)):
            entropy, doubt = exhaustive(probs, [*expected, row])
            gains.append(-math.inf if row in expected else entropy - (score == "bald") * doubt)
        expected.append(int(np.argmax(gains)))
    assert st.acquire(CLASSES, POOL, 4, score, n_samples=64, seed=3).tolist() == expected


def test_the_worth_of_a_batch_tends_to_the_one_by_one_score():
    """For one row the mean over samples is the mutual information in closed form, within its standard error."""
    probs = active._probabilities(CLASSES.untempered(), POOL, st.Categorical, 20_000, 0)
    nothing = torch.ones(1, 20_000, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    entropies = torch.special.entr(probs[0]).sum(-1)
    information = active._joint_entropy(*nothing, probs) - entropies.mean(0)
    closed = st.predict(CLASSES.untempered(), POOL).mutual_information()
    spread = 5 * (entropies.std(0) + probs[0].std(0).sum(-1)) / 20_000**0.5
    assert ((information - closed).abs() < spread).all()


def test_combinations_that_are_drawn_agree_with_all_of_them(monkeypatch):
    probs = active._probabilities(CLASSES.untempered(), POOL, st.Categorical, 64, 0)
    chosen = [3, 7, 11, 20]
    every = torch.ones(1, 64, 1, dtype=torch.float64)
    for row in chosen:
        every = (every[..., None] * probs[:, :, None, row]).flatten(-2)
    exact = active._joint_entropy(every, torch.ones(1, 81, dtype=torch.float64), probs)
    exact -= torch.special.entr(every.mean(1)).sum()  # what is left is the entropy given what is chosen
    monkeypatch.setattr(active, "COMBINATIONS", 20_000)
    drawn = active._drawn(probs[:, :, chosen], torch.Generator().manual_seed(1))
    mine = active._joint_entropy(drawn, torch.full((1, 20_000), 1 / 20_000, dtype=torch.float64), probs)
    assert (mine - exact).abs().max() < 5 * math.log(3) / 20_000**0.5  # an entropy is spread by less than its maximum


def test_a_batch_by_combinations_that_are_drawn_is_that_by_all_of_them(monkeypatch):
    """Of 30 classes all pairs are too many, so that the third row is chosen by draws."""
    generator = torch.Generator().manual_seed(0)
    sharp = 20 * torch.eye(30, dtype=torch.float64)[:3].expand(64, 3, 30)  # no doubt, and nothing to learn
    blurred = 0.8 * torch.randn(64, 3, 30, generator=generator, dtype=torch.float64)
    probs, rows = torch.cat([sharp, blurred], 1).softmax(-1)[None], {}
    for most in (900, 500):
        monkeypatch.setattr(active, "COMBINATIONS", most)
        rows[most] = active._greedy_classes(probs, 3, "bald", torch.Generator().manual_seed(0)).tolist()
    assert rows[500] == rows[900] and set(rows[500]) == {3, 4, 5}


def test_a_large_batch_of_classes_is_drawn(monkeypatch):
    monkeypatch.setattr(active, "COMBINATIONS", 30)
    first, second = (st.acquire(CLASSES, POOL, 8, seed=1) for _ in range(2))
    assert torch.equal(first, second) and len(set(first.tolist())) == 8


def test_hundreds_of_rows_whose_classes_together_have_no_probability(monkeypatch):
    """That of 400 rows of ten classes is 1e-400; the two rows of which there is nothing to learn still come last."""
    monkeypatch.setattr(active, "COMBINATIONS", 10)
    outputs = 0.1 * torch.randn(8, 402, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outputs[:, 400:, 0] += 50  # two rows with nothing to learn
    probs = outputs.softmax(-1)[None]
    rows = active._greedy_classes(probs, 402, "bald", torch.Generator().manual_seed(0))
    assert set(rows[:400].tolist()) == set(range(400))


def test_labels_add_up():
    rows = st.acquire(MANY_LABELS, POOL, 2, n_samples=64)
    outputs = MANY_LABELS.joint(POOL).sample(64, generator=torch.Generator().manual_seed(0))
    yes = outputs.sigmoid()
    both = [torch.stack([1 - yes[..., k], yes[..., k]], -1) for k in range(2)]
    information = lambda chosen: sum(entropy - doubt for entropy, doubt in (exhaustive(p, chosen) for p in both))
    first = int(np.argmax([information([row]) for row in range(25)]))
    rest = [-math.inf if row == first else information([first, row]) for row in range(25)]
    assert rows.tolist() == [first, int(np.argmax(rest))]


def test_members_are_the_samples_of_an_ensemble():
    posterior = st.fit(
        st.Ensemble(4), lambda: st.MLP(2, 3, hidden=(8, 16)).double(), (X, LABELS), st.Training(epochs=3)
    )
    probs = torch.stack([network.eval()(POOL).softmax(-1).detach() for network in posterior.networks])
    first = int(np.argmax([np.subtract(*exhaustive(probs, [row])) for row in range(25)]))
    rest = [-math.inf if row == first else np.subtract(*exhaustive(probs, [first, row])) for row in range(25)]
    assert st.acquire(posterior, POOL, 2).tolist() == [first, int(np.argmax(rest))]
    assert len(set(st.acquire(posterior, POOL, 3, "variance").tolist())) == 3


# The best one by one, and the pool


@pytest.mark.parametrize("score", ["bald", "variance", "entropy"])
def test_top_is_the_best_by_the_score_of_a_prediction(score):
    pred = st.predict(CLASSES.untempered(), POOL)
    values = {"bald": pred.mutual_information(), "entropy": pred.entropy(), "variance": pred.output_variance.mean(-1)}
    expected = values[score].argsort(descending=True)[:5]
    assert torch.equal(st.acquire(CLASSES, POOL, 5, score, batch="top"), expected)
    assert torch.equal(st.acquire(CLASSES, POOL, 1, score), expected[:1])


def test_ties_go_to_the_first_row():
    far = torch.full((6, 2), 1e6, dtype=torch.float64) * torch.tensor([1, -1, 2, -2, 3, -3])[:, None]
    for batch in ("top", "joint"):
        assert st.acquire(REGRESSION, far, 3, batch=batch).tolist() == [0, 1, 2]


def test_every_form_of_a_pool_gives_the_same_rows():
    expected = st.acquire(REGRESSION, POOL, 4)
    loader = DataLoader(TensorDataset(POOL, torch.zeros(25)), batch_size=7)
    forms = [POOL.numpy(), pd.DataFrame(POOL.numpy()), loader, list(POOL.split(6))]
    for form in forms:
        assert torch.equal(st.acquire(REGRESSION, form, 4), expected)
    assert torch.equal(st.acquire(REGRESSION, POOL, 4, batch_size=5), expected)
    named = {"input": POOL}  # the name of the argument of nn.Linear
    assert torch.equal(st.acquire(REGRESSION, named, 4), expected)
    parts = [{"input": part} for part in POOL.split(6)]
    assert torch.equal(st.acquire(REGRESSION, parts, 4), expected)


def test_a_joint_choice_is_among_the_candidates():
    best = set(st.acquire(REGRESSION, POOL, 5, batch="top").tolist())
    assert set(st.acquire(REGRESSION, POOL, 5, candidates=5).tolist()) == best


def test_estimators():
    model = st.StationaryRegressor().fit(X.numpy(), Y.numpy())
    rows = st.acquire(model, POOL.numpy(), 3)
    assert torch.equal(rows, st.acquire(model.posterior_, model.inputs(POOL.numpy()), 3))
    classifier = st.StationaryClassifier().fit(X.numpy(), LABELS.numpy())
    assert len(set(st.acquire(classifier, POOL.numpy(), 3).tolist())) == 3


def test_a_network_with_a_method():
    network = st.MLP(2, 3, hidden=(8, 16)).double()
    assert len(st.acquire(network, POOL, 3, method=st.MCDropout(10))) == 3
    assert len(st.acquire(network, POOL, 3, batch="top")) == 3
    rows = st.acquire(network, POOL, 3)  # exact dropout, whose joint choice is that of so many of its masks
    assert torch.equal(rows, st.acquire(network, POOL, 3, method=st.MCDropout(256)))
    few = st.acquire(network, POOL, 3, n_samples=4, seed=1)
    assert torch.equal(few, st.acquire(network, POOL, 3, method=st.MCDropout(4, seed=1))) and not torch.equal(few, rows)
    with pytest.raises(ValueError, match="Point has no joint distribution"):
        st.acquire(network, POOL, 3, method=st.Point())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 26}, "n must be from 1 to the number of rows of the pool, 25; got 26"),
        ({"n": 0}, "n must be from 1"),
        ({"n": 2.0}, "n must be from 1"),
        ({"score": "std"}, "score must be one of 'bald', 'variance', 'entropy'; got 'std'"),
        ({"batch": "greedy"}, "batch must be one of 'joint', 'top'; got 'greedy'"),
        ({"candidates": 0}, "candidates must be a positive integer, got 0"),
        ({"n_samples": -1}, "n_samples must be a positive integer"),
        ({"pool": iter([POOL])}, "loader that can be read twice, got a list_iterator"),
        ({"pool": DataLoader(TensorDataset(POOL), shuffle=True)}, "DataLoader that shuffles"),
    ],
)
def test_what_cannot_be_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        st.acquire(**{"posterior": REGRESSION, "pool": POOL, "n": 2} | arguments)
