"""What the tests of activations share: both ways in which float32 on the CPU is computed."""

import pytest

from stationary.activations import _native


@pytest.fixture(params=["C", "PyTorch"])
def engine(request, monkeypatch):
    if request.param == "PyTorch":
        monkeypatch.setattr(_native, "compiled", lambda: None)
    elif _native.compiled() is None:
        pytest.skip("no gcc, or a processor without AVX2")
