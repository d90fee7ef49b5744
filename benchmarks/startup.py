"""How long the command line takes to start: ``stationary --help`` and ``stationary list``, each in a new process.

    python benchmarks/startup.py --json results/benchmarks/startup.json

Seconds of processor time, which other work on the machine changes little, and by the clock; medians of five runs, after
one that may have had to read the files from the disk.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

RUNS = 5


def run(*arguments: str) -> tuple[float, float]:
    """Seconds of processor time, in the process and in the system for it, and by the clock."""
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "stationary", *arguments], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    to = parser.parse_args().json
    rows = {}
    for name in ("--help", "list"):
        used, wall = zip(*[run(name) for _ in range(RUNS + 1)][1:], strict=True)
        rows[name] = {"cpu_s": median(used), "wall_s": median(wall)}
        print(f"stationary {name:8}", "  ".join(f"{key} {value:.3f}" for key, value in rows[name].items()))
    if to:
        content = {"command": "benchmarks/startup.py", "runs": RUNS, "environment": environment("cpu"), "rows": rows}
        print(f"wrote {write_json(to, content)}")


if __name__ == "__main__":
    main()
