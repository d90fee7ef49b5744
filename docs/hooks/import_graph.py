"""Draws docs/images/import_graph.svg: which room of the library imports which, read from the source.

``mkdocs build`` calls it, or alone: python docs/hooks/import_graph.py. The floors are the layers of
``[tool.importlinter]`` in pyproject.toml. An arrow is left out where a chain of others leads to the same room; one that
leads upwards, which the contracts forbid, is drawn in red.
"""

import ast
import re
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = "stationary"
COLUMNS = {  # where a room stands on its floor; chosen so that no arrow crosses a room
    "lab": 1.5,
    "estimators": 0.5,
    "adapters": 3,
    "active": 2.25,
    "bo": 1.5,
    "ood": 1.75,
    "calibration": 0.875,
    "plots": 2.75,
    "gp": 0,
    "inference": 1,
    "training": 1,
    "metrics": 2,
    "nn": 1,
    "predictive": 2,
    "activations": 0.5,
    "theory": 1,
    "explorer": 3.5,
}
LAST = max(COLUMNS.values())
COLUMN, FLOOR, WIDTH, HEIGHT, MARGIN = 180, 84, 112, 36, 16  # pixels
Imports = dict[str, set[str]]  # by room, the rooms that it imports
Point = tuple[float, float]


# What the code says


def floors(root: Path) -> list[list[str]]:
    """The rooms from top to bottom, but for those that are open to all and those that are not there yet."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (one["layers"] for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    source = root / "src" / PACKAGE
    there = [[name for name in re.findall(r"[a-z]\w*|_\w+", layer) if _exists(source, name)] for layer in layers]
    return [names for layer in there if (names := [name for name in layer if not name.startswith("_")])]


def _exists(source: Path, name: str) -> bool:
    return (source / name / "__init__.py").exists() or (source / f"{name}.py").exists()


def imports(root: Path) -> Imports:
    """Every import of a room by another, wherever in a file it stands."""
    rooms = [name for floor in floors(root) for name in floor]
    found: Imports = {name: set() for name in rooms}
    for path in sorted((root / "src" / PACKAGE).rglob("*.py")):
        room = path.relative_to(root / "src" / PACKAGE).parts[0].removesuffix(".py")
        if room in found:
            modules = [name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for name in _named(node)]
            parts = [module.split(".") for module in modules]
            found[room] |= {part[1] for part in parts if part[0] == PACKAGE and part[1:2] and part[1] in found} - {room}
    return found


def _named(node: ast.AST) -> list[str]:
    """The modules of an import statement; what is imported from one may be a module itself."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def arrows(found: Imports, layers: list[list[str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The arrows downwards that no chain of others replaces, and all those upwards."""
    floor = {name: number for number, layer in enumerate(layers) for name in layer}
    down = {a: {b for b in others if floor[b] >= floor[a]} for a, others in found.items()}
    below: Imports = {}
    for name in (name for layer in reversed(layers) for name in layer):  # everything that chains from here lead to
        below[name] = down[name].union(*(below.get(other, set()) for other in down[name]))
    kept = [
        (a, b)
        for a, others in down.items()
        for b in sorted(others)
        if not any(b in below[other] for other in others - {b})
    ]
    return kept, [(a, b) for a, others in found.items() for b in sorted(others) if floor[b] < floor[a]]


# The picture


def boxes(layers: list[list[str]]) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, width and height of each room; a floor of one room above all others is as wide as the house."""
    found = {}
    for number, layer in enumerate(layers):
        for name in layer:
            wide = LAST * COLUMN if number == 0 and len(layer) == 1 else 0
            left = MARGIN + (0 if wide else COLUMNS.get(name, LAST) * COLUMN)
            found[name] = (left, MARGIN + number * FLOOR, WIDTH + wide, HEIGHT)
    return found


def line(a: str, b: str, places: dict[str, tuple[float, float, float, float]]) -> tuple[Point, Point]:
    """From the lower edge of a to the upper edge of b: straight down where a is wide, else both ends lean inwards."""
    (left, top, width, height), (x, y, w, _) = places[a], places[b]
    start, end = left + width / 2, x + w / 2
    if width > WIDTH:
        return (end, top + height), (end, y)
    lean = max(-0.3 * WIDTH, min(0.3 * WIDTH, 0.3 * (end - start)))
    return (start + lean, top + height), (end - lean, y)


def svg(root: Path = ROOT) -> str:
    layers, found = floors(root), imports(root)
    places, (down, up) = boxes(layers), arrows(found, layers)
    width, height = 2 * MARGIN + WIDTH + LAST * COLUMN, 2 * MARGIN + HEIGHT + (len(layers) - 1) * FLOOR
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" role="img">',
        "<title>Which room imports which</title>",
        *(_head(name, color) for name, color in (("down", "#78909c"), ("up", "#e53935"))),
    ]
    for a, b in down:
        (x1, y1), (x2, y2) = line(a, b, places)
        parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2 - 2:g}" stroke="#78909c" stroke-width="1.6" '
            f'marker-end="url(#down)"><title>{a} imports {b}</title></line>'
        )
    for a, b in up:
        (x1, y1, _, h), (x2, y2, _, _) = places[a], places[b]
        aside = min(x1, x2) - 0.2 * COLUMN
        parts.append(
            f'<path d="M{x1:g} {y1 + h / 2:g} C{aside:g} {y1:g} {aside:g} {y2 + h:g} {x2 - 2:g} {y2 + h / 2:g}" '
            f'fill="none" stroke="#e53935" stroke-width="1.6" stroke-dasharray="5 4" marker-end="url(#up)">'
            f"<title>{a} imports {b}, which is above it</title></path>"
        )
    for name, (left, top, w, h) in places.items():
        parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{w:g}" height="{h:g}" rx="5" fill="#e0f2f1" stroke="#00796b"/>'
            f'<text x="{left + w / 2:g}" y="{top + h / 2 + 5:g}" text-anchor="middle" fill="#00332e">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _head(name: str, color: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{color}"/></marker>'
    )


def write(root: Path = ROOT) -> None:
    """Write the picture, unless it is there and as the code is."""
    path, text = root / "docs" / "images" / "import_graph.svg", svg(root)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def on_pre_build(*, config: Any) -> None:
    write()


if __name__ == "__main__":
    write()
