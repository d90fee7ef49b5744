"""What asks and does not compute answers at once: it imports nothing that takes long."""

import json
import subprocess
import sys

import pytest

from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.runs.store import RunStore

HEAVY = {"torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "jinja2", "gpytorch", "ray"}
SCRIPT = """
import json, sys
from stationary import __main__
sys.argv[0] = "stationary"
try:
    __main__.main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture
def out(tmp_path):
    """A folder with one finished run, of the experiment covariance."""
    module = EXPERIMENTS["covariance"].config
    store, (config,) = RunStore(tmp_path / "runs"), module.configs("smoke")
    store.save("covariance", module.VERSION, config, {}, {"wall_s": 99.5})
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [(["--help"], "COMMAND"), (["list"], "2 min here"), (["status"], "covariance\tsmoke\t1\t0\t0\t0\t0")],
)
def test_imports_nothing_heavy(arguments, answer, out):
    to = [] if arguments == ["--help"] else ["--out", str(out)]
    result = subprocess.run([sys.executable, "-c", SCRIPT, *arguments, *to], capture_output=True, text=True, check=True)
    assert answer in result.stdout
    assert not HEAVY & set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_configurations_import_nothing_heavy(name):
    script = f"import sys, stationary.lab.experiments.{name}.config; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)
