"""Tests that need a C++ compiler, Chromium, LaTeX or a GPU skip where there is none.

``STATIONARY_REQUIRE="compiler chromium latex"`` turns the skips of those kinds into failures, as in continuous
integration.
"""

import gc
import math
import os
import shutil

import pytest
import torch

from stationary import _files, _native

NEEDS = {
    "compiler": (
        lambda: shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"),
        "no C++ compiler found",
    ),
    "chromium": (lambda: shutil.which("chromium") or shutil.which("chromium-browser"), "no Chromium found"),
    "latex": (lambda: shutil.which("pdflatex"), "no pdflatex found"),
    "gpu": (torch.cuda.is_available, "no CUDA GPU found"),
}


# Ray reads this once in a process, and a cluster of the tests has no token: what a driver without it asks its workers
# for, they do not have, and it waits for ever.
os.environ["RAY_AUTH_MODE"] = "disabled"

gc.disable()  # modules and tests stay: to look for garbage among them, while they are collected or later, finds nothing


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


def pytest_runtest_setup(item):
    for marker, (found, reason) in NEEDS.items():
        if item.get_closest_marker(marker) and not found():
            if marker in os.environ.get("STATIONARY_REQUIRE", "").split():
                pytest.fail(f"{reason}, but STATIONARY_REQUIRE names {marker}")
            pytest.skip(reason)


@pytest.fixture(autouse=True, scope="session")
def _compiled_before_a_test_has_a_cache_of_its_own():
    _native.compiled()


@pytest.fixture(params=["C", "PyTorch"])
def engine(request, monkeypatch):
    """Both ways in which a CPU computes what the functions in C do."""
    if request.param == "PyTorch":
        monkeypatch.setattr(_native, "compiled", lambda: None)
    elif _native.compiled() is None:
        pytest.skip("no gcc, or a processor without AVX2")


@pytest.fixture
def kept_each_epoch(monkeypatch):
    """Checkpoints are written after every epoch, not every half minute, so that a test can stop after any of them."""
    monkeypatch.setattr(_files, "EVERY_S", 0.0)
    monkeypatch.setattr(_files, "BYTES_A_SECOND", math.inf)


@pytest.fixture(autouse=True)
def _same_randomness():
    torch.manual_seed(0)
    if torch._dynamo.utils.counters:  # something was compiled
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
