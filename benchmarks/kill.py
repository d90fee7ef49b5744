"""Kills ``stationary run`` at random moments, a thousand times, and looks whether a result is lost, torn or changed.

    OMP_NUM_THREADS=1 nice python benchmarks/kill.py --json results/benchmarks/kill.json    # half an hour
    OMP_NUM_THREADS=1 python benchmarks/kill.py --kills 50                                  # minutes

An experiment of 40 small results (killed/) runs in several processes. The command itself, which writes the
results, or one of its workers gets a SIGKILL: one time in four at any moment of the run, one time in four at a moment
after its first new result, else at a moment after it began to write one. After each kill the store must hold every
result that it held before, untouched; each must be readable and equal to that of an undisturbed run, array by array;
nothing may be called running, and no process of a killed command may stay. Then the command is started again, until the
store is complete, and then with a new store.

Importing PyTorch takes seconds, so nine commands in ten are forked from this process, which has everything imported,
and call the ``main`` of ``stationary``; their workers are forked from multiprocessing's fork server, which has imported
the same. One in ten is a new interpreter with new interpreters as workers, as a user has it. The counts are written
after each kill: the same command continues where it was stopped.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
from killed.config import N_CONFIGS

from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import RESULT, CorruptRunError, Run, RunStore, running, write_json

NAME = "killed"
MOMENTS = {"any": 0.25, "after the first new result": 0.25, "writing": 0.5}  # when to kill, and how often
WORKER, COLD = 0.25, 0.1  # shares: of workers among the killed, of new interpreters among the starts
WRITING_S = 0.02  # about what writing one result takes
FORK_SERVER: Any = forkserver._forkserver
PATIENCE = 60.0  # seconds until a process that should have ended is taken to stay
Results = dict[str, int]  # by the name of its folder, when a result was written


# Processes


def start(out: Path, jobs: int, *, cold: bool = False) -> int:
    """The process number of a new ``stationary run``."""
    words = ["run", NAME, "--scale", "smoke", "--device", "cpu", "--jobs", str(jobs), "--out", str(out)]
    log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if cold:
            program = [sys.executable, "-m", "killed", *words]
            both = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
            return os.posix_spawn(sys.executable, program, os.environ, file_actions=both)
        return os.fork() or _be_the_command(words, log)
    finally:
        os.close(log)


def import_everything() -> None:
    """Here and in the fork server, so that what is forked has it."""
    import stationary.lab.cli.app  # noqa: F401

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    multiprocessing.set_forkserver_preload(["stationary.lab.runs.execute", "killed.run"])
    FORK_SERVER.ensure_running()


def _be_the_command(words: list[str], log: int) -> NoReturn:
    from killed.__main__ import main

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["stationary", *words]
    sys.modules["__main__"] = sys.modules["stationary.__main__"]  # as for python -m stationary: workers look there
    forking, patched = multiprocessing.get_context("forkserver"), cast(Any, multiprocessing)
    patched.get_context = lambda method: forking
    FORK_SERVER.ensure_running = lambda: None  # it is the parent's
    try:
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def workers(command: int) -> list[int]:
    """The processes of its pool: its own, if these are new interpreters, or those of the fork server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            own = int(parent) == command and b"spawn_main" in (folder / "cmdline").read_bytes()
            if state not in "ZX" and (own or int(parent) == FORK_SERVER._forkserver_pid):
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ended(pid: int) -> int | None:
    """Its exit status if it has ended: negative, the signal that it died of."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def wait_for(condition: Callable[[], bool], seconds: float, step: float = 0.01) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True


# The store


def written(store: RunStore) -> Results:
    """What is there, without reading it."""
    found: Results = {}
    for path in (store.root / NAME).glob(f"*/{RESULT}"):
        found[path.parent.name] = path.stat().st_mtime_ns
    return found


def temporary(store: RunStore) -> set[Path]:
    """Files that were being written, or have been when their writer was killed."""
    return set((store.root / NAME).glob("*/.*"))


def look(store: RunStore, expected: dict[str, Run], before: Results, *, dead: bool) -> tuple[Results, list[str]]:
    """The results now, and what is wrong with them; ``dead`` if nobody runs any."""
    problems: list[CorruptRunError] = []
    runs = {run.folder.name: run for run in store.runs(NAME, problems.append)}
    now = written(store)
    wrong = [str(problem) for problem in problems]
    wrong += [f"{name} is lost" for name in before if name not in runs]
    wrong += [f"{name} was written again" for name in before if name in now and now[name] != before[name]]
    wrong += [f"{name} differs" for name, run in runs.items() if not equal(run, expected[name])]
    if dead:
        wrong += [f"{name} is there and not found" for name in now if name not in runs]
        folders = (store.root / NAME).glob("*")
        wrong += [f"{folder.name} is said to be running" for folder in folders if running(folder)]
    return now, wrong


def equal(run: Run, other: Run) -> bool:
    """The same arrays, bit for bit, of the same configuration."""
    kinds = [{name: (array.dtype, array.shape) for name, array in one.arrays.items()} for one in (run, other)]
    same = all(array.tobytes() == np.asarray(other.arrays[name]).tobytes() for name, array in run.arrays.items())
    return kinds[0] == kinds[1] and same and run.config == other.config


# Kills


class Killer:
    """Runs and kills; ``record`` is what is stored."""

    def __init__(self, arguments: argparse.Namespace, record: dict[str, Any]) -> None:
        self.out, self.jobs, self.seed, self.json = arguments.out, arguments.jobs, arguments.seed, arguments.json
        self.record = record
        self.out.mkdir(parents=True, exist_ok=True)
        self.expected, self.first_s, self.rest_s = self.undisturbed()

    def undisturbed(self) -> tuple[dict[str, Run], float, float]:
        """All results, the time until the first one was there, and that of the others."""
        folder = self.out / "undisturbed"
        shutil.rmtree(folder, ignore_errors=True)
        store, began = RunStore(folder / "runs"), time.time()
        pid = start(folder, self.jobs)
        _, status = os.waitpid(pid, 0)
        expected = {run.folder.name: run for run in store.runs(NAME, _fail)}
        if status or len(expected) != N_CONFIGS:
            sys.exit(f"the undisturbed run must succeed, and did not: see {folder.with_suffix('.log')}")
        times = sorted(moment / 1e9 - began for moment in written(store).values())
        return expected, times[0], times[-1] - times[0]

    def kill_until(self, kills: int) -> None:
        while self.record["kills"] < kills:
            self.one_store(kills)

    def one_store(self, kills: int) -> None:
        """Kill until the store is complete, or that many kills are made and it can be completed."""
        folder = Path(tempfile.mkdtemp(dir=self.out, prefix="store-"))
        store, results = RunStore(folder / "runs"), Results()
        while True:
            self.record["starts"] += 1
            chance = self.chance("start")
            cold = chance.random() < COLD
            self.record["starts of a new interpreter"] += cold
            pid, hurt = start(folder, self.jobs, cold=cold), False
            try:
                while (code := ended(pid)) is None and self.record["kills"] < kills:
                    results, killed_worker, code = self.one_kill(pid, store, results)
                    hurt |= killed_worker
                    if code is not None:
                        break
                if code is None:
                    _, status = os.waitpid(pid, 0)
                    code = os.waitstatus_to_exitcode(status)
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                raise
            results, wrong = look(store, self.expected, results, dead=True)
            if code not in (0, -signal.SIGKILL) and not hurt:  # a task whose worker is killed often enough may fail
                wrong.append(f"the command ended with status {code}: see {folder.with_suffix('.log')}")
            if code == 0 and len(results) != len(self.expected):
                wrong.append(f"the command says that it is done with {len(results)} of {len(self.expected)} results")
            self.note(wrong)
            if code == 0:
                break
        self.record["stores completed"] += 1
        self.record["results compared"] += len(results)
        self.record["temporary files left"] += len(temporary(store))
        self.save()
        if not self.record["violations"]:
            shutil.rmtree(folder)
            folder.with_suffix(".log").unlink()

    def one_kill(self, pid: int, store: RunStore, results: Results) -> tuple[Results, bool, int | None]:
        """Wait for a moment, kill, look: the results, whether a worker was killed, how the command ended if it did."""
        chance, began = self.chance("kill"), time.monotonic()
        aside = temporary(store)
        code = self.wait_for_a_moment(chance, pid, store, results)
        if code is not None:
            return results, False, code
        pool = workers(pid)
        victim = chance.choice(pool) if pool and chance.random() < WORKER else pid
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # a worker that has just ended
            return results, False, None
        if victim == pid:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code != -signal.SIGKILL:  # it has just ended
                return results, False, code
        now, wrong = look(store, self.expected, results, dead=victim == pid)
        left = pool if victim == pid else [victim]
        if not wait_for(lambda: not any(map(alive, left)), PATIENCE):
            wrong.append(f"a worker of {pid} stays after a SIGKILL of {'its parent' if victim == pid else 'it'}")
            for worker in filter(alive, left):
                os.kill(worker, signal.SIGKILL)
        if victim == pid and temporary(store) - aside:
            phase = "while writing"
        elif len(now) == len(results):
            phase = "before the first new result"
        else:
            phase = "after the last result" if len(now) == len(self.expected) else "between results"
        what = f"{'command' if victim == pid else 'worker'}, {phase}"
        self.record["kills"] += 1
        self.record["counts"][what] = self.record["counts"].get(what, 0) + 1
        self.record["seconds"] = round(self.record["seconds"] + time.monotonic() - began, 1)
        self.note(wrong)
        self.save()
        print(f"{self.record['kills']:5} {what:40}{len(now):3} of {len(self.expected)} results", flush=True)
        return now, victim != pid, code

    def wait_for_a_moment(self, chance: random.Random, pid: int, store: RunStore, results: Results) -> int | None:
        """The exit status of the command if it ended before."""
        code: int | None = None

        def over() -> bool:
            nonlocal code
            code = ended(pid) if code is None else code
            return code is not None

        (moment,) = chance.choices(list(MOMENTS), list(MOMENTS.values()))
        if moment == "any":
            wait_for(over, chance.uniform(0, self.first_s + self.rest_s))
            return code
        if not wait_for(lambda: over() or len(written(store)) > len(results), 3 * PATIENCE):
            self.note([f"the command {pid} neither ends nor writes a result for {3 * PATIENCE:g} s"])
        wait_for(over, chance.uniform(0, self.rest_s / 3))
        if moment == "writing":
            aside = temporary(store)
            wait_for(lambda: over() or bool(temporary(store) - aside), 1.0, step=0.001)
            wait_for(over, chance.uniform(0, WRITING_S), step=0.001)
        return code

    def chance(self, what: str) -> random.Random:
        """The same sequence for a seed, continued or not."""
        return random.Random(f"{what} {self.seed} {self.record['kills']} {self.record['starts']}")

    def note(self, wrong: list[str]) -> None:
        self.record["violations"] += wrong
        for line in wrong:
            print(f"VIOLATION after kill {self.record['kills']}: {line}", flush=True)

    def save(self) -> None:
        if self.json:
            write_json(self.json, self.record)


def _fail(problem: CorruptRunError) -> NoReturn:
    raise problem


def begun(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of an earlier call with the same arguments, or a new one."""
    setting: dict[str, Any] = {"command": "benchmarks/kill.py", "seed": arguments.seed, "jobs": arguments.jobs}
    setting |= {"results in a store": N_CONFIGS, "shares of moments": MOMENTS}
    setting |= {"share of kills of workers": WORKER, "share of starts of a new interpreter": COLD}
    here = environment()
    if arguments.json and arguments.json.exists():
        record: dict[str, Any] = json.loads(arguments.json.read_bytes())
        other = {key: record.get(key) for key in setting if record.get(key) != setting[key]}
        if other:
            sys.exit(f"--json must be a new file, or one of the same setting; {arguments.json} has {other}: move it")
        if record["environments"][-1]["commit"] != here["commit"]:
            record["environments"].append(here)
        return record
    counted = ("kills", "starts", "starts of a new interpreter", "stores completed", "results compared")
    counts = dict.fromkeys((*counted, "temporary files left", "seconds"), 0)
    return setting | {"environments": [here]} | counts | {"counts": {}, "violations": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="workers of each command, at least 2")
    parser.add_argument("--out", type=Path, default=Path("out/kill"), help="the folder of the stores")
    parser.add_argument("--json", type=Path, help="write the counts and the machine here, after each kill")
    arguments = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        sys.exit("kill.py finds processes in /proc and needs Linux")
    if arguments.jobs < 2:
        parser.error(f"--jobs must be at least 2, so that there are workers to kill; got {arguments.jobs}")
    import_everything()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the command that runs ends, too
    record = begun(arguments)
    Killer(arguments, record).kill_until(arguments.kills)
    print(json.dumps({key: value for key, value in record.items() if key != "environments"}, indent=2))
    sys.exit(1 if record["violations"] else 0)


if __name__ == "__main__":
    main()
