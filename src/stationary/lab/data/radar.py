"""Radar emitters, simulated: which transmitter sent these pulses, and is it one we know?

The paper's simulator is private. This one is ours, made from the paper's description of it: an emitter has a carrier
frequency, a pulse width and a pattern of pulse arrival times; it works in several modes, whose parameters differ a
little and overlap with those of other emitters. A receiver misses pulses, and hears others that are not there.

- **Carrier frequency** (MHz): of the wave that is sent.
- **Pulse width** (microseconds): how long each pulse lasts.
- **Pulse repetition interval**, PRI (microseconds): from the start of one pulse to that of the next. The pattern of
  these intervals is what tells emitters apart:

  - *constant*: always the same;
  - *jittered*: random around a mean, against jammers that predict the next pulse;
  - *staggered*: a few intervals in turn, pulse by pulse, against blind speeds;
  - *dwell and switch*: a few intervals in turn, each kept for several pulses;
  - *sliding*: growing (or shrinking) steadily, then back in one jump;
  - *wobulated*: a sine wave around the mean.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stationary.lab.data.cache import Array

PATTERNS = ("constant", "jittered", "staggered", "dwell and switch", "sliding", "wobulated")
KNOWN_RANGES = ((2_000.0, 12_000.0), (0.2, 20.0), (200.0, 2_000.0))  # carrier frequency, pulse width, mean PRI
DIFFERENT_RANGES = ((14_000.0, 18_000.0), (40.0, 100.0), (4_000.0, 10_000.0))
LONGEST = 64  # pulses, of a pattern before it repeats
FEWEST, MOST = 25, 250  # pulses in a sample
SENT, FALSE = 400, 200  # pulses sent while one sample is received, and false ones at the highest noise level
DROPPED = 0.5  # share of the pulses that are missed at the highest noise level
CHUNK = 4096  # samples at once
# What a network sees of frequency, width and gaps: their centre, and the deviation of the logarithm.
FEATURE_SCALES = ((5_000.0, 0.5), (2.0, 1.3), (600.0, 1.0))


@dataclass(frozen=True, eq=False)
class Pulses:
    """What a receiver has measured, one row for each sample, and what it came from.

    Args:
        frequency, width: (n,), in MHz and microseconds.
        times: (n, 250) arrival times in microseconds after the first pulse; 0 from ``count`` on.
        count: (n,) pulses, 25 to 250.
        emitter, mode, noise: (n,) numbers of them.
    """

    frequency: Array
    width: Array
    times: Array
    count: Array
    emitter: Array
    mode: Array
    noise: Array

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, rows: Any) -> "Pulses":
        return Pulses(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def inputs(self) -> Tensor:
        """(n, 502), for ``RadarCNN``: frequency and width, 250 intervals, and 250 times 1 where there is an interval.

        They are logarithms, centred and scaled by constants; where there is no interval there is a 0.
        """
        gaps = np.diff(self.times, axis=1, append=0)
        there = np.arange(MOST) < self.count[:, None] - 1
        logs = [
            np.log(np.maximum(values, 1e-3) / centre) / deviation
            for values, (centre, deviation) in zip((self.frequency, self.width, gaps), FEATURE_SCALES, strict=True)
        ]
        columns = [logs[0][:, None], logs[1][:, None], np.where(there, logs[2], 0.0), there]
        return torch.from_numpy(np.concatenate(columns, 1, dtype=np.float32))

    def targets(self) -> Tensor:
        return torch.from_numpy(self.emitter)


@dataclass(frozen=True, eq=False)
class EmitterLibrary:
    """Emitters and their modes; all arrays but ``pattern`` have one entry for each mode of each emitter.

    Args:
        pattern: (emitters,) numbers of ``PATTERNS``.
        frequency, width, interval: (emitters, modes), in MHz, microseconds and microseconds: the last is the mean PRI.
        jitter: (emitters, modes), the largest random change of an interval, relative to it.
        cycle: (emitters, modes, 64), intervals relative to their mean, one period of the pattern and then anything.
        period: (emitters,) pulses.
        spread: by how much modes differ, as the standard deviation of logarithms.
        error: of the receiver's frequencies and widths, likewise.
    """

    pattern: Array
    frequency: Array
    width: Array
    interval: Array
    jitter: Array
    cycle: Array
    period: Array
    spread: float
    error: float

    @classmethod
    def generate(
        cls,
        n_emitters: int = 100,
        n_modes: int = 10,
        seed: int = 0,
        *,
        spread: float = 0.1,
        error: float = 0.05,
        ranges: tuple[tuple[float, float], ...] = KNOWN_RANGES,
    ) -> "EmitterLibrary":
        """Emitters with parameters between the bounds ``ranges``, log-uniformly, and patterns in turn."""
        _check_counts(n_emitters=n_emitters, n_modes=n_modes)
        _check_sizes(spread=spread, error=error)
        rng = np.random.default_rng(seed)
        centre = np.stack([np.exp(rng.uniform(math.log(a), math.log(b), n_emitters)) for a, b in ranges])
        pattern = rng.permutation(np.arange(n_emitters) % len(PATTERNS))
        jitter, cycle, period = _patterns(pattern, rng)
        return cls._around(pattern, centre, jitter, cycle, period, n_modes, spread, error, rng)

    @classmethod
    def _around(
        cls, pattern: Array, centre: Array, jitter: Array, cycle: Array, period: Array,
        n_modes: int, spread: float, error: float, rng: np.random.Generator,
    ) -> "EmitterLibrary":  # fmt: skip
        """Modes around the emitters' parameters, ``centre``, (3, emitters); the depth of the pattern changes too."""
        factors = np.exp(spread * rng.standard_normal((5, len(pattern), n_modes)))
        frequency, width, interval = centre[:, :, None] * factors[:3]
        cycles = _deeper(cycle[:, None, :], factors[4][:, :, None])
        return cls(pattern, frequency, width, interval, jitter[:, None] * factors[3], cycles, period, spread, error)

    @property
    def n_emitters(self) -> int:
        return len(self.pattern)

    @property
    def n_modes(self) -> int:
        return self.frequency.shape[1]

    def similar(self, n_emitters: int = 100, seed: int = 0, *, distance: float = 3.0) -> "EmitterLibrary":
        """Other emitters, each like one of these, but for ``distance`` times the spread in each of its parameters."""
        _check_counts(n_emitters=n_emitters)
        _check_sizes(distance=distance)
        rng = np.random.default_rng(seed)
        like = rng.choice(self.n_emitters, n_emitters, replace=n_emitters > self.n_emitters)
        centre = np.exp([np.log(p[like]).mean(1) for p in (self.frequency, self.width, self.interval)])
        centre *= np.exp(distance * self.spread * rng.choice([-1, 1], centre.shape))
        depth = np.exp(distance * self.spread * rng.choice([-1, 1], (n_emitters, 1)))
        cycle = _deeper(self.cycle[like].mean(1), depth)
        jitter = self.jitter[like].mean(1) * depth[:, 0]
        known = self.pattern[like], centre, jitter, cycle, self.period[like]
        return self._around(*known, self.n_modes, self.spread, self.error, rng)

    def different(self, n_emitters: int = 100, seed: int = 0) -> "EmitterLibrary":
        """Other emitters, with frequencies, widths and intervals above the ranges of these; modes are around them."""
        return EmitterLibrary.generate(
            n_emitters, self.n_modes, seed, spread=self.spread, error=self.error, ranges=DIFFERENT_RANGES
        )

    def simulate(self, samples_per_mode: int = 5, noise_levels: int = 11, seed: int = 0) -> Pulses:
        """So many samples of each mode at each noise level; the levels go from 0, all pulses and no others, to 10."""
        _check_counts(samples_per_mode=samples_per_mode, noise_levels=noise_levels)
        shape = self.n_emitters, self.n_modes, noise_levels, samples_per_mode
        emitter, mode, noise, _ = (index.ravel() for index in np.indices(shape))
        return self._received(emitter, mode, noise, noise_levels, seed)

    def draw(self, n_samples: int, noise_levels: int = 11, seed: int = 0) -> Pulses:
        """Samples of random emitters, modes and noise levels, all equally probable."""
        _check_counts(n_samples=n_samples, noise_levels=noise_levels)
        choice = np.random.default_rng([seed, 1])
        emitter, mode, noise = (choice.integers(0, n, n_samples) for n in (self.n_emitters, self.n_modes, noise_levels))
        return self._received(emitter, mode, noise, noise_levels, seed)

    def _received(self, emitter: Array, mode: Array, noise: Array, noise_levels: int, seed: int) -> Pulses:
        rng = np.random.default_rng(seed)
        share = noise / max(1, noise_levels - 1)  # of the noise at the highest level
        parts = []
        for start in range(0, len(emitter), CHUNK):
            some = slice(start, start + CHUNK)
            parts.append(self._arrivals(emitter[some], mode[some], share[some], rng))
        times, count = (np.concatenate(part) for part in zip(*parts, strict=True))
        errors = np.exp(self.error * rng.standard_normal((2, len(emitter))))
        frequency, width = self.frequency[emitter, mode] * errors[0], self.width[emitter, mode] * errors[1]
        return Pulses(frequency, width, times, count, emitter, mode, noise)

    def _arrivals(self, emitter: Array, mode: Array, share: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Times from the first pulse on, (n, 250), and how many."""
        n, period = len(emitter), self.period[emitter][:, None]
        place = (rng.integers(0, period) + np.arange(SENT)) % period
        intervals = self.cycle[emitter[:, None], mode[:, None], place]
        intervals *= 1 + self.jitter[emitter, mode][:, None] * rng.uniform(-1, 1, (n, SENT))
        intervals *= self.interval[emitter, mode][:, None]
        sent = np.cumsum(intervals, 1)
        missed = rng.random((n, SENT)) < DROPPED * share[:, None]
        false = rng.random((n, FALSE)) * sent[:, -1:]
        absent = rng.random((n, FALSE)) >= share[:, None]
        times = np.concatenate([np.where(missed, np.inf, sent), np.where(absent, np.inf, false)], 1)
        times = np.sort(times, 1)[:, :MOST]
        count = rng.integers(FEWEST, MOST + 1, n)
        return np.where(np.arange(MOST) < count[:, None], times - times[:, :1], 0.0), count


def _patterns(pattern: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Jitter, relative intervals and period of each emitter."""
    jitter, cycle, period = np.zeros(len(pattern)), np.ones((len(pattern), LONGEST)), np.ones(len(pattern), int)
    for i, name in enumerate(PATTERNS[number] for number in pattern):
        one = np.ones(1)
        if name == "jittered":
            jitter[i] = rng.uniform(0.05, 0.3)
        elif name == "staggered":
            one = rng.uniform(0.7, 1.3, rng.integers(2, 9))
        elif name == "dwell and switch":
            one = rng.uniform(0.6, 1.4, rng.integers(2, 6)).repeat(rng.integers(4, 13))
        elif name == "sliding":
            one = 1 + rng.choice([-1, 1]) * rng.uniform(0.2, 0.6) * np.linspace(-1, 1, rng.integers(8, LONGEST + 1))
        elif name == "wobulated":
            length = rng.integers(8, LONGEST + 1)
            one = 1 + rng.uniform(0.05, 0.4) * np.sin(2 * np.pi * np.arange(length) / length)
        period[i] = len(one)
        cycle[i, : len(one)] = one / one.mean()
    return jitter, cycle, period


def _deeper(cycle: Array, factor: Array) -> Array:
    """A pattern whose distances from its mean are larger by a factor; an interval keeps a twentieth of it at least."""
    return np.maximum(1 + (cycle - 1) * factor, 0.05)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")


def _check_sizes(**sizes: float) -> None:
    for name, value in sizes.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
