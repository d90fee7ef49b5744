"""The small tables of the arena in README and docs are what results/arena/summary.csv says."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from pages import hook

from stationary.lab.experiments.arena.protocol import PROTOCOL

ROOT = Path(__file__).parents[2]
README, DETECTOR = "README.md", "docs/howto/beside_a_detector.md"
AGAIN = "results/arena/summary.csv has changed: python docs/hooks/evidence.py, or mkdocs build, writes the table again"


def pages():
    return sorted(
        path for path in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")) if "evidence.py" in path.read_text()
    )


def test_every_page_with_a_table_is_filled():
    assert [path.relative_to(ROOT).as_posix() for path in pages()] == sorted([README, DETECTOR])


@pytest.mark.parametrize("name", [README, DETECTOR])
def test_the_table_is_what_the_summary_says(name):
    assert hook("evidence").filled(name) == (ROOT / name).read_text(encoding="utf-8"), AGAIN


def known_areas():
    """The AUROC by data and kind of unknown inputs, of the summary, of each method that runs on all data."""
    by_kind, some = {}, ("infinite width from the network with more rows",)
    some += tuple(f"calibrated {name}" for name in some)
    with (ROOT / "results" / "arena" / "summary.csv").open() as file:
        for row in csv.DictReader(file):
            everywhere = row["event"] not in ("tables", "recipes of a trunk") and row["method"] not in some
            if row["metric"] == "AUROC" and everywhere:
                by_kind.setdefault((row["data"], row["unknown"]), {})[row["method"]] = float(row["mean"])
    return by_kind


def cells_of(printed):
    rows = [line.strip("| ").split(" | ")[1:] for line in printed.splitlines() if line.startswith("| ")]
    return rows[2:]


def test_cells_of_the_page_about_detectors_are_numbers_of_the_summary_and_the_best_is_bold():
    expected = {key: cells for key, cells in known_areas().items() if key[0] in ("clinc150", "fashion-mnist")}
    rows = cells_of(hook("evidence").table((), ("clinc150", "fashion-mnist")))
    assert len(expected) > 2 and all(len(row) == len(expected) for row in rows)
    for cells, known in zip(zip(*rows, strict=True), expected.values(), strict=True):
        assert {cell.strip("*") for cell in cells} <= {f"{mean:.3f}" for mean in known.values()} | {"–"}
        assert f"**{max(known.values()):.3f}**" in cells


def test_cells_of_the_readme_are_means_over_the_kinds_and_all_that_tie_for_the_best_are_bold():
    by_kind, labels = known_areas(), {entry.label: name for name, entry in PROTOCOL.items()}
    ours = ("finite head", "restored prior", "infinite width", "infinite width from the network")
    for data, row in zip(hook("evidence").PLAIN, cells_of(hook("evidence").overview()), strict=True):
        kinds = [cells for (of, _), cells in by_kind.items() if of == data]
        known = {
            method: f"{sum(cells[method] for cells in kinds) / len(kinds):.3f}"
            for method in set.intersection(*(set(cells) for cells in kinds))
        }
        assert [cell.strip("*") for cell in row[:-1]] == [known[method] for method in (*ours[1:], "energy")]
        number, names = row[-1].split(" ", 1)
        winners = {labels[label] for label in re.split(", | and ", names)}
        others = {method: text for method, text in known.items() if method not in ours}
        assert winners == {method for method, text in others.items() if text == max(others.values())}
        assert number.strip("*") == max(others.values())
        assert [f"**{max(known.values())}**" == cell for cell in (*row[:-1], number)] == [
            cell.strip("*") == max(known.values()) for cell in (*row[:-1], number)
        ]


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(re.findall("^```python", text, re.MULTILINE)) == 3


def test_what_the_page_about_detectors_says_in_words():
    areas = hook("evidence").areas()
    questions, *images = (areas[key] for key in areas if key[0] in ("clinc150", "fashion-mnist"))
    for own in ("restored prior", "infinite width"):
        assert all(questions[own].mean > questions[name].mean for name in ("lof", "knn", "isolation forest"))
        assert all(abs(questions[own].mean - questions[name].mean) < 0.005 for name in ("rmd", "ddu"))
    for others in images:
        assert all(others[name].mean > others["restored prior"].mean + 0.05 for name in ("lof", "knn", "mahalanobis"))
        assert all(others[name].mean > others["infinite width"].mean for name in ("rmd", "ddu"))
    for column in (questions, *images):
        shown = [*hook("evidence").OURS, *hook("evidence").ALWAYS]
        assert min(column.keys() & shown, key=lambda name: column[name].mean) == "isolation forest"
    mnist, other = images
    spread = np.std(
        json.loads((ROOT / "results" / "arena" / "fashion-mnist-infinite-width.json").read_text())["numbers"][
            "AUROC: MNIST"
        ]
    )
    assert round(float(spread), 2) == 0.04
    assert all(abs(mnist["infinite width"].mean - mnist[name].mean) < spread for name in ("lof", "knn"))
    assert all(f"{other[name].mean - other['infinite width'].mean:.2f}" == "0.01" for name in ("lof", "knn"))
    assert mnist["isolation forest"].mean < 0.5


def test_what_the_page_about_detectors_says_of_tables():
    areas = hook("evidence").areas(event="tables")
    for cells in areas.values():
        assert cells["isolation forest"].mean <= max(cells["infinite width"].mean, cells["lof"].mean)
    stored = json.loads((ROOT / "results" / "benchmarks" / "beside_a_detector.json").read_text())["mean"]
    found = {(data, unknown): cells for data, kinds in stored.items() for unknown, cells in kinds.items()}
    alarms = {key: found.pop(key) for key in list(found) if key[1] == "false alarms"}
    assert found.keys() == areas.keys()
    assert all(cells["both"] <= max(cells["own"], cells["LOF"]) for cells in found.values())
    assert sum(cells["both"] < min(cells["own"], cells["LOF"]) for cells in found.values()) == 3
    assert f"{sum(cells['both'] for cells in alarms.values()) / len(alarms):.0%}" == "3%"
    region = {way: f"{share:.0%}" for way, share in found["connect-4", "a region left out"].items()}
    assert region == {"own": "9%", "LOF": "41%", "both": "17%"}
    covtype = found["covtype", "a region left out"]
    assert 2 < covtype["own"] / covtype["LOF"] < 2.5
    area = areas["covtype", "a region left out"]
    assert area["infinite width"].mean < area["lof"].mean
