"""The explorer: one web page that shows what an activation does to a wide neural network.

The page opens from disk and needs no internet connection. Its style sheet and its scripts are separate files in this
folder; while you work on them, open ``page.html`` from here.
"""

import re
from importlib.resources import files

FOLDER = files(__name__)


def page() -> str:
    """Return the page as the text of one HTML file: ``page.html`` with its style sheet and its scripts put inside."""

    def read(name: str) -> str:
        return (FOLDER / name).read_text(encoding="utf-8")

    style = r'<link rel="stylesheet" href="(\w+\.css)">'
    html = re.sub(style, lambda found: f"<style>\n{read(found[1])}</style>", read("page.html"))
    return re.sub(r'<script src="(\w+\.js)">', lambda found: f"<script>\n{read(found[1])}", html)
