"""Random bit patterns through every activation, by the benchmark of that name, and that it sees what it looks for."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)


def check(n):
    rows = fuzz.fuzz_all(n, "cpu", seed=0)
    assert sum(row["patterns"] for row in rows) >= n
    assert {row["activation"] for row in rows} == set(fuzz.ALL)
    assert [row for row in rows if any(row["violations"].values())] == []


def test_a_few_patterns():
    check(10_000)


@pytest.mark.slow
def test_ten_million_patterns():
    check(10_000_000)


class Naive(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (lambda x: x * x, "value"),
        (lambda x: torch.sqrt(torch.where(x > 0, x, 0 * x)), "gradient"),
        (lambda x: torch.nan_to_num(0 * x), "NaN"),
        (lambda x: torch.where(x.isinf(), torch.ones_like(x), 0 * x), "infinity"),
    ],
)
def test_it_finds_what_breaks_a_rule(function, rule, monkeypatch):
    monkeypatch.setitem(fuzz.ALL, "naive", lambda: Naive(function))
    row = fuzz.fuzz("naive", torch.float16, 0, torch.Generator().manual_seed(0))
    assert row["patterns"] == 2**16
    assert row["violations"][rule] > 0
    example = next(example for example in row["examples"] if example["rule"] == rule)
    bits = torch.tensor(int(example["bits"], 16), dtype=torch.int32).to(torch.int16)
    assert repr(bits.view(torch.float16).item()) == example["x"]
