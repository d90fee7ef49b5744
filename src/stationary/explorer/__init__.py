"""The explorer: one web page that shows what an activation does to a wide network, from disk and without a network.

Its parts are files of their own, each of a size to read; ``page.html`` opens from this folder while you work on them.
"""

import re
from importlib.resources import files

FOLDER = files(__name__)


def page() -> str:
    """The page as one HTML file: ``page.html`` with the style sheet and the scripts that it names inside."""

    def read(name: str) -> str:
        return (FOLDER / name).read_text(encoding="utf-8")

    style = r'<link rel="stylesheet" href="(\w+\.css)">'
    html = re.sub(style, lambda found: f"<style>\n{read(found[1])}</style>", read("page.html"))
    return re.sub(r'<script src="(\w+\.js)">', lambda found: f"<script>\n{read(found[1])}", html)
