"""Members in lockstep equal each alone, to rounding; each draws, stops and keeps its own."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_problems import (
    QUICK,
    Noisy,
    assert_same,
    batchnorm,
    classes,
    convolutional,
    deep_dropout,
    differ,
    folds,
    learnable,
    line,
    loader,
    mlp,
    replay,
)

import stationary as st
from stationary.training import train, train_folds
from stationary.training._members import Trainees


@pytest.mark.parametrize("build", [mlp, deep_dropout, convolutional, learnable, batchnorm, Noisy])
@pytest.mark.parametrize(
    "options",
    [
        {},  # 90 = 5 * 16 + 10: the last batch is odd
        {"optimizer": "sgd", "nesterov": True, "weight_decay": 0.01, "milestones": (2, 4)},
        {"patience": 1, "learning_rate": 0.1, "epochs": 12, "validation_fraction": 0.3},
        {"batch_size": None},
    ],
    ids=["adam", "sgd", "patience", "full-batch"],
)
def test_lockstep_equals_alone(build, options):
    training, data = replace(QUICK, **options), classes()
    together = train(build, data, training, n_members=3)
    for k, member in enumerate(together):
        (alone,) = train(build, data, replace(training, seed=training.seed + k))
        assert_same(member, alone)
    assert differ(together[0], together[1])


def test_members_stop_one_by_one():
    """The case above has teeth only if the members' patience ends at different epochs, before the last."""
    training = replace(QUICK, patience=1, learning_rate=0.1, epochs=12, validation_fraction=0.3)
    epochs = [[], [], []]
    for seed, seen in enumerate(epochs):
        train(mlp, classes(), replace(training, seed=seed), progress=lambda epoch, *_: seen.append(epoch))
    ends = [seen[-1] for seen in epochs]
    assert len(set(ends)) > 1 and min(ends) < 12, ends


def test_lockstep_with_validation_data_and_weights():
    x, y = classes()
    weight = torch.rand(90, dtype=torch.float64) * (torch.arange(90) % 4 > 0)
    options = {"sample_weight": weight, "validation": classes(40)}
    training = replace(QUICK, patience=2, epochs=10)
    together = train(mlp, (x, y), training, n_members=2, **options)
    for k, member in enumerate(together):
        assert_same(member, train(mlp, (x, y), replace(training, seed=k), **options)[0])


class Scaled(nn.Module):
    """y = scale weight x: gradient descent is unstable for a large scale."""

    def __init__(self, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    def forward(self, x):
        return self.scale * self.weight * x


def test_a_member_that_has_stopped_may_diverge_without_harm():
    x, _ = line()
    scales = iter([100.0, 1.0])
    training = st.Training("mse", 300, None, "sgd", 0.05, momentum=0.0, patience=3)
    losses = []
    wild, tame = train(
        lambda: Scaled(next(scales)), (x, 2 * x), training, n_members=2, validation=(x, 2 * x),
        progress=lambda epoch, *_: losses.append(epoch),
    )  # fmt: skip
    assert tame.weight.item() == pytest.approx(2.0, rel=1e-6)
    assert wild.weight.isfinite() and len(losses) > 150  # (0.05 * 2e4)^150 is beyond the number range


def test_networks_that_need_their_own_pass_are_found():
    found = {}
    for build in (mlp, deep_dropout, learnable, batchnorm, Noisy):
        members = Trainees([build(), build()], [0, 1], torch.device("cpu"), QUICK)
        found[build.__name__] = members.run_as_one(classes()[0][:16])
    assert found == {"mlp": True, "deep_dropout": True, "learnable": True, "batchnorm": False, "Noisy": False}


def test_folds_are_members_with_their_own_data_and_network():
    x, y = folds()
    widths = [6, 7, 8]
    builds = [lambda width=width: st.MLP(3, 3, hidden=(width,)).double() for width in widths]
    together = train_folds(builds, list(zip(x, y, strict=True)), QUICK, seeds=range(3))
    for k, member in enumerate(together):
        assert_same(member, train(builds[k], (x[k], y[k]), replace(QUICK, seed=k))[0])


def test_diverged_members_are_kept_on_request():
    x = torch.ones(8, 1, dtype=torch.float64)
    training = st.Training(loss="mse", epochs=200, optimizer="sgd", momentum=0.0, learning_rate=0.1, batch_size=None)
    scales = iter((1.0, 1e3, 1.0, 1e3))
    build = lambda: Scaled(next(scales))
    tame, wild = train(build, (x, 2 * x), training, n_members=2, keep_diverged=True)
    assert tame.weight.item() == pytest.approx(2.0) and not wild.weight.isfinite()
    with pytest.raises(RuntimeError, match="no longer finite"):
        train(build, (x, 2 * x), training, n_members=2)


def test_dropout_drops_while_training_and_each_batch_anew():
    """With a linear network E[loss] has the penalty p/(1-p) sum w^2 x^2, so that dropout shrinks the weights."""
    x, y = line(200, noise=0.0)
    training = st.Training("mse", epochs=400, batch_size=50, learning_rate=0.01, milestones=(300,))
    drop = 0.5
    (model,) = train(lambda: nn.Sequential(nn.Dropout(drop), nn.Linear(1, 1)).double(), (x, y), training)
    # Normal equations of the loss averaged over masks: (E[x^2] / (1 - p)) w + E[x] b = E[x y], E[x] w + b = E[y].
    a = torch.tensor([[x.square().mean() / (1 - drop), x.mean()], [x.mean(), 1.0]], dtype=torch.float64)
    exact = torch.linalg.solve(a, torch.stack([(x * y).mean(), y.mean()]))
    assert model[1].weight.item() == pytest.approx(exact[0].item(), abs=0.01)  # ten times the spread over seeds
    assert exact[0] < 1.2  # far from the 2 without dropout


def test_patience_stops_and_restores_the_best():
    x, y = classes()
    held_out = classes(300)
    history, states = [], []
    training = replace(QUICK, epochs=100, learning_rate=0.1, patience=4)
    (model,) = train(
        mlp, (x[:30], y[:30]), training, validation=held_out,
        progress=lambda epoch, loss, watched: history.append((epoch, loss, watched)),
        observers=[lambda _, parameters, __: states.append({k: v.detach().clone() for k, v in parameters.items()})],
    )  # fmt: skip
    epochs, _, watched = zip(*history, strict=True)
    best = min(range(len(watched)), key=watched.__getitem__)
    assert epochs == tuple(range(1, best + 1 + 4 + 1)) and len(epochs) < 100
    assert all(torch.equal(p, states[best][name]) for name, p in model.named_parameters())
    assert F.cross_entropy(model(held_out[0]), held_out[1]).item() == pytest.approx(watched[best])


def test_held_out_rows_are_not_trained_on():
    """Each row is its own feature, so a weight moves only if its row was trained on."""
    x, y = torch.eye(20, dtype=torch.float64), torch.ones(20, 1, dtype=torch.float64)
    training = st.Training("mse", 3, 6, learning_rate=0.1, patience=10, validation_fraction=0.25)

    def build():
        model = nn.Linear(20, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        return model

    models = train(build, (x, y), training, n_members=3)
    moved = [model.weight[0] != 0 for model in models]
    assert [m.sum().item() for m in moved] == [15, 15, 15]
    assert not torch.equal(moved[0], moved[1])


def frozen(mode):
    """A pretrained trunk, whose parameters do not train, below a new layer that does."""
    torch.manual_seed(3)
    trunk = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)).requires_grad_(False)
    return nn.Sequential(trunk.train(mode), nn.Linear(8, 3)).double()


@pytest.mark.parametrize("way", ["alone", "lockstep", "replayed", "batches"])
def test_what_comes_in_eval_mode_stays_in_it(way):
    x, y = classes()
    options = {"n_members": 2} if way == "lockstep" else {"validation": (x, y)}
    for mode in (False, True):
        if way == "replayed" and not mode:
            networks, _ = replay([partial(frozen, mode)] * 2, [x, x], [y, y], QUICK)
        else:
            networks = train(partial(frozen, mode), loader(x, y) if way == "batches" else (x, y), QUICK, **options)
        for network in networks:
            assert differ(network[0], frozen(mode)[0]) == mode, "the statistics move in train mode alone"
            assert differ(network[1], frozen(mode)[1])


def test_networks_in_other_modes_train_alone():
    x, y = classes()
    builds = [partial(frozen, mode) for mode in (True, False)]
    moved, same = train_folds(builds, [(x, y)] * 2, QUICK, seeds=[0, 0])
    assert differ(moved[0], same[0]) and not differ(same[0], frozen(False)[0])


def test_best_weights_take_their_statistics_along():
    """Validation runs in eval mode, so that it neither sees nor changes the statistics of batches."""
    x, y = classes()
    watched = []
    training = replace(QUICK, epochs=30, learning_rate=0.1, patience=3)
    (model,) = train(batchnorm, (x, y), training, validation=(x, y), progress=lambda *report: watched.append(report[2]))
    best = min(range(len(watched)), key=watched.__getitem__)
    assert model[1].num_batches_tracked == 6 * (best + 1) and best < 29
    assert F.cross_entropy(model(x), y).item() == pytest.approx(watched[best])


def test_members_that_share_a_learnable_activation_learn_their_own():
    """``partial`` hands the same module to every network; each must train a copy, and leave the original alone."""
    shared = st.Matern(1.5, learnable=True)
    build = partial(st.StationaryHead, 3, 3, hidden=8, activation=shared)
    x, y = classes(dtype=torch.float32)
    together = train(build, (x, y), replace(QUICK, learning_rate=0.1), n_members=3)
    nus = [model.activation.nu.item() for model in together]
    assert len(set(nus)) == 3 and shared.nu.item() == pytest.approx(1.5)
    for k, nu in enumerate(nus):
        (alone,) = train(build, (x, y), replace(QUICK, learning_rate=0.1, seed=k))
        assert alone.activation.nu.item() == pytest.approx(nu, rel=1e-3)  # float32


def test_networks_that_differ_in_more_than_their_weights_train_alone():
    """One network stands for all in lockstep, so its activation and its dropout must be everybody's."""
    data = classes()
    builds = [lambda a=a, p=p: st.MLP(3, 3, hidden=(8,), activation=a, dropout=p).double() for a, p in
              (("matern12", 0.2), ("rbf", 0.2), ("rbf", 0.5))]  # fmt: skip
    builds.append(lambda: st.MLP(3, 3, hidden=(9,)).double())
    together = train_folds(builds, [data] * 4, QUICK, seeds=range(4))
    for k, member in enumerate(together):
        assert_same(member, train(builds[k], data, replace(QUICK, seed=k))[0])
