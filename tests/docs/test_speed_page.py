"""The page about speed has the numbers of the stored runs."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "benchmarks"
NAMES = {
    "matern 1/2": "Matérn 1/2",
    "matern 3/2": "Matérn 3/2",
    "matern 5/2": "Matérn 5/2",
    "matern 2.2": "Matérn 2.2 (any nu)",
    "matern inf": "RBF",
    "sine": "sine",
    "cosine": "cosine",
    "sincos": "sine-cosine",
    "triangle wave": "triangle wave",
    "periodic ReLU": "periodic ReLU",
    "torch.compile 5/2": "torch.compile of the formula, 5/2",
    "naive eager 5/2": "the formula typed in eager mode, 5/2",
}


def stored(name):
    return json.loads((STORED / name).read_text())


def large():
    tables = [*stored("activations-h200.json")["tables"], *stored("activations-cpu.json")["tables"]]
    rows = []
    for key, name in NAMES.items():
        cells = [table["rows"].get(key) for table in tables]
        ratios = [f"{c['forward']:.2f} / {c['forward+backward']:.2f}" if c else "–" for c in cells]
        rows.append(f"| {name} | {' | '.join(ratios)} |")
    return rows


def dropout():
    cpu, gpu = stored("mc_dropout-cpu.json")["times"], stored("mc_dropout-h200.json")["times"]
    columns = [(cpu, "wall time"), (gpu, "gpu time"), (gpu, "wall time")]
    number = lambda ratio: f"{ratio:.2f}" if ratio < 20 else f"{ratio:.0f}"
    rows = []
    for name in cpu["2 classes, wall time"]:
        if name != "forward":
            ratios = [
                " / ".join(number(times[f"{c} classes, {kind}"][name]["ratio"]) for c in (2, 10))
                for times, kind in columns
            ]
            rows.append(f"| {name} | {' | '.join(ratios)} |")
    return rows


def lockstep():
    tables = stored("lockstep-h200.json")["tables"]
    names = {"covtype": "Covtype", "adult": "Adult", "connect-4": "Connect-4"}
    number = lambda seconds: f"{seconds:.1f}" if seconds > 1 else f"{seconds:.2f}"
    parts = ("training_s", "products_s", "bytes_s")
    return [f"| {name} | {' | '.join(number(tables[key][part]) for part in parts)} |" for key, name in names.items()]


@pytest.mark.parametrize(("page", "rows"), [("speed.md", large), ("howto/dropout.md", dropout), ("speed.md", lockstep)])
def test_tables_are_those_of_the_stored_runs(page, rows):
    text = (ROOT / "docs" / page).read_text()
    for row in rows():
        assert row in text


def test_sentences_about_sizes_are_those_of_the_stored_runs():
    """The largest ratios to GELU: from 1 to 10^6 elements on the GPU; at 1 and from 100 to 10^6 on a CPU core."""

    def worst(run, task, sizes):
        points = stored(run)["curves"][0]["points"]
        ours = [r for p in points if p["task"] == task and p["size"] in sizes for n, r in p["ratios"].items()]
        return f"{max(ours):.1f}"

    small, text = range(1, 10**6 + 1), (ROOT / "docs" / "speed.md").read_text()
    gpu = [worst("activation_sizes-h200.json", task, small) for task in ("forward", "forward+backward")]
    assert f"at most {gpu[0]} times as long as GELU forward, and {gpu[1]} times forward and backward" in text
    one = [worst("activation_sizes-cpu.json", task, [1]) for task in ("forward", "forward+backward")]
    more = [worst("activation_sizes-cpu.json", task, small[99:]) for task in ("forward", "forward+backward")]
    assert f"{one[0]} and {one[1]} times at a single element" in text
    assert f"at most {more[0]} and {more[1]} times from 100 to 10⁶" in text
