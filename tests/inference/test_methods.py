"""What every inference method promises, over the list of them; and what ``predict`` takes."""

import pickle
from dataclasses import FrozenInstanceError, replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from gpytorch.kernels import MaternKernel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stationary as st
from stationary.lab.baselines import GPDNN, SVDKL, SVGP, VGP, ExactGP, gp_training
from stationary.nn.heads import StationaryHead

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
LABELS, TARGETS = (X[:, 0] > 0).long() + (X[:, 1] > 1).long(), X[:, :2] * X[:, 1:]
TRAINING = st.Training(epochs=4, learning_rate=1e-2)
NETWORKS = {
    "point": st.Point(),
    "mc dropout": st.MCDropout(8),
    "mc dropout, own masks": st.MCDropout(8, shared_masks=False),
    "exact dropout": st.ExactDropout(),
    "exact dropout, approximate": st.ExactDropout(approximate=True),
    "ensemble": st.Ensemble(2),
    "swag": st.SWAG(4, start=0.5),
    "laplace": st.Laplace(),
    "infinite width": st.InfiniteWidth(lengthscale=1.0, variance=1.0, n_inducing=30),
}
SPARSE = {
    "svgp": SVGP(n_inducing=10, n_samples=8),
    "gpdnn": GPDNN(n_inducing=8, hidden=(8, 4)),
    "svdkl": SVDKL(grid_size=10, hidden=(8, 4)),
}
EXACT = {"exact gp": ExactGP(), "vgp": VGP()}
ALL_METHODS = NETWORKS | SPARSE | EXACT
NEEDS = {
    "laplace": pytest.mark.skipif(not find_spec("laplace"), reason="laplace-torch is missing; make interop has it")
}


def each(methods):
    cases = [pytest.param(method, id=name, marks=NEEDS.get(name, ())) for name, method in methods.items()]
    return pytest.mark.parametrize("method", cases)


def fit(method, family=st.Categorical, restore=False):
    """The method's posterior of data that suit it."""
    if isinstance(method, ExactGP | VGP):
        data = (X, TARGETS[:, :1]) if isinstance(method, ExactGP) else (X, (LABELS > 0).long())
        return st.fit(method, method.builder(MaternKernel(1.5), data), data, gp_training(4))
    if method in SPARSE.values():
        return st.fit(method, method.builder((X, LABELS)), (X, LABELS), replace(TRAINING, loss="own"))
    loss, y = ("cross_entropy", LABELS) if family is st.Categorical else ("mse", TARGETS)
    build = lambda: st.MLP(3, 3 if family is st.Categorical else 2, hidden=(8, 16))
    posterior = st.fit(method, build, (X, y), replace(TRAINING, loss=loss))
    for model in posterior.networks:
        if restore:
            st.calibrate_prior(model, X, y)
    return posterior


def predict(method, posterior, x=X, **options):
    return st.predict(posterior, x, family=st.Gaussian if isinstance(method, ExactGP) else st.Categorical, **options)


def center(pred):
    return pred.mean if isinstance(pred, st.Gaussian) else pred.probs


@each(ALL_METHODS)
def test_it_is_its_own_configuration(method):
    assert hash(method) == hash(type(method)(**vars(method))) and type(method).__name__ in repr(method)
    with pytest.raises(FrozenInstanceError):
        method.anything = True
    assert method.n_networks == (2 if isinstance(method, st.Ensemble) else 1)


@each(NETWORKS | SPARSE)
def test_classification(method):
    pred = st.predict(fit(method), X)
    assert isinstance(pred, st.Categorical) and pred.probs.shape == (60, 3)
    torch.testing.assert_close(pred.probs.sum(-1), torch.ones(60), check_dtype=False)
    assert (pred.entropy() >= pred.expected_entropy() - 1e-6).all() or isinstance(method, GPDNN)
    assert (pred.std() > 0).all() or isinstance(method, st.Point)
    assert not pred.prior_restored


@each(NETWORKS | {"exact gp": ExactGP()})
def test_regression(method):
    pred = st.predict(fit(method, st.Gaussian), X, family=st.Gaussian)
    assert pred.mean.shape == pred.epistemic_variance.shape == (60, 1 if isinstance(method, ExactGP) else 2)
    assert (pred.epistemic_variance > 0).all() or isinstance(method, st.Point)
    assert (pred.aleatoric_variance == 0).all() or isinstance(method, ExactGP | st.InfiniteWidth)


@each(ALL_METHODS)
def test_it_is_deterministic_and_leaves_everything_as_it_was(method):
    posterior, state = fit(method), torch.get_rng_state()
    models = posterior.networks
    weights = [p.clone() for model in models for p in model.parameters()]
    for model in models:
        model.train()
    first, second = predict(method, posterior), predict(method, posterior)
    assert torch.equal(center(first), center(second)) and torch.equal(state, torch.get_rng_state())
    assert all(module.training for model in models for module in model.modules())
    after = [p for model in models for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, after, strict=True))
    assert not center(first).requires_grad


@each({name: method for name, method in ALL_METHODS.items() if name not in ("mc dropout, own masks", "svdkl", "svgp")})
def test_batches_change_nothing(method):
    """Left out are methods that draw numbers for each input of a batch."""
    posterior = fit(method)
    whole, parts = predict(method, posterior), predict(method, posterior, batch_size=7)
    torch.testing.assert_close(center(whole), center(parts), rtol=1e-4, atol=1e-5)
    loader = DataLoader(TensorDataset(X, LABELS), 7)
    assert torch.equal(center(predict(method, posterior, loader)), center(parts))
    assert torch.equal(center(predict(method, posterior, X.split(7))), center(parts))


@each({name: method for name, method in NETWORKS.items() if name != "infinite width"})
def test_the_prior_comes_back_far_away(method):
    """Left out is the method that never loses it."""
    posterior = fit(method, st.Gaussian, restore=True)
    pred = st.predict(posterior, 1000 * X, family=st.Gaussian)
    assert (pred.std().median(0).values > 0.9 * TARGETS.std(0, correction=0)).all()
    assert pred.prior_restored
    plain = replace(posterior, method=replace(method, restore_prior=False))
    assert not st.predict(plain, X, family=st.Gaussian).prior_restored
    assert st.predict(fit(method, restore=True), X).prior_restored


@each(ALL_METHODS)
def test_it_works_under_inference_mode(method):
    posterior = fit(method)
    with torch.inference_mode():
        inside = predict(method, posterior)
    torch.testing.assert_close(center(inside), center(predict(method, posterior)))


@each(ALL_METHODS)
def test_a_posterior_can_be_pickled(method):
    posterior = fit(method)
    again = pickle.loads(pickle.dumps(posterior))
    torch.testing.assert_close(center(predict(method, again)), center(predict(method, posterior)))


@each(NETWORKS)
def test_a_data_loader_trains_and_predicts(method):
    """In full batches, batches train the networks that tensors do."""
    build = lambda: st.MLP(3, 3, hidden=(8, 16)).double()
    x = X.double()
    training = replace(TRAINING, batch_size=None)
    loader = DataLoader(TensorDataset(x, LABELS), 60)
    streamed = st.fit(method, build, loader, training)
    whole = st.fit(method, build, (x, LABELS), training)
    for a, b in zip(streamed.networks, whole.networks, strict=True):
        torch.testing.assert_close(a.state_dict(), b.state_dict())


@each(NETWORKS | {"svgp": SPARSE["svgp"]})
def test_folds_are_fits_of_their_own(method):
    folds = [(X, LABELS), (X[:40], LABELS[:40])]
    training = replace(TRAINING, loss="own" if method in SPARSE.values() else "cross_entropy")
    network = lambda: st.MLP(3, 3, hidden=(8, 16))
    builds = [method.builder(fold) if method in SPARSE.values() else network for fold in folds]
    together = st.fit_folds(method, builds, folds, training)
    for build, fold, posterior in zip(builds, folds, together, strict=True):
        alone = st.fit(method, build, fold, training)
        torch.testing.assert_close(st.predict(posterior, X).probs, st.predict(alone, X).probs)


@each({name: NETWORKS[name] for name in ("mc dropout", "exact dropout")})
def test_a_network_without_dropout_is_refused_before_it_trains(method):
    with pytest.raises(ValueError, match=r"model must have an active nn\.Dropout"):
        st.fit(method, lambda: nn.Linear(3, 3), (X, LABELS), replace(TRAINING, epochs=10**6))


def test_seeds_of_folds():
    build = lambda: st.MLP(3, 3, hidden=(8,))
    folds = [(X, LABELS)] * 2
    same = st.fit_folds(st.Ensemble(2), build, folds, TRAINING)
    other = st.fit_folds(st.Ensemble(2), build, folds, TRAINING, seeds=[0, 1, 2, 3])
    first = [posterior.networks[0].head.output.weight for posterior in (*same, *other)]
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2]) and not torch.equal(first[2], first[3])
    with pytest.raises(ValueError, match=r"seeds must have one entry for each network.* got 3"):
        st.fit_folds(st.Ensemble(2), build, folds, TRAINING, seeds=[0, 1, 2])
    with pytest.raises(ValueError, match=r"build must be one function, or one for each .* got 1 for 2 folds"):
        st.fit_folds(st.Point(), [build], folds, TRAINING)


def test_what_fit_is_given_by_mistake():
    model = st.MLP(3, 3, hidden=(8,))
    build = lambda: model
    with pytest.raises(TypeError, match=r"method must be .*; got the class Point: write stationary\.Point\(\)"):
        st.fit(st.Point, build, (X, LABELS), TRAINING)
    with pytest.raises(TypeError, match=r"build must be a function .*, got a network, MLP; .* lambda: MLP\("):
        st.fit(st.Point(), model, (X, LABELS), TRAINING)
    with pytest.raises(TypeError, match="build must be a function"):
        st.fit_folds(st.Point(), [model], [(X, LABELS)], TRAINING)
    with pytest.raises(TypeError, match=r"data must be two tensors or arrays .*; got a pair of Tensor and list: torch"):
        st.fit(st.Point(), build, (X, LABELS.tolist()), TRAINING)


def test_a_method_that_cannot_remember_what_it_watches_has_no_checkpoint(tmp_path):
    class Watching(st.Point):
        def observer(self, training):
            return lambda *_: None

    build = lambda: st.MLP(3, 3, hidden=(8,))
    with pytest.raises(ValueError, match="checkpoint must be None for Watching, whose observer has no state_dict"):
        st.fit(Watching(), build, (X, LABELS), TRAINING, checkpoint=tmp_path / "state.npz")


class OwnHead(nn.Module):
    """A head of somebody else's: it says what its features are, and which layer reads them."""

    def __init__(self):
        super().__init__()
        self.hidden, self.activation = nn.Linear(3, 16), st.RBF()
        self.dropout, self.output = nn.Dropout(0.2), nn.Linear(16, 2)

    def features(self, x):
        return self.activation(self.hidden(x))

    def forward(self, x):
        return self.output(self.dropout(self.features(x)))


@each(NETWORKS)
def test_any_module_with_features_and_a_readout_has_all_methods(method):
    posterior = st.fit(
        method, lambda: nn.Sequential(nn.Identity(), OwnHead()), (X, TARGETS), replace(TRAINING, loss="mse")
    )
    for model in posterior.networks:
        st.calibrate_prior(model, X, TARGETS)
    far = st.predict(posterior, 1000 * X, family=st.Gaussian)
    assert far.prior_restored or isinstance(method, st.InfiniteWidth)
    assert (far.std().median(0).values > 0.9 * TARGETS.std(0, correction=0)).all()
    mean, std = st.exact_predictor(posterior.networks[0])(X)
    exact = st.predict(posterior.networks[0], X, st.ExactDropout(), family=st.Gaussian)
    torch.testing.assert_close(mean, exact.mean)
    torch.testing.assert_close(std, exact.std())


# What predict takes


def test_exact_dropout_is_the_default():
    model = st.MLP(3, 2, hidden=(8,)).eval()
    assert torch.equal(st.predict(model, X).probs, st.predict(model, X, st.ExactDropout()).probs)
    assert torch.equal(st.OODDetector(model).scores(X), st.predict(model, X).entropy())
    with pytest.raises(ValueError, match=r"model must have an active nn.Dropout.*Point\(\)"):
        st.predict(nn.Linear(3, 2), X)


def test_point_is_the_network_as_it_is():
    model = st.MLP(3, 2, hidden=(8,)).eval()
    pred = st.predict(model, X, st.Point())
    torch.testing.assert_close(pred.probs, model(X).detach().softmax(-1))
    assert pred.std().max() == 0


@each({name: method for name, method in NETWORKS.items() if name != "infinite width"})
def test_one_output_is_no_class(method):
    """Left out is the method that knows what its targets were."""
    build = lambda: st.MLP(3, 1, hidden=(8,))
    posterior = st.fit(method, build, (X, TARGETS[:, :1]), replace(TRAINING, loss="mse"))
    with pytest.raises(ValueError, match=r"at least two classes, got a network with one output.*Gaussian"):
        st.predict(posterior, X)
    assert st.predict(posterior, X, family=st.Gaussian).mean.shape == (60, 1)


def test_what_an_iterable_may_give():
    model = st.MLP(3, 2, hidden=(8,)).eval()
    expected = st.predict(model, X).probs
    for batches in ([X[:50], X[50:]], [(X[:50], LABELS[:50]), (X[50:], LABELS[50:])], DataLoader(TensorDataset(X), 20)):
        torch.testing.assert_close(st.predict(model, batches).probs, expected)
    used = iter([X])
    next(used)
    with pytest.raises(ValueError, match=r"at least one batch, the iterable gave none.*generator"):
        st.predict(model, used)
    with pytest.raises(ValueError, match=r"batch_size must be None for an iterable.*got 7"):
        st.predict(model, [X], batch_size=7)
    with pytest.raises(TypeError, match=r"iterable of batches, got tuple; of a pair .* pass x alone"):
        st.predict(model, (X, LABELS))
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in row 60"):
        st.predict(model, [X, X / 0])


def test_hugging_face_style_models():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = StationaryHead(3, 2)

        def forward(self, values, mask):
            return SimpleNamespace(logits=self.head(values * mask))

    model, inputs = Model(), {"values": X, "mask": torch.ones(60, 1)}
    pred = st.predict(model, inputs, st.ExactDropout(), batch_size=11)
    torch.testing.assert_close(pred.probs, st.predict(model.head, X, st.ExactDropout()).probs)


def test_members_with_noise_of_their_own():
    class Heteroscedastic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.mean, self.noise = nn.Linear(3, 8), nn.Linear(8, 1), nn.Linear(8, 1)
            self.dropout = nn.Dropout(0.3)

        def forward(self, x):
            h = self.dropout(self.body(x).relu())
            return self.mean(h), nn.functional.softplus(self.noise(h))

    model = Heteroscedastic()
    pred = st.predict(model, X, st.MCDropout(200), family=st.Gaussian)
    point = st.predict(model, X, st.Point(), family=st.Gaussian)
    assert (pred.epistemic_variance > 0).all() and (point.epistemic_variance == 0).all()
    model.eval()
    torch.testing.assert_close(point.aleatoric_variance, model(X)[1].detach())
    assert (pred.aleatoric_variance - point.aleatoric_variance).abs().max() > 1e-4  # the mean over the members'


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(5, 4), r"x must have 3 features in its last dimension, got shape \(5, 4\)"),
        (torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 2.0]]), "x must be finite, got NaN or infinity in row 1"),
        (torch.empty(0, 3), "x must hold at least one input"),
    ],
)
@pytest.mark.parametrize("model", [st.MLP(3, 2, hidden=(8, 5)), st.StationaryHead(3, 2)])
def test_bad_inputs(model, x, message):
    with pytest.raises(ValueError, match=message):
        st.predict(model, x, st.MCDropout(10))


def test_bad_arguments():
    model = st.MLP(3, 2, hidden=(8,))
    with pytest.raises(ValueError, match="batch_size must be a positive integer or None, got 0"):
        st.predict(model, X, batch_size=0)
    with pytest.raises(ValueError, match="method must be None for a PointPosterior, which has its own"):
        st.predict(st.Point().posterior(model), X, st.MCDropout(10))
    with pytest.raises(ValueError, match=r"model must return outputs of shape \(n, c\).*got a tensor of shape \(60,\)"):
        st.predict(nn.Sequential(model, nn.Flatten(0)), X[:30], st.Point())
    with pytest.raises(ValueError, match="and each part of a mapping as many; got"):
        st.predict(model, {"x": X, "y": X[:3]})


def test_exact_predictor_is_the_closed_form():
    model = st.calibrate_prior(st.MLP(3, 2, hidden=(8, 20)), X)
    exact = st.predict(model, 10 * X, st.ExactDropout(), family=st.Gaussian)
    mean, std = st.exact_predictor(model)(10 * X)
    torch.testing.assert_close(mean, exact.mean)
    torch.testing.assert_close(std, exact.std())
    head_only = st.exact_predictor(st.StationaryHead(3, 2))
    assert len(head_only(X)) == 2
    assert isinstance(model.head, StationaryHead)  # the copy has changed, not the model
    parts = r"activation, dropout \(nn\.Dropout\) and output \(nn\.Linear\) and a method features\(x\)"
    with pytest.raises(ValueError, match=rf"one head, a module with the parts {parts}.*; Linear has 0: put one in"):
        st.exact_predictor(nn.Linear(3, 2))


def test_memory_does_not_grow_with_samples():
    """The largest tensor that a prediction makes is the same for 1000 samples as for 20."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return result

    model, x = st.MLP(3, 2, hidden=(30, 20)), torch.randn(20_000, 3)
    for shared in (True, False):
        sizes = []
        for n_samples in (20, 1000):
            with Largest() as mode:
                st.predict(model, x, st.MCDropout(n_samples, shared_masks=shared))
            sizes.append(mode.numel)
        assert sizes[0] == sizes[1]
