"""Runs the Python of a Markdown page from top to bottom, and compares what it prints with what the page shows.

A block of text right after a block of Python is what that block prints; one right after the comment
``<!-- python examples/NAME.py -->`` is what that example prints. ``python tests/pages.py PAGE...`` writes both.
"""

import contextlib
import importlib.util
import io
import re
import runpy
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest import mock

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)
QUOTE = re.compile(r"<!-- python (?P<example>examples/\w+\.py) -->\n```text\n(?P<shown>.*?)```\n", re.DOTALL)
REPAIR = "if the new output is right: python tests/pages.py docs/tutorials/*.md, and read what the page says about it"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@cache
def hook(name: str) -> ModuleType:
    """The module docs/hooks/NAME.py, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(page: Path) -> list[tuple[str, str]]:
    """What the page shows for each block of Python, and what it prints."""
    namespace, found = {"__name__": "__main__"}, []
    for block in BLOCK.finditer(page.read_text()):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block["code"], page.name, "exec"), namespace)
        found.append((block["shown"] or "", printed.getvalue()))
    return found


def run_script(path: Path | str, *arguments: str) -> str:
    """What a script prints that is run in this process."""
    with (
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def run_example(path: Path, out: Path, *arguments: str) -> str:
    """What an example prints; its files go to the folder ``out``."""
    return run_script(path, "--out", str(out), *arguments)


def agree(shown: str, printed: str, relative: float = 0.1, absolute: float = 0.05) -> bool:
    """The same words, and numbers as near as different machines and versions leave them."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= absolute + relative * abs(float(a)) for a, b in pairs)


def write(page: Path) -> None:
    """Fill in what the page shows."""
    outputs = iter([printed for _, printed in run(page)])

    def of_block(block: re.Match[str]) -> str:
        printed = next(outputs)
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{printed.rstrip()}\n```\n" if printed else "")

    def of_example(quote: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            printed = run_example(ROOT / quote["example"], Path(folder))
        return f"<!-- python {quote['example']} -->\n```text\n{printed.rstrip()}\n```\n"

    page.write_text(QUOTE.sub(of_example, BLOCK.sub(of_block, page.read_text())))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
