"""The page about active learning has the tables that the stored runs give."""

from stored_runs import ROOT, stored

from stationary.lab.experiments.active import report
from stationary.lab.report.content import Section
from stationary.lab.report.render import render_markdown


def test_the_page_has_the_tables_of_the_stored_runs():
    text = (ROOT / "docs" / "active.md").read_text(encoding="utf-8")
    tables = [*report.overviews(report.by_dataset(list(stored("active"))))]
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
