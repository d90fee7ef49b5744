"""The page about the arena and summary.csv are what the stored runs say, and each run has its origin."""

import json
from pathlib import Path

from pages import hook

from stationary.lab.experiments.arena.config import Config, configs
from stationary.lab.experiments.arena.protocol import PROTOCOL, rows
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT, rows_of_classes, rows_of_values

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "arena"
AGAIN = "results/arena has changed: python docs/hooks/arena.py, or mkdocs build, writes it again"


def test_the_page_is_what_the_results_say():
    text = (ROOT / "docs" / "arena.md").read_text(encoding="utf-8")
    assert hook("arena").page(ROOT) == text, AGAIN
    assert text.index("What we are not the best at") < text.index("The rules")
    assert all(f"| {' | '.join(row)} |" in text for row in rows()), "the protocol is printed"


def test_the_page_of_tables_is_what_the_results_say():
    text = (ROOT / "docs" / "arena_tables.md").read_text(encoding="utf-8")
    assert hook("arena").page_of_tables(ROOT) == text, AGAIN
    assert text.index("What we are not the best at") < text.index("The rules")
    of_both = rows_of_values()[1] + rows_of_classes()[1]
    assert all(f"| {' | '.join(row)} |" in text for row in of_both), "the protocol is printed"


def test_the_summary_is_what_the_results_say():
    assert hook("arena").summary(ROOT) == (STORED / "summary.csv").read_text(), AGAIN


def test_stored_runs_are_configurations_with_an_origin():
    grid, files = set(configs("paper")), hook("arena").stored(STORED) + hook("arena").stored(STORED, tables=True)
    assert files
    for content in files:
        settings = content["config"]
        for seed in settings["seeds"]:
            assert Config(settings["event"], settings["dataset"], settings["method"], (seed,)) in grid
        for environment in content["environments"]:
            assert environment["commit"] and not environment["commit"].endswith("dirty")
            code = OF_EVENT.get(settings["event"], PROTOCOL)[settings["method"]].code
            assert code in environment["versions"], "the versions of the peers are there"


def test_features_are_those_of_the_trunks():
    trunks = json.loads((STORED / "trunks.json").read_text())["trunks"]
    digests = {trunk["seed"]: trunk["sha256"] for trunk in trunks}
    for content in hook("arena").stored(STORED):
        if content["config"]["dataset"] == "fashion-mnist" and content["config"]["method"] != "ensemble":
            assert content["numbers"]["features"] == [digests[seed] for seed in content["config"]["seeds"]]
