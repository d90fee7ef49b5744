"""The public names: each is there, editors know the same ones, and none is loaded before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stationary


def for_editors():
    """By name, the module that ``from x import y as y`` of the TYPE_CHECKING block takes it from."""
    (block,) = [node for node in ast.parse(Path(stationary.__file__).read_text()).body if isinstance(node, ast.If)]
    return {alias.asname: node.module for node in block.body for alias in node.names if alias.asname == alias.name}


def test_editors_know_the_same_names():
    names = {name: f"stationary.{place}" for name, place in stationary._WHERE.items()}
    assert for_editors() == names | dict.fromkeys(stationary._ROOMS, "stationary")


@pytest.mark.parametrize("name", dir(stationary))
def test_every_name_is_there(name):
    value = getattr(stationary, name)
    if name in stationary._WHERE:
        assert value is getattr(sys.modules[f"stationary.{stationary._WHERE[name]}"], name)
    elif name in stationary._ROOMS:
        assert value is sys.modules[f"stationary.{name}"]


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'stationary' has no attribute 'matern92'; dir"):
        _ = stationary.matern92
    with pytest.raises(ImportError, match="matern92"):
        from stationary import matern92  # noqa: F401


def test_names_are_loaded_when_they_are_used():
    script = """
import sys
import stationary
assert "torch" not in sys.modules, "it takes seconds"
stationary.Matern(), stationary.metrics, stationary.predict
assert not [name for name in sys.modules if name.startswith("stationary.lab")]
assert "sklearn" not in sys.modules
assert stationary.StationaryClassifier.__name__ == "StationaryClassifier" and "sklearn" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
