import io
import math
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest
from browser import Page
from matplotlib.figure import Figure

from stationary.lab.report.content import Measured, Section, Table, Verdict, judged
from stationary.lab.report.latex import render_latex
from stationary.lab.report.page import Part, render_html
from stationary.lab.report.render import render_markdown

NASTY = (
    """<script>alert("1")</script> <img src=x onerror='a()'> & 100 % $x_1$ | #2 {a} ~ ^ \\ `b` *c* ± é ν {{ 7*7 }}"""
)
COLORS = ("#d62728", "#17becf", "#8c564b")
ENVIRONMENT = {
    "time": "2026-11-15T17:10:55+00:00",
    "commit": "432bc3a",
    "python": "3.11.7",
    "versions": {"stationary": "0.1.0", "torch": "2.13.0", "numpy": NASTY},
    "cpu": NASTY,
    "threads": 2,
    "gpu": None,
    "wall_s": 2.5,
}


def picture(color):
    """Lines, letters, formulas, markers, clip paths, an image and a label that looks like markup."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1, 2], [0, 1, 0], color=color, linewidth=6, marker="o", label='id="a" href="#b" url(#c)')
    left.fill_between([0, 2], [0, 1], color=color)
    left.set(title=r"$\nu = \infty$", xlabel="<b> -- & --> x")
    left.legend()
    right.imshow(np.arange(4).reshape(2, 2))
    return figure


def sections():
    compared = Measured(0.431, 0.0071, paper=Measured(0.45, 0.008))
    tables = (
        Table(NASTY, (NASTY, "n", "NLPD"), ((NASTY, 768, compared), ("ReLU", 12, Measured(0.5, 0.1)), ("x", 1, None))),
        Table("Plain", ("a", "b"), (("c", 0.25),)),
    )
    first = Section(
        NASTY,
        f"{NASTY}\n\nsecond\nparagraph",
        NASTY,
        {"a": picture(COLORS[0]), NASTY: picture(COLORS[1])},
        {"a": NASTY},
    )
    verdicts = (
        Verdict("A claim", "Fig. 1", "what was found", "holds"),
        Verdict(NASTY, NASTY, NASTY, "in part"),
        Verdict("Third", "", "", "not decided"),
        Verdict("Fourth", "Table 1", "A sentence that says with which numbers it was found, and how.", "does not hold"),
    )
    second = Section("Second", "", "ours", {"a": picture(COLORS[2])}, {"a": "caption"}, tables, verdicts=verdicts)
    return [first, second]


@cache
def page():
    later = ENVIRONMENT | {"time": "2026-11-16T19:00:00+00:00", "wall_s": 120, "lockstep": 2}
    first, second = sections()
    ran = [ENVIRONMENT, later, ENVIRONMENT | {"gpu": "H200", "wall_s": 7200}]
    return render_html({"first": Part(first, ran, "demo"), "second": Part(second, [ENVIRONMENT], "paper")})


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


# Numbers


def shown(*cells):
    """The body of a table with one column, as Markdown shows it."""
    text = render_markdown([Section("t", "", "", tables=(Table("c", ("v",), tuple((cell,) for cell in cells)),))])
    return [line.strip("| ") for line in text.splitlines()[6:]]


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ((1, 45222, -3), ["1", "45,222", "−3"]),
        ((0.5, 0.123456, -0.2), ["0.500", "0.123", "−0.200"]),
        ((12.3456, 1234.5), ["12.3", "1234.5"]),
        ((0.5, 0.25, 1e-9, 1e12, 0.0), ["0.500", "0.250", "1.0e−09", "1.0e+12", "0.000"]),
        ((math.inf, -math.inf, math.nan, 0.5, None), ["∞", "−∞", "nan", "0.500", "–"]),
        ((Measured(0.56043, 0.035), Measured(0.99969, 0.00083)), ["0.560 ± 0.035", "1.000 ± 0.001"]),
        ((Measured(0.25), Measured(0.5)), ["0.250", "0.500"]),
        ((Measured(np.float32(0.25), np.float32(0.012)),), ["0.250 ± 0.012"]),
        ((np.float32(0.25), np.float64(0.5)), ["0.250", "0.500"]),
    ],
)
def test_numbers_are_readable(cells, texts):
    assert shown(*cells) == texts


def test_beside_the_paper_numbers_have_the_digits_that_it_prints():
    cells = (
        Measured(0.43123, 0.00682, Measured(0.45, 0.008)),
        Measured(0.46612, 0.00682, Measured(0.45, 0.008)),
        Measured(0.99831, 0.0001, Measured(0.998, 0.0)),
        Measured(0.7),
    )
    assert [row.split(" | ") for row in shown(*cells)] == [
        ["0.431 ± 0.007", "0.450 ± 0.008", "**−2.3**"],
        ["0.466 ± 0.007", "0.450 ± 0.008", "**+2.0**"],
        ["0.998 ± 0.000", "0.998 ± 0.000", "–"],
        ["0.700", "–", "–"],
    ]


def test_measured_over_values():
    measured = Measured.over(np.array([1.0, 2.0, 3.0]), Measured(1.0, 0.5))
    assert (measured.mean, measured.std) == pytest.approx((2, math.sqrt(2 / 3)))
    assert measured.difference == pytest.approx(2)
    assert Measured(1.0).difference is None and Measured(1.0, 1.0, Measured(1.0)).difference is None


def test_what_is_better_than_the_paper_is_marked_as_such():
    published = Measured(0.5, 0.01)
    cells = [Measured(0.4, 0.01, published, better) for better in (-1, 0, 1)] + [Measured(0.49, 0.01, published, -1)]
    table = Table("caption", ("a",), tuple((cell,) for cell in cells))
    html = render_html({"a": Part(Section("title", "paper", "ours", tables=(table,)))})
    assert html.count("<strong") == 3 and html.count('<strong class="better">') == 1


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        Table("caption", ("a", "b"), (("c", 1), ("d",)))


# HTML


def test_page_needs_nothing_else():
    html = page()
    for tag, attributes in Elements(html).found:
        assert tag not in ("script", "link", "iframe", "img", "object", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            target = attributes.get(name, "#")
            assert target.startswith(("#", "data:image/png;base64,")) or tag == "a", (tag, target)
    assert not re.search(r"@import|url\((?!#)", html)


def test_ids_are_unique_and_references_lead_somewhere():
    html = page()
    elements = Elements(html).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 50
    references = re.findall(r"url\(#([^)]+)\)", html)
    for _, attributes in elements:
        targets = [attributes.get(name, "") for name in ("href", "xlink:href")]
        references += [target[1:] for target in targets if target.startswith("#")]
        references += attributes.get("aria-labelledby", "").split()
    assert len(references) > 50 and set(references) <= set(ids)


def test_what_comes_from_results_is_text():
    elements = Elements(page())
    flat = " ".join(NASTY.split())
    assert elements.text.count(flat) >= 8, "title, contents, paper, ours, captions, table, provenance"
    assert "second paragraph" in elements.text
    assert sum(tag == "svg" for tag, _ in elements.found) == 3
    assert sum(tag == "table" for tag, _ in elements.found) == 3


def test_same_input_same_page():
    def made(section):
        return render_html({"a": Part(section, [ENVIRONMENT])})

    _, same = sections()
    assert made(same) == made(same) == made(sections()[1])


def test_runs_of_one_environment_are_one_entry():
    lists = re.findall(r"<dl>(.*?)</dl>", page(), flags=re.DOTALL)
    facts = [dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)) for text in lists]
    assert re.findall(r'</h2>\n<p class="facts"><b>Scale</b> (.*?)</p>', page()) == ["demo", "paper"]
    assert [fact["Runs"] for fact in facts] == ["2", "1", "1"]
    assert facts[0]["Finished"] == "2026-11-15T17:10:55+00:00 to 2026-11-16T19:00:00+00:00"
    assert [fact["Wall time"] for fact in facts] == ["62.5 s", "2 h", "2.5 s"]
    assert "GPU" not in facts[0] and facts[1]["GPU"] == "H200"
    assert "torch 2.13.0" in facts[0]["Versions"]
    assert "No stored runs" in render_html({}) and "No stored runs" in render_html({"a": Part(Section("t", "", ""))})


# Verdicts, and what is said on top


def test_a_claim_holds_if_all_its_parts_do():
    assert judged([True, np.True_]) == "holds" and judged([True, False]) == "in part"
    assert judged(iter([False, np.False_])) == judged([True, False, False]) == "does not hold"
    assert judged([]) == "not decided"


def test_every_verdict_has_a_word_beside_its_colour():
    html = page()
    [table] = re.findall(r'<table class="verdicts">(.*?)</table>', html, flags=re.DOTALL)
    cells = [re.findall(r"<td.*?>(.*?)</td>", row, flags=re.DOTALL) for row in table.split("<tr>")[2:]]
    assert len(cells) == 4 and all('<a href="#second">' in row[0] for row in cells)
    words = [re.sub(r"<.*?>", "", row[-1]) for row in cells]
    assert words == ["✓ holds", "◐ in part", "? not decided", "✗ does not hold"]
    assert all(row[1].endswith("<small>scale paper</small>") for row in cells), "since another part has another scale"
    _, second = sections()
    assert "</b> smoke, which shows that everything works and decides nothing<" in render_html(
        {"a": Part(second, scale="smoke")}
    )
    assert "<small>scale" not in render_html({"a": Part(second, scale="demo"), "b": Part(second, scale="demo")})
    assert re.findall(r'<td class="(\w+)"', table) == ["green", "amber", "amber", "red"]
    assert html.index('class="verdicts"') < html.index("<h2>" + "Second")
    assert 'class="verdicts"' not in render_html({"a": Part(sections()[0])})


def test_the_line_on_top_has_scale_date_machine_and_version():
    line, *_ = re.findall(r'<p class="facts">(.*?)</p>', page(), flags=re.DOTALL)  # then that of each part
    text = " ".join(re.sub("<.*?>", " ", line).split())
    assert text.startswith("Scale demo, paper Computed 2026-11-15 to 2026-11-16 Machine ")
    assert "H200" in text and text.endswith("Version stationary 0.1.0 (432bc3a)")


def test_symbols_have_plain_words_beside_them():
    html = page()
    words = re.findall(r'<dl class="words".*?>(.*?)</dl>', html, flags=re.DOTALL)
    assert "negative log predictive density" in words[-1] and "units of the paper’s standard deviation" in words[-1]
    assert "AUROC" not in "".join(words)  # nobody asked


# More sections later


def test_a_page_gets_more_sections_and_keeps_the_others():
    first, second = (replace(section, figures={}, captions={}) for section in sections())
    whole = render_html({"first": Part(first, [ENVIRONMENT], "demo"), "second": Part(second, [ENVIRONMENT], "demo")})
    alone = render_html({"first": Part(first, [ENVIRONMENT], "demo")})
    assert render_html({"second": Part(second, [ENVIRONMENT], "demo")}, onto=alone) == whole
    changed = Section("Other", "", "ours", verdicts=(Verdict("c", "w", "f", "holds"),))
    again = render_html({"first": Part(changed, [ENVIRONMENT], "paper")}, onto=whole)
    assert "second paragraph" in whole and "second paragraph" not in again
    assert ">Second</h2>" in again and "Scale</b> paper, demo" in again
    assert again.count("<section id=") == 3 and again.count('<td><a href="#first">') == 1
    assert render_html({"first": Part(first, [ENVIRONMENT], "demo")}, onto="no page of ours") == alone


# Markdown and LaTeX


def test_markdown_has_whole_rows():
    text = render_markdown(sections())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    pipes = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
    assert pipes == [5] * 6 + [6] * 5 + [3] * 3
    assert text.startswith("## What held\n\n| claim | where | found | verdict |") and "Fourth" in rows[5]
    assert "<script" not in text.replace("\\<", "") and "## Second" in text and "{{ 7\\*7 }}" in text


def test_latex_has_whole_rows():
    text = render_latex(sections())
    assert text.count("\\toprule") == text.count("\\midrule") == text.count("\\bottomrule") == 3  # one is continued
    assert "\\multicolumn{3}{c}{NLPD}" in text and "0.431 $\\pm$ 0.007 & 0.450 $\\pm$ 0.008 & \\textbf{$-$2.4}" in text
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    rows = [line for line in body.splitlines() if line.endswith("\\\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [1, 1, 1, 1, 1, 3, 3, 3, 3, 1, 1]
    plain = re.sub(r"\\[&%$#_{}\\]", "", body)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    assert not re.search(r"[%#_^~]", plain.replace("$^2$", ""))


# In a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def browser(chromium, tmp_path):
    """Chromium that opens a report, given as HTML, in a window of a given size."""

    def opened(html, width=1400, height=800, dark=False):
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        chromium.console.clear()
        chromium.resize(width, height, dark)
        chromium.open(path.as_uri())
        return chromium

    return opened


@pytest.mark.chromium
def test_every_figure_is_in_the_page_and_the_console_is_silent(browser):
    seen = browser(page())
    assert seen.console == []
    drawings = [tag for tag, _ in Elements(seen.evaluate("document.documentElement.outerHTML")).found if tag == "svg"]
    assert len(drawings) == 3
    seen = browser(page().replace("<main>", "<main><img src='https://example.org/x.png'>"))
    assert any("Content Security Policy" in line for line in seen.console), "errors would be seen"


@pytest.mark.chromium
@pytest.mark.parametrize(("scheme", "background"), [("light", 0xFD), ("dark", 0x15)])
@pytest.mark.parametrize("width", [1400, 400])
def test_page_renders(browser, scheme, background, width):
    screenshot = browser(page(), width, 5000, dark=scheme == "dark").screenshot()
    pixels = matplotlib.image.imread(io.BytesIO(screenshot))[..., :3]
    assert pixels.shape[1] == width
    assert pixels[-1, 0, 0] * 255 == pytest.approx(background, abs=1)
    pixels = pixels[::4]  # enough rows to see a figure
    lighter = 1 if scheme == "light" else 1.3
    for color in COLORS:
        wanted = [min(1, lighter * int(color[i : i + 2], 16) / 255) for i in (1, 3, 5)]
        assert (abs(pixels - wanted).max(-1) < 0.03).sum() > 125, f"the figure in {color} is missing"


@pytest.mark.chromium
@pytest.mark.parametrize("width", [1400, 400])
def test_page_does_not_scroll_sideways(browser, width):
    seen = browser(page(), width)
    assert seen.evaluate("document.documentElement.scrollWidth") <= width
    drawing = "document.querySelector('.drawing')"
    assert seen.evaluate(f"{drawing}.scrollWidth > {drawing}.clientWidth") == (width == 400), "the figure does"


@pytest.mark.chromium
def test_a_small_figure_shrinks_on_a_telephone(browser):
    small = Section("Small", "", "", {"a": Figure(figsize=(4.2, 4.5))}, {"a": ""})
    seen = browser(render_html({"small": Part(small, [ENVIRONMENT], "demo")}), 400)
    assert seen.evaluate("document.querySelector('.drawing svg').clientWidth") > 250
    assert seen.evaluate("document.querySelector('.drawing').scrollWidth") <= 400 - 2 * 16
