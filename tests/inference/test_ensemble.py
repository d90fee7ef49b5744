"""Ensembles are their members' mean."""

from dataclasses import replace

import pytest
import torch
from inference_problems import CLASSIFY, classes, line, mlp
from torch import nn

import stationary as st
from stationary.training import train


def test_ensemble_is_the_mean_of_its_members():
    x, y = classes()
    posterior = st.fit(st.Ensemble(4), mlp, (x, y), CLASSIFY)
    far = 3 * x[:7]
    prediction = st.predict(posterior, far, keep_samples=True)
    softmax = torch.stack([model(far).softmax(-1) for model in posterior.networks])
    torch.testing.assert_close(prediction.probs, softmax.mean(0))
    torch.testing.assert_close(prediction.samples.softmax(-1), softmax)
    assert (prediction.mutual_information() > 0).all()


def test_members_are_those_of_train():
    data = classes()
    posterior = st.fit(st.Ensemble(3), mlp, data, CLASSIFY)
    assert len(posterior.networks) == 3
    for k, model in enumerate(posterior.networks):
        (alone,) = train(mlp, data, replace(CLASSIFY, seed=k))
        torch.testing.assert_close(model(data[0]), alone(data[0]), rtol=1e-9, atol=1e-9)


def test_regression_ensemble_by_hand():
    models = [nn.Linear(1, 2).double() for _ in range(3)]
    x = line()[0]
    prediction = st.predict(st.Ensemble().posterior(models), x, family=st.Gaussian)
    outputs = torch.stack([model(x) for model in models]).detach()
    torch.testing.assert_close(prediction.mean, outputs.mean(0))
    torch.testing.assert_close(prediction.epistemic_variance, outputs.var(0, correction=0))


def test_ensemble_restores_each_members_prior():
    x, y = classes()
    models = [st.calibrate_prior(model, x) for model in st.fit(st.Ensemble(3), mlp, (x, y), CLASSIFY).networks]
    far = x[:5] * 1e3
    restored = st.predict(st.Ensemble().posterior(models), far, family=st.Gaussian)
    plain = st.predict(st.Ensemble(restore_prior=False).posterior(models), far, family=st.Gaussian)
    prior = torch.stack([model.head.restored_prior(model.head.features(model.trunk(far))) for model in models])
    assert (prior > 0).all()
    torch.testing.assert_close(restored.epistemic_variance, plain.epistemic_variance + prior.mean(0))


def test_ensemble_leaves_modes_and_randomness_alone():
    models = [mlp().train() for _ in range(2)]
    models[0].head.eval()
    before, modes = torch.get_rng_state(), [[m.training for m in model.modules()] for model in models]
    st.predict(nn.ModuleList(models), classes()[0], st.Ensemble())
    assert torch.equal(torch.get_rng_state(), before)
    assert [[m.training for m in model.modules()] for model in models] == modes


def test_ensemble_errors():
    with pytest.raises(ValueError, match=r"size must be an integer, at least 2; got 1.*Point"):
        st.Ensemble(1)
    with pytest.raises(ValueError, match=r"several trained networks, got one MLP; pass a list"):
        st.predict(mlp(), classes()[0], st.Ensemble())
    with pytest.raises(ValueError, match="at least 2 networks, got 1"):
        st.Ensemble().posterior([mlp()])
