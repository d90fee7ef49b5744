"""What there is to compute: forty small regressions."""

from dataclasses import dataclass

TITLE, REPRODUCES, VERSION, LOCKSTEP = "To be killed", "nothing", 1, None
DURATION = dict.fromkeys(("smoke", "demo", "paper"), "seconds")
N_CONFIGS = 40


@dataclass(frozen=True)
class Config:
    """One regression."""

    seed: int = 0
    hidden: int = 100
    n_points: int = 40_000


def configs(scale: str) -> list[Config]:
    return [Config(seed) for seed in range(N_CONFIGS)]
