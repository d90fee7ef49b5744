"""Writes docs/reproduce.md: every number that the paper publishes beside ours, from the files in results/.

``mkdocs build`` calls it, or alone: python docs/hooks/reproduction.py. The words are in reproduce.md.jinja, all numbers
come from here.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from stationary.lab.experiments import paper
from stationary.lab.experiments.cifar10 import report as cifar10_report
from stationary.lab.experiments.uci import report as uci_report
from stationary.lab.report.content import Measured

ROOT = Path(__file__).parents[2]
METHODS = ("NN", "SVGP", "GPDNN", "SV-DKL")
PRIORS = ("rbf", "matern52", "matern32", "matern12", "siren", "erf", "step", "relu")
EXPERIMENTS = {"uci": "UCI", "cifar10": "CIFAR-10", "radar": "radar"}
DATASETS = {"diabetes": "Diabetes", "adult": "Adult", "connect-4": "Connect-4", "covtype": "Covtype"}
OTHER_DATASETS = {"cifar10": "cifar-10", "radar": "radar"}
BETTER = uci_report.COMPARED | cifar10_report.COMPARED  # 1 where larger is better
VERDICTS = ("agrees", "better", "worse", "not judged", "not run")
NOT_THE_PAPERS = ("active", "arena", "bo")  # experiments of our own, whose pages say where their numbers come from
SPACE = "\N{NO-BREAK SPACE}"
MARKS = {"better": f"{SPACE}▲", "worse": f"{SPACE}▼"}
Key = tuple[str, str, str, str]  # data set, prior, method, metric


class Number(NamedTuple):
    """One of the paper's, and ours if it has run."""

    experiment: str
    dataset: str
    prior: str
    method: str
    metric: str
    paper: Measured
    ours: Measured | None

    @property
    def distance(self) -> float:
        """In standard deviations of the paper or, where it gives none, of ours; positive where ours is better."""
        assert self.ours is not None
        spread = self.ours.std if self.paper.std is None else self.paper.std
        return BETTER[self.metric] * (self.ours.mean - self.paper.mean) / max(spread or 0.0, uci_report.ROUNDING)

    @property
    def verdict(self) -> str:
        """One of ``VERDICTS``; radar is not judged since its data are ours, nor is what is not finite."""
        if self.ours is None:
            return "not run"
        if self.experiment == "radar" or not math.isfinite(self.paper.mean) or not math.isfinite(self.ours.mean):
            return "not judged"
        return "agrees" if abs(self.distance) <= 2 else "better" if self.distance > 0 else "worse"


class Origin(NamedTuple):
    """Where a file of results comes from."""

    path: str
    experiment: str
    config: dict[str, Any]
    environments: list[dict[str, Any]]


# Results


def published(results: Path) -> list[Number]:
    """All numbers of the paper's tables, with ours."""
    ours = {name: summary(results, name) for name in EXPERIMENTS}
    numbers = []
    with (files("stationary.lab.experiments") / "paper_tables.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name, dataset, prior, method, metric = (row[field] for field in Number._fields[:5])
            found = paper.published(name, dataset, prior, method, metric)
            assert found is not None
            mine = ours[name].get((dataset, prior, method, metric))
            numbers.append(Number(name, dataset, prior, method, metric, found, mine))
    return numbers


def summary(results: Path, experiment: str) -> dict[Key, Measured]:
    """Means and standard deviations of results/<experiment>/summary.csv, in the paper's setting; none if it is not."""
    path = results / experiment / "summary.csv"
    found: dict[Key, Measured] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for row in csv.DictReader(lines):
        if row.get("setting", "paper") == "paper":
            dataset = row.get("dataset") or OTHER_DATASETS[experiment]
            key = dataset, row["prior"], row.get("method", "NN"), row["metric"]
            found[key] = Measured(float(row["mean"]), float(row["std"]) if row["std"] else None)
    return found


def origins(results: Path) -> Iterator[Origin]:
    """Of every file that says where it comes from: those of ``stationary archive``, of results/paper, whole runs."""
    others = ("benchmarks", *NOT_THE_PAPERS)
    for path in sorted(path for path in results.glob("*/*.json") if path.parent.name not in others):
        content, name = json.loads(path.read_bytes()), path.relative_to(results.parent).as_posix()
        if path.name == "environment.json":
            yield Origin(name, path.parent.name, {}, [content])
        elif "environments" in content:
            yield Origin(name, path.parent.name, content["config"], content["environments"])
        elif "environment" in content:
            yield Origin(name, path.parent.name, {}, [content["environment"]])
        elif "runs" in content:
            yield Origin(name, content["experiment"], {}, [run["environment"] for run in content["runs"]])


# Page


def page(results: Path) -> str:
    numbers, known = published(results), list(origins(results))
    count = Counter(number.verdict for number in numbers)
    sets = {dataset: [number for number in numbers if number.dataset == dataset] for dataset in DATASETS}
    others = {name: [number for number in numbers if number.experiment == name] for name in OTHER_DATASETS}
    template = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    return template.from_string(Path(__file__).with_name("reproduce.md.jinja").read_text(encoding="utf-8")).render(
        numbers=numbers,
        count=count,
        computed=len(numbers) - count["not run"],
        judged=len(numbers) - count["not run"] - count["not judged"],
        counts=counts(numbers),
        worse=worse(numbers),
        uci=[
            (DATASETS[name], table(some, tuple(uci_report.COMPARED), known), diverged(results, some))
            for name, some in sets.items()
        ],
        cifar10=table(others["cifar10"], tuple(cifar10_report.COMPARED), known),
        radar=table(others["radar"], ("ACC known",), known),
        present={name: (results / name / "summary.csv").exists() for name in OTHER_DATASETS},
        provenance=provenance(known),
    )


def counts(numbers: Sequence[Number]) -> str:
    lines = [["", "published", *VERDICTS]]
    groups = {(name, method): [n for n in numbers if (n.experiment, n.method) == (name, method)]
              for name, method in product(EXPERIMENTS, METHODS)}  # fmt: skip
    named = [(f"{EXPERIMENTS[name]}, {method}", group) for (name, method), group in groups.items() if group]
    for title, group in (*named, ("all", numbers)):
        count = Counter(number.verdict for number in group)
        lines.append([title, str(len(group)), *(str(count[verdict]) for verdict in VERDICTS)])
    return grid(lines)


def worse(numbers: Sequence[Number]) -> str:
    found = sorted((n for n in numbers if n.verdict == "worse"), key=lambda n: n.distance)
    if not found:
        return "Nothing, by more than two standard deviations."
    lines = [["", "ours", "paper", "standard deviations apart"]]
    for n in found:
        what = f"{DATASETS.get(n.dataset, EXPERIMENTS[n.experiment])}, {n.method}, {paper.NAMES[n.prior]}: {n.metric}"
        lines.append([what, shown(n.ours), shown(n.paper), f"{-n.distance:.1f}"])
    return grid(lines)


def table(numbers: Sequence[Number], metrics: Sequence[str], known: Sequence[Origin]) -> str:
    """A row for each method and prior; for each metric ours, marked, and the paper's."""
    cells = {(n.method, n.prior, n.metric): n for n in numbers}
    lines = [["method", "prior", *(head for metric in metrics for head in (metric, "paper")), "commit"]]
    for method, prior in product(METHODS, PRIORS):
        found = [cells.get((method, prior, metric)) for metric in metrics]
        if any(found):
            pairs = [(shown(n.ours) + MARKS.get(n.verdict, ""), shown(n.paper)) if n else ("", "") for n in found]
            links = commits(numbers[0].experiment, numbers[0].dataset, method, prior, known)
            lines.append([method, paper.NAMES[prior], *(text for pair in pairs for text in pair), links])
    return grid(lines)


def shown(measured: Measured | None) -> str:
    if measured is None:
        return "–"
    if not math.isfinite(measured.mean):
        return "diverged" if math.isnan(measured.mean) else "∞"
    return f"{measured.mean:.3f}" + ("" if measured.std is None else f"{SPACE}±{SPACE}{measured.std:.3f}")


def commits(experiment: str, dataset: str, method: str, prior: str, known: Sequence[Origin]) -> str:
    """Links to the files behind a row, by the commits that they name."""
    row = {"dataset": dataset, "method": method, "prior": prior, "setting": "paper"}
    links = []
    for origin in known:
        named = {key: value for key, value in origin.config.items() if key in row}
        if origin.experiment == experiment and named and all(row[key] == value for key, value in named.items()):
            text = ", ".join(dict.fromkeys(commit(one) for one in origin.environments))
            links.append(f"[{text}](../{origin.path})")
    return " ".join(links) or "–"


def commit(environment: dict[str, Any]) -> str:
    name, _, dirty = (environment.get("commit") or "unknown").partition("-")
    return name[:7] + "+" * bool(dirty)


def diverged(results: Path, numbers: Sequence[Number]) -> str:
    ours = summary(results, "uci")
    rows = dict.fromkeys((n.dataset, n.prior, n.method) for n in numbers)
    lost = {row: found.mean for row in rows if (found := ours.get((*row, "diverged folds"))) and found.mean}
    return "; ".join(f"{method} {paper.NAMES[prior]} {count:.0f}" for (_, prior, method), count in lost.items())


def provenance(known: Sequence[Origin]) -> str:
    """For each set of versions the machines and commits, and how many runs of which results each has."""
    groups: dict[str, dict[tuple[str, str], list[tuple[str, str]]]] = {}
    for origin in known:
        for one in origin.environments:
            threads = f"{one['threads']} thread{'s' * (one['threads'] > 1)}"
            packages = {"Python": one["python"]} | one["versions"]
            versions = ", ".join(f"{name} {version}" for name, version in packages.items() if name != "stationary")
            machine = one.get("gpu") or f"{one['cpu']}, {threads}", commit(one)
            groups.setdefault(versions, {}).setdefault(machine, []).append((origin.experiment, one["time"][:10]))
    return "\n\n".join(f"With {versions}:\n\n{machines(found)}" for versions, found in groups.items())


def machines(groups: dict[tuple[str, str], list[tuple[str, str]]]) -> str:
    lines = [["results (runs)", "machine", "commit", "finished"]]
    for (machine, of), runs in groups.items():
        each = ", ".join(f"`{name}` ({count})" for name, count in Counter(name for name, _ in runs).items())
        days = sorted({day for _, day in runs})
        lines.append([each, machine, f"`{of}`", " to ".join(days[:1] + days[1:][-1:])])
    return grid(lines)


def grid(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; numbers are on the right."""
    rule = [
        "--:" if all(re.match(r"[\d–∞]|$", cell) for cell in column) else ":--"
        for column in zip(*lines[1:], strict=True)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def write(root: Path = ROOT) -> None:
    """Write the page, unless it is there and as the results are."""
    path, text = root / "docs" / "reproduce.md", page(root / "results")
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def on_pre_build(*, config: Any) -> None:
    write()


if __name__ == "__main__":
    write()
