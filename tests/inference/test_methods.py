"""What every inference method promises, over the list of them; and what ``predict`` takes."""

import pickle
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import stationary as st
from stationary.nn.heads import StationaryHead

ALL_METHODS = {
    "point": st.Point(),
    "mc dropout": st.MCDropout(8),
    "mc dropout, own masks": st.MCDropout(8, shared_masks=False),
    "exact dropout": st.ExactDropout(),
    "exact dropout, approximate": st.ExactDropout(approximate=True),
    "ensemble": st.Ensemble(2),
    "swag": st.SWAG(4, start=0.5),
}
X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
LABELS, TARGETS = (X[:, 0] > 0).long() + (X[:, 1] > 1).long(), X[:, :2] * X[:, 1:]
TRAINING = st.Training(epochs=4, learning_rate=1e-2)


@pytest.fixture(params=ALL_METHODS.values(), ids=ALL_METHODS)
def method(request):
    return request.param


def fit(method, family=st.Categorical, restore=False):
    loss, y = ("cross_entropy", LABELS) if family is st.Categorical else ("mse", TARGETS)
    build = lambda: st.MLP(3, 3 if family is st.Categorical else 2, hidden=(8, 16))
    posterior = method.fit(build, (X, y), st.Training(loss=loss, epochs=4, learning_rate=1e-2))
    for model in getattr(posterior, "models", None) or [posterior.model]:
        if restore:
            st.calibrate_prior(model, X, y)
    return posterior


def test_it_is_its_own_configuration(method):
    assert hash(method) == hash(type(method)(**vars(method))) and type(method).__name__ in repr(method)
    with pytest.raises(FrozenInstanceError):
        method.restore_prior = True


def test_classification(method):
    pred = st.predict(fit(method), X)
    assert isinstance(pred, st.Categorical) and pred.probs.shape == (60, 3)
    torch.testing.assert_close(pred.probs.sum(-1), torch.ones(60))
    assert (pred.entropy() >= pred.expected_entropy() - 1e-6).all()
    assert (pred.std() > 0).all() or isinstance(method, st.Point)


def test_regression(method):
    pred = st.predict(fit(method, st.Gaussian), X, family=st.Gaussian)
    assert pred.mean.shape == pred.epistemic_variance.shape == (60, 2)
    assert (pred.epistemic_variance > 0).all() or isinstance(method, st.Point)
    assert (pred.aleatoric_variance == 0).all()


def test_it_is_deterministic_and_leaves_everything_as_it_was(method):
    posterior, state = fit(method), torch.get_rng_state()
    models = getattr(posterior, "models", None) or [posterior.model]
    weights = [p.clone() for model in models for p in model.parameters()]
    for model in models:
        model.train()
    first, second = st.predict(posterior, X), st.predict(posterior, X)
    assert torch.equal(first.probs, second.probs) and torch.equal(state, torch.get_rng_state())
    assert all(module.training for model in models for module in model.modules())
    after = [p for model in models for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, after, strict=True))
    assert not first.probs.requires_grad


def test_batches_change_nothing(method):
    posterior = fit(method)
    if not getattr(method, "shared_masks", True):
        pytest.skip("every input of a batch has masks of its own")
    whole, parts = st.predict(posterior, X), st.predict(posterior, X, batch_size=7)
    torch.testing.assert_close(whole.probs, parts.probs)
    torch.testing.assert_close(whole.output_variance, parts.output_variance)


def test_the_prior_comes_back_far_away(method):
    posterior = fit(method, st.Gaussian, restore=True)
    std = st.predict(posterior, 1000 * X, family=st.Gaussian).std().median(0).values
    assert (std > 0.9 * TARGETS.std(0, correction=0)).all()


def test_it_works_under_inference_mode(method):
    posterior = fit(method)
    with torch.inference_mode():
        inside = st.predict(posterior, X)
    torch.testing.assert_close(inside.probs, st.predict(posterior, X).probs)


def test_a_posterior_can_be_pickled(method):
    posterior = fit(method)
    again = pickle.loads(pickle.dumps(posterior))
    torch.testing.assert_close(st.predict(again, X).probs, st.predict(posterior, X).probs)


# What predict takes


def test_point_is_the_default():
    model = st.MLP(3, 2, hidden=(8,)).eval()
    torch.testing.assert_close(st.predict(model, X).probs, model(X).detach().softmax(-1))
    assert st.predict(model, X).std().max() == 0


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
    point = st.predict(model, X, family=st.Gaussian)
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
    with pytest.raises(ValueError, match="batch_size must be at least 1 or None, got 0"):
        st.predict(model, X, batch_size=0)
    with pytest.raises(ValueError, match="method is for a network; PointPosterior already has its own"):
        st.predict(st.Point().posterior(model), X, st.MCDropout(10))
    with pytest.raises(ValueError, match=r"model must return outputs of shape \(n, c\).*got a tensor of shape \(60,\)"):
        st.predict(nn.Sequential(model, nn.Flatten(0)), X[:30])
    with pytest.raises(ValueError, match="and as many in each part; got"):
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
    with pytest.raises(ValueError, match="model must have one StationaryHead, Linear has 0"):
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


def test_an_array_is_no_tensor():
    with pytest.raises(TypeError, match=r"x must be a tensor, got ndarray; torch\.as_tensor"):
        st.predict(st.StationaryHead(2, 2), np.zeros((3, 2)))
