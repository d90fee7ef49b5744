"""The training loop: lockstep equals alone, to rounding; weights, schedules and stops do what they say."""

import math
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stationary as st
from stationary.nn.masks import Noise
from stationary.training import Group, train, train_folds
from stationary.training._cuda_graph import Replayed, _Aligned, can_be_replayed
from stationary.training._members import Trainees
from stationary.training.data import Rows, checked
from stationary.training.train import _optimizer

QUICK = st.Training(epochs=6, batch_size=16, learning_rate=0.01)


def classes(n=90, dtype=torch.float64):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1)


def line(n=50, noise=0.1):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return x, 2 * x - 1 + noise * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def mlp(dropout=0.3):
    return st.MLP(3, 3, hidden=(12, 8), dropout=dropout).double()


def deep_dropout():
    """Dropout at several places, of several kinds, one of them called twice."""
    twice = nn.Dropout(0.1)
    layers = [nn.Linear(3, 8), nn.SELU(), nn.AlphaDropout(0.2), twice, nn.Linear(8, 8), st.Matern(), twice]
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


def convolutional():
    trunk = [nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 6, 3, padding=1), nn.ReLU(), nn.Dropout1d(0.3), nn.Flatten()]
    return nn.Sequential(*trunk, nn.Linear(18, 3)).double()


def learnable():
    """Scalar parameters, a frozen layer, a constant buffer and tied weights."""
    model = nn.Sequential(nn.Linear(3, 3), st.Matern(1.5, learnable=True), nn.Linear(3, 3), nn.Linear(3, 3)).double()
    model[0].requires_grad_(False)
    model[3].weight = model[2].weight
    model.register_buffer("constant", torch.ones(2))
    return model


class Noisy(nn.Module):
    """Draws random numbers of its own, which no one passes in."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3).double()

    def forward(self, x):
        return self.linear(F.dropout(x, 0.2, self.training))


def batchnorm():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def assert_same(a, b, rtol=1e-9):
    assert a.state_dict().keys() == b.state_dict().keys()
    for name, value in a.state_dict().items():
        torch.testing.assert_close(value, b.state_dict()[name], rtol=rtol, atol=rtol)


def differ(a, b):
    return any(not torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items() if v.is_floating_point())


# Lockstep


@pytest.mark.parametrize("build", [mlp, deep_dropout, convolutional, learnable, batchnorm, Noisy])
@pytest.mark.parametrize(
    "options",
    [
        {},  # 90 = 5 * 16 + 10: the last batch is odd
        {"optimizer": "sgd", "nesterov": True, "weight_decay": 0.01, "milestones": (2, 4)},
        {"patience": 1, "learning_rate": 0.1, "epochs": 12, "validation_fraction": 0.3},
        {"batch_size": None, "epochs": 20},
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


class Sampled(nn.Module):
    """A loss of its own, that needs noise: the mean over samples of what the outputs become with it."""

    def __init__(self):
        super().__init__()
        self.net, self.noise = mlp(), Noise(4)
        self.register_buffer("scale", torch.tensor(0.1, dtype=torch.float64))

    def losses(self, x, y):
        outputs = self.net(x)
        samples = outputs + self.scale * self.noise(outputs)
        return F.cross_entropy(samples.flatten(0, 1), y.repeat(4), reduction="none").view(4, -1).mean(0)


def folds():
    """Three sets of different sizes, all of six batches of 16."""
    return [classes(n)[0] + k for k, n in enumerate((90, 89, 92))], [classes(n)[1] for n in (90, 89, 92)]


def each(build, x, y, training):
    """A network for each set of data, with seeds of their own."""
    seeds = range(training.seed, training.seed + len(x))
    return train_folds([build] * len(x), list(zip(x, y, strict=True)), training, seeds=seeds)


def replay(builds, x, y, training):
    """What ``train`` does with folds on a GPU, without the graph."""
    parts = [checked(*one, training.loss) for one in zip(x, y, strict=True)]
    seeds = range(training.seed, training.seed + len(x))
    networks = [build_seeded(build, seed) for build, seed in zip(builds, seeds, strict=True)]
    members = Trainees(networks, seeds, torch.device("cpu"), training)
    assert can_be_replayed(members, x[0][:16])
    steps = Replayed(members, Rows.joined(parts), 16, capture=False)
    optimizer = _optimizer(training, members.parameters)
    losses = [steps.train(epoch, optimizer) for epoch in range(training.epochs)]
    return members.finished([{}] * len(x)), losses


@pytest.mark.parametrize("build", [mlp, convolutional, learnable, Sampled])
def test_replayed_folds_equal_each_fold_alone(build):
    """Masks come in another order than in the plain loop, so alone is replayed too."""
    training, (x, y) = replace(QUICK, loss="own" if build is Sampled else "cross_entropy"), folds()
    together, losses = replay([build] * 3, x, y, training)
    for k in range(3):
        alone, loss = replay([build], x[k : k + 1], y[k : k + 1], replace(training, seed=k))
        assert_same(together[k], alone[0])
        assert [epoch[k] for epoch in losses] == pytest.approx([epoch[0] for epoch in loss])


def test_replayed_equals_the_plain_loop():
    """Without dropout both draw the same order."""
    training, (x, y) = replace(QUICK, optimizer="sgd", learning_rate=0.1), folds()
    build = lambda: mlp(dropout=0.0)
    together, _ = replay([build] * 3, x, y, training)
    for a, b in zip(together, each(build, x, y, training), strict=True):
        assert_same(a, b)


def test_masks_of_a_replay_are_fresh_in_every_step(monkeypatch):
    """Also where only some steps are drawn ahead."""
    monkeypatch.setattr("stationary.training._cuda_graph.DRAWN_BYTES", 2 * 16 * 8)
    seen = []
    parts = [checked(*classes(), "cross_entropy")]
    members = Trainees([mlp()], [0], torch.device("cpu"), QUICK)
    steps = Replayed(members, Rows.joined(parts), 16, capture=False)
    assert steps.ahead == 2
    optimizer, inner = _optimizer(QUICK, members.parameters), steps._outputs

    def outputs(parameters, buffers, x):
        seen.append(steps.drawn[0][steps.number % steps.ahead])
        return inner(parameters, buffers, x)

    steps._outputs = outputs
    steps.train(1, optimizer)
    steps.train(2, optimizer)
    assert len(seen) == 12 and len({tuple(mask.flatten().tolist()) for mask in seen}) == 12
    assert torch.stack(seen).double().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / (12 * 16 * 8)) ** 0.5)


def test_a_dropout_that_is_called_twice_is_not_replayed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.dropout = nn.Linear(3, 8), nn.Linear(8, 3), nn.Dropout(0.5)

        def forward(self, x):
            return self.second(self.dropout(self.first(self.dropout(x))))

    members = Trainees([Twice(), Twice()], [0, 1], torch.device("cpu"), QUICK)
    assert not can_be_replayed(members, torch.zeros(4, 3))


def test_folds_are_members_with_their_own_data_and_network():
    x, y = folds()
    widths = [6, 7, 8]
    builds = [lambda width=width: st.MLP(3, 3, hidden=(width,)).double() for width in widths]
    together = train_folds(builds, list(zip(x, y, strict=True)), QUICK, seeds=range(3))
    for k, member in enumerate(together):
        assert_same(member, train(builds[k], (x[k], y[k]), replace(QUICK, seed=k))[0])


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_in", [3, 8])
def test_aligned_products_are_the_same(n_in, bias):
    linear = nn.Linear(n_in, 9, bias=bias).double()
    aligned, x = _Aligned(linear, torch.float64), torch.randn(5, n_in, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(aligned(x), linear(x))
    inputs = [x, *linear.parameters()]
    for a, b in zip(*(torch.autograd.grad(f(x).square().sum(), inputs) for f in (aligned, linear)), strict=True):
        torch.testing.assert_close(a, b)


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


def build_seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def test_diverged_members_are_kept_on_request():
    x = torch.ones(8, 1, dtype=torch.float64)
    training = st.Training(loss="mse", epochs=200, optimizer="sgd", momentum=0.0, learning_rate=0.1, batch_size=None)
    scales = iter((1.0, 1e3, 1.0, 1e3))
    build = lambda: Scaled(next(scales))
    tame, wild = train(build, (x, 2 * x), training, n_members=2, keep_diverged=True)
    assert tame.weight.item() == pytest.approx(2.0) and not wild.weight.isfinite()
    with pytest.raises(RuntimeError, match="no longer finite"):
        train(build, (x, 2 * x), training, n_members=2)


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


# What is minimised


def by_hand(build, x, y, training, loss, optimizer=None):
    """Full-batch training without dropout, as in any tutorial."""
    torch.manual_seed(training.seed)
    model = build()
    optimizer = optimizer or (lambda p: torch.optim.SGD(p, training.learning_rate, momentum=training.momentum))
    step = optimizer(model.parameters())
    for _ in range(training.epochs):
        step.zero_grad()
        loss(model(x), y).backward()
        step.step()
    return model


FULL = st.Training(epochs=30, batch_size=None, optimizer="sgd", learning_rate=0.05)
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


def test_integer_weights_are_repetitions():
    x, y = classes(30)
    times = torch.arange(30) % 3 + 1
    build = lambda: mlp(dropout=0.0)
    (weighted,) = train(build, (x, y), FULL, sample_weight=times.double())
    (repeated,) = train(build, (x.repeat_interleave(times, 0), y.repeat_interleave(times)), FULL)
    assert_same(weighted, repeated)
    assert differ(weighted, train(build, (x, y), FULL)[0])


@pytest.mark.parametrize("training", [FULL, QUICK], ids=["full-batch", "batches"])
def test_weight_zero_removes_the_row(training):
    x, y = classes(50)
    keep = torch.arange(50) % 5 > 0
    noise = x.clone()
    noise[~keep] = math.nan
    (weighted,) = train(batchnorm, (noise, y), training, sample_weight=keep.double())
    assert_same(weighted, train(batchnorm, (x[keep], y[keep]), training)[0])


def test_batch_losses_are_weighted_means():
    """Training a constant on weighted data: the weighted mean, whatever the scale of the weights."""
    x, y = line()
    weight = torch.rand(50, dtype=torch.float64)

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x):
            return self.value.expand(len(x), 1)

    training = st.Training("mse", epochs=200, batch_size=None, optimizer="sgd", learning_rate=0.1, momentum=0.0)
    for scale in (1.0, 1e-6, 1e6):
        (model,) = train(Constant, (x, y), training, sample_weight=scale * weight)
        assert model.value.item() == pytest.approx(((weight @ y) / weight.sum()).item())


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


def test_training_hashes_and_compares():
    assert hash(st.Training(milestones=(1, 2))) == hash(st.Training(milestones=(1, 2)))


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


@pytest.mark.gpu
@pytest.mark.parametrize("build", [mlp, deep_dropout, learnable, Sampled])
@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "nesterov": True, "milestones": (2, 4)}])
def test_folds_on_gpu(build, options):
    """Each step one CUDA graph: the same as without, and the same as each fold alone."""
    loss = "own" if build is Sampled else "cross_entropy"
    training = replace(QUICK, loss=loss, **options)
    x, y = ([part.cuda() for part in parts] for parts in folds())
    together = each(build, x, y, training)
    for k, member in enumerate(together):
        assert_same(member, train(build, (x[k], y[k]), replace(training, seed=k))[0], rtol=1e-8)
    assert differ(together[0], train(build, (x[0], y[0]), replace(training, seed=1))[0])


def build_uci(activation="matern32"):
    return st.MLP(3, 3, hidden=(20, 12, 9), activation=activation, dropout=0.2)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["matern32", "rbf", "relu", "sine"])
def test_fused_layers_train_like_plain_ones(activation, monkeypatch):
    """Masks and order are the same; what differs is rounding."""
    x, y = ([part.cuda().float() if part.is_floating_point() else part.cuda() for part in parts] for parts in folds())
    training = replace(QUICK, precision="bfloat16", weight_decay=1e-3, learning_rate=1e-3)
    build = lambda: build_uci(activation)
    fused = each(build, x, y, training)
    monkeypatch.setattr(import_module("stationary.training.train"), "has_triton", lambda: False)
    plain = each(build, x, y, training)
    for a, b, inputs in zip(fused, plain, x, strict=True):
        assert differ(a, b) and all(p.dtype == torch.float32 for p in a.parameters())
        assert (a(inputs) - b(inputs)).norm() / b(inputs).norm() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(3, 9), (16, 8), (54, 1000), (500, 50)])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", [(7,), (5, 4)])
def test_fused_linear_layer(widths, relu, shape):
    """Against float64 with the same rounded weights; bf16 has 8 bits, and long sums may be added up in it."""
    from stationary.training import _stacked_triton as stacked

    k, (n_in, n_out) = 3, widths
    models = [nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU() if relu else nn.Identity()).cuda() for _ in range(k)]
    parameters, _ = torch.func.stack_module_state(models)
    parameters = {name: p.detach().bfloat16().float() for name, p in parameters.items()}
    assert stacked.fuse(models[0]) == ["0"]
    copy = stacked.half_copy(parameters["0.weight"])
    bias = parameters["0.bias"].clone().requires_grad_()
    x = torch.randn(k, *shape, n_in, device="cuda").bfloat16().requires_grad_()
    run = torch.func.vmap(lambda w, b, x: torch.func.functional_call(models[0], {"0.weight": w, "0.bias": b}, (x,)))
    weight = torch.randn(k, *shape, n_out, device="cuda").bfloat16()
    y = run(copy, bias, x)
    found = y, *torch.autograd.grad((y * weight).sum(), (x, copy, bias))
    inputs = [t.detach().double().requires_grad_() for t in (x, parameters["0.weight"], bias)]
    exact = torch.einsum("k...i,koi->k...o", *inputs[:2]) + inputs[2].view(k, *[1] * len(shape), n_out)
    exact = exact.relu() if relu else exact
    expected = exact, *torch.autograd.grad((exact * weight).sum(), inputs)
    assert found[2].shape[1] % 8 == 0 and found[2].shape[2] % 8 == 0
    for a, b in zip((found[0], found[1], found[2][:, :n_out, :n_in], found[3]), expected, strict=True):
        assert (a.double() - b).norm() / b.norm() < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("c", [2, 7, 8, 33, 2000])
def test_fused_cross_entropy(c):
    from stationary.training import _stacked_triton as stacked

    outputs = (3 * torch.randn(3, 5, c, device="cuda")).bfloat16().requires_grad_()
    y, weight = torch.randint(c, (3, 5), device="cuda"), torch.rand(3, 5, device="cuda")
    losses = stacked.cross_entropy(outputs, y)
    exact = outputs.detach().double().requires_grad_()
    expected = F.cross_entropy(exact.flatten(0, 1), y.flatten(), reduction="none").view(3, 5)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad((losses * weight).sum(), outputs)
    (expected_grad,) = torch.autograd.grad((expected * weight).sum(), exact)
    torch.testing.assert_close(grad.double(), expected_grad, rtol=2**-8, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["matern12", "matern32", "matern52", "rbf"])
@pytest.mark.parametrize("width", [8, 13])
def test_fused_activation_and_dropout(activation, width):
    from stationary.training import _stacked_triton as stacked

    plain = st.activation(activation)
    model = nn.Sequential(plain, nn.Identity())
    assert stacked.fuse(model) == [] and isinstance(model[0], stacked.Activation)
    model[1] = stacked.Dropout(0.3)
    x = torch.randn(3, 5, width, device="cuda").bfloat16().requires_grad_()
    keep = torch.rand(3, 5, width, device="cuda") > 0.3
    y = torch.func.vmap(lambda x, keep: torch.func.functional_call(model, {"1.drawn": keep}, (x,)))(x, keep)
    exact = x.detach().double().requires_grad_()
    expected = plain(exact) * keep / 0.7
    torch.testing.assert_close(y.double(), expected, rtol=2**-6, atol=1e-6)  # rounded twice
    weight = torch.randn_like(y)
    (grad,), (expected_grad,) = (torch.autograd.grad((f * weight).sum(), t) for f, t in ((y, x), (expected, exact)))
    torch.testing.assert_close(grad.double(), expected_grad, rtol=2**-6, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fused_adam(decay):
    from stationary.training import _stacked_triton as stacked

    weight, bias = torch.randn(3, 9, 5, device="cuda"), torch.randn(3, 7, device="cuda")
    copy = stacked.half_copy(weight)
    own, reference = [[t.clone().requires_grad_() for t in (weight, bias)] for _ in range(2)]
    fused = stacked.Adam([{"params": own, "lr": 0.01, "weight_decay": decay}], {own[0]: copy})
    plain = torch.optim.Adam(reference, 0.01, weight_decay=decay)
    for _ in range(20):
        gradient = torch.randn(3, 16, 8, device="cuda").bfloat16()
        copy.grad, own[1].grad = gradient, torch.randn(3, 7, device="cuda")
        reference[0].grad, reference[1].grad = gradient[:, :9, :5].float(), own[1].grad
        fused.step()
        plain.step()
    for a, b in zip(own, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(copy.detach()[:, :9, :5], own[0].detach().bfloat16())
    assert not copy.detach()[:, 9:].any() and not copy.detach()[:, :, 5:].any()
    fused.zero_grad()
    assert copy.grad is None and own[1].grad is None


@pytest.mark.gpu
def test_graph_equals_plain_steps_on_gpu(monkeypatch):
    training = replace(QUICK, milestones=(2, 4), epochs=6)
    x, y = (part.cuda() for part in classes())
    build = lambda: mlp(dropout=0.0)
    (graph,) = train(build, (x, y), training)
    monkeypatch.setattr(import_module("stationary.training.train"), "can_be_replayed", lambda *_: False)
    (plain,) = train(build, (x, y), training)
    assert_same(graph, plain, rtol=1e-8)


# Errors


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", "nll"), ("epochs", 0), ("epochs", 2.5), ("batch_size", 0), ("batch_size", True), ("optimizer", "rms"),
        ("learning_rate", 0.0), ("learning_rate", math.inf), ("momentum", 1.0), ("momentum", math.nan),
        ("nesterov", True), ("weight_decay", -1.0), ("milestones", [10]), ("milestones", (0,)), ("patience", 0),
        ("validation_fraction", 1.0), ("precision", "float8"),
        ("groups", [Group("a")]), ("groups", ("a",)), ("seed", -1), ("seed", 0.5),
    ],
)  # fmt: skip
def test_bad_configuration(name, value):
    with pytest.raises(ValueError, match=f"{name} must be") as error:
        st.Training(**{name: value})
    assert repr(value) in str(error.value)


SAME, (X, Y) = mlp(), classes(8)
BAD_DATA = {
    "x and y must have the same number of rows.*8 and 7": {"y": Y[:7]},
    "at least one; got 0 and 0": {"x": X[:0], "y": Y[:0]},
    r"y must be class indices.*float64: use y.long\(\)": {"y": Y.double()},
    r"y must be class indices.*\(8, 1\)": {"y": Y[:, None]},
    "y must be class indices from 0, got -1": {"y": Y - 1},
    r"build must make networks that return a tensor \(n, 9 or more\).*class.*\(2, 3\)": {"y": Y + 8 - Y.max()},
    r"y must be real targets.*\(8,\).*y\[:, None\]": {"y": X[:, 0], "loss": "mse"},
    r"y must be real targets.*int64.*y.float\(\)": {"y": Y[:, None], "loss": "mse"},
    r"networks that return a tensor \(n, 2\).*target.*\(2, 3\)": {"y": X[:, :2], "loss": "mse"},
    "x must be finite, got NaN or infinity in row 3": {"x": X.index_fill(0, torch.tensor([3]), math.nan)},
    "y must be finite.*row 5": {"y": X.index_fill(0, torch.tensor([5]), math.inf), "loss": "mse"},
    r"sample_weight must be.*\(8,\); got shape \(7,\)": {"sample_weight": torch.ones(7)},
    "sample_weight must be.*from -1 to 6": {"sample_weight": torch.arange(8.0) - 1},
    "sample_weight must be.*from 0 to 0": {"sample_weight": torch.zeros(8)},
    "validation y must be class indices": {"validation": (X, X)},
    "validation x must be finite": {"validation": (X / 0, Y)},
    "n_members must be a positive integer, got 0": {"n_members": 0},
    r"return outputs of shape \(n, c\).*got tuple": {"build": lambda: Pair()},
    "validation_fraction must leave rows to train on, got 0.9 of 2 rows": {
        "x": X[:2],
        "y": Y[:2],
        "patience": 1,
        "validation_fraction": 0.9,
    },
    "build must return a fresh network": {"build": lambda: SAME, "n_members": 2},
}


class Pair(nn.Linear):
    def __init__(self):
        super().__init__(3, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(("message", "change"), BAD_DATA.items(), ids=BAD_DATA)
def test_bad_data(message, change):
    configuration = {k: change[k] for k in ("loss", "patience", "validation_fraction") if k in change}
    arguments = {"build": mlp, "x": X, "y": Y} | {k: v for k, v in change.items() if k not in configuration}
    arguments["data"] = arguments.pop("x"), arguments.pop("y")
    with pytest.raises(ValueError, match=message):
        train(**arguments, training=replace(QUICK, **configuration))


@pytest.mark.parametrize("n_members", [1, 2])
def test_divergence_is_an_error(n_members):
    x, y = line()
    training = st.Training("mse", epochs=500, batch_size=None, optimizer="sgd", learning_rate=50.0)
    with pytest.raises(RuntimeError, match=r"no longer finite in epoch \d+ of 500; try a learning_rate below 50"):
        train(lambda: nn.Linear(1, 1).double(), (x, y), training, n_members=n_members)


def test_an_error_inside_the_network_is_shown_as_it_is():
    with pytest.raises(ValueError, match="x must have 3 features"):
        train(mlp, (X[:, :2], Y), QUICK, n_members=2)


# Networks that share, data in batches, and training that continues


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


@pytest.mark.parametrize("build", [mlp, batchnorm, Noisy])
def test_networks_are_built_once(build):
    built = []
    train(lambda: built.append(1) or build(), classes(), replace(QUICK, epochs=1), n_members=3)
    assert len(built) == 3


def loader(x, y, size=16):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), size)


@pytest.mark.parametrize("n_members", [1, 2])
def test_batches_train_as_tensors_do(n_members):
    """One batch of all rows: the order does not matter."""
    x, y = classes()
    training, build = replace(FULL, epochs=5), lambda: mlp(dropout=0.0)
    for a, b in zip(
        train(build, loader(x, y, 90), training, n_members=n_members),
        train(build, (x, y), training, n_members=n_members),
        strict=True,
    ):
        assert_same(a, b)


def test_batches_by_hand():
    """Each batch is a step, in the order of the iterable; a mapping is a network's keyword arguments."""

    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3).double()

        def forward(self, values, scale):
            return self.linear(values * scale)

    x, y = classes()
    batches = [({"values": x[i::3], "scale": torch.full((30, 1), 2.0, dtype=torch.float64)}, y[i::3]) for i in range(3)]
    training = replace(FULL, epochs=2, learning_rate=0.1)
    (model,) = train(Keywords, batches, training)
    torch.manual_seed(0)
    by_hand = Keywords()
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.1, momentum=0.9)
    for inputs, labels in [*batches, *batches]:
        optimizer.zero_grad()
        F.cross_entropy(by_hand(**inputs), labels).backward()
        optimizer.step()
    assert_same(model, by_hand)


def test_validation_may_be_batches_too():
    seen = {}
    for name, validation in (("tensors", classes(40)), ("batches", loader(*classes(40)))):
        reports = seen[name] = []
        training = replace(QUICK, patience=2, epochs=10)
        train(mlp, loader(*classes()), training, validation=validation, progress=lambda *r: reports.append(r))
    assert [r[2] for r in seen["tensors"]] == pytest.approx([r[2] for r in seen["batches"]])


BAD_BATCHES = {
    "batch or the generator is used up|the iterable gave none": {"data": ((x, y) for x, y in [classes()])},
    r"data must give batches \(x, y\), got inputs without targets": {"data": [X]},
    "validation must be given for patience=1": {"data": [(X, Y)], "patience": 1},
    "sample_weight must be None where data are an iterable": {"data": [(X, Y)], "sample_weight": torch.ones(8)},
    r"must have a length for schedule='one_cycle'.*got map": {"data": map(tuple, [(X, Y)]), "schedule": "one_cycle"},
    r"build must make networks that return a tensor \(n, 9 or more\)": {"data": [(X, Y + 8 - Y.max())]},
}


@pytest.mark.parametrize(("message", "change"), BAD_BATCHES.items(), ids=BAD_BATCHES)
def test_bad_batches(message, change):
    configuration = {k: change[k] for k in ("patience", "schedule") if k in change}
    arguments = {k: v for k, v in change.items() if k not in configuration}
    with pytest.raises(ValueError, match=message):
        train(mlp, training=replace(QUICK, **configuration), **arguments)


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


def test_networks_that_differ_in_more_than_their_weights_train_alone():
    """One network stands for all in lockstep, so its activation and its dropout must be everybody's."""
    data = classes()
    builds = [lambda a=a, p=p: st.MLP(3, 3, hidden=(8,), activation=a, dropout=p).double() for a, p in
              (("matern12", 0.2), ("rbf", 0.2), ("rbf", 0.5))]  # fmt: skip
    builds.append(lambda: st.MLP(3, 3, hidden=(9,)).double())
    together = train_folds(builds, [data] * 4, QUICK, seeds=range(4))
    for k, member in enumerate(together):
        assert_same(member, train(builds[k], data, replace(QUICK, seed=k))[0])


def test_a_checkpoint_of_lockstep_is_not_for_networks_alone(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    with pytest.raises(Stopped):
        train(mlp, classes(), QUICK, n_members=2, checkpoint=path, progress=stop_after(3))
    monkeypatch.setattr(import_module("stationary.training.train"), "_alike", lambda _: False)
    with pytest.raises(ValueError, match="written by networks that train in lockstep, and here they train one after"):
        train(mlp, classes(), QUICK, n_members=2, checkpoint=path)


def test_what_rows_of_weight_0_hold_is_never_seen():
    """The padding of a batch repeats the last row, which may be one of them."""
    x, y = classes()
    weight = torch.ones(90, dtype=torch.float64)
    weight[-1], x[-1] = 0.0, math.nan
    rows = checked(x, y, "cross_entropy", weight)
    steps = Replayed(Trainees([mlp()], [0], torch.device("cpu"), QUICK), rows, 16, capture=False)
    losses = steps.train(1, _optimizer(QUICK, steps.members.parameters))
    assert math.isfinite(losses[0])


@pytest.mark.parametrize("epochs", [1, 3, 4, 5])
def test_one_cycle_of_few_steps(epochs):
    """A warm-up of just one step would make PyTorch's schedule divide by 0."""
    (model,) = train(mlp, classes(), replace(FULL, epochs=epochs, schedule="one_cycle"))
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_network_without_parameters_is_refused():
    with pytest.raises(ValueError, match="build must make a network with parameters"):
        train(nn.Identity, (X, X), replace(FULL, loss="mse"))
