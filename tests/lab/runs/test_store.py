import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stationary._files import write_atomically
from stationary.lab.runs import provenance
from stationary.lab.runs import store as runs
from stationary.lab.runs.provenance import duration, environment, seconds_of
from stationary.lab.runs.store import CorruptRunError, RunStore, running


@dataclass(frozen=True)
class Config:
    nus: tuple = (0.5, math.inf)
    seed: int = 0


@dataclass(frozen=True)
class Everything:
    nested: tuple = ((1, 2), (3.5, -math.inf), ())
    nothing: int | None = None
    yes: bool = True
    text: str = "Matérn"
    small: float = 1e-300
    tenth: float = 0.1


ARRAYS = {"a": np.arange(3.0), "total, plain": np.array(["x", "yz"]), "none": np.zeros((0, 2), np.int8)}
KEY = ("x", 1, Config())


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path)


@pytest.fixture
def folder(store):
    return store.save(*KEY, ARRAYS, environment()).parent


def problems_of(store, experiment="x"):
    problems = []
    return list(store.runs(experiment, problems.append)), [str(problem) for problem in problems]


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[key].dtype == expected[key].dtype and found[key].tobytes() == expected[key].tobytes() for key in expected
    )


def test_what_is_saved_is_loaded(store):
    assert store.load(*KEY) is None and store.state(*KEY) == "missing"
    store.save(*KEY, ARRAYS, environment() | {"wall_s": 1.5})
    run = store.load(*KEY)
    assert same(run.arrays, ARRAYS) and run.environment["wall_s"] == 1.5
    assert store.state(*KEY) == "done"
    assert store.load("x", 2, Config()) is None, "another version of the experiment"
    assert store.load("x", 1, Config(seed=1)) is None, "another configuration"
    folder = store.folder(*KEY)
    assert json.loads((folder / "config.json").read_text())["config"] == {"nus": [0.5, "inf"], "seed": 0}
    assert json.loads((folder / "environment.json").read_text())["versions"]["torch"]


def test_hashes_stay_the_same_for_ever(store):
    """Computed once and written down: another process, Python or machine must find the same folders."""
    assert store.folder("x", 1, Config()).name == "d765a872a00358f0"
    assert store.folder("x", 1, Everything()).name == "54b4d407ddfa7957"
    store.save("x", 1, Everything(), ARRAYS, {})
    (run,), problems = problems_of(store)
    assert not problems and run.config["nested"] == [[1, 2], [3.5, "-inf"], []], "its own JSON has the same hash"


def test_a_setting_that_cannot_be_stored_is_named(store):
    with pytest.raises(TypeError, match="seed must be a number, a string, None or a tuple of such"):
        store.folder("x", 1, Config(seed={1}))


def test_nothing_is_pickled(store):
    with pytest.raises(TypeError, match="numbers or strings, since nothing is pickled; odd"):
        store.save(*KEY, {"odd": np.array([None])}, {})
    assert store.state(*KEY) == "missing"


def test_runs_lists_what_is_finished(store, folder):
    store.save("x", 2, Config(), {"b": np.ones(2)}, {})
    store.save("other", 1, Config(), ARRAYS, {})
    runs, problems = problems_of(store)
    assert sorted((run.experiment, run.version) for run in runs) == [("x", 1), ("x", 2)] and not problems
    assert problems_of(store, "nothing") == ([], [])


@pytest.mark.parametrize("name", ["result.npz", "config.json"])
def test_a_damaged_file_is_noticed_or_harmless(store, folder, name):
    """Cut off or changed at any byte, the run loads as it was, or is corrupt; never other numbers."""
    content = (folder / name).read_bytes()
    noticed = 0
    for at in range(len(content)):
        changed = [content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :] for flip in (0x01, 0x80, 0xFF)]
        for damaged in (content[:at], *changed):
            (folder / name).write_bytes(damaged)
            try:
                run = store.load(*KEY)
            except CorruptRunError:
                noticed += 1
            else:
                assert same(run.arrays, ARRAYS)
    assert noticed > 2 * len(content)


def test_what_is_finished_is_found_without_reading_arrays(store, folder):
    content, problems = (folder / "result.npz").read_bytes(), []
    middle = len(content) // 2
    (folder / "result.npz").write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    assert list(store.finished("x", problems.append)) == [folder] and not problems
    assert problems_of(store)[0] == [], "who reads the arrays notices"
    for at in range(len(content)):
        (folder / "result.npz").write_bytes(content[:at])
        assert not list(store.finished("x", problems.append)), "a file that is cut off is noticed by its end"
    assert len(problems) == len(content) and "result.npz: cannot be read" in str(problems[0])
    (folder / "result.npz").write_bytes(content)
    (folder / "config.json").write_text("{}")
    assert not list(store.finished("x", problems.append)) and "config.json: is not the config" in str(problems[-1])


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_result_without_its_files_is_corrupt(store, folder, name):
    (folder / name).unlink()
    with pytest.raises(CorruptRunError, match=f"{name}: is missing"):
        store.load(*KEY)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{"])
def test_an_environment_that_is_no_object_is_corrupt(store, folder, content):
    (folder / "environment.json").write_text(content)
    with pytest.raises(CorruptRunError, match=r"environment\.json: cannot be read"):
        store.load(*KEY)
    assert store.environment(*KEY) is None


def test_the_result_of_another_configuration_is_corrupt(store, folder):
    folder.rename(store.folder("x", 1, Config(seed=1)))
    with pytest.raises(CorruptRunError, match="not the configuration that its folder is named after"):
        store.load("x", 1, Config(seed=1))
    assert "named after" in problems_of(store)[1][0]


def test_corrupt_and_foreign_things_are_reported_and_stay(store, folder):
    (folder / "result.npz").write_bytes(b"half a res")
    (folder / "notes.txt").write_text("mine")
    (store.root / "x" / "backup").mkdir()
    (store.root / "x" / "file").touch()
    before = sorted(store.root.rglob("*"))
    runs, problems = problems_of(store)
    assert not runs
    for text in (
        "backup: is not the folder",
        "file: is not the folder",
        "notes.txt: is not a file",
        "result.npz: cann",
    ):
        assert any(text in problem for problem in problems), problems
    assert sorted(store.root.rglob("*")) == before


def test_set_aside_makes_room_and_keeps_every_byte(store, folder):
    for number in (1, 2):
        (folder / "result.npz").write_bytes(b"broken" * number)
        assert store.state(*KEY) == "corrupt"
        store.set_aside(*KEY)
        assert store.state(*KEY) == "missing"
        store.save(*KEY, ARRAYS, {})
        assert store.state(*KEY) == "done"
        assert (folder / f"result.npz.corrupt-{number}").read_bytes() == b"broken" * number
    assert problems_of(store)[1] == [], "what was set aside has been reported"


def test_an_error_is_noted_until_the_run_succeeds(store):
    path = store.save_error(*KEY, "Traceback\nValueError: no")
    assert store.state(*KEY) == "failed" and "ValueError" in path.read_text()
    store.save(*KEY, ARRAYS, {})
    assert store.state(*KEY) == "done" and not path.exists()


def test_a_run_is_running_until_it_is_saved_fails_or_is_unmarked(store):
    path = store.mark_running(*KEY)
    assert store.state(*KEY) == "running" and problems_of(store) == ([], [])
    store.save_error(*KEY, "ValueError: no")
    assert store.state(*KEY) == "failed" and not path.exists()
    store.mark_running(*KEY)
    assert store.state(*KEY) == "running", "it is tried again"
    store.unmark_running(*KEY)
    assert store.state(*KEY) == "failed"
    store.mark_running(*KEY)
    store.save(*KEY, ARRAYS, {})
    assert store.state(*KEY) == "done" and not path.exists()
    store.mark_running("x", 2, Config())
    store.unmark_running("x", 2, Config())
    store.unmark_running("x", 3, Config())
    assert not store.folder("x", 2, Config()).exists(), "there was nothing else in it"


def test_a_marker_names_its_process(store):
    by = running(store.mark_running(*KEY).parent)
    assert by.pid == os.getpid() and by.here and 0 <= by.age_s < 60


@pytest.mark.parametrize("linux", [True, False])
def test_the_marker_of_a_process_that_ended_does_not_count(store, linux, monkeypatch):
    if not linux:
        monkeypatch.setattr("os.path.exists", lambda path: False)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    marker = store.mark_running(*KEY)
    mine = json.loads(marker.read_text())
    runs.write_json(marker, mine | {"pid": process.pid, "born": runs._born(process.pid)})
    assert store.state(*KEY) == "running"
    process.kill()
    if linux:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert store.state(*KEY) == "missing", "dead, though its parent has not asked for it yet"
    process.wait()
    assert store.state(*KEY) == "missing" and marker.exists()
    runs.write_json(marker, mine | {"pid": process.pid, "born": None})
    assert store.state(*KEY) == "missing"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux says when a process started")
def test_the_marker_of_another_process_with_the_same_number_does_not_count(store):
    marker = store.mark_running(*KEY)
    runs.write_json(marker, json.loads(marker.read_text()) | {"born": "1"})
    assert store.state(*KEY) == "missing"


def test_on_another_host_a_marker_is_taken_at_its_word(store):
    marker = store.mark_running(*KEY)
    there = {"host": "elsewhere", "pid": 1, "born": "1", "since": "2020-01-01T00:00:00+00:00"}
    runs.write_json(marker, there)
    by = running(marker.parent)
    assert store.state(*KEY) == "running" and not by.here and by.age_s > 3e7


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"host": 1'])
def test_an_unreadable_marker_does_not_count(store, content):
    store.mark_running(*KEY).write_text(content)
    assert store.state(*KEY) == "missing"


def test_runs_in_lockstep_share_their_time():
    assert seconds_of({"wall_s": 6.0}) == 6 and seconds_of({"wall_s": 6.0, "lockstep": 3}) == 2
    assert seconds_of({}) is None


def test_old_leftovers_of_killed_writers_are_removed_and_young_ones_are_not(store, folder):
    names = (".result.npz.old", ".running.json.old", ".result.npz.young", ".mine")
    old, marker, young, foreign = (folder / name for name in names)
    for path in (old, marker, young, foreign):
        path.touch()
        if path is not young:
            os.utime(path, (0, 0))
    assert problems_of(store)[1] == []
    store.save(*KEY, ARRAYS, {})
    assert not old.exists() and not marker.exists() and young.exists() and foreign.exists()


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def half_done(file):
        file.write(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half_done)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_are_as_private_as_the_user_wants(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        path = write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_environment_names_the_machine(monkeypatch):
    monkeypatch.setenv("STATIONARY_COMMIT", "abc")
    found = environment()
    assert found["commit"] == "abc"
    assert found["cpu"] and found["gpu"] is None and found["device"] == "cpu"


def test_an_installed_copy_is_not_of_the_commit_of_the_repository_it_lies_in(tmp_path, monkeypatch):
    monkeypatch.delenv("STATIONARY_COMMIT", raising=False)
    other = tmp_path / "site-packages" / "provenance.py"
    other.parent.mkdir()
    other.write_bytes(Path(provenance.__file__).read_bytes())
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "of somebody's project"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(provenance, "__file__", str(other))
    assert provenance.commit_of_source.__wrapped__() is None
    subprocess.run([*git, "add", "."], check=True)
    assert provenance.commit_of_source.__wrapped__().endswith("-dirty")


# Times


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.254, "0.254 s"),
        (12.34, "12.3 s"),
        (99.4, "99.4 s"),
        (99.5, "2 min"),
        (5969, "99 min"),
        (5970, "1.66 h"),
        (4e6, "1,111 h"),
    ],
)
def test_a_duration_has_the_digits_that_matter(seconds, text):
    assert duration(seconds) == text


def test_where_a_run_was_computed_is_read_without_its_arrays(store):
    assert store.environment(*KEY) is None
    store.save(*KEY, {"x": np.zeros(3)}, {"wall_s": 1.5})
    (store.folder(*KEY) / "result.npz").write_bytes(b"not looked at")
    assert store.environment(*KEY) == {"wall_s": 1.5}
    (store.folder(*KEY) / "environment.json").write_text("{")
    assert store.environment(*KEY) is None
