"""Radar emitters: what the simulator sends and the receiver hears, the network for it, and what the experiment says."""

import copy
import math
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import stationary as st
from stationary.lab.cli import app as cli
from stationary.lab.data import radar
from stationary.lab.data.radar import PATTERNS, EmitterLibrary, Pulses
from stationary.lab.experiments import networks, paper
from stationary.lab.experiments.radar import config as settings
from stationary.lab.experiments.radar import report as radar_report
from stationary.lab.experiments.radar import run as experiment
from stationary.lab.models import RadarCNN
from stationary.training import Training, train

LIBRARY = EmitterLibrary.generate(7, 3, spread=0.2, error=0.1)


def same(ours, theirs):
    names = [field.name for field in fields(ours)]
    return all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in names)


def by_hand(*cycle, jitter=0.0, interval=1024.0):
    """One emitter of one mode."""
    cycles = np.ones((1, 1, 64))
    cycles[0, 0, : len(cycle)] = cycle
    one = lambda value: np.full((1, 1), value)
    period = np.array([len(cycle)])
    return EmitterLibrary(
        np.array([0]), one(5000.0), one(2.0), one(interval), one(jitter), cycles, period, spread=0.0, error=0.0
    )


def gaps_of(pulses):
    """The intervals of each sample."""
    return [np.diff(times[:count]) for times, count in zip(pulses.times, pulses.count, strict=True)]


def not_rejected(test):
    """A right simulator fails one time in a million."""
    return test.pvalue > 1e-6


# Simulator: what it gives


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: EmitterLibrary.generate(7, 3, seed, spread=0.2),
        lambda seed: LIBRARY.similar(7, seed),
        lambda seed: LIBRARY.different(7, seed),
        lambda seed: LIBRARY.simulate(2, 3, seed),
        lambda seed: LIBRARY.draw(30, 3, seed),
    ],
    ids=["generate", "similar", "different", "simulate", "draw"],
)
def test_the_seed_decides(make):
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    assert same(make(1), make(1))
    one, two = make(1), make(2)
    assert not np.array_equal(one.frequency, two.frequency) and not np.array_equal(one.width, two.width)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_shapes_and_order_of_pulses():
    n = 7 * 3 * 11 * 4
    pulses = LIBRARY.simulate(4)
    assert len(pulses) == n and pulses.times.shape == (n, 250)
    for name in ("frequency", "width", "count", "emitter", "mode", "noise"):
        assert getattr(pulses, name).shape == (n,), name
    for name in ("frequency", "width", "times"):
        assert getattr(pulses, name).dtype == np.float64 and np.isfinite(getattr(pulses, name)).all(), name
    for name in ("count", "emitter", "mode", "noise"):
        assert getattr(pulses, name).dtype == np.int64, name
    assert pulses.count.min() >= 25 and pulses.count.max() <= 250
    assert (pulses.times[:, 0] == 0).all()
    assert all((gaps > 0).all() for gaps in gaps_of(pulses))
    assert all((times[count:] == 0).all() for times, count in zip(pulses.times, pulses.count, strict=True))


def test_simulate_has_everything_equally_often():
    pulses = LIBRARY.simulate(2, 4)
    counts = np.zeros((7, 3, 4), int)
    np.add.at(counts, (pulses.emitter, pulses.mode, pulses.noise), 1)
    assert (counts == 2).all()


def test_draw_is_uniform():
    pulses = LIBRARY.draw(5000)
    for name, first, n in (("emitter", 0, 7), ("mode", 0, 3), ("noise", 0, 11), ("count", 25, 226)):
        counts = np.bincount(getattr(pulses, name) - first, minlength=n)
        assert len(counts) == n and counts.min() > 0 and not_rejected(stats.chisquare(counts)), name
    pairs = np.bincount(pulses.emitter * 33 + pulses.mode * 11 + pulses.noise, minlength=231)
    assert not_rejected(stats.chisquare(pairs)), "and independent"


def test_pieces_of_the_work_are_those_of_their_emitters(monkeypatch):
    monkeypatch.setattr(radar, "CHUNK", 7)  # of which 50 is no multiple
    library = replace(LIBRARY, cycle=np.ones((7, 3, 64)), jitter=np.zeros((7, 3)), error=0.0)
    pulses = library.draw(50, 1)
    for row, gaps in enumerate(gaps_of(pulses)):
        mode = pulses.emitter[row], pulses.mode[row]
        np.testing.assert_allclose(gaps, library.interval[mode], rtol=1e-9)
        assert (pulses.frequency[row], pulses.width[row]) == (library.frequency[mode], library.width[mode])


def test_rows_of_pulses():
    pulses = LIBRARY.draw(20)
    rows = np.array([3, 17, 4])
    some = pulses[rows]
    assert isinstance(some, Pulses) and len(some) == 3
    assert all(np.array_equal(getattr(some, f.name), getattr(pulses, f.name)[rows]) for f in fields(pulses))
    assert same(pulses[5:7], pulses[np.array([5, 6])])
    assert some.targets().dtype == torch.int64 and some.targets().tolist() == pulses.emitter[rows].tolist()


# Simulator: patterns without noise


@pytest.mark.parametrize("cycle", [(1.0,), (0.5, 1.5), (0.75, 0.75, 1.5), tuple(np.linspace(0.5, 1.5, 64))])
def test_a_pattern_begins_anywhere_and_repeats(cycle):
    starts = set()
    for gaps in gaps_of(by_hand(*cycle).simulate(400, 1)):
        turns = [np.roll(cycle, -k) for k in range(len(cycle))]
        fits = [k for k, turn in enumerate(turns) if np.allclose(gaps, 1024 * np.resize(turn, len(gaps)), rtol=1e-9)]
        assert len(fits) == 1
        starts.update(fits)
    assert starts == set(range(len(cycle)))  # all 64 with probability 0.9; the seed is one with which they are


def test_jitter_is_uniform():
    gaps = np.concatenate(gaps_of(by_hand(1.0, jitter=0.25).simulate(40, 1)))
    assert not_rejected(stats.kstest(gaps / 1024, stats.uniform(0.75, 0.5).cdf))
    with_pattern = by_hand(0.5, 1.5, jitter=0.1).simulate(1, 1)
    for gaps in gaps_of(with_pattern):
        places = np.where(gaps < 1024, 0.5, 1.5)
        assert (np.abs(gaps / (1024 * places) - 1) <= 0.1 + 1e-9).all() and (np.diff(places) != 0).all()


def clean(pattern):
    """(intervals in units of their mean, period, jitter) of samples without noise of generated emitters."""
    library = EmitterLibrary.generate(90, 2, seed=3, spread=0.1)
    pulses = library.simulate(2, 1)
    for row, gaps in enumerate(gaps_of(pulses)):
        emitter, mode = pulses.emitter[row], pulses.mode[row]
        if PATTERNS[library.pattern[emitter]] == pattern:
            yield gaps / library.interval[emitter, mode], library.period[emitter], library.jitter[emitter, mode]


def close(values, expected):
    return np.abs(values - expected) < 1e-9


def test_constant_intervals():
    samples = list(clean("constant"))
    assert len(samples) == 15 * 4
    assert all(close(gaps, 1).all() for gaps, *_ in samples)


def test_jittered_intervals():
    for gaps, _, jitter in clean("jittered"):
        assert 0.03 < jitter < 0.5
        assert (np.abs(gaps - 1) <= jitter + 1e-9).all()
        assert 0.4 < np.abs(gaps - 1).mean() / (jitter / 2) < 1.6, "6 sigma of 24 intervals: 0.7"


def test_staggered_intervals():
    for gaps, period, _ in clean("staggered"):
        assert 2 <= period <= 8
        assert close(gaps[period:], gaps[:-period]).all() and not close(gaps[1:], gaps[:-1]).any()
        assert len(np.unique(gaps.round(9))) == period and close(gaps[:period].mean(), 1)


def test_intervals_that_dwell_and_switch():
    for gaps, period, _ in clean("dwell and switch"):
        switches = np.flatnonzero(~close(gaps[1:], gaps[:-1])) + 1
        if len(switches) < 2:
            continue  # too few pulses for a whole dwell
        (dwell,) = set(np.diff(switches).tolist())
        assert 4 <= dwell <= 12 and 2 <= period / dwell <= 5
        assert close(gaps[period:], gaps[:-period]).all()
        if len(gaps) >= period:
            assert len(np.unique(gaps.round(9))) == period / dwell and close(gaps[:period].mean(), 1)


def test_sliding_intervals():
    directions = set()
    for gaps, period, _ in clean("sliding"):
        assert 8 <= period <= 64
        steps = np.diff(gaps)
        slope = np.median(steps)
        jumps = np.flatnonzero(~close(steps, slope))
        assert (np.diff(jumps) == period).all() and len(jumps) >= len(steps) // period
        assert close(steps[jumps], -slope * (period - 1)).all()
        directions.add(np.sign(slope))
    assert directions == {-1, 1}


def test_wobulated_intervals():
    for gaps, period, _ in clean("wobulated"):
        angle = 2 * np.pi * np.arange(len(gaps)) / period
        waves = np.stack([np.ones_like(angle), np.sin(angle), np.cos(angle)], 1)
        (mean, *sides), *_ = np.linalg.lstsq(waves, gaps, rcond=None)
        assert 8 <= period <= 64 and close(mean, 1)
        assert close(gaps, waves @ [mean, *sides]).all()
        assert 0.03 < np.hypot(*sides) < 0.6


# Simulator: noise


@pytest.mark.parametrize("levels", [11, 3, 1])
def test_pulses_are_missed_and_false_ones_heard(levels):
    """In the 80 intervals after the first true pulse, in which are about 80 arrivals and never 200."""
    pulses = by_hand(1.0).simulate(6000 // levels, levels)
    for level in range(levels):
        rows = np.flatnonzero((pulses.noise == level) & (pulses.count >= 200))
        heard, false = [], []
        for times in pulses.times[rows, :200]:
            values, counts = np.unique((times % 1024).round(5) % 1024, return_counts=True)
            true = np.abs((times - values[counts.argmax()] + 512) % 1024 - 512) < 1e-3
            after = times - times[true][0]
            assert after[-1] > 80 * 1024
            inside = (after > 1e-3) & (after < 80 * 1024 + 1e-3)
            heard.append((inside & true).sum()), false.append((inside & ~true).sum())
        share, slots = level / max(1, levels - 1) / 2, 80 * len(rows)
        assert sum(heard) / slots == pytest.approx(1 - share, abs=5 * math.sqrt(share * (1 - share) / slots))
        assert sum(false) / slots == pytest.approx(share, abs=5 * math.sqrt(share / slots))


def test_errors_of_frequency_and_width_are_log_normal():
    library = EmitterLibrary.generate(20, 4, spread=0.1, error=0.3)
    pulses = library.draw(20_000)
    mode = pulses.emitter, pulses.mode
    errors = [np.log(pulses.frequency / library.frequency[mode]), np.log(pulses.width / library.width[mode])]
    for error in errors:
        assert error.std() == pytest.approx(0.3, rel=5 / math.sqrt(2 * len(pulses)))
        assert not_rejected(stats.kstest(error / 0.3, "norm"))
    assert abs(np.corrcoef(errors)[0, 1]) < 5 / math.sqrt(len(pulses))
    exact = replace(library, error=0.0).draw(100)
    assert (exact.frequency == library.frequency[exact.emitter, exact.mode]).all()
    assert (exact.width == library.width[exact.emitter, exact.mode]).all()


# Simulator: emitters


def parameters(library):
    return library.frequency, library.width, library.interval


def test_emitters_are_log_uniform_and_patterns_take_turns():
    library = EmitterLibrary.generate(2000, 1, spread=0.0)
    assert (library.n_emitters, library.n_modes, library.spread, library.error) == (2000, 1, 0.0, 0.05)
    for values, (low, high) in zip(parameters(library), ((2e3, 12e3), (0.2, 20), (200, 2000)), strict=True):
        share = (np.log(values.ravel()) - math.log(low)) / math.log(high / low)
        assert not_rejected(stats.kstest(share, "uniform"))
    assert sorted(np.bincount(library.pattern)) == [333] * 4 + [334] * 2
    assert (library.pattern[:12] != np.arange(12) % 6).any(), "not in the order of their numbers"
    jittered = library.pattern == PATTERNS.index("jittered")
    assert ((library.jitter[:, 0] > 0) == jittered).all()
    assert not_rejected(stats.kstest(library.jitter[jittered, 0], stats.uniform(0.05, 0.25).cdf))


def test_modes_differ_by_the_spread():
    """The same seed without a spread gives the middle of the modes."""
    modes, middle = (EmitterLibrary.generate(300, 8, seed=1, spread=spread) for spread in (0.1, 0.0))
    waved = np.isin(middle.pattern, [PATTERNS.index("staggered"), PATTERNS.index("wobulated")])  # of small depth
    jittered = middle.pattern == PATTERNS.index("jittered")
    place = np.abs(middle.cycle - 1).argmax(2, keepdims=True)
    depths = [np.take_along_axis(library.cycle - 1, place, 2)[waved, :, 0] for library in (modes, middle)]
    pairs = [*zip(parameters(modes), parameters(middle), strict=True), depths]
    pairs.append((modes.jitter[jittered], middle.jitter[jittered]))
    normal = [np.log(mode / centre).ravel() / 0.1 for mode, centre in pairs]
    for values in normal:
        assert len(values) >= 400
        assert values.std() == pytest.approx(1, abs=5 / math.sqrt(2 * len(values)))
        assert not_rejected(stats.kstest(values, "norm"))
    assert np.abs(np.corrcoef(normal[:3]) - np.eye(3)).max() < 5 / math.sqrt(2400)


def test_patterns_stay_patterns_however_deep():
    library = EmitterLibrary.generate(60, 20, spread=1.0)
    assert library.cycle.min() == 0.05 and all((gaps > 0).all() for gaps in gaps_of(library.simulate(1, 1)))


@pytest.mark.parametrize("distance", [0.0, 3.0])
def test_similar_emitters_are_near_one_that_is_known(distance):
    """The means of 400 modes are known to 0.005; five times that, for each of the two that are compared."""
    known = EmitterLibrary.generate(24, 400, seed=3, spread=0.1, error=0.2)
    other = known.similar(24, 1, distance=distance)
    assert (other.n_modes, other.spread, other.error) == (400, 0.1, 0.2)
    centres = [np.log(np.stack(parameters(library))).mean(2) for library in (other, known)]
    moves = centres[0][:, :, None] - centres[1][:, None, :]  # (parameter, other, known)
    alike = (np.abs(np.abs(moves) - 0.1 * distance) < 0.035).all(0)
    alike &= (other.pattern[:, None] == known.pattern) & (other.period[:, None] == known.period)
    assert (alike.sum(0) == 1).all() and (alike.sum(1) == 1).all(), "each is like one, and no two like the same"
    like = alike.argmax(1)
    cycle, known_cycle = other.cycle.mean(1), known.cycle.mean(1)[like]
    place = known_cycle.argmax(1)[:, None]
    deep = known.period[like] > 1
    depth = [np.take_along_axis(c - 1, place, 1)[deep, 0] for c in (cycle, known_cycle)]
    jittered = known.jitter[like, 0] > 0
    jitter = [library.jitter.mean(1) for library in (other, replace(known, jitter=known.jitter[like]))]
    steps = [np.log(depth[0] / depth[1]), np.log(jitter[0][jittered] / jitter[1][jittered])]
    for step in steps:
        assert (np.abs(np.abs(step - 0.005) - 0.1 * distance) < 0.035).all()  # 0.005: E e^(0.1 z) = e^0.005
    if distance:
        every = np.concatenate([moves[:, alike].ravel(), *steps])
        assert abs((every > 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(len(every))


def test_similar_emitters_can_be_more_than_the_known_ones():
    assert LIBRARY.similar(30).n_emitters == 30 and LIBRARY.similar(2).n_emitters == 2


def test_different_emitters_are_outside_of_what_is_known():
    known = EmitterLibrary.generate(200, 2, spread=0.0, error=0.2)
    other = known.different(200)
    assert (other.n_emitters, other.n_modes, other.spread, other.error) == (200, 2, 0.0, 0.2)
    bounds = ((14e3, 18e3), (40, 100), (4e3, 10e3))
    for values, ours, (low, high) in zip(parameters(other), parameters(known), bounds, strict=True):
        assert ours.max() < low <= values.min() and values.max() <= high
    assert known.different(6, 1).spread == 0 and LIBRARY.different(6).spread == 0.2


COUNTS = (0, -1, 2.0, True, "3")
SIZES = (-0.1, math.nan, math.inf)


@pytest.mark.parametrize(
    ("call", "name", "values"),
    [
        (EmitterLibrary.generate, "n_emitters", COUNTS),
        (EmitterLibrary.generate, "n_modes", COUNTS),
        (EmitterLibrary.generate, "spread", SIZES),
        (EmitterLibrary.generate, "error", SIZES),
        (LIBRARY.similar, "n_emitters", COUNTS),
        (LIBRARY.similar, "distance", SIZES),
        (LIBRARY.different, "n_emitters", COUNTS),
        (LIBRARY.simulate, "samples_per_mode", COUNTS),
        (LIBRARY.simulate, "noise_levels", COUNTS),
        (LIBRARY.draw, "n_samples", COUNTS),
        (LIBRARY.draw, "noise_levels", COUNTS),
    ],
)
def test_bad_arguments_are_named(call, name, values):
    rest = {"n_samples": 5} if call == LIBRARY.draw else {}
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name} must be .*, got {value!r}; use "):
            call(**rest | {name: value})


# What a network sees


def test_inputs_by_hand():
    pulses = LIBRARY.draw(40)
    pulses.count[:2] = 25, 250
    pulses.times[0, 25:] = 0
    pulses.times[1] = np.arange(250) ** 1.5
    pulses.times[1, 1:4] = 0.5, 0.5, 0.5001  # two at once, as near as measured
    x = pulses.inputs()
    assert x.shape == (40, 502) and x.dtype == torch.float32 and x.isfinite().all()
    scaled = lambda value, centre, deviation: math.log(max(value, 1e-3) / centre) / deviation
    for row, times, count, frequency, width in zip(
        x, pulses.times, pulses.count, pulses.frequency, pulses.width, strict=True
    ):
        gaps = [scaled(b - a, 600, 1.0) for a, b in pairwise(times[:count])]
        empty = [0.0] * (250 - len(gaps))
        expected = [scaled(frequency, 5000, 0.5), scaled(width, 2, 1.3), *gaps, *empty, *[1.0] * len(gaps), *empty]
        torch.testing.assert_close(row, torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert (x[:, 252:].sum(1).numpy() == pulses.count - 1).all()
    assert (x[:, 2:252][x[:, 252:] == 0] == 0).all()


# The network

PULSES = LIBRARY.draw(24, seed=1)
PULSES.count[:2] = 25, 250
X, Y = PULSES.inputs(), PULSES.targets()


def network(n_classes=7, **options):
    torch.manual_seed(0)
    return RadarCNN(n_classes, **options)


def test_the_network_is_148_120_c():
    model = network(9, activation="relu", dropout=0.3)
    assert model.features(X).shape == (24, 148) and model(X).shape == (24, 9)
    shapes = {name: tuple(value.shape) for name, value in model.head.named_parameters()}
    assert shapes == {
        "hidden.weight": (120, 148), "hidden.bias": (120,), "output.weight": (9, 120), "output.bias": (9,),
    }  # fmt: skip
    assert isinstance(model.head, st.StationaryHead) and model.head.dropout.p == 0.3
    model.eval()
    torch.testing.assert_close(model(X), model.head.output(model.head.hidden(model.features(X)).relu()))
    assert network(9, hidden=33).head.output.in_features == 33


def test_masked_places_do_not_matter():
    model = network().eval()
    empty = X[:, 252:] == 0
    other = X.clone()
    other[:, 2:252][empty] = torch.randn(int(empty.sum())) * 100
    assert empty.any() and torch.equal(model(other), model(X))
    last = X.clone()
    last[torch.arange(24), PULSES.count] += 0.1  # 2 scalars, then count - 1 intervals
    assert (last != X).nonzero()[:, 1].sub(2).tolist() == (PULSES.count - 2).tolist()
    assert (model.features(last) != model.features(X)).any(1).all(), "the last interval does"


def test_samples_do_not_see_each_other():
    model = network().double().eval()
    x = X.double()
    alone = torch.cat([model(row[None]) for row in x])
    torch.testing.assert_close(model(x), alone)
    order = torch.randperm(24)
    torch.testing.assert_close(model(x[order]), alone[order])
    assert (alone.std(0) > 1e-3).all()


def test_mean_and_maximum_are_over_real_places():
    """With weights that hand the intervals on, both are those of every eighth interval, normalised."""
    model = network().double()
    for block in model.blocks:
        for p in block.second.parameters():
            p.data.zero_()  # only the skip connection is left
        if isinstance(block.skip, torch.nn.Conv1d):
            block.skip.weight.data.zero_(), block.skip.bias.data.zero_()
            block.skip.weight.data[0, 0, 0] = 1
    model.stem.weight.data.zero_(), model.stem.bias.data.zero_()
    model.stem.weight.data[0, 0, 3] = 1  # the interval itself
    model.norm.weight.data.fill_(0.1), model.norm.bias.data.fill_(1)  # which empty places would have, too
    features = model.features(X.double()).detach().numpy()
    below = 0
    for row, x, count in zip(features, X.double().numpy(), PULSES.count, strict=True):
        group = np.zeros((16, 32))  # channels and places that are normalised together
        seen = x[2 : count + 1 : 8]
        group[0, : len(seen)] = seen
        normal = np.maximum(1 + 0.1 * (group - group.mean()) / np.sqrt(group.var() + 1e-5), 0)
        own = normal[0, : len(seen)]
        np.testing.assert_allclose(row[[0, 64]], [own.mean(), own.max()])
        below += len(seen) < 32 and own.max() < normal[0, -1]
    assert below, "a maximum over empty places would be seen"


def test_gradients_reach_every_parameter():
    model = network()
    torch.nn.functional.cross_entropy(model(X), Y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_the_network_predicts():
    model = network()
    sampled, exact = (st.predict(model, X, method) for method in (st.MCDropout(5), st.ExactDropout()))
    for pred in (sampled, exact):
        assert pred.probs.shape == (24, 7) and (pred.output_variance > 0).all()
        torch.testing.assert_close(pred.probs.sum(1), torch.ones(24))
    many = st.predict(model, X, st.MCDropout(4000))
    tolerance = (5 * exact.output_variance / 4000).sqrt() * 5
    assert ((many.output_mean - exact.output_mean).abs() < tolerance).all()
    assert torch.equal(st.predict(model, X, st.MCDropout(5)).probs, sampled.probs)


def test_members_in_lockstep_are_those_alone():
    build = lambda: RadarCNN(7).double()
    training = Training(epochs=1, batch_size=10)
    together = train(build, (X.double(), Y), training, n_members=2)
    for k, member in enumerate(together):
        (alone,) = train(build, (X.double(), Y), replace(training, seed=k))
        for name, value in member.state_dict().items():
            torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-9, atol=1e-9)
    assert not torch.equal(together[0].stem.weight, together[1].stem.weight)


@pytest.mark.parametrize("shape", [(4, 501), (4, 2, 502), (502,), (4, 252)])
def test_inputs_of_a_wrong_shape_are_named(shape):
    with pytest.raises(ValueError, match=r"x must be of shape \(n, 502\), got \(.*\); Pulses.inputs\(\) makes it"):
        network()(torch.zeros(shape))


# The experiment

TINY = settings.Config(n_emitters=5, n_modes=2, samples_per_mode=1, n_test=150, epochs=2, n_samples=5)
ROWS = {
    ("matern52", "NN"): {"matern52", "matern52 restored"},
    ("relu", "NN"): {"relu"},
    ("matern52", "ensemble"): {"matern52 ensemble"},
    ("relu", "SWAG"): {"relu SWAG"},
    ("matern52", "infinite width"): {"matern52 infinite width"},
}
SCORES = ("", " std", " mutual_information", " max_probability", " energy")
QUANTITIES = {"ACC known", "NLPD known", "ECE known", "ACC by noise", "NLPD by noise", "edges"}
QUANTITIES |= {f"{m} {g}{s}" for m in ("AUROC", "FPR95") for g in ("similar", "different") for s in SCORES}
QUANTITIES |= {
    f"{name} {group}"
    for name in ("entropy", "mean entropy", "mean mutual information", "example")
    for group in settings.GROUPS
}


@pytest.fixture(scope="module")
def double():
    """In double precision, so that seeds together and alone differ by rounding; and with few members, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        inputs, build = Pulses.inputs, experiment.build
        patch.setattr(Pulses, "inputs", lambda self: inputs(self).double())
        patch.setattr(experiment, "build", lambda config: build(config).double())
        patch.setattr(experiment, "ENSEMBLE", 2)
        patch.setattr(experiment, "SWAG", partial(st.SWAG, n_samples=4))
        experiment.simulated.cache_clear()
        yield
    experiment.simulated.cache_clear()


def row(key):
    """A row of the tables; those of ReLU run in make slow: one as Matérn's without a restored prior, one by SWAG."""
    return pytest.param(key, id=" ".join(key), marks=pytest.mark.slow if key[0] == "relu" else ())


@pytest.fixture(scope="module", params=[row(key) for key in ROWS])
def ran(request, double):
    prior, method = request.param
    epochs = 4 if method == "SWAG" else TINY.epochs  # it collects two networks in the second half
    config = replace(TINY, prior=prior, method=method, seeds=(3, 1), epochs=epochs)
    return config, experiment.run(config), ROWS[request.param]


@pytest.fixture(scope="module")
def data(double):
    """Training inputs and targets, and the three groups, from the simulator itself."""
    library = EmitterLibrary.generate(5, 2, seed=0, spread=TINY.spread, error=TINY.error)
    training = library.simulate(1, 11, seed=1)
    known = library.draw(150, seed=3)
    unknown = library.similar(5, 4).draw(150, seed=4), library.different(5, 5).draw(150, seed=5)
    return (training.inputs(), training.targets()), dict(zip(settings.GROUPS, (known, *unknown), strict=True))


@pytest.mark.parametrize("scale", ["smoke", "demo", "paper"])
def test_configurations(scale):
    grid = settings.configs(scale)
    assert len(set(grid)) == len(grid)
    assert all(len(config.seeds) == 1 for config in grid)
    assert list(dict.fromkeys(config.prior for config in grid))[:2] == ["relu", "matern52"]
    assert {config.method for config in grid} <= experiment.METHODS.keys()
    for config in grid:
        model = experiment.build(config)
        assert model.head.out_features == config.n_emitters and model.head.dropout.p == config.dropout


def test_configurations_of_the_paper():
    grid = settings.configs("paper")
    seeds = {}
    for config in grid:
        assert config == settings.Config(config.prior, config.method, config.seeds), "all else is as it is given"
        seeds.setdefault((config.prior, config.method), []).extend(config.seeds)
    assert all(of == list(range(5)) for of in seeds.values())
    assert list(seeds)[:2] == [("relu", "NN"), ("matern52", "NN")]
    assert {(prior, method) for prior in ("relu", "matern52") for method in ("NN", "ensemble", "SWAG")} <= seeds.keys()
    assert [row for row in seeds if row[1] == "infinite width"] == [
        (f"matern{nu}", "infinite width") for nu in (52, 32)
    ]
    config = settings.Config()
    assert (config.n_emitters, config.n_modes, config.samples_per_mode, config.n_test) == (100, 10, 5, 10_000)
    assert (config.epochs, config.batch_size, config.learning_rate, config.dropout) == (7, 50, 0.01, 0.2)
    assert (config.n_samples, config.lengthscale, experiment.ENSEMBLE) == (100, 1.0, 5)


def test_what_a_run_gives(ran):
    config, arrays, rows = ran
    assert set(arrays) == {f"{row}: {quantity}" for row in rows for quantity in QUANTITIES}
    for name, values in arrays.items():
        assert len(values) == 2 and np.isfinite(values).all(), name
        quantity = name.split(": ")[1]
        if quantity.startswith("entropy"):
            assert values.shape == (2, 40) and (values.sum(1) == config.n_test).all()
        elif quantity == "edges":
            np.testing.assert_allclose(values, [np.linspace(0, math.log(5), 41)] * 2)
        elif not quantity.startswith("example"):
            assert values.shape == ((2, 11) if quantity.endswith("by noise") else (2,)), name
    for row in rows:
        assert arrays[f"{row}: NLPD known"][0] != arrays[f"{row}: NLPD known"][1]


def test_seeds_together_are_the_seeds_alone(ran):
    """The first one; the second is below."""
    config, together, _ = ran
    alone = experiment.run(replace(config, seeds=config.seeds[:1]))
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert len(value) == 1
        rounded = 0.01 if name.endswith("mutual_information") else 1e-9  # differences of equal numbers
        np.testing.assert_allclose(together[name][0], value[0], rtol=1e-6, atol=rounded, err_msg=name)


def predictions(config, seed, data, groups, scored=False):
    """By row and group, of networks that are trained here."""
    build = lambda: RadarCNN(
        5, activation=networks.activation(paper.Prior(config.prior), 1.0, code_scale=True), dropout=0.2
    ).double()
    training = Training(epochs=config.epochs, batch_size=50, learning_rate=0.01)
    fit = lambda seed: train(build, data, replace(training, seed=seed))[0]
    every = lambda model, method=None: {name: st.predict(model, x.inputs(), method) for name, x in groups.items()}
    if config.method == "SWAG":
        return {f"{config.prior} SWAG": every(st.fit(st.SWAG(4, start=0.5), build, data, replace(training, seed=seed)))}
    if config.method == "ensemble":
        return {f"{config.prior} ensemble": every(st.Ensemble().posterior([fit(seed + 1000 * k) for k in range(2)]))}
    model = fit(seed)
    if config.method == "infinite width":
        validation = EmitterLibrary.generate(5, 2, seed=0, spread=TINY.spread, error=TINY.error).draw(150, seed=2)
        held = validation.inputs(), validation.targets()
        posterior = st.InfiniteWidth("matern52").posterior(model, data, validation=held)
        return {"matern52 infinite width": every(posterior.untempered() if scored else posterior)}
    rows = {config.prior: every(model, st.MCDropout(5))}
    if config.prior == "matern52":
        rows["matern52 restored"] = every(st.calibrate_prior(model, data[0]), st.MCDropout(5))
    return rows


def test_a_run_is_what_one_computes_oneself(ran, data):
    config, arrays, rows = ran
    training, groups = data
    found = predictions(config, config.seeds[1], training, groups)
    assert found.keys() == rows
    for row, preds in found.items():
        get = lambda name: arrays[f"{row}: {name}"][1]
        probs = {group: pred.probs.numpy() for group, pred in preds.items()}
        y, noise = groups["known"].emitter, groups["known"].noise
        right, losses = probs["known"].argmax(1) == y, -np.log(probs["known"][np.arange(150), y])
        assert get("ACC known") == pytest.approx(right.mean())
        assert get("NLPD known") == pytest.approx(losses.mean(), rel=1e-6)
        counts = np.bincount(noise, minlength=11)
        for name, values in (("ACC", right), ("NLPD", losses)):
            levels = get(f"{name} by noise")
            assert (counts * levels).sum() / 150 == pytest.approx(get(f"{name} known"))
            np.testing.assert_allclose(levels, [values[noise == k].mean() for k in range(11)], rtol=1e-6)
        entropy = {group: -(p * np.log(p)).sum(1) for group, p in probs.items()}
        for group in settings.GROUPS:
            assert get(f"mean entropy {group}") == pytest.approx(entropy[group].mean(), rel=1e-6)
            np.testing.assert_array_equal(
                get(f"entropy {group}"), np.histogram(entropy[group], 40, (0, math.log(5)))[0]
            )
            information = entropy[group] - preds[group].expected_entropy().numpy()
            if config.method == "infinite width":  # at temperature 1, which its entropy is not at
                information = preds[group].mutual_information().numpy()
            assert get(f"mean mutual information {group}") == pytest.approx(information.mean(), rel=1e-5)
            check_example(get(f"example {group}"), groups[group], probs[group], entropy[group], information)
        truth = np.repeat([0, 1], 150)
        wide = config.method == "infinite width"
        preds = predictions(config, config.seeds[1], training, groups, scored=True)[row] if wide else preds
        for group in settings.GROUPS[1:]:
            both = [preds["known"], preds[group]]
            outputs = [
                pred.output_mean / (1 + math.pi / 8 * pred.output_variance).sqrt() if wide else pred.output_mean
                for pred in both
            ]
            scores = {
                "": [-(pred.probs * pred.probs.log()).sum(1).numpy() for pred in both],
                " max_probability": [1 - pred.probs.numpy().max(1) for pred in both],
                " std": [pred.output_variance.sqrt().mean(1).numpy() for pred in both],
                " energy": [-np.log(np.exp(z.numpy()).sum(1)) for z in outputs],
                " mutual_information": [pred.mutual_information().numpy() for pred in both],
            }
            for name, values in scores.items():
                expected = roc_auc_score(truth, np.concatenate(values))
                rounded = 0.01 if name == " mutual_information" else 1e-9
                assert get(f"AUROC {group}{name}") == pytest.approx(expected, abs=rounded), name


def check_example(example, pulses, probs, entropy, information):
    """It is the first sample of a noise level of at most 2."""
    emitter, count, H, MI, *rest = example
    place = next(i for i, level in enumerate(pulses.noise) if level <= 2)
    assert (emitter, count) == (pulses.emitter[place], pulses.count[place])
    assert entropy[place] == pytest.approx(H, rel=1e-5)
    assert information[place] == pytest.approx(MI, rel=1e-5, abs=1e-9)
    order = np.argsort(-probs[place])
    assert rest[:5] == order.tolist() and rest[5:10] == pytest.approx(probs[place][order].tolist())
    assert rest[10:] == pulses.times[place].tolist()


# The report


@pytest.fixture(scope="module")
def results():
    """One for each of two seeds and networks, and one that says it is of an ensemble."""
    experiment.simulated.cache_clear()
    found = []
    for prior in ("relu", "matern52"):
        config = replace(TINY, prior=prior, seeds=(0, 1))
        arrays = experiment.run(config)
        for k in (0, 1):
            found.append((replace(config, seeds=(k,)), {name: values[k : k + 1] for name, values in arrays.items()}))
    own = {name.replace("52", "52 ensemble"): a for name, a in found[-1][1].items() if "restored" not in name}
    return [*found, (replace(TINY, method="ensemble"), own)]


@pytest.fixture(scope="module")
def section(results):
    return radar_report.report(results)


@pytest.fixture
def empty_figures(monkeypatch):
    """For tests of words and files: test_experiments.py draws the figures of a run."""
    for name in ("_histograms", "_examples", "_by_noise", "_patterns"):
        monkeypatch.setattr(radar_report, name, lambda *_: Figure())


def test_report(results, section):
    assert list(section.figures) == ["radar-entropy", "radar-examples", "radar-noise", "radar-patterns"]
    assert section.captions.keys() == section.figures.keys()
    keys = [(record["prior"], record["metric"]) for record in section.records]
    assert len(set(keys)) == len(keys)
    assert all(list(record) == ["prior", "metric", "mean", "std"] for record in section.records)
    by_key = dict(zip(keys, section.records, strict=True))
    metrics = ["ACC known", "NLPD known", "ACC known noise 0", "NLPD known noise 10"]
    metrics += [f"{metric} {group}" for metric in ("AUROC", "FPR95") for group in ("similar", "different")]
    assert {row for row, _ in keys} == {"relu", "matern52", "matern52 restored", "matern52 ensemble"}
    assert all((row, metric) in by_key for row, _ in keys for metric in metrics)
    both = np.array([arrays["relu: AUROC similar"][0] for _, arrays in results[:2]])
    found = by_key["relu", "AUROC similar"]
    assert (found["mean"], found["std"]) == pytest.approx((both.mean(), both.std()))
    last = [arrays["relu: ACC by noise"][0, 10] for _, arrays in results[:2]]
    assert by_key["relu", "ACC known noise 10"]["mean"] == pytest.approx(np.mean(last))
    assert by_key["matern52 ensemble", "ACC known"]["std"] is None


def test_tables_stand_beside_the_papers_numbers(results, section):
    first, second = section.tables
    names = ["ReLU", "Matérn-5/2", "Matérn-5/2 restored", "Matérn-5/2 ensemble"]
    assert [row[0] for row in first.rows] == [row[0] for row in second.rows] == names
    accuracy = [row[first.columns.index("ACC known")] for row in first.rows]
    assert [cell.paper and cell.paper.mean for cell in accuracy] == [0.593, 0.595, None, None]
    assert accuracy[0].mean == pytest.approx(np.mean([arrays["relu: ACC known"] for _, arrays in results[:2]]))
    assert "2 seeds" in first.caption and len(first.columns) == 8 and len(second.columns) == 9


def with_auroc(results, prior, values):
    """The results of a prior with these values of AUROC, for each seed."""
    given = next((config, arrays) for config, arrays in results if config.prior == prior)
    for seed, value in values.items():
        arrays = {name: copy.copy(a) for name, a in given[1].items()}
        for group in ("similar", "different"):
            arrays[f"{prior}: AUROC {group}"][:] = value
        yield replace(given[0], seeds=(seed,)), arrays


@pytest.mark.parametrize(
    ("relu", "verdict"),
    [
        (
            {0: 0.50, 1: 0.62, 2: 0.70},
            "difference is +0.100, .* positive in 3 of 3 seeds: the paper's claim holds here.",
        ),
        (
            {2: 0.70, 0: 0.50, 1: 0.62},
            "difference is +0.100, .* positive in 3 of 3 seeds: the paper's claim holds here.",
        ),
        ({1: 0.62, 2: 0.70}, "difference is +0.095, .* positive in 2 of 2 seeds"),
        ({1: 0.62}, "Matérn-5/2 is better by 0.090, in one seed, which says little."),
        ({5: 0.62}, "no seed has run with both."),
    ],
    ids=["all", "other order", "two of three", "one", "none"],
)
@pytest.mark.usefixtures("empty_figures")
def test_seeds_are_compared_with_themselves(results, relu, verdict):
    """Also where some have not run yet."""
    some = [*with_auroc(results, "relu", relu), *with_auroc(results, "matern52", {0: 0.61, 1: 0.71, 2: 0.80})]
    ours = radar_report.report(some).ours
    for group in ("Similar", "Different"):
        (text,) = [part for part in ours.split("\n\n") if part.startswith(group)]
        mean = np.mean(list(relu.values()))
        assert f"AUROC of the entropy 0.707 with Matérn-5/2 and {mean:.3f} with ReLU; " in text
        before, _, after = verdict.partition(" .* ")
        assert before in text and after in text


def test_one_network_alone_is_no_comparison(results):
    section = radar_report.report(results[:2])
    assert section.ours == "The paper's two networks have not both run."
    assert len(radar_report.report(results[-1:]).figures) == 4


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.10, 0.12, 0.09, 0.11, 0.08], "positive in 5 of 5 seeds: the paper's claim holds here"),
        ([-0.10, -0.12, -0.09, -0.11, -0.08], "positive in 0 of 5 seeds: here it is the other way round"),
        ([0.10, -0.12, 0.09, -0.02, 0.08], "positive in 3 of 5 seeds: not decided by these seeds"),
        ([-0.10, 0.12, -0.09, 0.02, -0.08], "positive in 2 of 5 seeds: not decided by these seeds"),
        ([0.02, 0.07], "positive in 2 of 2 seeds: not decided by these seeds"),
    ],
    ids=["better", "worse", "undecided", "undecided below", "two"],
)
def test_verdicts(differences, verdict):
    second = np.linspace(0.6, 0.8, len(differences))
    text = radar_report.compared(second + differences, second)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    numbers = (
        f"the difference is {np.mean(differences):+.3f}, with 95 % between {interval.low:+.3f} and {interval.high:+.3f}"
    )
    assert text == f"{numbers}, and {verdict}"
    assert ("holds" in verdict, "other way" in verdict) == (interval.low > 0, interval.high < 0)


@pytest.mark.parametrize(("difference", "word"), [(0.05, "better"), (-0.05, "worse")])
def test_one_seed_says_little(difference, word):
    text = radar_report.compared(np.array([0.7 + difference]), np.array([0.7]))
    assert text == f"Matérn-5/2 is {word} by 0.050, in one seed, which says little"


@pytest.mark.slow
@pytest.mark.usefixtures("empty_figures")
def test_from_the_command_line(tmp_path):
    experiment.simulated.cache_clear()
    options = "--scale", "smoke", "--method", "NN", "--out", str(tmp_path)
    invoke = lambda *arguments: CliRunner().invoke(cli.app, [*arguments, *options])
    first = invoke("run", "radar")
    assert first.exit_code == 0 and "2 done, 0 reused, 0 failed" in first.output, first.output
    assert "0 done, 2 reused, 0 failed" in invoke("run", "radar").output
    written = invoke("report", "radar")
    assert written.exit_code == 0, written.output
    page = (tmp_path / "report-radar-NN.html").read_text(encoding="utf-8")
    assert settings.TITLE in page and "Similar emitters: AUROC of the entropy" in page and page.count("<svg") == 4
    assert invoke("report", "radar", "--format", "csv").exit_code == 0
    assert (tmp_path / "radar-NN.csv").read_text(encoding="utf-8").startswith("prior,metric,mean,std")


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["NN", "ensemble", "SWAG"])
def test_on_a_gpu(method):
    """Seeds in lockstep, each step a CUDA graph: other random numbers, so the shapes are the claim."""
    config = replace(settings.configs("smoke")[1], method=method, seeds=(0, 1))
    arrays = experiment.run(config, "cuda")
    alone = experiment.run(replace(config, seeds=(0,)), "cpu")
    assert arrays.keys() == alone.keys()
    for name, values in arrays.items():
        assert values.shape[1:] == alone[name].shape[1:] and len(values) == 2, name
    accuracy = next(values for name, values in arrays.items() if name.endswith("ACC known"))
    assert (accuracy > 0.4).all(), "five emitters: chance is 0.2"


def test_too_few_emitters_are_named():
    with pytest.raises(ValueError, match=r"n_emitters must be at least 5.*got 4"):
        experiment.run(settings.Config(n_emitters=4))
