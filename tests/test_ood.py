"""Scores by their definition, the detector's promises, and digits: five known and five unknown classes."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from torch import nn

import stationary as st
from stationary import metrics
from stationary.ood import SCORES, OODDetector, detector_score, score
from stationary.predictive import Categorical, Members


@pytest.fixture
def model():
    model = st.MLP(3, 4, hidden=(20, 10), dropout=0.3)
    nn.init.normal_(model.head.output.weight)
    return model


def test_scores_by_their_definition():
    z = 3 * torch.randn(6, 20, 4, dtype=torch.float64)
    pred = Categorical.from_members([Members(z)], 6)
    p = z.softmax(-1)
    entropy = lambda p: -(p * p.log()).sum(-1)
    expected = {
        "std": z.std(0, correction=0).mean(-1),
        "variance": z.var(0, correction=0).mean(-1),
        "entropy": entropy(p.mean(0)),
        "mutual_information": entropy(p.mean(0)) - entropy(p).mean(0),
        "max_probability": 1 - p.mean(0).amax(-1),
        "energy": -(z.mean(0) / (1 + math.pi / 8 * z.var(0, correction=0)).sqrt()).exp().sum(-1).log(),
    }
    assert set(expected) == set(SCORES)
    for name, value in expected.items():
        torch.testing.assert_close(score(pred, name), value)


def test_max_probability_still_ranks_what_float32_calls_certain():
    pred = Categorical.from_members([Members(torch.tensor([[[0.0, 20.0], [0.0, 40.0]]]))], 1)
    assert pred.confidence().tolist() == [1.0, 1.0]
    torch.testing.assert_close(score(pred, "max_probability").log(), torch.tensor([-20.0, -40.0]))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("accept", [0.05, 0.5, 0.95, 1.0])
def test_the_share_that_was_asked_for_is_accepted_and_no_more(model, name, accept):
    x = torch.randn(201, 3)
    detector = OODDetector(model, score=name)
    assert detector.fit(x, accept=accept) is detector
    labels = detector.predict(x)
    assert labels.dtype == torch.int64 and set(labels.tolist()) <= {-1, 1}
    assert (labels == 1).sum() == math.ceil(accept * 201)  # no ties here
    assert torch.equal(labels == 1, detector.scores(x) <= detector.threshold)


def test_a_regression_is_scored_by_its_epistemic_part(model):
    x, y = torch.randn(200, 3), torch.randn(200, 4)
    posterior = st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1).posterior(nn.Linear(3, 4), (x, y))
    for known, options in ((posterior, {}), (model, {"family": st.Gaussian})):
        detector = OODDetector(known, score="variance", **options).fit(torch.randn(100, 3))
        pred = st.predict(known, x, family=st.Gaussian)
        torch.testing.assert_close(detector.scores(x), pred.epistemic_variance.mean(-1))
    far = OODDetector(posterior, score="std").fit(torch.randn(100, 3)).predict(100 * x)
    assert (far == -1).all()


def test_the_default_score_is_that_of_the_kind(model):
    x, y = torch.randn(60, 3), torch.randn(60, 1)
    regression = st.InfiniteWidth(lengthscale=1.0, variance=1.0, noise=0.1).posterior(nn.Linear(3, 1), (x, y))
    estimator = st.StationaryRegressor().fit(x.numpy(), y[:, 0].numpy())
    network = OODDetector(nn.Sequential(nn.Linear(3, 9), nn.Dropout(0.1), nn.Linear(9, 1)), family=st.Gaussian)
    for detector in (OODDetector(regression), OODDetector(estimator), network):
        assert detector.score == "std" and len(detector.fit(x).scores(x)) == 60
    assert OODDetector(model).score == "entropy"


def test_it_says_what_it_is(model):
    detector = OODDetector(model, lambda x: x[:, 0])
    assert repr(detector) == "OODDetector(MLP, score=<lambda>, not fitted)"
    detector = OODDetector(model).fit(torch.randn(30, 3))
    assert repr(detector) == f"OODDetector(MLP, score='entropy', threshold={detector.threshold:.4g})"


@pytest.mark.parametrize("options", [{}, {"score": lambda x: x.norm(dim=1)}, {"batch_size": 7}])
@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.split(30), lambda x: (part for part in x.split(30))])
def test_rows_that_chose_numbers_of_the_posterior_are_refused(form, options):
    x, held, fresh = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)).split(100)
    y = lambda x: (x[:, 0] > 0).long()
    posterior = st.InfiniteWidth(n_inducing=30).posterior(nn.Linear(3, 2), (x, y(x)), validation=(held, y(held)))
    if "batch_size" in options and not isinstance(form(x), torch.Tensor):
        options = {}
    detector = OODDetector(posterior, **options)
    with pytest.raises(
        ValueError, match=r"x_in must be rows that have chosen nothing before, got 1 that chose .*false"
    ):
        detector.fit(form(torch.cat([fresh, held[:1]])))
    assert detector.known is None
    torch.testing.assert_close(detector.fit(form(fresh)).known, detector.scores(fresh).sort().values)


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_those_at_temperature_one(name):
    x = torch.randn(200, 3)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    cold, warm = (
        st.InfiniteWidth(lengthscale=1.0, variance=9.0, temperature=t).posterior(nn.Linear(3, 3), (x, y))
        for t in (0.1, 1.0)
    )
    torch.testing.assert_close(OODDetector(cold, name).scores(x), score(st.predict(warm, x), name))
    assert not torch.equal(st.predict(cold, x).probs, st.predict(warm, x).probs)
    detector = OODDetector(cold, name).fit(torch.randn(100, 3))
    assert (detector.predict(1e3 * x) == -1).float().mean() > 0.99


def test_a_network_takes_the_default_method_and_a_posterior_its_own(model):
    x = torch.randn(50, 3)
    for detector, method in [
        (OODDetector(model), st.ExactDropout()),
        (OODDetector(model, method=st.MCDropout(100)), st.MCDropout(100)),
        (OODDetector(st.ExactDropout().posterior(model)), st.ExactDropout()),
    ]:
        assert torch.equal(detector.scores(x), st.predict(model, x, method).entropy())
    with pytest.raises(ValueError, match="method must be None for a"):
        OODDetector(st.Point().posterior(model), method=st.Point()).fit(x)


def test_batches_and_mappings(model):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, a, b):
            return self.model(a + b)

    x = torch.randn(50, 3)
    whole = OODDetector(model).fit(x)
    sizes = []
    model.trunk.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    batched = OODDetector(model, batch_size=7).fit(x)
    assert sizes == [7] * 7 + [1]
    torch.testing.assert_close(batched.scores(x), whole.scores(x))
    torch.testing.assert_close(OODDetector(Keywords()).scores({"a": x, "b": 0 * x}), whole.scores(x))


def test_errors(model):
    x = torch.randn(50, 3)
    names = "std, variance, entropy, mutual_information, max_probability, energy"
    with pytest.raises(ValueError, match=f"score must be one of {names}; got 'spread'"):
        OODDetector(model, score="spread")
    with pytest.raises(ValueError, match=f"score must be one of {names}; got 'spread'"):
        score(st.predict(model, x), "spread")
    with pytest.raises(ValueError, match="score must be one of std, variance; got 'entropy'"):
        OODDetector(model, "entropy", family=st.Gaussian)
    with pytest.raises(ValueError, match=r"must be fitted before it predicts; call fit\(x_in\)"):
        OODDetector(model).predict(x)
    for accept in (0, 1.5, 95, math.nan):
        with pytest.raises(ValueError, match=f"accept must be a share.*got {accept}"):
            OODDetector(model).fit(x, accept=accept)


@pytest.mark.parametrize("name", ["std", "mutual_information"])
def test_a_single_member_has_no_spread(model, name):
    x = torch.randn(50, 3)
    with pytest.raises(ValueError, match=f"score '{name}' must differ between inputs.*MCDropout"):
        OODDetector(model, score=name, method=st.Point()).fit(x)
    OODDetector(st.calibrate_prior(model, x), score=name, method=st.Point()).fit(x)  # the restored prior is a spread


def test_equal_scores_tell_nothing(model):
    for x in (torch.ones(20, 3), torch.randn(1, 3)):
        with pytest.raises(ValueError, match=f"must differ between inputs, got the same for all {len(x)} of x_in"):
            OODDetector(model).fit(x)


def test_a_network_without_dropout_is_refused_unless_asked_for_a_point():
    x, model = torch.randn(50, 3), nn.Linear(3, 4)
    with pytest.raises(ValueError, match="dropout"):
        OODDetector(model).fit(x)
    assert OODDetector(model, method=st.Point()).fit(x).predict(x).eq(1).sum() == 48  # ceil(47.5)


def digits(seed):
    """A network trained on 300 images of 0 to 4, and four sets: train, held out, test, and unknown (5 to 9)."""
    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    x = (x / 16).float()
    torch.manual_seed(seed)
    known = (y < 5).nonzero()[:, 0]
    train, held_out, test = known[torch.randperm(len(known))].tensor_split([300, 600])
    model = st.MLP(64, 5, hidden=(100, 50))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[train]), y[train]).backward()
        optimizer.step()
    assert metrics.accuracy(st.predict(model, x[test]), y[test]) > 0.97
    return model, x[train], x[held_out], x[test], x[y >= 5]


@pytest.mark.parametrize("seed", [0, 1])
def test_digits_it_was_never_shown(seed):
    model, _, held_out, test, unknown = digits(seed)
    detector = OODDetector(model, score="entropy").fit(held_out, accept=0.95)
    accepted = detector.predict(test).eq(1).double().mean().item()
    # Both the threshold and the share are from samples: their binomial variances add.
    spread = math.sqrt(0.95 * 0.05 * (1 / len(held_out) + 1 / len(test)))
    assert accepted == pytest.approx(0.95, abs=3 * spread)
    assert metrics.auroc(detector.scores(test), detector.scores(unknown)) > 0.9  # 0.94 to 0.97 over ten seeds
    assert detector.predict(unknown).eq(-1).double().mean() > 0.5  # 0.68 to 0.85


@pytest.mark.parametrize("seed", [0, 1])
def test_the_std_of_dropout_is_upside_down_on_digits(seed):
    """Unknown digits excite the hidden units less, so dropout moves their outputs less; the prior lifts them."""
    model, train, _, test, unknown = digits(seed)
    std = OODDetector(model, score="std")
    alone = metrics.auroc(std.scores(test), std.scores(unknown))
    assert alone < 0.4  # 0.04 to 0.23 over ten seeds
    st.calibrate_prior(model, train)
    assert metrics.auroc(std.scores(test), std.scores(unknown)) > alone + 0.1  # 0.2 to 0.8 more


def test_a_detector_is_fitted_on_batches_as_on_tensors(model):
    x = torch.randn(60, 3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(60)), 25)
    whole, parts = OODDetector(model).fit(x), OODDetector(model).fit(loader)
    assert parts.threshold == pytest.approx(whole.threshold, rel=1e-5)
    torch.testing.assert_close(parts.scores(loader), whole.scores(x))


# Error rates


class Energies(nn.Module):
    """Outputs whose energy is the input."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([-x, torch.full_like(x, -1e6)], 1)


def detector(x):
    return st.OODDetector(Energies(), "energy", st.Point()).fit(x)


def test_p_values_count_the_scores_that_are_as_high():
    fitted = detector(torch.tensor([[0.0], [1.0], [1.0], [3.0]]))
    new = torch.tensor([[-1.0], [0.0], [0.5], [1.0], [2.0], [3.0], [9.0]])
    torch.testing.assert_close(fitted.p_value(new) * 5, torch.tensor([5, 5, 4, 4, 2, 2, 1]).double())


def test_false_alarms_are_as_rare_as_promised():
    """2000 detectors of 39 inputs: P(p <= t) is exactly t where 40 t is a whole number. Five standard errors."""
    generator = torch.Generator().manual_seed(0)
    p = torch.cat([detector(x[:39]).p_value(x[39:]) for x in torch.randn(2000, 40, 1, generator=generator)])
    for t in (0.025, 0.05, 0.5):
        assert abs((p <= t + 1e-12).double().mean() - t) < 5 * (t * (1 - t) / 2000) ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_false_discoveries_are_as_rare_as_promised(rate):
    """Of 100 inputs 80 are known: their share of the alarms is 0.8 rate on average, and most others are found."""
    generator, false, found = torch.Generator().manual_seed(0), [], []
    for _ in range(400):
        known = torch.randn(1080, 1, generator=generator)
        unknown = 4 + torch.randn(20, 1, generator=generator)
        alarms = detector(known[:1000]).discoveries(torch.cat([known[1000:], unknown]), rate)
        false.append((alarms[:80].sum() / alarms.sum().clamp(min=1)).item())
        found.append(alarms[80:].double().mean().item())
    error = np.std(false) / 20
    assert np.mean(false) < 0.8 * rate + 4 * error and np.mean(false) > 0.5 * rate and np.mean(found) > 0.7


def test_nothing_is_discovered_where_nothing_is_unknown():
    fitted = detector(torch.linspace(0, 1, 50)[:, None])
    assert not fitted.discoveries(torch.linspace(0, 1, 10)[:, None], 0.1).any()
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\), got 10"):
        fitted.discoveries(torch.zeros(1, 1), 10)


def test_p_values_need_a_fit():
    with pytest.raises(ValueError, match="the detector must be fitted before it predicts; call fit"):
        st.OODDetector(Energies(), "energy", st.Point()).p_value(torch.zeros(1, 1))


def test_regressions_have_p_values():
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    wide = st.InfiniteWidth().posterior(nn.Linear(2, 1), (x[:100], x[:100].sum(1, keepdim=True)))
    fitted = st.OODDetector(wide, "std").fit(x[100:])
    assert fitted.p_value(torch.full((1, 2), 50.0)).item() == pytest.approx(1 / 101)
    assert fitted.p_value(x[:100]).median() > 0.2


# Scores of others


class Watched(nn.Module):
    """A network that writes down in which mode and with which batches it runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout, self.runs = nn.Linear(3, 4), nn.Dropout(0.5), []

    def forward(self, x):
        self.runs.append((self.training, len(x)))
        return self.dropout(self.layer(x))


def test_any_function_of_inputs_is_a_score():
    x, new = torch.randn(99, 3), torch.randn(40, 3)
    model, norm = Watched().train(), lambda x: x.norm(dim=1)
    fitted = OODDetector(model, score=norm).fit(x, accept=0.9)
    assert fitted.threshold == pytest.approx(norm(x).sort().values[89].item())  # ceil(0.9 * 99) are accepted
    assert torch.equal(fitted.predict(new) == 1, norm(new) <= fitted.threshold)
    p = torch.tensor([(1 + int((norm(x) >= value).sum())) / 100 for value in norm(new)])
    torch.testing.assert_close(fitted.p_value(new), p.double(), rtol=1e-6, atol=0)
    assert fitted.discoveries(torch.cat([new, 100 + new]), 0.1)[40:].all() and not model.runs


@pytest.mark.parametrize("kind", ["network", "posterior", "regression"])
def test_a_score_may_use_the_network_and_its_gradients(kind):
    x, network = torch.randn(50, 3), Watched().train()
    model = network if kind == "network" else st.Point().posterior(network)

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(network(x).logsumexp(1).sum(), x)[0].norm(dim=1) + network(x).mean(1)

    options = {"family": st.Gaussian} if kind == "regression" else {}
    fitted = OODDetector(model, gradient, batch_size=20, **options).fit(x)
    assert network.runs == [(False, n) for n in (20, 20, 20, 20, 10, 10)] and network.training
    torch.testing.assert_close(fitted.known, gradient_by_hand(network, x).sort().values)
    assert not fitted.scores(x).requires_grad


def gradient_by_hand(network, x):
    """Of logsumexp z with z = W x + b it is W' softmax(z)."""
    z = network.layer(x).detach()
    return (z.softmax(1) @ network.layer.weight.detach()).norm(dim=1) + z.mean(1)


def test_batches_and_mappings_go_to_the_score_one_by_one():
    x, model = torch.randn(60, 3), Watched()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(60)), 25)
    fitted = OODDetector(model, lambda x: model(x).amax(1)).fit(loader)
    assert [n for _, n in model.runs] == [25, 25, 10] and len(fitted.known) == 60
    named = OODDetector(model, lambda x: x["a"].sum(1) + x["b"])
    torch.testing.assert_close(named.scores({"a": x, "b": x[:, 0]}), x.sum(1) + x[:, 0])


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (lambda x: x, r"\(50, 3\) torch.float32"),
        (lambda x: x.sum(), r"\(\) torch.float32"),
        (lambda x: x[:, 0].numpy(), "ndarray"),
        (lambda x: x[:, 0] > 0, r"\(50,\) torch.bool"),
    ],
)
def test_a_score_is_one_real_number_for_each_input(wrong, got):
    with pytest.raises(
        ValueError, match=rf"score must return a tensor of real numbers \(50,\) for 50 inputs; got {got}"
    ):
        OODDetector(Watched(), wrong).fit(torch.randn(50, 3))


def test_a_score_is_a_name_or_a_function():
    with pytest.raises(ValueError, match=r"score must be one of std, .* energy, or a function of inputs; got 3"):
        OODDetector(Watched(), 3)
    with pytest.raises(ValueError, match="must differ between inputs, got the same for all 50 of x_in"):
        OODDetector(Watched(), lambda x: 0 * x[:, 0]).fit(torch.randn(50, 3))


# A detector beside the model


def test_a_detector_of_scikit_learn_is_a_score():
    x, new, model = torch.randn(99, 3), torch.randn(40, 3), Watched().train()
    lof = LocalOutlierFactor(novelty=True).fit(x.numpy())
    fitted = OODDetector(model, detector_score(lof)).fit(torch.randn(80, 3))
    np.testing.assert_allclose(fitted.scores(new).numpy(), -lof.score_samples(new.numpy()), rtol=1e-6)
    assert (fitted.predict(100 + new) == -1).all() and not model.runs, "far away is unknown, and a higher score"


def test_a_detector_looks_at_features_in_eval_mode():
    x, model = torch.randn(60, 3), Watched().train()
    forest = IsolationForest(random_state=0).fit(model.layer(x).detach().numpy())
    scores = OODDetector(model, detector_score(forest, model), batch_size=25).scores(x)
    assert model.runs == [(False, 25), (False, 25), (False, 10)]
    np.testing.assert_allclose(scores.numpy(), -forest.score_samples(model.layer(x).detach().numpy()), rtol=1e-6)


def test_pictures_are_rows_of_pixels_and_mappings_need_features():
    pictures = torch.randn(50, 4, 4)
    forest = IsolationForest(random_state=0).fit(pictures.flatten(1).numpy())
    torch.testing.assert_close(
        detector_score(forest)(pictures), -torch.tensor(forest.score_samples(pictures.flatten(1).numpy()))
    )
    with pytest.raises(TypeError, match=r"features must be a tensor \(n, d\), got dict; pass features="):
        detector_score(forest)({"a": pictures})


@pytest.mark.parametrize("wrong", [LocalOutlierFactor(), "lof", lambda x: x])
def test_a_detector_without_scores_of_new_rows_is_refused(wrong):
    with pytest.raises(TypeError, match="detector must have score_samples, as IsolationForest"):
        detector_score(wrong)


def test_a_pipeline_is_its_last_step_behind_the_others():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.lognormal(3, 1, 90), "town": rng.choice(["Oslo", "Lima"], 90)})
    y = np.where((frame["town"] == "Oslo") | (frame["size"] > 20), "yes", "no")
    columns = make_column_transformer((MinMaxScaler(), ["size"]), (OneHotEncoder(sparse_output=False), ["town"]))
    pipe = make_pipeline(columns, st.StationaryClassifier(random_state=0))
    detector = OODDetector(pipe)
    with pytest.raises(NotFittedError):
        detector.fit(frame)
    pipe.fit(frame[:60], y[:60])
    detector.fit(frame[60:])
    rows = columns.transform(frame)
    of_last = OODDetector(pipe[-1]).fit(rows[60:])
    assert torch.equal(detector.scores(frame), of_last.scores(rows)) and detector.threshold == of_last.threshold
    assert torch.equal(st.acquire(pipe, frame, 5), st.acquire(pipe[-1], rows, 5))
    for other in (make_pipeline(columns, make_pipeline(pipe[-1])), make_pipeline("passthrough", pipe)):
        assert torch.equal(OODDetector(other).scores(frame), of_last.scores(rows))
    values = make_pipeline(MinMaxScaler(), st.StationaryRegressor(random_state=0)).fit(rows[:60], rows[:60, 0])
    assert OODDetector(values).score == "std" and len(OODDetector(values).fit(rows[60:]).p_value(rows)) == 90
