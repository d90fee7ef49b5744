"""Links from the documents to files of the repository that are no documents, such as ``[runs](../results/uci)``.

In a repository browser they are links like any other. On the site they lead to the repository if mkdocs.yml has its
``repo_url``. If not, the site takes a copy of the file; a folder, or a page that is not its own, becomes text.
"""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.repository")  # a warning here ends a strict build

FENCE_OR_LINK = re.compile(
    r"^(?P<fence> *(?:```|~~~)).*?^(?P=fence)|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<href>(?:\.\./)+[^)\s]*)\)",
    re.DOTALL | re.MULTILINE,
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    docs = Path(config.docs_dir)
    here = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        if match["fence"]:
            return match[0]
        href, _, anchor = match["href"].partition("#")
        target = posixpath.normpath(posixpath.join(docs.name, here, href))
        path = docs.parent / target
        if target.startswith(f"{docs.name}/"):
            return match[0]
        if match["image"] or target.startswith("..") or not path.exists():
            log.warning(f"{page.file.src_uri}: {match[0]} must lead to a file of the repository; there is no {target}")
            return match[0]
        if config.repo_url:
            url = f"{config.repo_url.rstrip('/')}/blob/HEAD/{target}"
            return f"[{match['text']}]({url}{'#' + anchor if anchor else ''})"
        if path.is_dir() or path.suffix == ".md":
            return match["text"] if path.name in match["text"] else f"{match['text']} (`{target}`)"
        copy = File.generated(config, f"repository/{target}", abs_src_path=str(path))
        if files.get_file_from_path(copy.src_uri) is None:
            files.append(copy)
        return f"[{match['text']}]({posixpath.relpath(copy.src_uri, here or '.')})"

    return FENCE_OR_LINK.sub(replaced, markdown)
