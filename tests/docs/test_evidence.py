"""The small tables of the arena in README and docs are what results/arena/summary.csv says."""

import csv
import re
from pathlib import Path

import pytest
from pages import hook

ROOT = Path(__file__).parents[2]
AGAIN = "results/arena/summary.csv has changed: python docs/hooks/evidence.py, or mkdocs build, writes the table again"


def pages():
    return sorted(
        path for path in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")) if "evidence.py" in path.read_text()
    )


def test_every_page_with_a_table_is_filled():
    assert [path.relative_to(ROOT).as_posix() for path in pages()] == sorted(hook("evidence").ALWAYS)


@pytest.mark.parametrize("name", ["README.md", "docs/howto/beside_a_detector.md"])
def test_the_table_is_what_the_summary_says(name):
    assert hook("evidence").filled(name) == (ROOT / name).read_text(encoding="utf-8"), AGAIN


def test_cells_are_numbers_of_the_summary_and_the_best_is_bold():
    """Of each kind of unknown inputs, or their means over the kinds of a data set, of methods that have all of them."""
    with (ROOT / "results" / "arena" / "summary.csv").open() as file:
        areas = {
            (row["data"], row["unknown"], row["method"]): float(row["mean"])
            for row in csv.DictReader(file)
            if row["metric"] == "AUROC" and row["event"] not in ("tables", "recipes of a trunk")
        }
    by_kind = {}
    for (data, unknown, method), mean in areas.items():
        by_kind.setdefault((data, unknown), {})[method] = mean
    by_data = {}
    for data in dict.fromkeys(data for data, *_ in areas):
        kinds = [cells for (of, _), cells in by_kind.items() if of == data]
        both = set.intersection(*(set(cells) for cells in kinds))
        by_data[data] = {method: sum(cells[method] for cells in kinds) / len(kinds) for method in both}
    some = ("clinc150", "fashion-mnist")
    for kinds, expected in ((some, {key: of for key, of in by_kind.items() if key[0] in some}), ((), by_data)):
        printed = hook("evidence").table((), kinds)
        rows = [line.strip("| ").split(" | ")[1:] for line in printed.splitlines() if line.startswith("| ")][2:]
        assert len(expected) > 2 and all(len(row) == len(expected) for row in rows)
        for cells, known in zip(zip(*rows, strict=True), expected.values(), strict=True):
            assert {cell.strip("*") for cell in cells} <= {f"{mean:.3f}" for mean in known.values()} | {"–"}
            assert f"**{max(known.values()):.3f}**" in cells


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(re.findall("^```python", text, re.MULTILINE)) == 3


def test_what_the_page_about_detectors_says_in_words():
    areas = hook("evidence").areas()
    questions, *images = (areas[key] for key in areas if key[0] in ("clinc150", "fashion-mnist"))
    own = questions["restored prior"].mean
    assert all(own > questions[name].mean for name in ("lof", "knn", "isolation forest"))
    assert abs(own - questions["rmd"].mean) < 0.005
    for others in images:
        assert all(others[name].mean > others["restored prior"].mean + 0.05 for name in ("lof", "knn", "mahalanobis"))
    for column in (questions, *images):
        shown = [*hook("evidence").OURS, *hook("evidence").ALWAYS["docs/howto/beside_a_detector.md"]]
        assert min(column.keys() & shown, key=lambda name: column[name].mean) == "isolation forest"
    assert areas["fashion-mnist", "MNIST"]["isolation forest"].mean < 0.5
