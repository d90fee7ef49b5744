"""Formulas as MathML, which browsers draw by themselves: no script and no fonts to load.

``pymdownx.arithmatex`` finds ``$...$`` and ``$$...$$``; here they are converted. A formula that cannot be is an error.
In tables a number and its error stay on one line.
"""

import html
import re
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
CONVERTER = LatexToMathML(fancy_error=False)


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    def converted(match: re.Match[str]) -> str:
        tag, latex = match[1], html.unescape(match[2]).strip()
        try:
            formula = CONVERTER.convert_with_local_state(latex, displaystyle=tag == "div")
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}: the formula {latex!r} cannot be converted: {error}") from error
        return f'<{tag} class="formula">{formula}</{tag}>'

    content = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(" ± ", "&nbsp;±&nbsp;"), content, flags=re.DOTALL)
    return FORMULA.sub(converted, content)
