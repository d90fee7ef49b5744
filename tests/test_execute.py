"""Tasks are run here, in processes, and on Ray; processes are killed, and nothing is lost."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from stationary import execute
from stationary.execute import Task, run_missing
from stationary.runs import RunStore

NO_RAY = "Ray is not installed: pip install 'stationary[ray]'"

EXPERIMENT = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
import numpy as np

VERSION, TITLE = 1, "Fake"

@dataclass(frozen=True)
class Config:
    seed: int = 0
    what: str = ""
    size: int = 10
    folder: str = ""
    seconds: float = 0.0

def run(config, device="cpu"):
    if config.folder:
        starts = Path(config.folder) / f"started {config.seed}"
        first = not starts.exists()
        with starts.open("a") as file:
            file.write(f"{os.getpid()}\\n")
    time.sleep(config.seconds)
    if config.what == "raise" or config.what == "raise once" and first:
        raise ValueError("no such number")
    if config.what == "die" or config.what == "die once" and first:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.what == "interrupt":
        raise KeyboardInterrupt
    if config.what == "object":
        return {"odd": np.array([None])}
    import torch
    noise = np.random.default_rng(config.seed).standard_normal(config.size)
    return {"noise": noise, "threads": np.array(torch.get_num_threads())}
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """An experiment in a file, found here and in processes started from here: ``fake(seed=1, ...)`` is a task."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "fake_experiment.py").write_text(EXPERIMENT)
    monkeypatch.setenv("PYTHONPATH", str(source))
    monkeypatch.syspath_prepend(str(source))
    monkeypatch.setenv("STATIONARY_COMMIT", "test")
    yield lambda **settings: Task("fake", "fake_experiment", import_module("fake_experiment").Config(**settings))
    sys.modules.pop("fake_experiment", None)


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
        ({"engine": "ray", "jobs": 2}, "jobs is for the engine local"),
        ({"address": "auto"}, "address is for the engine ray; got 'auto'"),
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


# Processes


def test_processes_give_the_same_results_and_share_the_threads(fake, store, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    tasks = [fake(seed=seed) for seed in range(4)] + [fake(seed=4, what="raise")]
    summary = run_missing(tasks, store, jobs=2)
    assert summary.done == 4 and [task for task, _ in summary.failures] == tasks[4:]
    for task in tasks[:4]:
        assert np.array_equal(noise(store, task), expected(task))
        assert store.load(*task.key).arrays["threads"] == 2
        assert store.load(*task.key).environment["threads"] == 2
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_process_that_dies_is_replaced(fake, store, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "RETRIES", 2)
    tasks = [fake(seed=0, what="die"), fake(seed=1, what="die once", folder=str(tmp_path)), fake(seed=2, seconds=0.2)]
    summary = run_missing(tasks, store, jobs=2)
    ((task, error),) = summary.failures
    assert task == tasks[0] and "its process died each of the 2 times" in error
    assert [store.state(*task.key) for task in tasks] == ["failed", "done", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(fake, tmp_path, ending):
    """One task is finished and two sleep in their processes when the parent is stopped; the processes must not stay."""
    program = f"""
        from pathlib import Path
        from stationary.execute import Task, run_missing
        from stationary.runs import RunStore
        from fake_experiment import Config
        if __name__ == "__main__":
            configs = [Config(0), *(Config(seed, seconds=600, folder={str(tmp_path)!r}) for seed in (1, 2))]
            tasks = [Task("fake", "fake_experiment", config) for config in configs]
            run_missing(tasks, RunStore(Path({str(tmp_path / "runs")!r})), jobs=2)
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    try:
        starts = [tmp_path / f"started {seed}" for seed in (1, 2)]
        wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in starts))
        parent.send_signal(ending)
        assert parent.wait(timeout=30) != 0
        wait_until(lambda: not any(Path(f"/proc/{path.read_text().strip()}").exists() for path in starts))
    finally:
        parent.kill()
        parent.wait()
    assert RunStore(tmp_path / "runs").state(*fake(seed=0).key) == "done"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# Killed


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from fake_experiment import Config
from stationary.execute import Task, run_missing
from stationary.runs import RunStore

tasks = [Task("fake", "fake_experiment", Config(seed, size=100_000)) for seed in range(12)]
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
def cluster(fake, monkeypatch):
    """A Ray cluster of two nodes on this machine, one CPU each; its processes find the fake experiment."""
    pytest.importorskip("ray", reason=NO_RAY)
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # no token in the home folder
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

    def on_done(task, outcome):
        if not removed:
            time.sleep(0.5)  # both nodes are now in the middle of their next task
            cluster.remove_node(cluster.second, allow_graceful=False)
            removed.append(task)

    summary = run_missing(tasks, store, engine="ray", address=cluster.address, on_done=on_done)
    assert summary.done == 6 and [task for task, _ in summary.failures] == tasks[6:]
    for task in tasks[:6]:
        assert np.array_equal(noise(store, task), expected(task))
    starts = sum(len((tmp_path / f"started {seed}").read_text().splitlines()) for seed in range(6))
    assert starts > 6, "the removed node was meant to be at work"
