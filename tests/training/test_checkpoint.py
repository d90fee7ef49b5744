"""A training that was stopped continues as if it had not been, or says why it cannot."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from training_problems import QUICK, Noisy, assert_same, batchnorm, build_uci, classes, differ, loader, mlp

from stationary.training import train


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
