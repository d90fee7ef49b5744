"""The page about active learning has the tables that the stored runs give."""

import pytest
from stored_runs import ROOT, stored

from stationary.lab.experiments.active import report
from stationary.lab.experiments.active.config import WAYS
from stationary.lab.report.content import Section
from stationary.lab.report.render import render_markdown


def test_the_page_has_the_tables_of_the_stored_runs():
    text = (ROOT / "docs" / "active.md").read_text(encoding="utf-8")
    tables = [*report.overviews(report.by_dataset(list(stored("active"))))]
    assert len(tables) == 3
    for table in tables:
        rows = render_markdown([Section("", "", "", tables=(table,))]).splitlines()
        rows = [row for row in rows if row.startswith("|")]
        assert "\n".join(rows) in text, "\n".join(["results/active has changed; the page should have", *rows])


def test_the_page_is_short_and_shows_the_curves():
    text = (ROOT / "docs" / "active.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    for name in ("active.png", "active_nlpd.png"):
        assert f"(images/{name})" in text and (ROOT / "docs" / "images" / name).stat().st_size > 10_000
    assert "(../active.md)" in (ROOT / "docs" / "howto" / "next_experiment.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found():
    return report.by_dataset(list(stored("active")))


INFINITE, NEW, DROPOUT, ENSEMBLE = (
    "infinite width bald",
    "infinite width bald new fits",
    "dropout bald",
    "ensemble bald",
)
OTHERS = ("infinite width bald top", "infinite width entropy", "infinite width variance", NEW)


@pytest.mark.parametrize(
    ("data", "methods", "name", "at_end", "words"),
    [  # each sentence of the page that says "better", "worse" or "decidedly"
        ("digits", (DROPOUT, ENSEMBLE), "accuracy", False, {"better"}),
        ("digits", (INFINITE, *OTHERS), "accuracy", False, {"undecided"}),
        ("digits", (INFINITE,), "accuracy", True, {"better"}),
        ("digits", (INFINITE, NEW, DROPOUT, ENSEMBLE), "NLPD", True, {"better"}),
        ("energy", (INFINITE, NEW, DROPOUT, ENSEMBLE), "RMSE", False, {"undecided"}),
        ("kin8nm", (INFINITE, NEW, DROPOUT, ENSEMBLE), "RMSE", False, {"undecided", "worse"}),
        ("energy", ("infinite width bald top",), "RMSE", False, {"worse"}),
        ("kin8nm", ("infinite width bald top", INFINITE), "RMSE", False, {"worse"}),
        ("energy", (INFINITE,), "NLPD", False, {"worse"}),
        ("kin8nm", (INFINITE,), "NLPD", False, {"worse"}),
        ("energy", (DROPOUT,), "RMSE", True, {"worse"}),
        ("kin8nm", (DROPOUT,), "NLPD", True, {"worse"}),
        *(
            (data, (NEW, ENSEMBLE), name, at_end, {"undecided"})
            for data in ("energy", "kin8nm")
            for name in ("RMSE", "NLPD")
            for at_end in (False, True)
        ),
    ],
)
def test_what_the_page_says_in_words_is_decided(found, data, methods, name, at_end, words):
    for method in methods:
        rounds = report.difference(found[data], method, name)
        word = report.judged(rounds[:, -1] if at_end else rounds.mean(1), name)
        assert word in words, f"{method} on {data}: {word}"


def test_infinite_width_has_the_smallest_errors_on_tables(found):
    for data in ("energy", "kin8nm"):
        last = {method: curves["RMSE"].mean(0)[-1] for method, curves in found[data].curves.items()}
        infinite = {method for method in last if WAYS[method].learner == "infinite width"}
        assert max(last[method] for method in infinite) < min(last[method] for method in last.keys() - infinite)
