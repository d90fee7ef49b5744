"""Tasks are run here, in processes, and on Ray; processes are killed, and nothing is lost."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stationary.lab.experiments.base import Experiment
from stationary.lab.runs import engines, execute, units
from stationary.lab.runs.execute import run_missing
from stationary.lab.runs.inside import PROGRESS
from stationary.lab.runs.store import RunStore
from stationary.lab.runs.units import Task

FAKE, PARTS = Experiment("fake"), Experiment("parts")  # written by the fixture ``fake``
NO_RAY = "Ray is not installed: pip install 'stationary[ray]'"

CONFIG = """
from dataclasses import dataclass

VERSION, LOCKSTEP = 1, None

@dataclass(frozen=True)
class Config:
    seed: int = 0
    what: str = ""
    size: int = 10
    folder: str = ""
    seconds: float = 0.0
"""

RUN = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import stationary.lab.runs.inside

def run(config, device="cpu"):
    if config.folder:
        starts = Path(config.folder) / f"started {config.seed}"
        first = not starts.exists()
        with starts.open("a") as file:
            file.write(f"{os.getpid()} {node()}\\n")
    time.sleep(600 if config.what == "hang once" and first else config.seconds)
    if config.what == "raise" or config.what == "raise once" and first:
        raise ValueError("no such number")
    if config.what == "die" or config.what == "die once" and first:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.what == "tear once" and first:
        frame = sys._getframe()
        while "result_queue" not in frame.f_locals:
            frame = frame.f_back
        os.write(frame.f_locals["result_queue"]._writer.fileno(), (10**6).to_bytes(4, "big") + b"the rest never comes")
        os.kill(os.getpid(), signal.SIGKILL)
    if config.what == "interrupt":
        raise KeyboardInterrupt
    if config.what == "note":
        stationary.lab.runs.inside.watched(2).epoch(1)
        seen, end = Path(config.folder) / "seen", time.monotonic() + 60
        while not seen.exists() and time.monotonic() < end:
            time.sleep(0.05)
        return {"seen": np.array(seen.exists())}
    if config.what == "object":
        return {"odd": np.array([None])}
    import torch
    if device == "cuda":
        torch.cuda.get_device_name = lambda: "a GPU, so to say"
    noise = np.random.default_rng(config.seed).standard_normal(config.size)
    data = np.array(os.environ.get("STATIONARY_DATA", ""))
    inside = np.array(stationary.lab.runs.inside.watched(1).checkpoint is not None)
    return {"noise": noise, "threads": np.array(torch.get_num_threads()), "data": data, "inside": inside}

def node():
    return sys.modules["ray"].get_runtime_context().get_node_id() if "RAY_RAYLET_PID" in os.environ else ""
"""

CONFIG_LOCKSTEP = """
from dataclasses import dataclass

VERSION, LOCKSTEP = 1, "folds"

@dataclass(frozen=True)
class Config:
    folds: tuple[int, ...] = (0,)
    seed: int = 0
    what: str = ""
    folder: str = ""

    def __post_init__(self):
        if not self.folds:
            raise ValueError("folds must not be empty")
"""

RUN_LOCKSTEP = """
from pathlib import Path
import numpy as np, torch

def run(config, device):
    torch.cuda.get_device_name = lambda: "a GPU, so to say"
    with (Path(config.folder) / "calls").open("a") as file:
        file.write(f"{config.seed} {config.folds}\\n")
    if config.what == "raise" and 2 in config.folds:
        raise ValueError("no fold two")
    if config.what == "interrupt" and 2 in config.folds:
        raise KeyboardInterrupt
    noise = np.stack([np.random.default_rng((fold, config.seed)).standard_normal((2, 3)) for fold in config.folds])
    results = {"noise": noise, "fold": np.array(config.folds), "name": np.array([f"fold {k}" for k in config.folds])}
    return results | {"scalar": {"total": np.array(1.0)}, "short": {"total": noise[:1]}}.get(config.what, {})
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """An experiment in a folder, found here and in processes started from here: ``fake(seed=1, ...)`` is a task."""
    source = tmp_path / "source"
    for name, config, run in (("fake", CONFIG, RUN), ("parts", CONFIG_LOCKSTEP, RUN_LOCKSTEP)):
        (source / name).mkdir(parents=True)
        (source / name / "config.py").write_text(config)
        (source / name / "run.py").write_text(run)
    monkeypatch.setenv("PYTHONPATH", str(source), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(source))
    monkeypatch.setenv("STATIONARY_COMMIT", "test")
    yield lambda **settings: Task(FAKE, FAKE.config.Config(**settings))
    for name in ("fake", "parts"):
        for module in (name, f"{name}.config", f"{name}.run"):
            sys.modules.pop(module, None)


@pytest.fixture
def parts(fake, tmp_path, monkeypatch):
    """``parts(0, 3)`` are tasks of two folds, that may run in lockstep on what passes for a GPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU, so to say")
    config = lambda fold, settings: PARTS.config.Config((fold,), folder=str(tmp_path), **settings)
    return lambda *folds, **settings: [Task(PARTS, config(fold, settings), num_gpus=0) for fold in folds]


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def noise(store, task):
    return store.load(*task.key).arrays["noise"]


def expected(task):
    return np.random.default_rng(task.config.seed).standard_normal(task.config.size)


def test_what_is_missing_runs_and_what_is_there_is_reused(fake, store):
    seen = []
    on_done = lambda task, outcome: seen.append((task.config.seed, outcome.reused, outcome.error))
    first = run_missing([fake(seed=1), fake(seed=1)], store, on_done=on_done)
    assert (first.done, first.reused) == (1, 0), "the same task twice runs once"
    second = run_missing([fake(seed=0), fake(seed=1)], store, on_done=on_done)
    assert (second.done, second.reused) == (1, 1)
    assert seen == [(1, False, None), (1, True, None), (0, False, None)]
    assert np.array_equal(noise(store, fake(seed=1)), expected(fake(seed=1)))
    environment = store.load(*fake(seed=1).key).environment
    assert environment["device"] == "cpu" and environment["wall_s"] >= 0


@pytest.mark.parametrize(("what", "message"), [("raise", "no such number"), ("object", "nothing is pickled")])
def test_a_task_that_fails_leaves_the_others_alone(fake, store, what, message):
    bad = fake(seed=0, what=what)
    summary = run_missing([bad, fake(seed=1)], store)
    ((task, error),) = summary.failures
    assert task == bad and "Traceback" in error and message in error
    assert summary.done == 1 and store.state(*bad.key) == "failed" and store.state(*fake(seed=1).key) == "done"


def test_a_failure_is_tried_again_next_time(fake, store, tmp_path):
    task = fake(what="raise once", folder=str(tmp_path))
    assert run_missing([task], store).failures
    assert run_missing([task], store).done == 1
    assert store.state(*task.key) == "done"


def test_ctrl_c_keeps_what_is_finished(fake, store):
    tasks = [fake(seed=0), fake(seed=1, what="interrupt"), fake(seed=2)]
    with pytest.raises(KeyboardInterrupt):
        run_missing(tasks, store)
    assert [store.state(*task.key) for task in tasks] == ["done", "missing", "missing"]


def test_a_corrupt_result_is_set_aside_and_run_again(fake, store):
    run_missing([fake()], store)
    path = store.folder(*fake().key) / "result.npz"
    path.write_bytes(b"not an archive")
    summary = run_missing([fake()], store)
    (problem,) = summary.problems
    assert summary.done == 1
    assert str(path) in problem and "moved to" in problem and "result.npz.corrupt-1" in problem
    assert path.with_name("result.npz.corrupt-1").read_bytes() == b"not an archive"
    assert np.array_equal(noise(store, fake()), expected(fake()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "slurm"}, "engine must be one of local, ray; got 'slurm'"),
        ({"jobs": 0}, "jobs must be at least 1; got 0"),
        ({"engine": "ray", "jobs": 2}, "jobs must be 1 for the engine ray.*got jobs=2"),
        ({"address": "auto"}, "address must be None for the engine local; got 'auto'"),
        ({"device": "tpu"}, "device must be auto, cpu or cuda; got 'tpu'"),
        ({"device": "cuda"}, "PyTorch finds no GPU here; use cpu or auto"),
    ],
)
def test_bad_arguments(store, arguments, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        run_missing([], store, **arguments)


def test_auto_is_cuda_where_there_is_a_gpu(monkeypatch):
    for found, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda: found)
        assert execute.choose_device("auto") == device


def test_without_ray_the_error_names_the_extra(fake, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"stationary\[ray\]"):
        run_missing([fake()], store, engine="ray")


def test_an_address_without_ray_fails_at_once(fake, store):
    pytest.importorskip("ray", reason=NO_RAY)
    with pytest.raises(ConnectionError, match=r"no Ray cluster answers at 127.0.0.1:1 .*; start one: ray start --head"):
        run_missing([fake()], store, engine="ray", address="127.0.0.1:1")


# Running


def test_what_runs_is_marked_and_what_waits_is_not(fake, store, monkeypatch):
    tasks, seen, work = [fake(seed=0), fake(seed=1, what="raise"), fake(seed=2)], [], units.work

    def watched(unit, device, **where):
        seen.append([store.state(*task.key) for task in tasks])
        return work(unit, device, **where)

    monkeypatch.setattr(engines, "work", watched)
    run_missing(tasks, store)
    assert seen == [["running", "missing", "missing"], ["done", "running", "missing"], ["done", "failed", "running"]]


def test_when_stopped_nothing_is_running(fake, store):
    tasks = [fake(seed=1, what="interrupt"), fake(seed=2)]
    with pytest.raises(KeyboardInterrupt):
        run_missing(tasks, store)
    assert not list(store.root.rglob("running.json"))


def test_markers_of_dead_processes_are_cleaned_and_of_others_are_not(fake, store):
    tasks = [fake(seed=0), fake(seed=1)]
    run_missing(tasks, store)
    markers = [store.mark_running(*task.key) for task in tasks]
    markers[0].write_text(markers[0].read_text().replace(str(os.getpid()), "0"))
    assert run_missing(tasks, store).reused == 2
    assert [path.exists() for path in markers] == [False, True]


# Lockstep


def calls(folder):
    """What was run: the seed and the folds of each call, in order."""
    path = folder / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def arrays_of(store, tasks):
    return [{k: (v.shape, v.tobytes()) for k, v in store.load(*task.key).arrays.items()} for task in tasks]


def test_on_cuda_what_is_missing_runs_as_one_and_is_stored_as_if_alone(parts, tmp_path):
    alone, merged = RunStore(tmp_path / "alone"), RunStore(tmp_path / "merged")
    tasks = parts(0, 1, 2, 3)
    assert run_missing(tasks, alone, device="cpu").done == 4
    assert calls(tmp_path) == ["0 (0,)", "0 (1,)", "0 (2,)", "0 (3,)"], "on cpu, one by one"
    run_missing(tasks[1:2], merged, device="cuda")
    assert calls(tmp_path) == ["0 (1,)"]
    seen = []
    summary = run_missing(tasks, merged, device="auto", on_done=lambda task, outcome: seen.append(task))
    assert (summary.done, summary.reused) == (3, 1) and seen == [tasks[1], tasks[0], tasks[2], tasks[3]]
    assert calls(tmp_path) == ["0 (0, 2, 3)"], "only what is missing"
    assert arrays_of(alone, tasks) == arrays_of(merged, tasks)
    environments = [merged.load(*task.key).environment for task in tasks]
    assert [found.get("lockstep") for found in environments] == [3, None, 3, 3]
    assert environments[0]["wall_s"] == environments[2]["wall_s"] and environments[0]["device"] == "cuda"


def test_only_what_differs_in_nothing_else_runs_as_one(parts, tmp_path, store):
    several = replace(parts(8)[0], config=replace(parts(8)[0].config, folds=(8, 9)))
    cheaper = replace(parts(7)[0], num_cpus=2)
    tasks = [*parts(0, 1), *parts(0, 1, seed=5), several, cheaper]
    assert run_missing(tasks, store, device="cuda").done == 6
    assert calls(tmp_path) == ["0 (0, 1)", "5 (0, 1)", "0 (8, 9)", "0 (7,)"]
    assert store.load(*several.key).arrays["fold"].tolist() == [8, 9]


def test_what_fails_together_fails_each(parts, tmp_path, store):
    tasks = parts(1, 2, what="raise")
    summary = run_missing(tasks + parts(3), store, device="cuda")
    assert [task for task, _ in summary.failures] == tasks and summary.done == 1
    for task in tasks:
        assert store.state(*task.key) == "failed"
        assert "no fold two" in (store.folder(*task.key) / "error.txt").read_text()
    assert run_missing(tasks, store, device="cpu").done == 1, "alone, the other one succeeds"


@pytest.mark.parametrize(("what", "shape"), [("scalar", "()"), ("short", "(1, 2, 3)")])
def test_what_cannot_be_cut_is_an_error_that_says_so(parts, store, what, shape):
    summary = run_missing(parts(0, 1, what=what), store, device="cuda")
    assert len(summary.failures) == 2 and summary.done == 0
    rule = "the first axis of 'total' must have length 2, one entry for each of folds"
    assert all(rule in why and f"got the shape {shape}" in why for _, why in summary.failures)


def test_ctrl_c_in_lockstep_then_again_continues(parts, tmp_path, store):
    tasks = parts(0) + parts(1, 2, 3, what="interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_missing(tasks, store, device="cuda")
    assert [store.state(*task.key) for task in tasks] == ["done", "missing", "missing", "missing"]
    assert not list(store.root.rglob("running.json"))
    calls(tmp_path)
    assert run_missing([tasks[0], tasks[1], tasks[3]], store, device="cuda").done == 2
    assert calls(tmp_path) == ["0 (1, 3)"]


def test_lockstep_must_name_a_tuple(parts, store, monkeypatch):
    tasks = parts(0, 1)
    monkeypatch.setattr(PARTS.config, "LOCKSTEP", "seed")
    with pytest.raises(ValueError, match="LOCKSTEP of parts must name a tuple of its Config; got 'seed'"):
        run_missing(tasks, store, device="cuda")


@pytest.mark.slow
def test_processes_run_in_lockstep(parts, tmp_path, store):
    tasks = parts(0, 1, 2) + parts(0, 1, 2, seed=1)
    run_missing(tasks[:1], store, device="cuda")
    calls(tmp_path)
    assert run_missing(tasks, store, jobs=2, device="cuda").done == 5
    assert sorted(calls(tmp_path)) == ["0 (1, 2)", "1 (0, 1, 2)"]
    assert [int(store.load(*task.key).arrays["fold"][0]) for task in tasks] == [0, 1, 2, 0, 1, 2]
    assert [store.load(*task.key).environment.get("lockstep") for task in tasks] == [None, 2, 2, 3, 3, 3]


# Processes


@pytest.mark.slow
def test_a_process_that_does_not_end_is_not_waited_for(fake, store, monkeypatch):
    """As one does that waits for a lock which a killed one has held; found by benchmarks/kill.py."""

    class Stuck(engines.ProcessPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            for process in list((self._processes or {}).values())[:1]:
                os.kill(process.pid, signal.SIGSTOP)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(engines, "ProcessPoolExecutor", Stuck)
    monkeypatch.setattr(engines, "ENDING_S", 0.5)
    tasks = [fake(seed=seed) for seed in range(3)]
    assert run_missing(tasks, store, jobs=2).done == 3
    until = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < until:  # they have been killed: a moment
        time.sleep(0.1)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_process_that_dies_while_it_sends_its_result_is_replaced(fake, store, tmp_path):
    """The pool waits for the rest of the result and does not notice; Python must not wait for the pool when it ends."""
    program = f"""
        from pathlib import Path
        from stationary.lab.runs import engines, execute, units
        from stationary.lab.runs.store import RunStore
        from fake.config import Config
        from stationary.lab.experiments.base import Experiment
        if __name__ == "__main__":
            engines.ENDING_S = 1.0
            configs = [Config(0, "tear once", folder={str(tmp_path)!r}), Config(1)]
            tasks = [units.Task(Experiment("fake"), config) for config in configs]
            assert execute.run_missing(tasks, RunStore(Path({str(store.root)!r})), jobs=2).done == 2
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)
    for task in (fake(seed=0, what="tear once", folder=str(tmp_path)), fake(seed=1)):
        assert np.array_equal(noise(store, task), expected(task))


def test_processes_give_the_same_results_and_share_the_threads(fake, store, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    monkeypatch.setenv("STATIONARY_DATA", "somewhere")
    tasks = [fake(seed=seed) for seed in range(4)] + [fake(seed=4, what="raise")]
    summary = run_missing(tasks, store, jobs=2)
    assert summary.done == 4 and [task for task, _ in summary.failures] == tasks[4:]
    for task in tasks[:4]:
        assert np.array_equal(noise(store, task), expected(task))
        assert store.load(*task.key).arrays["threads"] == 2
        assert store.load(*task.key).arrays["data"] == "somewhere"
        assert store.load(*task.key).environment["threads"] == 2
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_process_that_dies_is_replaced(fake, store, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "RETRIES", 2)
    tasks = [fake(seed=0, what="die"), fake(seed=1, what="die once", folder=str(tmp_path)), fake(seed=2, seconds=0.2)]
    summary = run_missing(tasks, store, jobs=2)
    ((task, error),) = summary.failures
    assert task == tasks[0] and "its process died each of the 2 times" in error
    assert [store.state(*task.key) for task in tasks] == ["failed", "done", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(fake, tmp_path, ending):
    """One task is finished, two sleep in their processes and one waits when the parent is stopped; nothing may stay."""
    program = f"""
        import signal
        from pathlib import Path
        from stationary.lab.runs.execute import run_missing
        from stationary.lab.runs.units import Task
        from stationary.lab.runs.store import RunStore
        from fake.config import Config
        from stationary.lab.experiments.base import Experiment
        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
            configs = [Config(0), *(Config(seed, seconds=600, folder={str(tmp_path)!r}) for seed in (1, 2, 3))]
            tasks = [Task(Experiment("fake"), config) for config in configs]
            run_missing(tasks, RunStore(Path({str(tmp_path / "runs")!r})), jobs=2)
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    sleeping = [fake(seed=seed, seconds=600, folder=str(tmp_path)) for seed in (1, 2, 3)]
    states = lambda: [RunStore(tmp_path / "runs").state(*task.key) for task in (fake(seed=0), *sleeping)]
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    try:
        starts = [tmp_path / f"started {seed}" for seed in (1, 2)]
        wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in starts))
        wait_until(lambda: states() == ["done", "running", "running", "missing"])
        parent.send_signal(ending)
        assert parent.wait(timeout=120) != 0
        wait_until(lambda: not any(Path(f"/proc/{path.read_text().strip()}").exists() for path in starts))
    finally:
        parent.kill()
        parent.wait()
    assert states() == ["done", "missing", "missing", "missing"]
    left = list((tmp_path / "runs").rglob("running.json"))
    assert len(left) == (2 if ending == signal.SIGKILL else 0)


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# Killed


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from fake.config import Config
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment
from stationary.lab.runs.execute import run_missing
from stationary.lab.runs.units import Task
from stationary.lab.runs.inside import PROGRESS
from stationary.lab.runs.store import RunStore

tasks = [Task(Experiment("fake"), Config(seed, size=100_000)) for seed in range(12)]
root, moments, problems = Path(sys.argv[1]), random.Random(0), []
run_missing(tasks, RunStore(root / "undisturbed"))
kills = stores = 0
while kills < 50:
    store = RunStore(root / f"killed-{stores}")
    child = os.fork()
    if not child:
        run_missing(tasks, store)
        os._exit(0)
    time.sleep(moments.uniform(0, 0.2))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    list(store.runs("fake", problems.append))
    assert not problems, problems
    if os.WIFSIGNALED(status):
        kills += 1
    else:
        assert os.WEXITSTATUS(status) == 0
        stores += 1  # finished before it was killed: start anew
for number in range(stores + 1):
    run_missing(tasks, RunStore(root / f"killed-{number}"))
"""


@pytest.mark.slow
def test_killed_at_fifty_random_moments_the_results_are_the_same_bit_for_bit(fake, tmp_path):
    """A process that has everything imported forks the ones that are killed, so that each costs little."""
    root = tmp_path / "stores"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", KILLED, str(root)], check=True, env=environment, timeout=300)
    undisturbed, *killed = (RunStore(path) for path in sorted(root.iterdir(), reverse=True))
    assert killed and undisturbed.root.name == "undisturbed"
    for task in [fake(seed=seed, size=100_000) for seed in range(12)]:
        arrays = undisturbed.load(*task.key).arrays
        for store in killed:
            found = store.load(*task.key).arrays
            assert found.keys() == arrays.keys()
            assert all(found[key].tobytes() == arrays[key].tobytes() for key in arrays)
    leftovers = [path for store in killed for path in store.root.rglob(".result.npz.*")]
    assert len(leftovers) > 5, "the kills were meant to hit writers"


# Ray


@pytest.fixture
def cluster(fake):
    """A Ray cluster of two nodes on this machine, one CPU each; its processes find the fake experiment."""
    pytest.importorskip("ray", reason=NO_RAY)
    from ray.cluster_utils import Cluster

    memory = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=memory)
    cluster.second = cluster.add_node(**memory)
    yield cluster
    cluster.shutdown()


@pytest.mark.slow
def test_ray_loses_a_node_and_all_results_arrive(fake, store, tmp_path, cluster):
    tasks = [fake(seed=seed, seconds=1.5, folder=str(tmp_path)) for seed in range(6)]
    tasks.append(fake(seed=6, what="raise"))
    removed = []

    def at_work():
        """Whether the second node has just started a task."""
        started = [p for p in tmp_path.glob("started *") if cluster.second.node_id in p.read_text()]
        return any(time.time() - path.stat().st_mtime < 0.5 for path in started)

    def on_done(task, outcome):
        if not removed:
            wait_until(at_work)
            cluster.remove_node(cluster.second, allow_graceful=False)
            removed.append(task)

    summary = run_missing(tasks, store, engine="ray", address=cluster.address, on_done=on_done)
    assert summary.done == 6 and [task for task, _ in summary.failures] == tasks[6:]
    for task in tasks[:6]:
        assert np.array_equal(noise(store, task), expected(task))
    starts = sum(len((tmp_path / f"started {seed}").read_text().splitlines()) for seed in range(6))
    assert starts > 6, "the removed node was meant to be at work"


@pytest.mark.slow
def test_ray_replaces_a_worker_that_is_killed(fake, parts, store, tmp_path, cluster, monkeypatch):
    """And it passes on where the data is, and runs in lockstep."""
    monkeypatch.setattr(engines, "RETRIES", 1)
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path))  # after the cluster was started
    once = replace(fake(seed=1, what="die once", folder=str(tmp_path)), num_gpus=0)
    tasks = [replace(fake(seed=0, what="die"), num_gpus=0), once, *parts(0, 1, 2)]
    summary = run_missing(tasks, store, engine="ray", device="cuda", address=cluster.address)
    ((task, error),) = summary.failures
    assert task == tasks[0] and "WorkerCrashedError" in error and summary.done == 4
    assert len((tmp_path / "started 1").read_text().splitlines()) == 2
    assert np.array_equal(noise(store, once), expected(once))
    assert store.load(*once.key).arrays["data"] == str(tmp_path)
    assert calls(tmp_path) == ["0 (0, 1, 2)"]
    assert [store.load(*task.key).environment["lockstep"] for task in tasks[2:]] == [3, 3, 3]


@pytest.mark.slow
def test_ray_after_its_driver_was_killed_does_only_the_rest(fake, store, tmp_path, cluster):
    hanging = [fake(seed=seed, what="hang once", folder=str(tmp_path)) for seed in (1, 2, 3)]
    tasks = [fake(seed=0), *hanging]
    program = f"""
        from pathlib import Path
        from stationary.lab.runs.execute import run_missing
        from stationary.lab.runs.units import Task
        from stationary.lab.runs.store import RunStore
        from fake.config import Config
        from stationary.lab.experiments.base import Experiment
        hanging = [Config(seed, "hang once", folder={str(tmp_path)!r}) for seed in (1, 2, 3)]
        tasks = [Task(Experiment("fake"), config) for config in (Config(0), *hanging)]
        run_missing(tasks, RunStore(Path({str(store.root)!r})), engine="ray", address={cluster.address!r})
    """
    states = lambda: [store.state(*task.key) for task in tasks]
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: sorted(states()) == ["done", "missing", "running", "running"])
    finally:
        driver.kill()
        driver.wait()
    assert sorted(states()) == ["done", "missing", "missing", "missing"]
    for seed in (1, 2, 3):
        (tmp_path / f"started {seed}").touch()  # whoever starts now does not hang
    summary = run_missing(tasks, store, engine="ray", address=cluster.address)
    assert (summary.done, summary.reused) == (3, 1) and states() == ["done"] * 4
    assert not list(store.root.rglob("running.json"))


# What a worker needs


def test_a_worker_needs_neither_matplotlib_nor_jinja2():
    """Every experiment's run.py is imported without them; one that is quick also runs, as a worker runs it."""
    script = """
        import sys
        sys.modules.update(dict.fromkeys(("matplotlib", "jinja2", "typer", "rich")))  # refused
        from stationary.lab.experiments import EXPERIMENTS
        from stationary.lab.runs.units import Task, work
        for experiment in EXPERIMENTS.values():
            assert experiment.run.run, experiment.name
        experiment = EXPERIMENTS["covariance"]
        (outcome,) = work((Task(experiment, experiment.config.configs("smoke")[0]),), "cpu", 1)
        assert not outcome.error and "draws" in outcome.arrays, outcome.error
        assert not {"stationary.lab.report.figures", "stationary.lab.report.render"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


@pytest.mark.slow
def test_ray_notes_how_far_a_run_is_where_the_disk_is_shared(fake, store, tmp_path, cluster):
    """A worker writes into the folder of the run; this one goes on once its note is seen here."""
    task = fake(what="note", folder=str(tmp_path))

    def see():
        wait_until((store.folder(*task.key) / PROGRESS).exists)
        (tmp_path / "seen").touch()

    threading.Thread(target=see, daemon=True).start()
    assert run_missing([task], store, engine="ray", address=cluster.address).done == 1
    assert store.load(*task.key).arrays["seen"]
    assert not list(store.root.glob(".*")), "the sign by which a shared disk is known is gone"


def test_a_worker_without_the_disk_keeps_nothing(fake, tmp_path):
    task = fake(what="inside")
    for sign in (tmp_path / "absent" / "sign", tmp_path / "sign"):
        sign.parent.mkdir(exist_ok=True)
        if sign.parent == tmp_path:
            sign.touch()
        started, (outcome,) = engines._announced((task,), "cpu", 1, sign)
        assert started is None and outcome.error is None
        assert bool(outcome.arrays["inside"]) == (sign.parent == tmp_path)
