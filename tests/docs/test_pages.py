"""The pages about the paper's experiments are built alike, and no page has words that readers stumbled over."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADINGS = ["What the paper says", "What we find", "How it is run", "Where it differs, and why", "Run it again"]
STUMBLES = (
    "what an editor knows of",
    "comes out",
    "come out",
    "came out",
    "upside down",
    "right way up",
    "sqrt(pq)",
    "scikit-learn's manners",
    "is never far.",
    "taken for a draw",
    "makes probabilities timid",
    "all judges",
    "the wrong judge",
    "trained end",
    "stands on the trunk",
    "off again, down to 0",
    "steps of full size of the smallest",
    "has what we tried",
    "was not tried",
    "<this repository>",
)


@pytest.mark.parametrize("name", ["uci", "cifar10", "radar", "reproduce"])
def test_experiments_have_the_same_five_headings(name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall("^## (.*)$", text, re.MULTILINE) == HEADINGS


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("**/*.md"))],
    ids=lambda page: page.name,
)
def test_pages_have_no_words_that_readers_stumble_over(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not [words for words in STUMBLES if words in text]
