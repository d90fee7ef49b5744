import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from stationary.files import write_atomically
from stationary.runs import RunStore, environment


@dataclass(frozen=True)
class Config:
    nus: tuple = (0.5, math.inf)
    seed: int = 0


def test_what_is_saved_is_loaded(tmp_path):
    store, arrays = RunStore(tmp_path), {"a": np.arange(3.0)}
    assert store.load("x", 1, Config()) is None
    store.save("x", 1, Config(), arrays)
    assert np.array_equal(store.load("x", 1, Config())["a"], arrays["a"])
    assert store.load("x", 2, Config()) is None, "another version of the experiment"
    assert store.load("x", 1, Config(seed=1)) is None, "another configuration"
    folder = store.folder("x", 1, Config())
    assert json.loads((folder / "config.json").read_text())["config"] == {"nus": [0.5, "inf"], "seed": 0}
    assert json.loads((folder / "environment.json").read_text())["versions"]["torch"]


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


def test_environment_names_the_machine(monkeypatch):
    monkeypatch.setenv("STATIONARY_COMMIT", "abc")
    found = environment()
    assert found["commit"] == "abc"
    assert found["cpu"] and found["gpu"] is None
