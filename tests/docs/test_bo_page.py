"""The page about Bayesian optimisation has the tables that the stored runs give."""

import pytest
from stored_runs import ROOT, stored

from stationary.lab.experiments.bo import report
from stationary.lab.experiments.bo.config import FUNCTIONS, SURROGATES
from stationary.lab.report.render import render_markdown


def test_the_page_has_the_tables_of_the_stored_runs():
    text = (ROOT / "docs" / "bo.md").read_text(encoding="utf-8")
    rows = [row for row in render_markdown([report.report(list(stored("bo")))]).splitlines() if row.startswith("|")]
    assert len(rows) > 40
    missing = [row for row in rows if row not in text]
    assert not missing, "\n".join(["results/bo has changed; the page should have", *missing])


MATERN, DEPTHS, SMALL = ("one length-scale", "matern gp"), report.NETWORKS, ("branin", "hartmann6", "vehicle")
OURS = (*DEPTHS, "sine-cosine")
LARGE = tuple(name for name in FUNCTIONS if name not in SMALL)


@pytest.fixture(scope="module")
def found():
    return report.by_function(list(stored("bo")))


def test_no_network_is_better_than_one_length_scale(found):
    of_each = [({name: methods}, None) for name, methods in found.items()]
    for parts, steps in [*of_each, *((found, steps) for steps in (None, *report.RANGES))]:
        for method in (*OURS, "infinite width", "relu network"):
            pairs = report.over_all(parts, method, "one length-scale", steps)
            assert report.compared(pairs) < 1, f"{method} on {', '.join(parts)}, steps {steps}"


@pytest.mark.parametrize(
    ("methods", "rival", "sign", "functions", "steps"),
    [  # each sentence of the page that says "better", "worse" or "level"
        (DEPTHS, "one length-scale", 0, None, None),
        (["sine-cosine"], "one length-scale", -1, None, None),
        (["matern network 3"], "one length-scale", -1, ["hartmann6"], None),
        (DEPTHS, "matern gp", 0, None, None),
        ((*DEPTHS, "one length-scale"), "matern gp", 1, ["ackley20"], None),
        (["sine-cosine", "one length-scale"], "matern gp", 1, ["hartmann6"], None),
        (["one length-scale"], "matern gp", 1, None, None),
        ([name for name in SURROGATES if name not in MATERN], "matern gp", (0, -1), None, None),
        ((*OURS, "one length-scale"), "rbf gp", 1, None, None),
        ([name for name in SURROGATES if name != "rbf gp"], "rbf gp", (0, -1), SMALL, None),
        (["matern network 3", "one length-scale"], "rbf gp", 1, LARGE, None),
        (OURS, "relu network", 1, None, None),
        (DEPTHS, "relu network", 1, ["branin", "hartmann6"], None),
        (["matern network 1"], "relu network", -1, ["rosenbrock10"], None),
        (["matern network 3"], "relu network", -1, ["ackley20"], None),
        (["matern network 3"], "matern gp", 1, None, (1, 10)),
        (["matern network 1"], "one length-scale", -1, None, (1, 10)),
        (["matern network 3"], "one length-scale", -1, None, (41, 60)),
    ],
)
def test_what_the_page_says_in_words_is_decided(found, methods, rival, sign, functions, steps):
    signs = (sign,) if isinstance(sign, int) else sign
    for parts in [found] if functions is None else [{name: found[name]} for name in functions]:
        for method in methods:
            pairs = report.over_all(parts, method, rival, steps)
            assert report.compared(pairs) in signs, f"{method} and {rival} on {', '.join(parts)}"


def test_two_seeds_of_the_relu_network_are_stuck_on_branin(found):
    last = sorted(found["branin"]["relu network"][:, -1])
    assert last[17] < 0.006 and last[18] > 1.5
    failures = report.by_function(list(stored("bo")), "failed fits")
    assert {m: v.sum() for ms in failures.values() for m, v in ms.items() if v.any()} == {"relu network": 7}
