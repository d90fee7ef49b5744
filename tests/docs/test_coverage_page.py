"""docs/coverage.md has the numbers of the stored run, and the benchmark behind it measures what it says."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from pages import run_script
from sklearn.metrics import mean_pinball_loss

ROOT = Path(__file__).parents[2]
OURS, WIDE = "infinite width, std", "infinite width, lac"
TREES = ("random forest, lac", "gradient boosting, lac")
STORED = "results/benchmarks/coverage.json"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("coverage_benchmark", ROOT / "benchmarks" / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_stored_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = run_script("benchmarks/coverage.py", "--markdown", STORED).strip()
    page = (ROOT / "docs" / "coverage.md").read_text()
    parts = printed.split("\n\n")
    assert len(parts) == 3
    assert not [part for part in parts if f"\n{part}\n" not in page]


def test_the_numbers_between_the_tables_are_those_of_the_stored_run(benchmark):
    page = " ".join((ROOT / "docs" / "coverage.md").read_text().split())
    values, classes = (benchmark.means(ROOT / STORED, kind) for kind in (False, True))
    same, boosting = values["same"], "gradient boosting, quantile"
    naval, yacht = (same[f"UCI {name}"] for name in ("naval", "yacht"))
    far = [f"{100 * table[m]['far coverage']:.0f} %" for m in (OURS, boosting) for table in (naval, yacht)]
    times = [f"{table[boosting]['width'] / table[OURS]['width']:.0f}" for table in (naval, yacht)]
    assert "coverage of {} and {} with ours, {} and {} with boosting".format(*far) in page
    assert "intervals are {} and {} times as wide".format(*times) in page
    assert f"an interval of {100 * naval[OURS]['width']:.1f} % of the standard deviation" in page
    spread = [f"{same[f'UCI {name}'][OURS]['width, 90 % / 10 %']:.2f}" for name in ("energy", "power")]
    assert "its 90 % quantile {} and {} times its 10 % quantile".format(*spread) in page
    empty = classes["moved 8"]["sklearn digits"][WIDE]["empty"]
    assert f"{100 * empty:.0f} % of the sets are empty" in page
    protein = [f"{same['UCI protein'][method]['score']:.3g}" for method in (boosting, OURS)]
    assert "boosted quantiles have the interval score {}, ours {}".format(*protein) in page
    follows = [f"{same['UCI protein'][method]['width follows error']:.2f}" for method in (OURS, boosting)]
    assert "is {} for ours and {} for boosting".format(*follows) in page
    shown = {
        shift: list(benchmark.means(ROOT / STORED, False)[shift].values()) for shift in ("same", "moved 4", "edge")
    }
    finite = {shift: [row["finite, 300 units, std"] for row in rows] for shift, rows in shown.items()}
    width = [f"{np.median([of['width'] for of in finite[shift]]):.2f}" for shift in ("same", "moved 4")]
    held = [f"{100 * np.mean([of['coverage'] for of in finite[shift]]):.1f} %" for shift in ("moved 4", "edge")]
    assert "the width grows from {} to {} and".format(*width) in page
    assert "falls to {} at four standard deviations; at the edge it is {}".format(*held) in page
    digits = classes["same"]["sklearn digits"]
    ours = [digits[f"infinite width, {score}"] for score in ("aps", "raps", "lac")]
    boosted = digits["gradient boosting, aps"]
    assert (
        f"takes {ours[0]['size']:.2f} classes for {100 * ours[0]['coverage']:.0f} %, where boosting has "
        f'{boosted["size"]:.2f} for {100 * boosted["coverage"]:.0f} %. `"raps"` needs {ours[1]["size"]:.2f}, `"lac"`, '
        f"the default, {ours[2]['size']:.2f}"
    ) in page
    sizes = [f"{classes['same']['sklearn classification'][m]['size']:.2f}" for m in (WIDE, *TREES)]
    assert "{} classes against {} and {}".format(*sizes) in page
    adult = [f"{100 * classes['edge']['UCI adult'][m]['coverage']:.0f} %" for m in ("random forest, lac", WIDE)]
    assert "on adult the forest covers {} there, and ours {}".format(*adult) in page
    cells = json.loads((ROOT / STORED).read_text())["tables"]["UCI boston"]["cells"]
    first = [cells[f"same {seed} infinite width"]["methods"][OURS]["coverage"] for seed in range(3)]
    assert f"three divisions covered {100 * np.mean(first):.0f} % of the test rows of boston" in page
    assert f"with all ten it is {100 * same['UCI boston'][OURS]['coverage']:.0f} %" in page


def test_infinite_width_is_the_best_on_seven_tables_and_scaling_helps_on_seven(benchmark):
    tables = benchmark.means(ROOT / STORED, False)["same"].values()
    best = [min(row, key=lambda method: row[method]["score"]) for row in tables]
    assert sum(name.startswith("infinite width") for name in best) == 7
    assert sum(row[OURS]["score"] < row["infinite width, absolute"]["score"] for row in tables) == 7


def test_the_interval_score_is_the_sum_of_two_pinball_losses(benchmark):
    """Of the lower end at a / 2 and the upper one at 1 - a / 2, times 2 / a, a = 0.1 (Gneiting and Raftery, 2007)."""
    random = np.random.RandomState(0)
    y, lower = random.randn(500), random.randn(500) - 1
    upper = lower + random.rand(500)
    far = np.arange(100)
    found = benchmark.judge_intervals((lower, upper), y, far, 2.0)
    losses = mean_pinball_loss(y, lower, alpha=0.05) + mean_pinball_loss(y, upper, alpha=0.95)
    assert found["score"] == pytest.approx(2 / 0.1 * losses / 2.0, rel=1e-3)  # stored with four digits
    assert found["coverage"] == np.mean([low <= at <= up for low, at, up in zip(lower, y, upper, strict=True)])
    assert found["width"] == pytest.approx(np.mean(upper - lower) / 2, rel=1e-3)


def test_a_class_without_training_rows_is_in_no_set(benchmark):
    held = np.array([[True, True], [True, False], [False, False]])
    found = benchmark.judge_sets(held, np.array([5, 2, 3]), np.arange(1), np.array([2, 5]))
    assert found == {"coverage": 0.6667, "far coverage": 1.0, "size": 1.0, "empty": 0.3333}


@pytest.mark.parametrize("shift", ["same", "edge"])
def test_rows_are_divided_without_overlap(benchmark, shift):
    x = np.random.RandomState(0).randn(5000, 3) + np.random.RandomState(1).randn(5000, 1)
    train, held, test = benchmark.divide(x, shift, 1)
    assert (len(train), len(held), len(test)) == (800, 400, 1000)
    assert len(np.unique(np.concatenate([train, held, test]))) == 2200
    if shift == "edge":  # the first principal component of these columns is about their sum
        assert x[test].sum(1).min() > np.quantile(x.sum(1), 0.7) and x[train].sum(1).max() < np.quantile(x.sum(1), 0.9)


def test_one_column_of_a_row_moves(benchmark):
    x = np.random.RandomState(0).randn(50, 4) * [1, 10, 0, 3]
    numeric = np.array([True, True, True, False])
    change = benchmark.moved(x, x, numeric, 2.0, 0) - x
    assert ((np.abs(change) > 1e-9).sum(1) == 1).all() and not change[:, 2:].any(), "not what is constant or no number"
    np.testing.assert_allclose(np.abs(change).max(0)[:2], 2 * x.std(0)[:2])
