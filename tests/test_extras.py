import subprocess
import sys

import pytest

from stationary import __main__
from stationary._extras import extra
from stationary.lab.cli import app as cli


def test_a_missing_extra_is_named():
    with (
        pytest.raises(ImportError, match=r"no_such_module is not installed.*pip install 'stationary\[gp\]'"),
        extra("gp"),
    ):
        import no_such_module  # noqa: F401


@pytest.mark.parametrize("module", ["stationary.lab.cli.app", "stationary.lab.report.figures"])
def test_the_command_line_names_its_extra(module):
    hidden = "import sys; sys.modules.update(matplotlib=None, typer=None, rich=None);"
    run = subprocess.run([sys.executable, "-c", f"{hidden} import {module}"], capture_output=True, text=True)
    assert "pip install 'stationary[experiments]'" in run.stderr


def test_the_core_needs_only_torch_numpy_and_scipy():
    """And what needs more names its extra; all in one new process, since each takes seconds to import PyTorch."""
    script = """
import importlib, sys
OTHERS = {"matplotlib", "typer", "rich", "gpytorch", "sklearn", "pandas", "jinja2", "mpmath", "botorch"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in OTHERS:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
import torch, stationary as st
st.Matern()(torch.randn(3))
from stationary import *
predict(MLP(3, 2), torch.randn(4, 3))
OODDetector(MLP(2, 3, hidden=(5,))).fit(torch.randn(20, 2)).predict(torch.randn(3, 2))
assert "StationaryClassifier" in dir(st) and not {"gp", "StationaryClassifier"} & globals().keys()
for extra, use in (
    ("sklearn", lambda: st.StationaryClassifier),
    ("sklearn", lambda: st.StationaryRegressor),
    ("bo", lambda: importlib.import_module("stationary.bo")),
):
    try:
        use()
    except ImportError as error:
        assert f"pip install 'stationary[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"what {extra} brings is there, after all")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_command_line_says_what_it_lacks_in_one_line(monkeypatch):
    monkeypatch.delattr("stationary.lab.cli.app")
    monkeypatch.setitem(sys.modules, "stationary.lab.cli.app", None)
    with pytest.raises(SystemExit) as stopped:
        __main__.main()
    assert "stationary" in str(stopped.value) and "\n" not in str(stopped.value)


def test_a_command_says_what_it_lacks_in_one_line(tmp_path):
    hidden = "import sys; sys.modules.update(matplotlib=None); from stationary import __main__;"
    script = f"{hidden} sys.argv[1:] = ['report', '--out', {str(tmp_path)!r}]; __main__.main()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.count("\n") == 1 and "stationary[experiments]" in run.stderr


def test_the_module_is_the_command_line(monkeypatch):
    called = []
    monkeypatch.setattr(cli, "main", lambda: called.append(True))
    __main__.main()
    assert called == [True]
