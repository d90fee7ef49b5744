"""Recalibration: the number that is found is the best one, what must not change does not, on every method."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stationary as st
from stationary import metrics
from stationary.calibration import CalibratedPosterior
from stationary.training.data import marks_of

TRAINING = st.Training(epochs=40, batch_size=50, learning_rate=0.01)


def classes(n=300, seed=0, c=3):
    """Inputs around c centres that overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(c, 2, generator=torch.Generator().manual_seed(1))
    y = torch.randint(c, (n,), generator=generator)
    return centres[y] + torch.randn(n, 2, generator=generator), y


def values(n=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(n, 2, generator=generator) - 2
    y = torch.stack([x.sum(1).sin(), x[:, 0] - x[:, 1]], 1)
    return x, y + torch.tensor([0.1, 1.0]) * torch.randn(n, 2, generator=generator)


def build(c=3):
    return lambda: st.MLP(2, c, hidden=(20,), activation="matern52", dropout=0.2)


METHODS = {
    "point": st.Point(),
    "exact": st.ExactDropout(),
    "mc": st.MCDropout(20),
    "ensemble": st.Ensemble(2),
    "swag": st.SWAG(5),
    "infinite width": st.InfiniteWidth(),
}


@pytest.fixture(scope="module", params=METHODS.values(), ids=METHODS)
def posterior(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return st.fit(request.param, build(), classes(), TRAINING)


# Classes


def test_the_temperature_has_the_least_nlpd(posterior):
    """Against a search that knows nothing of how it was found."""
    data = classes(seed=1)
    torch.manual_seed(0)
    calibrated = st.calibrate(posterior, data)
    torch.manual_seed(0)
    log_p = st.predict(posterior, data[0]).probs.double().log()

    def nlpd(b):
        return -(b * log_p).log_softmax(-1)[torch.arange(300), data[1]].mean().item()

    best = minimize(lambda theta: nlpd(math.exp(theta[0])), [0.0], method="Nelder-Mead", options={"xatol": 1e-7})
    assert nlpd(1 / calibrated.temperature) <= best.fun + 1e-9
    assert calibrated.temperature == pytest.approx(math.exp(-best.x[0]), rel=1e-3)


def test_the_predicted_classes_stay(posterior):
    x, y = classes(seed=2)
    calibrated = st.calibrate(posterior, classes(seed=1))
    assert isinstance(calibrated, CalibratedPosterior) and calibrated.networks == posterior.networks
    before, after = [], []
    for found, model in ((before, posterior), (after, calibrated)):
        torch.manual_seed(0)
        found.append(st.predict(model, x))
    assert before[0].predict().equal(after[0].predict()) and not before[0].probs.equal(after[0].probs)
    assert metrics.accuracy(before[0], y) == metrics.accuracy(after[0], y)
    torch.testing.assert_close(after[0].probs.sum(-1), torch.ones(300))
    torch.testing.assert_close(after[0].mutual_information(), before[0].mutual_information())
    assert after[0].output_mean.equal(before[0].output_mean)


def test_what_is_too_bold_becomes_calibrated():
    """Outputs of the true model, three times as large: the temperature is three, and the error of calibration goes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 4, generator=generator)
    y = torch.multinomial(x.softmax(-1), 1, generator=generator)[:, 0]
    model = nn.Linear(4, 4, bias=False)
    model.weight.data = 3 * torch.eye(4)
    calibrated = st.calibrate(model, (x[:10_000], y[:10_000]), st.Point())
    assert calibrated.temperature == pytest.approx(3, rel=0.05)  # its standard error is 1 / sqrt(10,000 * 0.4) or so
    pred, bold = st.predict(calibrated, x[10_000:]), st.predict(model, x[10_000:], st.Point())
    assert metrics.ece(pred, y[10_000:]) < 0.02 < 0.1 < metrics.ece(bold, y[10_000:])
    assert metrics.nlpd(pred, y[10_000:]) < metrics.nlpd(bold, y[10_000:]) - 0.1


def test_far_away_the_prior_stays():
    """With the restored prior, and with infinite width, whose prior may be the class frequencies."""
    x, y = classes()
    y = torch.where((y == 2) & (torch.arange(300) % 5 > 0), 0, y)  # class 2 is rare
    far = 1e4 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    network = st.fit(st.Point(), build(), (x, y), TRAINING).networks[0]
    st.calibrate_prior(network, x)
    pred = st.predict(st.calibrate(network, classes(seed=1)), far)
    torch.testing.assert_close(pred.probs, torch.full((50, 3), 1 / 3), rtol=0, atol=0.1)
    for mean in ("uniform", "frequencies"):
        wide = st.InfiniteWidth(prior_mean=mean).posterior(nn.Linear(2, 3), (x, y))
        own = st.predict(wide, far).probs
        calibrated = st.calibrate(wide, classes(seed=1))
        assert abs(calibrated.temperature - 1) > 0.01
        torch.testing.assert_close(st.predict(calibrated, far).probs, own, rtol=0, atol=1e-6)
        again = st.calibrate(calibrated, classes(seed=3))
        torch.testing.assert_close(st.predict(again, far).probs, own, rtol=0, atol=1e-6)


def test_several_labels():
    x, _ = classes(2000)
    y = (torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) < x.sigmoid()).long()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide = st.InfiniteWidth(variance=500.0, lengthscale=0.5, temperature=0.01, n_inducing=200).posterior(
            nn.Linear(2, 2), (x[:500], y[:500])
        )
    calibrated = st.calibrate(wide, (x[500:1200], y[500:1200]))
    pred, before = (st.predict(model, x[1200:]) for model in (calibrated, wide))
    assert calibrated.temperature > 1 and pred.predict().equal(before.predict())
    assert pred.log_prob(y[1200:]).mean() > before.log_prob(y[1200:]).mean()


# Real values


def test_standard_deviations_fit_the_errors():
    wide = st.InfiniteWidth(noise=0.001, lengthscale=2.0, variance=1.0).posterior(nn.Linear(2, 2), values())
    x, y = values(seed=1)
    calibrated, pred = st.calibrate(wide, (x, y)), st.predict(wide, x)
    ratio = ((y - pred.mean).square() / pred.variance()).double().mean(0)
    torch.testing.assert_close(calibrated.factor, ratio, rtol=1e-5, atol=0)
    after = st.predict(calibrated, x)
    assert after.mean.equal(pred.mean)
    torch.testing.assert_close(((y - after.mean).square() / after.variance()).mean(0), torch.ones(2))
    for factor in (0.9, 1.1):
        other = st.Gaussian(after.mean, factor * after.epistemic_variance, factor * after.aleatoric_variance)
        assert metrics.nlpd(other, y) > metrics.nlpd(after, y)
    far = 1e4 * torch.ones(1, 2)
    torch.testing.assert_close(
        st.predict(calibrated, far).variance(), (ratio * st.predict(wide, far).variance()).to(torch.float32)
    )


@pytest.mark.parametrize("method", [st.Point(), st.ExactDropout(), st.Ensemble(2)], ids=["point", "exact", "ensemble"])
def test_where_no_noise_is_known_the_best_is_added(method):
    data = values()
    made = st.fit(method, build(2), data, st.Training("mse", epochs=40, batch_size=50, learning_rate=0.01))
    x, y = values(1000, seed=1)
    calibrated = st.calibrate(made, (x, y), family=st.Gaussian)
    pred = st.predict(calibrated, x, family=st.Gaussian)
    assert calibrated.factor is None and 0.7 < float(calibrated.noise[1].sqrt()) < 1.3, "the noise of the second is 1"
    for factor in (0.9, 1.1):
        other = st.Gaussian(pred.mean, pred.epistemic_variance, factor * pred.aleatoric_variance)
        assert metrics.nlpd(other, y) > metrics.nlpd(pred, y)


# What it takes and remembers


def test_batches_are_rows():
    data = classes(seed=1)
    made = st.fit(st.Point(), build(), classes(), TRAINING)
    loader = DataLoader(TensorDataset(*data), batch_size=37)
    temperatures = [
        st.calibrate(made, some, batch_size=size).temperature
        for some, size in ((data, None), (data, 10), (loader, None))
    ]
    np.testing.assert_allclose(temperatures, temperatures[0], rtol=1e-5)


def test_rows_that_chose_something_are_remembered():
    held, more = classes(seed=1), classes(50, seed=2)
    wide = st.InfiniteWidth().posterior(build()().eval(), classes(), validation=held)
    calibrated = st.calibrate(wide, more)
    assert set(marks_of(more[0]).tolist()) <= set(calibrated.validation_rows.tolist())
    assert set(marks_of(held[0]).tolist()) <= set(calibrated.validation_rows.tolist())


def test_scores_are_those_of_the_posterior():
    wide = st.InfiniteWidth().posterior(nn.Linear(2, 3), classes())
    x, _ = classes(seed=1)
    detectors = [st.OODDetector(model, "energy").fit(x) for model in (wide, st.calibrate(wide, classes(seed=2)))]
    assert detectors[0].threshold == detectors[1].threshold


def test_what_is_refused():
    made = st.Point().posterior(build()())
    with pytest.raises(ValueError, match="method must be None for a"):
        st.calibrate(made, classes(), st.Point())
    with pytest.raises(ValueError, match="at least one"):
        st.calibrate(made, (torch.zeros(0, 2), torch.zeros(0).long()))
    with pytest.raises(ValueError, match="class indices 0 to 2; got 0 to 7"):
        st.calibrate(made, (torch.zeros(2, 2), torch.tensor([0, 7])))
    with pytest.raises(ValueError, match="family must be Categorical, which this posterior was calibrated for"):
        st.predict(st.calibrate(made, classes()), torch.zeros(1, 2), family=st.Gaussian)
