"""Fifty SIGKILLs of ``stationary run`` and its workers lose nothing; benchmarks/kill.py makes a thousand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "kill.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="kill.py finds processes in /proc")
def test_fifty_kills_lose_tear_and_change_nothing(tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "stores"), "--json", str(tmp_path / "kill.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def kill(times):
        how = {"env": environment, "capture_output": True, "text": True, "timeout": 500}
        done = subprocess.run([*command, "--kills", str(times)], **how)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "kill.json").read_bytes())

    kill(5)
    record = kill(50)  # continues
    assert record["kills"] == sum(record["counts"].values()) == 50 and record["violations"] == []
    assert record["stores completed"] >= 2
    assert record["results compared"] == record["stores completed"] * record["results in a store"]
    assert record["counts"]["command, while writing"] > 5, "the kills were meant to hit writers"
    assert any(what.startswith("worker") for what in record["counts"])
    assert not list((tmp_path / "stores").glob("store-*")), "what was right is not kept"
