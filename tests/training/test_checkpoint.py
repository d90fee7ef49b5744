"""A training that was stopped continues as if it had not been, or says why it cannot."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn
from training_problems import QUICK, Noisy, assert_same, batchnorm, build_uci, classes, differ, loader, mlp

import stationary as st
from stationary import _files
from stationary.training import _checkpoint, train

pytestmark = pytest.mark.usefixtures("kept_each_epoch")


class Stopped(Exception):  # noqa: N818
    pass


def stop_after(epoch):
    def progress(number, *_):
        if number == epoch:
            raise Stopped

    return progress


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "sgd", "milestones": (2, 4)},
        {"patience": 2, "epochs": 12, "learning_rate": 0.1},
        {"schedule": "one_cycle", "optimizer": "adamw"},
    ],
    ids=["adam", "sgd", "patience", "one cycle"],
)
@pytest.mark.parametrize(
    ("build", "n_members", "batches"),
    [(mlp, 1, False), (mlp, 3, False), (batchnorm, 2, False), (Noisy, 1, False), (mlp, 1, True)],
    ids=["one", "lockstep", "one by one", "own randomness", "batches"],
)
def test_a_training_that_was_stopped_continues(build, n_members, batches, options, tmp_path):
    """Stopped in its third epoch, and once more in the next, it ends with the same weights to the last bit."""
    training = replace(QUICK, **options)
    data = loader(*classes()) if batches else classes()
    arguments = {"n_members": n_members, "validation": classes(40), "training": training, "data": data}
    undisturbed = train(build, **arguments)
    path = tmp_path / "state.npz"
    for epoch in (3, 4):
        with pytest.raises(Stopped):
            train(build, **arguments, checkpoint=path, progress=stop_after(epoch))
    for a, b in zip(train(build, **arguments, checkpoint=path), undisturbed, strict=True):
        assert not differ(a, b)
    assert not list(tmp_path.glob(".*"))  # nothing half written


def test_a_finished_checkpoint_is_the_result(tmp_path):
    path, epochs = tmp_path / "state.npz", []
    (first,) = train(mlp, classes(), QUICK, checkpoint=path)
    (again,) = train(mlp, classes(), QUICK, checkpoint=path, progress=lambda epoch, *_: epochs.append(epoch))
    assert not differ(first, again) and epochs == [1, 2, 3, 4, 5, 6]  # what was reported is reported again


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    train(mlp, classes(), QUICK, checkpoint=path)
    for other, seeds in ((replace(QUICK, learning_rate=0.02), [0]), (QUICK, [1])):
        with pytest.raises(ValueError, match=r"checkpoint .*state.npz must belong to this training.*delete it"):
            train(mlp, classes(), other, seeds=seeds, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoint .*state.npz cannot be read.*delete it to start anew"):
        train(mlp, classes(), QUICK, checkpoint=path)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_graph_that_was_stopped_continues(precision, tmp_path):
    x, y = (part.cuda() for part in classes(dtype=torch.float32))
    training = replace(QUICK, precision=precision, milestones=(4,))
    undisturbed = train(build_uci, (x, y), training, n_members=2)
    with pytest.raises(Stopped):
        train(build_uci, (x, y), training, n_members=2, checkpoint=tmp_path / "s.npz", progress=stop_after(3))
    continued = train(build_uci, (x, y), training, n_members=2, checkpoint=tmp_path / "s.npz")
    for a, b in zip(continued, undisturbed, strict=True):
        assert_same(a, b, rtol=1e-5)


def test_a_checkpoint_of_lockstep_is_not_for_networks_alone(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    with pytest.raises(Stopped):
        train(mlp, classes(), QUICK, n_members=2, checkpoint=path, progress=stop_after(3))
    monkeypatch.setattr(import_module("stationary.training.train"), "_alike", lambda _: False)
    with pytest.raises(ValueError, match="written by networks that train in lockstep, and here they train one after"):
        train(mlp, classes(), QUICK, n_members=2, checkpoint=path)


# Observers

SWAG = st.SWAG(4, start=0.5, rank=2, learning_rate=1e-3)


@pytest.mark.parametrize(
    ("build", "n_folds", "batches"),
    [(mlp, 1, False), (mlp, 3, False), (Noisy, 2, False), (mlp, 1, True)],
    ids=["one", "lockstep", "one by one", "batches"],
)
@pytest.mark.parametrize("stops", [(2,), (4,), (2, 5)], ids=["before collecting", "while collecting", "both"])
def test_swag_that_was_stopped_continues(build, n_folds, batches, stops, tmp_path):
    """Stopped before or after the first weights are collected, it ends with the same posterior to the last bit."""
    data = [loader(*classes()) if batches else classes()] * n_folds
    arguments = {"build": build, "folds": data, "training": QUICK, "seeds": [*range(n_folds)]}
    undisturbed = st.fit_folds(SWAG, **arguments)
    path = tmp_path / "state.npz"
    for epoch in stops:
        with pytest.raises(Stopped):
            st.fit_folds(SWAG, **arguments, checkpoint=path, progress=stop_after(epoch))
    for a, b in zip(st.fit_folds(SWAG, **arguments, checkpoint=path), undisturbed, strict=True):
        assert not differ(a.networks[0], b.networks[0])
        assert torch.equal(a.variance, b.variance) and torch.equal(a.deviations, b.deviations)
        assert len(a.deviations) == 2, "more weights were collected than are kept"


def test_a_finished_swag_is_the_result(tmp_path):
    path = tmp_path / "state.npz"
    first, again = (st.fit(SWAG, mlp, classes(), QUICK, checkpoint=path) for _ in range(2))
    assert not differ(first.networks[0], again.networks[0]) and torch.equal(first.deviations, again.deviations)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (replace(SWAG, rank=3), "must come from a training for SWAG with the same rank, 3; it comes from 2"),
        (replace(SWAG, start=0.6), "the same first, 4; it comes from 3"),
        (replace(SWAG, learning_rate=None), "the same learning_rate, 0; it comes from 0.001"),
        (
            st.Point(),
            "from a training without an observer such as that of SWAG, as this one is; it comes from one with",
        ),
    ],
)
def test_a_checkpoint_of_another_observer_is_refused(other, problem, tmp_path):
    path = tmp_path / "state.npz"
    st.fit(SWAG, mlp, classes(), QUICK, checkpoint=path)
    with pytest.raises(ValueError, match=f"the checkpoint .*{problem}.*delete it"):
        st.fit(other, mlp, classes(), QUICK, checkpoint=path)


def test_a_checkpoint_without_an_observer_is_not_for_swag(tmp_path):
    path = tmp_path / "state.npz"
    st.fit(st.Point(), mlp, classes(), QUICK, checkpoint=path)
    with pytest.raises(ValueError, match=r"from a training with an observer .* it comes from one without"):
        st.fit(SWAG, mlp, classes(), QUICK, checkpoint=path)


def test_half_precision_comes_back_as_it_was(tmp_path):
    build = lambda: nn.Linear(3, 3).bfloat16()
    x, y = classes()
    arguments = (SWAG, build, (x.bfloat16(), y), QUICK)
    undisturbed = st.fit(*arguments)
    with pytest.raises(Stopped):
        st.fit(*arguments, checkpoint=tmp_path / "s.npz", progress=stop_after(5))
    continued = st.fit(*arguments, checkpoint=tmp_path / "s.npz")
    assert continued.deviations.dtype == torch.bfloat16 and torch.equal(continued.deviations, undisturbed.deviations)


# How often


def test_a_checkpoint_is_written_every_half_minute_and_at_the_end(tmp_path, monkeypatch):
    """By a clock that an epoch moves by 8 seconds, six epochs have two writes: after the fourth and the last."""
    clock, written = [0.0], []
    monkeypatch.setattr(_files.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(_files, "EVERY_S", 30.0)
    monkeypatch.setattr(_checkpoint, "write_checkpoint", lambda path, about, _: written.append(len(about["history"])))

    def tick(*_):
        clock[0] += 8.0

    def trained(**options):
        written.clear()
        train(mlp, classes(), QUICK, observers=[tick], checkpoint=tmp_path / "s.npz", **options)
        return written

    assert trained() == [4, 6]
    monkeypatch.setattr(_files, "BYTES_A_SECOND", 1.0)  # writing takes longer than a twentieth of the training
    assert trained() == []


def test_a_checkpoint_does_not_import_the_compiler(tmp_path):
    """Which takes longer than many a training, and which PyTorch's own ``state_dict`` of an optimizer imports."""
    program = f"""
        import sys, torch, stationary as st
        x = torch.randn(20, 3)
        data = x, (x[:, 0] > 0).long()
        build = lambda: st.MLP(3, 2, hidden=(4,))
        st.fit(st.Point(), build, data, st.Training(epochs=300), checkpoint={str(tmp_path / "s")!r})
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)
    assert (tmp_path / "s").exists()
