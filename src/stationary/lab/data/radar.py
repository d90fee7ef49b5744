"""Radar emitters, simulated: which transmitter sent these pulses, and is it one we know?

The paper's simulator is private. This one is ours and follows the paper's description: an emitter has a carrier
frequency, a pulse width and a pattern of pulse arrival times; it works in several modes, whose parameters differ a
little and overlap with those of other emitters. A receiver misses pulses, and hears others that are not there.

- **Carrier frequency** (MHz): the frequency of the wave that is sent.
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
LONGEST = 64  # most pulses of a pattern before it repeats
FEWEST, MOST = 25, 250  # smallest and largest number of pulses in a sample
SENT, FALSE = 400, 200  # pulses sent while one sample is received, and false ones at the highest noise level
DROPPED = 0.5  # share of the pulses that the receiver misses at the highest noise level
CHUNK = 4096  # samples that are simulated at once
# For frequency, width and interval: the value whose logarithm becomes 0, and the deviation by which it is divided.
FEATURE_SCALES = ((5_000.0, 0.5), (2.0, 1.3), (600.0, 1.0))


@dataclass(frozen=True, eq=False)
class Pulses:
    """What a receiver has measured, one row for each of n samples, and which emitter it came from.

    Args:
        frequency: carrier frequency in MHz, (n,).
        width: pulse width in microseconds, (n,).
        times: arrival times in microseconds after the first pulse, (n, 250); 0 behind the last pulse of a sample.
        count: number of pulses of each sample, (n,), from 25 to 250.
        emitter: number of the emitter that sent each sample, (n,).
        mode: number of the emitter's mode, (n,).
        noise: noise level of each sample, (n,), where 0 is none.
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
        """Return the inputs (n, 502) of ``RadarCNN``: frequency, width, 250 intervals and a mask of 250 numbers.

        Frequency, width and intervals are logarithms, centred and scaled by constants. The mask is 1 where there is an
        interval; elsewhere the mask and the interval are 0.
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
        """Return the numbers of the emitters, (n,), which are the classes."""
        return torch.from_numpy(self.emitter)


@dataclass(frozen=True, eq=False)
class EmitterLibrary:
    """Emitters and their modes.

    Args:
        pattern: for each emitter the index of its pattern in ``PATTERNS``, (emitters,).
        frequency: carrier frequency of each mode in MHz, (emitters, modes).
        width: pulse width of each mode in microseconds, (emitters, modes).
        interval: mean pulse repetition interval of each mode in microseconds, (emitters, modes).
        jitter: largest random change of an interval, relative to the interval, (emitters, modes).
        cycle: intervals relative to their mean, (emitters, modes, 64): one period of the pattern; later entries are
            not used.
        period: number of pulses after which the emitter's pattern repeats, (emitters,).
        spread: standard deviation of the logarithms of the parameters between the modes of an emitter.
        error: standard deviation of the receiver's error in the logarithms of frequency and width.
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
        """Draw random emitters; the six patterns are equally frequent, up to one emitter.

        Args:
            n_emitters: number of emitters.
            n_modes: number of modes of each emitter.
            seed: seed of the random numbers.
            spread: standard deviation of the logarithms of the parameters between the modes of an emitter.
            error: standard deviation of the receiver's error in the logarithms of frequency and width.
            ranges: lower and upper bound of carrier frequency, pulse width and mean interval, between which the
                emitters' parameters are log-uniform; those of modes may lie a little beyond.
        """
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
        """Draw modes around the emitters' parameters ``centre``, (3, emitters); the patterns' depths vary too."""
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
        """Draw other emitters, each similar to one of these.

        Args:
            n_emitters: number of emitters.
            seed: seed of the random numbers.
            distance: by how many times ``spread`` the logarithm of each parameter is moved, up or down.
        """
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
        """Draw other emitters, whose frequencies, widths and intervals are above the ranges ``KNOWN_RANGES``.

        Args:
            n_emitters: number of emitters.
            seed: seed of the random numbers.
        """
        return EmitterLibrary.generate(
            n_emitters, self.n_modes, seed, spread=self.spread, error=self.error, ranges=DIFFERENT_RANGES
        )

    def simulate(self, samples_per_mode: int = 5, noise_levels: int = 11, seed: int = 0) -> Pulses:
        """Simulate samples of every mode of every emitter at every noise level.

        Args:
            samples_per_mode: number of samples of each mode at each noise level.
            noise_levels: number of noise levels. At level 0 all pulses are received and no others; at the highest,
                half of them are missed and as many false ones are received.
            seed: seed of the random numbers.
        """
        _check_counts(samples_per_mode=samples_per_mode, noise_levels=noise_levels)
        shape = self.n_emitters, self.n_modes, noise_levels, samples_per_mode
        emitter, mode, noise, _ = (index.ravel() for index in np.indices(shape))
        return self._received(emitter, mode, noise, noise_levels, seed)

    def draw(self, n_samples: int, noise_levels: int = 11, seed: int = 0) -> Pulses:
        """Simulate samples of random emitters, modes and noise levels, all equally probable.

        Args:
            n_samples: number of samples.
            noise_levels: number of noise levels, as in ``simulate``.
            seed: seed of the random numbers.
        """
        _check_counts(n_samples=n_samples, noise_levels=noise_levels)
        choice = np.random.default_rng([seed, 1])
        emitter, mode, noise = (choice.integers(0, n, n_samples) for n in (self.n_emitters, self.n_modes, noise_levels))
        return self._received(emitter, mode, noise, noise_levels, seed)

    def _received(self, emitter: Array, mode: Array, noise: Array, noise_levels: int, seed: int) -> Pulses:
        rng = np.random.default_rng(seed)
        share = noise / max(1, noise_levels - 1)  # relative to the highest noise level
        parts = []
        for start in range(0, len(emitter), CHUNK):
            some = slice(start, start + CHUNK)
            parts.append(self._arrivals(emitter[some], mode[some], share[some], rng))
        times, count = (np.concatenate(part) for part in zip(*parts, strict=True))
        errors = np.exp(self.error * rng.standard_normal((2, len(emitter))))
        frequency, width = self.frequency[emitter, mode] * errors[0], self.width[emitter, mode] * errors[1]
        return Pulses(frequency, width, times, count, emitter, mode, noise)

    def _arrivals(self, emitter: Array, mode: Array, share: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return arrival times after the first pulse, (n, 250), and the number of pulses, (n,)."""
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
    """Draw the jitter, the relative intervals and the period of each emitter."""
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
    """Multiply a pattern's distances from its mean by a factor; no interval falls below a twentieth of the mean."""
    return np.maximum(1 + (cycle - 1) * factor, 0.05)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}; use 1 or more")


def _check_sizes(**sizes: float) -> None:
    for name, value in sizes.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}; use 0 for none")
