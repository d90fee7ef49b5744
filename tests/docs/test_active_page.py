"""The page about active learning has the tables that the stored runs give."""

import json
from pathlib import Path

import numpy as np

from stationary.lab.experiments.active import report
from stationary.lab.experiments.active.config import Config, configs
from stationary.lab.report.content import Section
from stationary.lab.report.render import render_markdown

ROOT = Path(__file__).parents[2]


def stored():
    """The results in results/active, all seeds of a method as one, in the order of the configurations."""
    files = [json.loads(path.read_bytes()) for path in (ROOT / "results" / "active").glob("*.json")]
    order = list(dict.fromkeys((config.dataset, config.method) for config in configs("paper")))
    files.sort(key=lambda content: order.index((content["config"]["dataset"], content["config"]["method"])))
    for content in files:
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in content["config"].items()}
        yield Config(**settings), {name: np.array(values) for name, values in content["numbers"].items()}


def test_the_page_has_the_tables_of_the_stored_runs():
    text = (ROOT / "docs" / "active.md").read_text(encoding="utf-8")
    tables = [*report.overviews(report.by_dataset(list(stored())))]
    assert len(tables) == 2
    for table in tables:
        rows = render_markdown([Section("", "", "", tables=(table,))]).splitlines()
        rows = [row for row in rows if row.startswith("|")]
        assert "\n".join(rows) in text, "\n".join(["results/active has changed; the page should have", *rows])


def test_the_page_is_short_and_shows_the_curves():
    text = (ROOT / "docs" / "active.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    assert "(images/active.png)" in text and (ROOT / "docs" / "images" / "active.png").stat().st_size > 10_000
    assert "(../active.md)" in (ROOT / "docs" / "howto" / "next_experiment.md").read_text(encoding="utf-8")
