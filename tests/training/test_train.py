"""The training loop: seeds, losses, optimizers, schedules and stops do what they say."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_problems import (
    FULL,
    QUICK,
    Noisy,
    Sampled,
    X,
    Y,
    assert_same,
    batchnorm,
    build_seeded,
    by_hand,
    classes,
    deep_dropout,
    differ,
    line,
    loader,
    mlp,
)

import stationary as st
from stationary.training import Group, train


@pytest.mark.parametrize("n_members", [1, 2])
def test_a_loss_of_the_networks_own(n_members):
    together = train(Sampled, classes(), replace(QUICK, loss="own"), n_members=n_members)
    (alone,) = train(Sampled, classes(), replace(QUICK, loss="own", seed=n_members - 1))
    assert_same(together[-1], alone)
    assert differ(alone, Sampled())


@pytest.mark.parametrize("n_members", [1, 2])
def test_bfloat16_trains_nearly_as_well(n_members):
    """8 bits: the outputs of a trained network differ by some per cent."""
    x, y = classes(dtype=torch.float32)
    build = lambda: st.MLP(3, 3, hidden=(12, 8), dropout=0.0)
    exact = train(build, (x, y), QUICK, n_members=n_members)
    rounded = train(build, (x, y), replace(QUICK, precision="bfloat16"), n_members=n_members)
    for a, b in zip(exact, rounded, strict=True):
        assert b(x).dtype == torch.float32
        error = (a(x) - b(x)).norm() / a(x).norm()
        assert 0 < error < 0.05


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize("hidden", [(8,), (12, 8)])
def test_networks_in_half_precision_train(n_members, hidden):
    x, y = classes(dtype=torch.float32)
    for network in train(lambda: st.MLP(3, 3, hidden=hidden).bfloat16(), (x, y), QUICK, n_members=n_members):
        assert network(x.bfloat16()).dtype == torch.bfloat16
        assert differ(network, build_seeded(lambda: st.MLP(3, 3, hidden=hidden).bfloat16()))


@pytest.mark.parametrize("n_members", [1, 2])
def test_training_has_gradients_also_where_the_caller_has_none(n_members):
    wanted = train(batchnorm, classes(), QUICK, n_members=n_members)
    with torch.no_grad():
        found = train(batchnorm, classes(), QUICK, n_members=n_members)
        assert not torch.is_grad_enabled()
    assert_same(found[-1], wanted[-1])


def test_groups_scale_rate_and_decay():
    training = st.Training(
        epochs=1, batch_size=None, optimizer="sgd", momentum=0.0, learning_rate=0.1, weight_decay=0.5
    )
    x, y = classes()
    build = lambda: mlp(dropout=0.0)
    before = dict(build_seeded(build).named_parameters())
    (plain,) = train(build, (x, y), replace(training, weight_decay=0.0))
    groups = (Group("head.output", rate=0.0), Group("head", decay=0.0), Group("trunk", rate=0.5))
    (grouped,) = train(build, (x, y), replace(training, groups=groups))
    plain, grouped = dict(plain.named_parameters()), dict(grouped.named_parameters())
    step = {name: plain[name] - before[name] for name in before}
    for name, value in grouped.items():
        if name.startswith("head.output"):
            expected = before[name]
        elif name.startswith("head"):
            expected = plain[name]
        else:
            expected = before[name] + 0.5 * (step[name] - 0.1 * 0.5 * before[name])
        torch.testing.assert_close(value, expected)
    with pytest.raises(ValueError, match="groups must have prefixes of parameter names, got 'tail'"):
        train(build, (x, y), replace(training, groups=(Group("tail"),)))


# Randomness


@pytest.mark.parametrize("build", [mlp, Noisy, batchnorm])
@pytest.mark.parametrize("n_members", [1, 2])
def test_global_random_state_is_untouched(build, n_members):
    before = torch.get_rng_state()
    train(build, classes(), replace(QUICK, epochs=2, patience=1, validation_fraction=0.2), n_members=n_members)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("build", [mlp, Noisy])
def test_seed_decides(build):
    runs = []
    for global_seed, seed in ((0, 5), (1, 5), (1, 6)):
        torch.manual_seed(global_seed)
        runs.append(train(build, classes(), replace(QUICK, seed=seed))[0])
    assert not differ(runs[0], runs[1]) and differ(runs[1], runs[2])


def test_initialisation_is_that_of_the_seed():
    (model,) = train(mlp, classes(), replace(QUICK, epochs=1, learning_rate=1e-12, seed=3))
    torch.manual_seed(3)
    assert_same(model, mlp(), rtol=1e-10)


OPTIMIZERS = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
    "nesterov": (
        {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.7, nesterov=True, weight_decay=0.1),
    ),
    "adam": ({"optimizer": "adam", "weight_decay": 0.1}, lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
}


@pytest.mark.parametrize(("options", "optimizer"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_by_hand(options, optimizer):
    build, training = lambda: mlp(dropout=0.0), replace(FULL, **options)
    assert_same(train(build, classes(), training)[0], by_hand(build, *classes(), training, F.cross_entropy, optimizer))


def test_mse_by_hand():
    x, y = classes()
    y = torch.stack([y, y.square(), 1 - y], 1).double()
    build, training = lambda: mlp(dropout=0.0), replace(FULL, loss="mse", learning_rate=0.01)
    assert_same(train(build, (x, y), training)[0], by_hand(build, x, y, training, F.mse_loss))


# Schedules and stops


def test_milestones_divide_the_learning_rate():
    rates = []
    training = replace(QUICK, epochs=6, milestones=(2, 5), learning_rate=0.1)
    observer = lambda epoch, _, optimizer: rates.append(optimizer.param_groups[0]["lr"])
    train(mlp, classes(), training, observers=[observer])
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.01, 0.001, 0.001])  # of the epoch to come


def test_milestone_changes_the_steps():
    """SGD on a constant gradient direction: after the milestone, steps of a tenth."""
    x = torch.ones(4, 1, dtype=torch.float64)
    seen = []
    training = st.Training("mse", 5, None, "sgd", 1e-6, momentum=0.0, milestones=(3,))
    train(
        lambda: nn.Linear(1, 1).double(), (x, 100 * x), training,
        observers=[lambda _, parameters, __: seen.append(parameters["weight"].item())],
    )  # fmt: skip
    steps = torch.tensor(seen).diff()
    assert (steps[2:] / steps[0]).tolist() == pytest.approx([0.1, 0.1], rel=1e-2)


def test_progress_reports_means_over_members():
    x, y = classes()
    training, seen = replace(FULL, epochs=3), []
    train(mlp, (x, y), training, n_members=2, validation=(x, y), progress=lambda *report: seen.append(report))
    alone = [[], []]
    for k in range(2):
        train(mlp, (x, y), replace(training, seed=k), validation=(x, y), progress=lambda *r: alone[k].append(r))
    for together, first, second in zip(seen, *alone, strict=True):
        assert together == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)])
    unwatched = []
    train(mlp, (x, y), replace(training, epochs=1), progress=lambda *report: unwatched.append(report))
    assert unwatched[0][2] is None


# Networks


def test_batchnorm_learns_its_statistics():
    x, y = classes()
    x = x * 3 + 5
    build = lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3)).double()
    (model,) = train(build, (x, y), replace(FULL, epochs=100))
    torch.testing.assert_close(model[0].running_mean, x.mean(0), rtol=1e-3, atol=0)  # 0.9^100 = 3e-5 is left of 0
    torch.testing.assert_close(model[0].running_var, x.var(0), rtol=1e-3, atol=0)
    assert model[0].num_batches_tracked == 100


def test_validation_without_patience_only_watches():
    training, watched = replace(QUICK, epochs=15, learning_rate=0.3), []
    (model,) = train(
        mlp, classes(), training, validation=classes(20), progress=lambda *report: watched.append(report[2])
    )
    assert watched != sorted(watched, reverse=True) and len(watched) == 15
    assert not differ(model, train(mlp, classes(), training)[0])


def test_networks_come_back_in_eval_mode_without_gradients():
    for n_members in (1, 2):
        for model in train(mlp, classes(), replace(QUICK, epochs=1), n_members=n_members):
            assert not any(module.training for module in model.modules())
            assert all(p.grad is None and p.is_leaf and p.requires_grad for p in model.parameters())
            assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.gpu
@pytest.mark.parametrize("build", [mlp, deep_dropout, batchnorm])
def test_on_gpu(build):
    x, y = (part.cuda() for part in classes())
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    training = replace(QUICK, patience=1, epochs=12, validation_fraction=0.2)
    together = train(build, (x, y), training, n_members=2)
    for k, member in enumerate(together):
        assert all(p.is_cuda for p in member.parameters())
        assert_same(member, train(build, (x, y), replace(training, seed=k))[0], rtol=1e-8)
    assert torch.equal(before[0], torch.get_rng_state()) and torch.equal(before[1], torch.cuda.get_rng_state())


@pytest.mark.parametrize("n_members", [1, 2])
def test_divergence_is_an_error(n_members):
    x, y = line()
    training = st.Training("mse", epochs=500, batch_size=None, optimizer="sgd", learning_rate=50.0)
    with pytest.raises(RuntimeError, match=r"no longer finite in epoch \d+ of 500; try a learning_rate below 50"):
        train(lambda: nn.Linear(1, 1).double(), (x, y), training, n_members=n_members)


def test_an_error_inside_the_network_is_shown_as_it_is():
    with pytest.raises(ValueError, match="x must have 3 features"):
        train(mlp, (X[:, :2], Y), QUICK, n_members=2)


@pytest.mark.parametrize("build", [mlp, batchnorm, Noisy])
def test_networks_are_built_once(build):
    built = []
    train(lambda: built.append(1) or build(), classes(), replace(QUICK, epochs=1), n_members=3)
    assert len(built) == 3


def test_one_cycle_and_label_smoothing_by_hand():
    x, y = classes()
    training = replace(FULL, epochs=8, schedule="one_cycle", warm_up=0.5, label_smoothing=0.1)
    build = lambda: mlp(dropout=0.0)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, 8, pct_start=0.5, cycle_momentum=False)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        optimizer.step()
        cycle.step()
    assert_same(train(build, (x, y), training)[0], model)
    assert_same(train(build, loader(x, y, 90), training)[0], model)


@pytest.mark.parametrize("epochs", [1, 3, 4, 5])
def test_one_cycle_of_few_steps(epochs):
    """A warm-up of just one step would make PyTorch's schedule divide by 0."""
    (model,) = train(mlp, classes(), replace(FULL, epochs=epochs, schedule="one_cycle"))
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_network_without_parameters_is_refused():
    with pytest.raises(ValueError, match="build must make a network with parameters"):
        train(nn.Identity, (X, X), replace(FULL, loss="mse"))
