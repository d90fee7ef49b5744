"""Every Python snippet in the README and the docs runs, and every make target it names exists."""

import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```python(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
EXPORTER = "ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"  # from within torch.onnx


def snippets_of(page):
    """Pairs of options, as in ```python title="width.py", and code; empty lines in front keep its lines' numbers."""
    text = page.read_text(encoding="utf-8")
    return [
        (m["options"], "\n" * text.count("\n", 0, m.start("code")) + dedent(m["code"])) for m in FENCE.finditer(text)
    ]


BOTORCH = pytest.mark.skipif(not find_spec("botorch"), reason="BoTorch is missing; make interop has it")


def marks_of(code):
    """BoTorch is in another environment, and a Ray cluster takes ten seconds to start."""
    return [BOTORCH] * ("from botorch" in code) + [pytest.mark.slow] * ("ray.init" in code)


SNIPPETS = [
    pytest.param(page, code, id=f"{page.relative_to(ROOT)}-{i}", marks=marks_of(code))
    for page in PAGES
    if page.parent.name
    != "tutorials"  # which test_examples.py runs from top to bottom, and compares with their outputs
    for i, (_, code) in enumerate(snippets_of(page))
]


@pytest.mark.filterwarnings(EXPORTER)
@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_snippet(page, code, tmp_path, monkeypatch):
    """In an empty folder, with the snippets of the page that have a title as files beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for options, named in snippets_of(page):
        if title := re.search('title="(.+?)"', options):
            (tmp_path / title[1]).parent.mkdir(exist_ok=True)
            (tmp_path / title[1]).write_text(named, encoding="utf-8")
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


def test_there_are_snippets():
    pages = {page.relative_to(ROOT).parts[:-1] for page in PAGES if snippets_of(page)}
    assert {(), ("docs",), ("docs", "howto")} <= pages


def test_every_fence_is_found():
    """A fence that is not closed as it was opened would hide its snippet."""
    for page in PAGES:
        assert len(snippets_of(page)) == len(re.findall("^ *```python", page.read_text(), re.MULTILINE)), page


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named and named <= targets


def test_pictures_of_the_readme_exist():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert pictures and all((ROOT / p).exists() for p in pictures)
