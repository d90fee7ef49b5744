"""Lightning trains our models, and its ``Trainer.predict`` stays stochastic when asked."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stationary as st


class Classifier(LightningModule):
    """What a user writes; ``naive`` is MC dropout by hand."""

    def __init__(self, method=None, naive=False):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(2, 30), nn.BatchNorm1d(30), nn.ReLU(), st.StationaryHead(30, 2, hidden=20, dropout=0.3)
        )
        self.method, self.naive, self.losses = method, naive, []

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        pred = st.predict(self.model, batch[0], st.MCDropout(10))
        self.log("accuracy", st.metrics.accuracy(pred, batch[1]))
        self.log("information", pred.mutual_information().mean())

    def predict_step(self, batch):
        assert not self.model.training and torch.is_inference_mode_enabled() == self.trainer.predict_loop.inference_mode
        if self.naive:
            return torch.stack([self.model(batch[0]) for _ in range(10)])
        return st.predict(self.model, batch[0], self.method, keep_samples=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def trainer(**options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Trainer(accelerator="cpu", logger=False, **quiet, **options)


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    x = torch.randn(400, 2)
    return x, (x[:, 0] * x[:, 1] > 0).long()


@pytest.fixture
def loader(data):
    return DataLoader(TensorDataset(*data), batch_size=64)


@pytest.fixture(scope="module")
def weights(data):
    """Of a network trained for two epochs."""
    torch.manual_seed(0)
    module, loader = Classifier(), DataLoader(TensorDataset(*data), batch_size=20)
    runner = trainer(max_epochs=2)
    runner.fit(module, loader, loader)
    assert len(module.losses) == 40 and sum(module.losses[-10:]) < 0.8 * sum(module.losses[:10])
    assert runner.callback_metrics["accuracy"] > 0.75 and runner.callback_metrics["information"] > 0
    return module.state_dict()


def load(weights, *args, **options):
    module = Classifier(*args, **options)
    module.load_state_dict(weights)
    return module


@pytest.mark.parametrize("inference_mode", [True, False], ids=["inference mode", "no grad"])
@pytest.mark.parametrize("shared_masks", [True, False], ids=["shared masks", "a mask for each input"])
def test_predict_stays_stochastic(weights, data, loader, inference_mode, shared_masks):
    method = st.MCDropout(50, shared_masks=shared_masks)
    module = load(weights, method)
    runner = trainer(inference_mode=inference_mode)
    first, again = (st.Categorical.concatenate(runner.predict(module, loader)) for _ in range(2))
    assert (first.samples.var(0).amin(-1) > 0).all()  # of every input, in every class
    assert (first.mutual_information() > 0).all() and len(first) == 400
    assert torch.equal(first.probs, again.probs)  # the same seed
    assert torch.equal(first.probs, st.predict(module.model, data[0], method, batch_size=64).probs)
    module.method = st.MCDropout(50, shared_masks=shared_masks, seed=1)
    other = st.Categorical.concatenate(runner.predict(module, loader))
    assert not torch.equal(first.probs, other.probs)
    assert (first.probs - other.probs).abs().mean() < 0.05


def test_by_hand_it_does_not(weights, loader):
    """Lightning calls eval(), which is what this library is for: ten passes of ten samples are the same."""
    samples = trainer().predict(load(weights, naive=True), loader)[0]
    assert torch.equal(samples, samples[:1].expand_as(samples))


@pytest.mark.parametrize("method", [st.Point(), st.ExactDropout(approximate=True), st.MCDropout(100)], ids=repr)
def test_the_restored_prior_in_inference_mode_too(weights, data, method):
    module = load(weights, method).eval()
    st.calibrate_prior(module.model, data[0])
    with torch.inference_mode():
        inside = st.predict(module.model, 10 * data[0], method)
    outside = st.predict(module.model, 10 * data[0], method)
    assert torch.equal(inside.probs, outside.probs)
    assert (outside.entropy() > st.predict(module.model, 10 * data[0], st.Point(restore_prior=False)).entropy()).any()


def test_batch_statistics_are_not_touched(weights, loader):
    module = load(weights, st.MCDropout(10))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer().predict(module, loader)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions(weights, data, loader, precision):
    """Half precision has 8 bits, so a probability is wrong by a few percent at most."""
    method = st.MCDropout(50)
    pred = st.Categorical.concatenate(trainer(precision=precision).predict(load(weights, method), loader))
    expected = st.predict(load(weights).model, data[0], method)
    assert (pred.mutual_information() > 0).float().mean() > 0.99
    difference = (pred.probs.double() - expected.probs.double()).abs().max()
    assert difference < (1e-5 if precision == "64-true" else 0.05)


def test_a_checkpoint_carries_the_calibrated_head(weights, data, loader, tmp_path):
    module = load(weights, st.MCDropout(10))
    st.calibrate_prior(module.model, data[0])
    runner = trainer(max_epochs=0)
    runner.fit(module, loader)
    runner.save_checkpoint(tmp_path / "model.ckpt")
    loaded = Classifier.load_from_checkpoint(tmp_path / "model.ckpt", method=st.MCDropout(10), weights_only=True)
    for x in (data[0], 100 * data[0]):
        expected = st.predict(module.model, x, st.MCDropout(10))
        assert torch.equal(st.predict(loaded.model, x, st.MCDropout(10)).probs, expected.probs)
    assert loaded.model[-1].restored_prior.known
