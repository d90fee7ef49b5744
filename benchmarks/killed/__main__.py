"""``stationary`` with this experiment among its own: python -m killed run killed --scale smoke, in benchmarks/."""

import killed
from stationary.__main__ import main as stationary
from stationary.lab.experiments import EXPERIMENTS


def main() -> None:
    EXPERIMENTS["killed"] = killed
    stationary()


if __name__ == "__main__":
    main()
