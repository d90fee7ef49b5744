"""What a radar receiver hears: the six pulse patterns of the simulator, without noise and with much of it.

Each column is one emitter; each dot is the time between two pulses that the receiver has noticed. With noise it misses
pulses, which doubles intervals, and hears others that are not there, which cuts them.

    python examples/radar_pulses.py --out out/examples
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from stationary.lab.data.radar import PATTERNS, EmitterLibrary, Pulses
from stationary.lab.report import figures as plots

LEVELS = 11


def main(out: Path) -> None:
    library = EmitterLibrary.generate(n_emitters=len(PATTERNS), n_modes=1, seed=3)
    pulses = library.simulate(samples_per_mode=1, noise_levels=LEVELS, seed=0)
    print(f"{'pattern':18}{'MHz':>8}{'width':>8}{'mean PRI':>10}   spread of the intervals: quiet, noisy")
    for name, (quiet, noisy) in by_pattern(library, pulses).items():
        spreads = [np.std(gaps) / np.mean(gaps) for gaps in (intervals(quiet), intervals(noisy))]
        print(
            f"{name:18}{quiet.frequency[0]:>8.0f}{quiet.width[0]:>8.1f}{np.mean(intervals(quiet)):>10.0f}"
            f"{spreads[0]:>30.2f}{spreads[1]:>7.2f}"
        )
    draw(by_pattern(library, pulses)).savefig(out / "radar_pulses.png", dpi=150)


def by_pattern(library: EmitterLibrary, pulses: Pulses) -> dict[str, tuple[Pulses, Pulses]]:
    """For each pattern the sample at noise level 0 and at level 5."""
    found = {}
    for emitter in np.argsort(library.pattern):
        levels = [pulses[(pulses.emitter == emitter) & (pulses.noise == level)] for level in (0, 5)]
        found[PATTERNS[library.pattern[emitter]]] = (levels[0], levels[1])
    return found


def intervals(sample: Pulses) -> Any:
    """Microseconds from pulse to pulse, of the only row."""
    return np.diff(sample.times[0, : sample.count[0]])


def draw(samples: dict[str, tuple[Pulses, Pulses]]) -> Any:
    figure, axes = plots.panels(2, len(samples), width=13, height=4)
    for column, (name, pair) in zip(axes.T, samples.items(), strict=True):
        for ax, sample, color in zip(column, pair, plots.COLORS, strict=False):
            gaps = intervals(sample)[:100]
            ax.plot(gaps, ".", ms=3, color=color)
            ax.set(ylim=(0, 3 * np.mean(intervals(pair[0]))))
        column[0].set_title(name)
        column[1].set_xlabel("pulse")
    axes[0, 0].set_ylabel("interval (µs), no noise")
    axes[1, 0].set_ylabel("interval (µs), level 5")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out)
