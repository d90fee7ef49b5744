"""The page about the arena and summary.csv are what the stored runs say, and each run has its origin."""

import json
from pathlib import Path

from pages import hook

from stationary.lab.experiments.arena.config import EVENTS, FROZEN, IMAGES, TRAINING, Config, configs, one_ensemble
from stationary.lab.experiments.arena.digests import FEATURES
from stationary.lab.experiments.arena.protocol import PROTOCOL, rows
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT, rows_of_classes, rows_of_values

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "arena"
AGAIN = "results/arena has changed: python docs/hooks/arena.py, or mkdocs build, writes it again"


def test_the_page_is_what_the_results_say():
    text = (ROOT / "docs" / "arena.md").read_text(encoding="utf-8")
    assert hook("arena").page(ROOT) == text, AGAIN
    assert text.index("What we are not the best at") < text.index("The rules")
    assert 150 <= len(text.splitlines()) <= 250, "it is read in one go; numbers of all methods are in the details"


def test_the_page_of_details_is_what_the_results_say():
    text = (ROOT / "docs" / "arena_details.md").read_text(encoding="utf-8")
    assert hook("arena").page_of_details(ROOT) == text, AGAIN
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
            code, *_ = OF_EVENT.get(settings["event"], PROTOCOL)[settings["method"]].code.split(",")
            assert code in environment["versions"], "the versions of the peers are there"


def test_features_are_those_of_the_trunks():
    """The first trunks are those of Fashion-MNIST; others stand under their own name."""
    about = json.loads((STORED / "trunks.json").read_text())
    of = {"fashion-mnist": about} | {name: entry for name, entry in about.items() if "trunks" in entry}
    of |= {f"{name}-five": entry for name, entry in of.items() if name in ("cifar10", "cifar10-imagenet")}
    digests = {name: {trunk["seed"]: trunk["sha256"] for trunk in entry["trunks"]} for name, entry in of.items()}
    assert {f"arena-{name}": tuple(digests[name].values()) for name in of if not name.endswith("-five")} == FEATURES
    for content in hook("arena").stored(STORED):
        dataset, method, seeds = (content["config"][key] for key in ("dataset", "method", "seeds"))
        if EVENTS[dataset] in (IMAGES, TRAINING) and not one_ensemble(dataset, method):
            expected = [digests[dataset][0 if dataset in FROZEN else seed] for seed in seeds]
            assert content["numbers"]["features"] == expected
