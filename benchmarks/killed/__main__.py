"""``stationary`` with this experiment among its own: python -m killed run killed --scale smoke, in benchmarks/."""

from stationary.__main__ import main as stationary
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment


def main() -> None:
    EXPERIMENTS["killed"] = Experiment("killed")
    stationary()


if __name__ == "__main__":
    main()
