"""The page about Bayesian optimisation has the tables that the stored runs give."""

import json
from pathlib import Path

import numpy as np

from stationary.lab.experiments.bo import report
from stationary.lab.experiments.bo.config import Config, configs
from stationary.lab.report.render import render_markdown

ROOT = Path(__file__).parents[2]


def stored():
    """The results in results/bo, all seeds of a surrogate as one, in the order of the configurations."""
    files = [json.loads(path.read_bytes()) for path in (ROOT / "results" / "bo").glob("*.json")]
    order = list(dict.fromkeys((config.dataset, config.method) for config in configs("paper")))
    files.sort(key=lambda content: order.index((content["config"]["dataset"], content["config"]["method"])))
    for content in files:
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in content["config"].items()}
        yield Config(**settings), {name: np.array(values) for name, values in content["numbers"].items()}


def test_the_page_has_the_tables_of_the_stored_runs():
    text = (ROOT / "docs" / "bo.md").read_text(encoding="utf-8")
    rows = [row for row in render_markdown([report.report(list(stored()))]).splitlines() if row.startswith("|")]
    assert len(rows) > 40
    missing = [row for row in rows if row not in text]
    assert not missing, "\n".join(["results/bo has changed; the page should have", *missing])
