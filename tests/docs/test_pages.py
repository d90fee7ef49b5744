"""The pages about the paper's experiments are built alike, and no page has words that readers stumbled over."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADINGS = ["What the paper says", "What we find", "How it is run", "Where it differs, and why", "Run it again"]
STUMBLES = ("what an editor knows of", "comes out", "come out", "came out")


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
    text = page.read_text(encoding="utf-8")
    assert not [words for words in STUMBLES if words in text]
    assert "sqrt(pq)" not in "".join(re.findall("^#.*$", text, re.MULTILINE))
