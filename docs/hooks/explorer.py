"""Puts the explorer, a page of the library, into the site."""

from typing import Any

from mkdocs.structure.files import File

from stationary.explorer import page


def on_files(files: Any, *, config: Any) -> Any:
    files.append(File.generated(config, "explorer/explorer.html", content=page()))
    return files
