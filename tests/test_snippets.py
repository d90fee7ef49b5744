"""Every Python snippet in the README and the docs runs, and every make target it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SNIPPETS = [
    pytest.param(snippet, id=f"{page.relative_to(ROOT)}-{i}")
    for page in PAGES
    for i, snippet in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet):
    exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})


def test_there_are_snippets():
    assert SNIPPETS


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and named <= targets


def test_pictures_of_the_readme_exist():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert pictures and all((ROOT / p).exists() for p in pictures)
