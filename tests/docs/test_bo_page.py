"""The page about Bayesian optimisation has the tables that the stored runs give."""

from stored_runs import ROOT, stored

from stationary.lab.experiments.bo import report
from stationary.lab.report.render import render_markdown


def test_the_page_has_the_tables_of_the_stored_runs():
    text = (ROOT / "docs" / "bo.md").read_text(encoding="utf-8")
    rows = [row for row in render_markdown([report.report(list(stored("bo")))]).splitlines() if row.startswith("|")]
    assert len(rows) > 40
    missing = [row for row in rows if row not in text]
    assert not missing, "\n".join(["results/bo has changed; the page should have", *missing])
