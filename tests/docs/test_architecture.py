"""The page on the architecture says what the code says: the picture, the table of rooms and the walks."""

import ast
import re
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import hook

import stationary as st

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stationary"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOPS = list(dict.fromkeys(re.findall(r"`([\w/]+\.py): ([\w.]+)`", PAGE)))


graph = partial(hook, "import_graph")
imports = cache(lambda: graph().imports(ROOT))  # reads every file


# The picture


def test_the_picture_is_what_the_code_says():
    text = (ROOT / "docs" / "images" / "import_graph.svg").read_text(encoding="utf-8")
    assert graph().svg(ROOT) == text, "imports have changed: python docs/hooks/import_graph.py draws the picture again"


@pytest.fixture
def house(tmp_path):
    """Four floors: a imports b and d, which need not be drawn; b imports c, and c imports d; d imports a, upwards."""
    files = {
        "a/__init__.py": "from stationary import b, other",
        "a/x.py": "def f():\n    import stationary.d as d",
        "b/__init__.py": "import torch\nfrom stationary.c import name",
        "c.py": "from stationary.d.deep import name",
        "d/__init__.py": "",
        "d/deep.py": "from stationary.a import x\nfrom stationary._checks import check",
        "_checks.py": "",
    }
    for name, text in files.items():
        (tmp_path / "src" / "stationary" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / "stationary" / name).write_text(text)
    layers = '["a", "b", "c | (absent)", "d", "_checks"]'
    contract = f'[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = {layers}\n'
    (tmp_path / "pyproject.toml").write_text(contract)
    return tmp_path


def test_imports_are_read_wherever_they_stand(house):
    assert graph().floors(house) == [["a"], ["b"], ["c"], ["d"]]
    assert graph().imports(house) == {"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "d": {"a"}}


def test_an_arrow_that_a_chain_replaces_is_left_out_and_one_upwards_is_not(house):
    down, up = graph().arrows(graph().imports(house), graph().floors(house))
    assert down == [("a", "b"), ("b", "c"), ("c", "d")] and up == [("d", "a")]


def test_no_arrow_crosses_a_room_and_no_room_another():
    layers = graph().floors(ROOT)
    places = graph().boxes(layers)
    assert set(places) <= set(graph().COLUMNS), "give the new room its column in docs/hooks/import_graph.py"
    for a, (left, top, width, height) in places.items():
        apart = [
            left + width + 10 < x or x + w + 10 < left or top + height + 10 < y or y + h + 10 < top
            for b, (x, y, w, h) in places.items()
            if b != a
        ]
        assert all(apart), a
    for a, b in graph().arrows(imports(), layers)[0]:
        (x1, y1), (x2, y2) = graph().line(a, b, places)
        points = [(x1 + t / 200 * (x2 - x1), y1 + t / 200 * (y2 - y1)) for t in range(201)]
        for name, (left, top, width, height) in places.items():
            if name not in (a, b):
                hits = [left - 4 < x < left + width + 4 and top - 4 < y < top + height + 4 for x, y in points]
                assert not any(hits), f"the arrow from {a} to {b} crosses {name}"


# The rooms


def allowed():
    """By room, the last column of the table, in which "what is below" is not spelt out."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    rooms = [room for room, _ in rows]
    named = {room: set(re.findall(r"`(\w+)`", words)) for room, words in rows}
    for room, words in reversed(rows):
        if words == "every room":
            named[room] = set(rooms) - {room}
        if "below" in words:
            named[room] |= set().union(*(named[other] for other in named[room]))
    return named


def test_the_table_has_every_room_in_the_order_of_the_floors():
    assert list(allowed()) == [name for floor in graph().floors(ROOT) for name in floor]


def test_what_a_room_imports_is_in_the_table():
    down = {a: {b for b in found if b in allowed()[a]} for a, found in imports().items()}
    _, up = graph().arrows(imports(), graph().floors(ROOT))
    others = {(a, b) for a, found in imports().items() for b in found - down[a]} - set(up)
    assert not others, "not in the last column of the table of docs/architecture.md"


# The walks


def test_walks_have_at_most_six_hops():
    walks = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert len(walks) == 3
    for walk in walks:
        assert 3 <= len(re.findall(r"^\d\. ", walk, re.MULTILINE)) <= 6


@pytest.mark.parametrize(("path", "name"), HOPS, ids=lambda value: value)
def test_every_hop_exists(path, name):
    node_of(path, name)


def node_of(path, name):
    found = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        nodes = [node for node in found.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        assert nodes, f"{path} has no {name}"
        found = nodes[-1]
    return found


def a_prediction():
    x = torch.randn(5, 3)
    for method in (None, st.MCDropout(4)):
        for outputs, family in ((2, st.Categorical), (3, st.Categorical), (2, st.Gaussian)):
            st.predict(st.MLP(3, outputs, hidden=(8,)), x, method, family=family)


def an_estimators_fit():
    x = np.random.default_rng(0).standard_normal((40, 2))
    st.StationaryClassifier((8,), max_iter=2, random_state=0).fit(x, x[:, 0] > 0)


@pytest.mark.parametrize(("title", "walk"), [("A prediction", a_prediction), ("A fit", an_estimators_fit)])
def test_every_hop_is_taken(title, walk):
    (text,) = re.findall(rf"^### {title}:.*?(?=^###)", PAGE, re.MULTILINE | re.DOTALL)
    hops = {hop: node_of(*hop) for hop in re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)}
    hops = {hop: node for hop, node in hops.items() if isinstance(node, ast.FunctionDef)}
    called = set()
    sys.setprofile(lambda frame, *_: called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno)))
    try:
        walk()
    finally:
        sys.setprofile(None)
    for (path, name), node in hops.items():
        first = min(part.lineno for part in (node, *node.decorator_list))
        assert (str(SOURCE / path), first) in called, f"{title} does not go through {path}: {name}"
    assert len(hops) >= 5
