"""How the sections of a report become one HTML page, and how a page gets more sections later."""

import html
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from stationary._extras import extra
from stationary.lab.report.content import Section
from stationary.lab.report.tables import columns_of
from stationary.lab.report.words import words_in
from stationary.lab.runs.provenance import duration, seconds_of

with extra("experiments"):
    import jinja2
    import matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS = {"holds": "✓", "in part": "◐", "not decided": "?", "does not hold": "✗"}  # beside the word, never alone
COLORS = {"holds": "green", "in part": "amber", "not decided": "amber", "does not hold": "red"}
TITLE = "Stationary activations: the paper, run again"
SHOWN = 3  # machines and versions that the line on top names
WRITTEN = re.compile(r'<section id="([^"]+)" data-about="([^"]*)">\n(.*?)</section><!-- of a run -->', re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One experiment of the report.

    Args:
        section: what it says.
        environments: where each of its runs was computed, as the run store has it.
        scale: the scale of its runs.
    """

    section: Section
    environments: Sequence[dict[str, Any]] = ()
    scale: str = ""


class Written(NamedTuple):
    """A part as it stands in a page.

    Args:
        about: what the rest of the page says of it: title, scale, days, machines, versions and verdicts.
        text: the HTML of its section.
    """

    about: dict[str, Any]
    text: str


def render_html(parts: Mapping[str, Part], onto: str = "") -> str:
    """Write the report as one HTML page, with its figures and its style inside, that loads nothing and has no script.

    Args:
        parts: the experiments by name, in the order of the page.
        onto: a page that was written before; what it has of other experiments stays, and comes first.
    """
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.globals |= {"svg": _svg, "columns_of": columns_of, "paragraphs": _paragraphs, "words_in": words_in}
    section = templates.get_template("section.html.jinja")
    written = {name: Written(json.loads(html.unescape(about)), text) for name, about, text in WRITTEN.findall(onto)}
    written |= {
        name: Written(
            _about(part),
            section.render(
                name=name,
                section=part.section,
                scale=part.scale,
                provenance=list(_provenance(part.environments)),
            ),
        )
        for name, part in parts.items()
    }
    abouts = [one.about for one in written.values()]
    return templates.get_template("report.html.jinja").render(
        title=TITLE,
        written=written,
        about={name: json.dumps(one.about) for name, one in written.items()},
        facts=_facts(abouts),
        verdicts=[(name, one.about["scale"], *v) for name, one in written.items() for v in one.about["verdicts"]],
        signs=SIGNS,
        colors=COLORS,
    )


def is_report(text: str) -> bool:
    """Whether a page is one that ``render_html`` wrote."""
    return f"<title>{TITLE}</title>" in text


def _source(name: str) -> str:
    return files("stationary.lab.report").joinpath(name).read_text(encoding="utf-8")


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]


# What the page says on top


def _about(part: Part) -> dict[str, Any]:
    ran = part.environments
    return {
        "title": part.section.title,
        "scale": part.scale,
        "days": sorted({str(one["time"])[:10] for one in ran if one.get("time")}),
        "machines": sorted({str(one.get("gpu") or one["cpu"]) for one in ran if one.get("gpu") or one.get("cpu")}),
        "versions": sorted({v for one in ran if (v := one.get("versions", {}).get("stationary"))}),
        "commits": sorted({str(one["commit"])[:7] for one in ran if one.get("commit")}),
        "verdicts": [(v.claim, v.where, v.found, v.holds) for v in part.section.verdicts],
    }


def _facts(abouts: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the line on top: scale, date, machine and version, of all parts together."""
    scales = dict.fromkeys(about["scale"] for about in abouts if about["scale"])
    days = sorted({day for about in abouts for day in about["days"]})
    machines, versions, commits = (
        sorted({one for about in abouts for one in about[key]}) for key in ("machines", "versions", "commits")
    )
    facts = {
        "Scale": ", ".join(scales),
        "Computed": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "",
        "Machine": _some(machines),
        "Version": ", ".join(f"stationary {version}" for version in versions)
        + (f" ({_some(commits)})" if commits else ""),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


# Figures


def _svg(figure: "Figure", prefix: str) -> str:
    """Write a figure as an ``<svg>`` element; its ids get a prefix, since matplotlib reuses ids between figures.

    Letters become paths, which look the same in every browser. Black, white and greys become the page's own colour of
    text, more or less transparent, so that the figure fits a dark page as well. The figure is copied before it is
    drawn, since its layout moves a little with every drawing.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "stationary"}):
        deepcopy(figure).savefig(buffer, format="svg", metadata=nothing, facecolor="none")
    text = re.sub(r"<!--.*?-->\n?", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r"(fill|stroke): #([0-9a-f]{2})\2\2\b", _as_text, text[text.index("<svg") :])
    return re.sub(r"""(\bid="|\bhref="#|url\(#)""", rf"\g<1>{prefix}-", text)


def _as_text(grey: re.Match[str]) -> str:
    share = round(100 * (1 - int(grey[2], 16) / 255))
    color = {0: "none", 100: "currentColor"}.get(share, f"color-mix(in srgb, currentColor {share}%, transparent)")
    return f"{grey[1]}: {color}"


# Provenance


def _provenance(environments: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield, for each group of runs with equal environments, what they share, when they ran and how long they took."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in environments:
        shared = {
            key: value for key, value in one.items() if key not in ("time", "wall_s", "lockstep") and value is not None
        }
        groups.setdefault(json.dumps(shared, default=str), []).append(one)
    for shared_json, group in groups.items():
        times = sorted(str(one["time"]) for one in group if one.get("time"))
        seconds = [time for one in group if (time := seconds_of(one)) is not None]
        facts = {"Runs": str(len(group))}
        if times:
            facts["Finished"] = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
        if seconds:
            facts["Wall time"] = duration(sum(seconds))
        for key, value in json.loads(shared_json).items():
            text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            facts[key.upper() if key in ("cpu", "gpu") else key.replace("_", " ").capitalize()] = text
        yield facts
