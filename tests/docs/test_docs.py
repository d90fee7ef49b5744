"""The site builds, loads nothing from elsewhere, has every public name and no broken link; its hooks do their work."""

import ast
import csv
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urldefrag

import browser
import pytest
from pages import hook, run_script

import stationary
from stationary import gp, inference, metrics, nn
from stationary.lab import baselines, data, models

ROOT = Path(__file__).parents[2]


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built from a copy of the documents, since a build writes docs/reproduce.md."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copy(ROOT / "mkdocs.yml", root)
    for path in ROOT.glob("[!.]*"):
        if not (root / path.name).exists():
            (root / path.name).symlink_to(path)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(root / "built")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "built"


class Page(HTMLParser):
    """What a page has, links to, and loads."""

    LOADED = ("script", "img", "iframe", "source", "video", "audio", "embed", "object", "image", "use", "input")
    NAMED_ONLY = ("canonical", "prev", "next", "alternate", "author", "license")  # links that load nothing

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.update(found[key] for key in ("id", "name") if found.get(key))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in self.LOADED or (tag == "link" and found.get("rel") not in self.NAMED_ONLY):
            urls = [found.get(key) for key in ("src", "href", "data", "xlink:href", "poster")]
            urls += [part.split()[0] for part in (found.get("srcset") or "").split(",") if part.strip()]
            self.loads += [url for url in urls if url]


def pages_of(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def is_outside(url):
    return re.match(r"(?:https?:)?//", url) is not None


@pytest.mark.slow
def test_pages_load_nothing_from_outside(site):
    pages = pages_of(site)
    assert len(pages) > 20
    assert not [(name, url) for name, page in pages.items() for url in page.loads if is_outside(url)]
    styles = {
        path: re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", path.read_text()) for path in site.rglob("*.css")
    }
    assert not [(path.name, url) for path, urls in styles.items() for url in urls if is_outside(url)]
    # The theme's script would ask for these only where a page has a diagram or names its repository
    assert not [
        p.name for p in site.rglob("*.html") if re.search('class="mermaid"|data-md-component="source"', p.read_text())
    ]


@pytest.mark.slow
@pytest.mark.chromium
@pytest.mark.parametrize("name", ["index.html", "theory.html"])
def test_a_browser_loads_nothing_from_outside_and_does_not_complain(site, tmp_path, name):
    leak = '<img src="http://localhost:9/x.png">'
    (tmp_path / "leak.html").write_text((site / name).read_text().replace("</body>", f"{leak}</body>"))
    page = browser.Page(tmp_path / "profile")
    try:
        page.open((site / name).as_uri())
        assert [url for url in page.evaluate(RESOURCES) if is_outside(url)] == []
        assert page.console == []
        page.open((tmp_path / "leak.html").as_uri())
        assert [url for url in page.evaluate(RESOURCES) if is_outside(url)] == ["http://localhost:9/x.png"]
    finally:
        page.close()


@pytest.mark.slow
@pytest.mark.chromium
def test_search_works_from_disk(site, tmp_path):
    page = browser.Page(tmp_path / "profile")
    try:
        page.open((site / "index.html").as_uri())
        page.evaluate(f"(() => {{ const box = {SEARCH}; box.value = 'isolation forest'; box.focus(); }})()")
        page.evaluate(f"{SEARCH}.dispatchEvent(new Event('keyup'))")
        found, deadline = [], time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            found = page.evaluate("[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)")
        assert any("howto/beside_a_detector.html" in link for link in found)
    finally:
        page.close()


@pytest.mark.slow
@pytest.mark.chromium
def test_on_a_telephone_tables_and_pictures_scroll_and_not_the_page(site, tmp_path):
    """And words and wide pictures stay large enough to be read."""
    page = browser.Page(tmp_path / "profile")
    least = "(found, size) => Math.min(...[...document.querySelectorAll(found)].map((each) => each[size]))"
    try:
        page.resize(400, 800, touch=True)
        for name in ("active.html", "arena.html", "reproduce.html"):
            page.open((site / name).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == 400, name
            assert page.evaluate(f"({least})('article td:first-child', 'clientWidth')") >= 100, name
            assert page.evaluate(f"({least})('article p > img', 'width')") > 600, name
        page.open((site / "index.html").as_uri())
        assert page.evaluate(f"({least})('article p > img', 'width')") < 400, "drawn for a telephone"
    finally:
        page.close()


SEARCH = "document.querySelector('[data-md-component=search-query]')"
RESOURCES = "performance.getEntriesByType('resource').map((entry) => entry.name)"


@pytest.mark.slow
def test_every_link_leads_somewhere(site):
    pages = pages_of(site)
    broken = []
    for name, page in pages.items():
        for link in page.links:
            url, anchor = urldefrag(link)
            if re.match("[a-z]+:", url) or is_outside(url):
                continue
            target = (site / name).parent / unquote(url) if url else site / name
            there = os.path.relpath(os.path.realpath(target), os.path.realpath(site))
            state = "=" in anchor  # of the explorer
            if not target.is_file() or (
                anchor and not state and there in pages and unquote(anchor) not in pages[there].ids
            ):
                broken.append((name, link))
    assert not broken


# The API pages


def exported(module):
    """The names that a module brings on purpose: ``from x import y as y``."""
    nodes = ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
    return [a.asname for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names if a.asname == a.name]


def written(module):
    """The public functions and classes that a module defines."""
    found = inspect.getmembers(module, lambda x: inspect.isfunction(x) or inspect.isclass(x))
    return [name for name, value in found if value.__module__ == module.__name__ and not name.startswith("_")]


PUBLIC = [
    *((stationary, name) for name in stationary._WHERE),  # test_public.py compares it with what is exported
    *((module, name) for module in (nn, inference, gp, data, models, baselines) for name in exported(module)),
    *((gp.kernels, name) for name in exported(gp.kernels) if name not in ("kernel_of", "ntk_of", "RBFKernel")),
    *((metrics, name) for name in written(metrics) if name not in ("UnknownNLPD", "RiskCoverage")),
]


def test_every_name_of_the_package_is_in_the_index_of_the_api():
    """A function that is also a class is there as the class."""
    text = (ROOT / "docs/api/index.md").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall("`([A-Za-z_.]+)`", text)}
    classes = {name.lower() for name in shown if name[0].isupper()}
    names = {*stationary._WHERE, "plots", "metrics", "adapters"}
    assert not [name for name in names if name not in shown and name.replace("_", "") not in classes]


@pytest.mark.slow
def test_every_public_name_is_in_the_api(site):
    ids = set().union(*(page.ids for name, page in pages_of(site).items() if name.startswith("api/")))
    missing = [
        f"{module.__name__}.{name}"
        for module, name in PUBLIC
        if not {f"{module.__name__}.{name}", f"stationary.{name}"} & ids
    ]
    assert len(PUBLIC) > 90 and not missing


@pytest.mark.slow
def test_types_in_signatures_are_linked(site):
    """But for Python's own, and for what the posterior of infinite width keeps to itself."""
    pages = [path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html")]
    plain = {name for text in pages for name in re.findall('<span title="([A-Za-z_.0-9]+)">[A-Z]', text)}
    known = {name for name in plain if "._" in name or "." not in name or ".lab." in name}
    left = {"posterior.Numbers", "factors.EvenFactor", "factors.CausalFactor", "laplace.LaplacePosterior"}
    left |= {"ensemble.EnsemblePosterior"}
    assert {".".join(name.split(".")[-2:]) for name in plain - known} <= left
    assert sum(text.count("tensors.html#torch.Tensor") for text in pages) > 100


@pytest.mark.slow
def test_functions_are_shown_and_not_their_modules(site):
    text = (site / "api" / "prediction.html").read_text(encoding="utf-8")
    shown = re.findall('doc-module-name">([^<]+)<', text)
    assert shown == ["adapters"]
    assert "stationary.<wbr>theory.<wbr>softmax.<wbr>of_gaussian<" in text, "a telephone breaks long names behind dots"


@pytest.mark.slow
def test_attributes_are_listed_one_by_one(site):
    text = (site / "api" / "estimators.html").read_text(encoding="utf-8")
    attributes = re.findall(r"<b><code>(?:<span[^>]*>)?([^<]+)<", text)
    assert {"n_features_in_", "feature_names_in_", "conformal_", "detector_"} <= set(attributes)
    assert not [name for name in attributes if "," in name and name.endswith("_,")]


@pytest.mark.slow
def test_what_comes_back_is_one_item_and_fields_have_types(site):
    """Of a second line of "Returns" no second item is made, and a NamedTuple lists its fields as attributes."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html")}
    lists = [found for text in texts.values() for found in re.findall(r"Returns:.*?</ul>", text, re.DOTALL)]
    assert len(lists) > 5 and all(found.count("<li") == 1 for found in lists)
    items = [
        item for text in texts.values() for item in re.findall(r'<li class="doc-section-item.*?</li>', text, re.DOTALL)
    ]
    plain = [" ".join(re.sub("<[^>]+>", "", item).split()) for item in items]
    assert len(plain) > 500
    assert not [item for item in plain if re.match(r"[a-z_]+ –", item)], "a field without a type"
    assert any(item.startswith("standard_error (Tensor)") for item in plain)


# How-to


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("add_*.md")), ids=lambda page: page.stem)
def test_an_addition_takes_less_than_thirty_lines(page):
    for code in re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        assert len([line for line in code.splitlines() if line.strip()]) < 30


# The reproduction page


reproduction = cache(lambda: hook("reproduction"))


def test_the_reproduction_page_is_what_the_results_say():
    assert reproduction().page(ROOT / "results") == (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8"), (
        "results/ has changed: python docs/hooks/reproduction.py, or mkdocs build, writes docs/reproduce.md again"
    )


def results_like_the_paper(folder, distance=0.0):
    """Summaries of all experiments with the paper's numbers, moved by so many of its standard deviations."""
    with (files("stationary.lab.experiments") / "paper_tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    for experiment in ("uci", "cifar10", "radar"):
        (folder / experiment).mkdir(parents=True)
        columns = {"uci": ("dataset", "method"), "cifar10": ("setting",), "radar": ()}[experiment]
        with (folder / experiment / "summary.csv").open("w") as file:
            writer = csv.DictWriter(file, [*columns, "prior", "metric", "mean", "std"], extrasaction="ignore")
            writer.writeheader()
            for row in rows:
                if row["experiment"] == experiment:
                    std = float(row["std"] or 0.01)
                    moved = float(row["mean"]) + distance * max(std, 5e-4)
                    writer.writerow(row | {"setting": "paper", "mean": moved, "std": std})
                    writer.writerow(
                        row | {"setting": "strict", "dataset": "another", "prior": "rbf", "mean": 9, "std": 9}
                    )
    return folder


@pytest.mark.parametrize(
    ("distance", "agrees", "better", "worse"), [(0, 179, 0, 0), (1.9, 179, 0, 0), (2.1, 0, 96, 83), (-2.1, 0, 83, 96)]
)
def test_numbers_are_judged(tmp_path, distance, agrees, better, worse):
    numbers = reproduction().published(results_like_the_paper(tmp_path, distance))
    verdicts = [number.verdict for number in numbers]
    assert [verdicts.count(v) for v in ("agrees", "better", "worse", "not run")] == [agrees, better, worse, 0]
    assert {(n.experiment, n.prior) for n in numbers if n.verdict == "not judged"} == {
        ("radar", "relu"),
        ("radar", "matern52"),
        ("cifar10", "relu"),  # the paper's infinity
    }


def test_the_page_has_every_published_number_and_its_origin(tmp_path):
    results = results_like_the_paper(tmp_path / "results")
    where = {
        "time": "2026-01-02T03:04:05",
        "commit": "0123456789-dirty",
        "python": "3.11",
        "versions": {"torch": "2.7"},
    }
    where |= {"cpu": "a CPU", "threads": 2, "gpu": None}
    config = {"dataset": "adult", "method": "NN", "prior": "rbf", "folds": [0]}
    (results / "uci" / "x.json").write_text(json.dumps({"config": config, "environments": [where], "numbers": {}}))
    text = reproduction().page(results)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith(("| NN", "| S", "| GPDNN"))]
    shown = [cell for row in rows for cell in row[3:-1:2] if cell.strip()]
    assert len(shown) == 182 and "–" not in "".join(shown)
    assert "**179 agree,\n0 are better and 0 are worse**" in text and "Not run again yet" not in text
    adult = text[text.index("### Adult") : text.index("### Connect-4")]
    assert (
        adult.count("[0123456+](../results/uci/x.json)") == 1 and "a CPU, 2 threads | `0123456+` | 2026-01-02" in text
    )


def test_what_has_not_run_is_said(tmp_path):
    text = reproduction().page(tmp_path)
    assert (
        "0 of them" in text and text.count("Not run again yet") == 2 and "| all | 182 | 0 | 0 | 0 | 0 | 182 |" in text
    )


# Links to the repository, formulas


def converted(markdown, tmp_path, repo_url=None, src_uri="howto/page.md"):
    for name in ("docs/index.md", "results/uci/summary.csv", "results/paper/tables.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    config = SimpleNamespace(
        docs_dir=str(tmp_path / "docs"), site_dir="site", use_directory_urls=False, repo_url=repo_url
    )
    config.plugins = SimpleNamespace(_current_plugin=None)
    added = {}
    site_files = SimpleNamespace(get_file_from_path=added.get, append=lambda file: added.update({file.src_uri: file}))
    page = SimpleNamespace(file=SimpleNamespace(src_uri=src_uri))
    return hook("repository").on_page_markdown(markdown, page=page, config=config, files=site_files), sorted(added)


@pytest.mark.parametrize(
    ("markdown", "expected", "copies"),
    [
        (
            "[`summary.csv`](../../results/uci/summary.csv)",
            "[`summary.csv`](../repository/results/uci/summary.csv)",
            ["repository/results/uci/summary.csv"],
        ),
        ("[`results/uci`](../../results/uci)", "`results/uci`", []),
        ("[the runs](../../results/uci)", "the runs (`results/uci`)", []),
        ("[tables](../../results/paper/tables.md)", "tables (`results/paper/tables.md`)", []),
        ("[home](../index.md#x) and [paper](https://arxiv.org)", None, []),
        ("```\n[`summary.csv`](../../results/uci/summary.csv)\n```", None, []),
    ],
)
def test_links_to_the_repository(tmp_path, caplog, markdown, expected, copies):
    assert converted(markdown, tmp_path) == (expected or markdown, copies)
    assert not caplog.records


def test_links_to_a_repository_with_an_address(tmp_path):
    text, copies = converted("[runs](../results/uci#x)", tmp_path, repo_url="https://host/it/", src_uri="page.md")
    assert text == "[runs](https://host/it/blob/HEAD/results/uci#x)" and not copies


def test_a_link_to_nothing_in_the_repository_is_a_warning(tmp_path, caplog):
    converted("[runs](../../results/nothing.csv)", tmp_path)
    assert "there is no results/nothing.csv" in caplog.text


def test_formulas_become_mathml():
    mathml, page = hook("mathml"), SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    content = '<p><span class="arithmatex">\\(a &lt; \\frac{1}{2}\\)</span></p>'
    content += '<div class="arithmatex">\\[\\Gamma(\\nu)\\]</div><td>0.5 ± 0.1</td>'
    result = mathml.on_page_content(content, page=page, config=None, files=None)
    assert (
        result.count("<math") == 2
        and "<mfrac>" in result
        and 'display="block"' in result
        and "arithmatex" not in result
        and "<td>0.5&nbsp;±&nbsp;0.1</td>" in result
    )
    with pytest.raises(Exception, match=r"page.md: the formula .*nosuchthing"):
        mathml.on_page_content(
            '<span class="arithmatex">\\(\\nosuchthing\\)</span>', page=page, config=None, files=None
        )


def test_the_tables_of_the_estimators_are_those_of_the_stored_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    command = ["benchmarks/tables.py", "--markdown", "results/benchmarks/tables.json"]
    printed = run_script(*command).strip()
    page = (ROOT / "docs" / "defaults.md").read_text()
    assert f"<!-- begin: python {' '.join(command)} -->\n{printed}\n<!-- end -->" in page
    ranks = [line.split("|")[2:-1] for line in printed.splitlines() if "median rank" in line]
    assert all(float(line[0]) == min(map(float, line)) for line in ranks), "the default is the best"


def test_where_something_else_is_better_than_the_default_is_what_the_tables_say():
    """By more than .01, in the printed numbers."""
    page, better = (ROOT / "docs" / "defaults.md").read_text(), {}
    for table in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE):
        (_, _, *others), _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for name, *cells in rows[:-2]:  # without ranks and seconds
            own, *rest = (round(1000 * float(cell)) for cell in cells)
            for other, nlpd in zip(others, rest, strict=True):
                if own - nlpd > 10:
                    better.setdefault(other, []).append(name.partition(" ")[2].replace("_", " "))
    words = {
        "infinite width, one length-scale": "A single length-scale",
        "infinite width, trunk": "A trunk of two layers",
    }
    words |= {"finite, 300 units": "300 finite units"}
    del better["finite, 100 units"]
    for other, (*first, last) in better.items():
        said = words.get(other, other[0].upper() + other[1:])
        assert f"**{said}:** {', '.join(first)}{' and ' * bool(first)}{last}" in page
