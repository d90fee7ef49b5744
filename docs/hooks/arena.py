"""Writes docs/arena.md, arena_details.md, arena_tables.md and results/arena/summary.csv from the runs in results/arena.

``mkdocs build`` calls it, or alone: python docs/hooks/arena.py, which also draws docs/images/arena.png. The words are
in the templates beside this file, all numbers come from here.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from stationary.lab.experiments.arena import (
    protocol,
    protocol_tables,
    ranks,
    report,
    report_cost,
    report_left_out,
    report_opening,
    report_paired,
    report_recipes,
    report_second,
    report_tables,
    words,
)
from stationary.lab.experiments.arena.config import EVENTS, Config
from stationary.lab.report.content import Section, Table
from stationary.lab.report.render import render_csv, render_markdown

ROOT = Path(__file__).parents[2]
RECOMMENDED = "cifar10-strict-longer-rotated"  # the recipe of docs/howto/trunk.md
Results = list[tuple[Config, dict[str, Any]]]


def stored(folder: Path, *, tables: bool = False) -> list[dict[str, Any]]:
    """The files of results of the events with features, or of those with tables, by event and protocol.

    Files without numbers are left out.
    """
    of_event = protocol_tables.OF_EVENT
    found = [json.loads(path.read_bytes()) for path in folder.glob("*.json")]
    found = [content for content in found if "numbers" in content]
    found = [content for content in found if (content["config"]["event"] in of_event) == tables]
    datasets = [*protocol_tables.VALUES, *protocol_tables.TABLES] if tables else list(EVENTS)

    def place(content: dict[str, Any]) -> tuple[int, int]:
        event, dataset, method = (content["config"][key] for key in ("event", "dataset", "method"))
        return datasets.index(dataset), list(of_event.get(event, protocol.PROTOCOL)).index(method)

    return sorted(found, key=place)


def results(folder: Path, *, tables: bool = False) -> Results:
    """The runs as a report takes them, all seeds of a method as one."""
    return [
        (
            Config(**content["config"] | {"seeds": tuple(content["config"]["seeds"])}),
            {name: np.array([np.nan if v is None else v for v in vs]) for name, vs in content["numbers"].items()},
        )
        for content in stored(folder, tables=tables)
    ]


def tables(some: Iterable[Table]) -> list[str]:
    """Tables in Markdown, each under its caption."""
    return [render_markdown([Section("", "", "", tables=(table,))]).removeprefix("## \n\n").strip() for table in some]


def folded(some: Iterable[Table]) -> list[list[str]]:
    """Captions and tables, to be unfolded by the reader."""
    return [table.split("\n\n", 1) for table in tables(some)]


def left_out(root: Path, name: str) -> str:
    """The benchmark of left-out classes: a row for each method, the mean of each measure over the folds; or nothing."""
    path = root / "results" / "benchmarks" / name
    if not path.exists():
        return ""
    folds = json.loads(path.read_bytes())["folds"]
    label = lambda method: protocol.PROTOCOL[method].label if method in protocol.PROTOCOL else method  # noqa: E731
    measures = {
        "AUROC": "its own score",
        "AUROC energy": "energy",
        "AUROC mutual information": "mutual information",
        "AUROC std": "std",
        "AUROC entropy": "entropy",
        "NLPD": "NLPD of known rows",
        "ECE": "ECE of known rows",
        "seconds": "seconds",
    }
    measured = {measure for numbers in folds[0]["methods"].values() for measure in numbers}
    measures = {measure: shown for measure, shown in measures.items() if measure in measured}
    lines = [("method", *measures.values()), (":--", *("--:" for _ in measures))]
    for method, numbers in folds[0]["methods"].items():
        means = {m: float(np.mean([fold["methods"][method][m] for fold in folds])) for m in measures if m in numbers}
        digits = lambda measure: {"NLPD": 4, "ECE": 4, "seconds": 0}.get(measure, 3)  # noqa: E731
        lines.append((label(method), *(f"{means[m]:.{digits(m)}f}" if m in means else "–" for m in measures)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def first_and_now(folder: Path) -> str:
    """Log-likelihoods of our finite network before and after it knew its last layer, a row for each table."""
    now = report_tables.found_of(results(folder, tables=True), protocol_tables.VALUES_EVENT)
    first = report_tables.found_of(results(folder / "first", tables=True), protocol_tables.VALUES_EVENT)
    lines = [("table", *(f"{kind}, {of}" for kind in protocol_tables.KINDS for of in ("first", "now")))]
    lines.append((":--", *["--:"] * (len(lines[0]) - 1)))
    for dataset, methods in first.items():
        names = [f"{report_tables.LL}: {kind}" for kind in protocol_tables.KINDS]
        each = [report_tables.mean(of, "finite network", name) for name in names for of in (methods, now[dataset])]
        lines.append((words.name_of(dataset), *(f"{value:.2f}" for value in each)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def agreement(folder: Path) -> str:
    """How far results on features that were computed again are from the stored ones, seed by seed."""
    before, again = (report.by_dataset(results(each)) for each in (folder, folder / "again"))
    runs: dict[str, int] = {}
    apart: dict[str, float] = {}
    for place, methods in again.items():
        for method, values in methods.items():
            runs[method] = runs.get(method, 0) + len(values)
            for seed, name in ((seed, name) for seed, numbers in values.items() for name in numbers):
                kind, difference = name.partition(": ")[0], values[seed][name] - before[place][method][seed][name]
                apart[kind] = max(apart.get(kind, 0.0), abs(difference))
    ran = words.listed(f"{words.called(protocol.PROTOCOL[method].label)} ({n} runs)" for method, n in runs.items())
    most = words.listed(f"{apart[kind]:.4f} in {kind}" for kind in ("AUROC", "NLPD", "ECE"))
    return f"Run there again, {ran} agree with their stored results of the same seed to {most}."


def template(name: str) -> jinja2.Template:
    path = Path(__file__).parent / f"{name}.md.jinja"
    return jinja2.Template(path.read_text(encoding="utf-8"), keep_trailing_newline=True)


def hours(folder: Path) -> str:
    """The time of all stored runs, on one core each."""
    seconds = [
        one["wall_s"] for of in (False, True) for file in stored(folder, tables=of) for one in file["environments"]
    ]
    return f"{sum(seconds) / 3600:.0f} hours"


def origins(folder: Path) -> str:
    """The machines, commits and versions of the runs, each once."""
    seen: dict[str, int] = {}
    for one in (one for of in (False, True) for file in stored(folder, tables=of) for one in file["environments"]):
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        threads = f"{one['threads']} thread{'s' * (one['threads'] > 1)}"
        line = f"{one['cpu']}, {threads}; commit `{one['commit'][:10]}`; Python {one['python']}, {versions}"
        seen[line] = seen.get(line, 0) + 1
    return "\n".join(f"- {count} run{'s' * (count > 1)}: {line}" for line, count in seen.items())


def page(root: Path) -> str:
    folder = root / "results" / "arena"
    every = report.by_dataset(results(folder))
    found, recipes = report.without_recipes(every), report_recipes.found_of(every)
    trunks = json.loads((folder / "trunks.json").read_bytes())
    seconds = {
        name: float(np.mean([one["seconds"] for one in trunks[name]["trunks"]])) for name in recipes if name in trunks
    }
    of_recipes, _ = tables(report_recipes.tables(recipes, seconds))
    opening = report_opening.table(every, RECOMMENDED)
    above = report_opening.nobody_above(every, RECOMMENDED)
    behind = found["unknown images", "cifar10-imagenet"]
    questions = found["unknown questions", "clinc150"]
    mean_ranks = list(ranks.ordered(ranks.ranks(found)).items())[:6]
    first, second = protocol.INFINITE_WIDTH, protocol.FROM_NETWORK
    return template("arena").render(
        better=report.BETTER,
        opening=tables([opening])[0],
        met=f"It is met on {sum(row[-1] == 'yes' for row in opening.rows)} of {len(opening.rows)} lines.",
        others=words.listed(
            f"{words.called(protocol.PROTOCOL[name].label)} on {n}" for name, n in above.items() if n > 1
        ),
        in_recipes=report_opening.in_recipes(recipes),
        second_in_recipes=report_opening.second_in_recipes(recipes),
        under_shift=report_opening.under_shift(found["unknown images", "cifar10"]),
        worse_first=report_opening.worse_than_network(found, first),
        worse_second=report_opening.worse_than_network(found, second),
        known=tables([report_opening.table_of_known(found)])[0],
        places=len(ranks.ranks(found)),
        mean_ranks=words.listed(
            f"{words.called(protocol.PROTOCOL[method].label)} ({rank:.1f})" for method, rank in mean_ranks
        ),
        recipes_rule=protocol.RECIPES_RULE,
        recipes=of_recipes,
        verdict=report_second.verdict(found),
        third=tables([report_second.table_of_third(found)])[0],
        calibrated=tables([report_second.table_of_calibrated(found)])[0],
        of_questions=f"{report.over_seeds(questions[protocol.CALIBRATED], 'AUROC: out of scope').mean:.3f}",
        lengthscales=" to ".join(
            f"{end(numbers['chosen lengthscale'] for numbers in behind[first].values()):.1f}" for end in (min, max)
        ),
        by_energy=report_second.by_energy(found),
        of_mnist={
            name: f"{report.over_seeds(behind[name], measure).mean:.2f}"
            for name, measure in (("knn", "AUROC: MNIST"), (protocol.MORE_ROWS, "AUROC by the std: MNIST"))
        },
        hours=hours(folder),
    )


def page_of_details(root: Path) -> str:
    folder = root / "results" / "arena"
    every = report.by_dataset(results(folder))
    found, recipes = report.without_recipes(every), report_recipes.found_of(every)
    _, gains = tables(report_recipes.tables(recipes))
    grid = [("method", "code", "score", "what is chosen", "what is not"), (":--",) * 5, *protocol.rows()]
    parts = {
        dataset: {
            "event": event,
            "name": words.name_of(dataset),
            "losses": report.in_words(methods),
            "tables": folded(report.tables(event, dataset, methods)),
        }
        for (event, dataset), methods in found.items()
    }
    of_laplace = json.loads((folder / "clinc150-laplace.json").read_bytes())["numbers"]
    return template("arena_details").render(
        laplace_precision=f"{float(np.mean(of_laplace['chosen prior_precision'])):.3f}",
        better=report.BETTER,
        parts=parts,
        protocol="\n".join(f"| {' | '.join(row)} |" for row in grid),
        network=protocol.NETWORK_RULE,
        cifar10=protocol.CIFAR10_RULE,
        third_rule=protocol.THIRD_RULE,
        calibrated_rule=protocol.CALIBRATED_RULE,
        agreement=agreement(folder),
        training=protocol.TRAINING_RULE,
        trunks=json.loads((folder / "trunks.json").read_bytes()),
        gains=gains,
        left_out=left_out(root, "arena_left_out.json"),
        left_out_intents=left_out(root, "arena_left_out-clinc150.json"),
        left_out_behind=left_out(root, "arena_left_out-imagenet.json"),
        second=tables([report_second.table(found)])[0],
        origins=origins(folder),
    )


def page_of_tables(root: Path) -> str:
    folder = root / "results" / "arena"
    found = results(folder, tables=True)
    values, classes = (report_tables.found_of(found, event) for event in protocol_tables.OF_EVENT)
    grids = [
        "\n".join(f"| {' | '.join(row)} |" for row in (heading, (":--",) * len(heading), *rows))
        for heading, rows in (protocol_tables.rows_of_values(), protocol_tables.rows_of_classes())
    ]
    path = root / "results" / "benchmarks" / "arena_cost.json"
    cost = json.loads(path.read_bytes()) if path.exists() else {}
    return template("arena_tables").render(
        protocol=protocol_tables,
        splits=protocol_tables.SPLITS,
        seeds_of_covtype=protocol_tables.MORE_SPLITS["covtype"],
        grids=grids,
        losses_of_values=report_tables.losses_of_values(values),
        losses_of_classes=report_tables.losses_of_classes(classes),
        target=report_tables.target(values),
        values=tables(report_tables.tables_of_values(values)),
        classes=tables(report_tables.tables_of_classes(classes)),
        not_run=report_tables.not_run(values, classes),
        cost=tables(report_cost.tables(cost)) if cost else [],
        cost_about=cost,
        left_out=folded(report_left_out.tables(classes)),
        told_classes=report_left_out.in_words(classes),
        far_below=report_paired.far_below(values),
        of_values=folded(report_paired.of_values(values)),
        finite=first_and_now(folder),
        second=report_tables.second_in_words(values),
        of_classes=folded(report_paired.of_classes(classes)),
    )


def summary(root: Path) -> str:
    folder = root / "results" / "arena"
    return render_csv(report.report(results(folder) + results(folder, tables=True)))


def write(root: Path = ROOT) -> None:
    """Write the pages and the summary, unless they are there and as the results are."""
    written = {
        root / "docs" / "arena.md": page(root),
        root / "docs" / "arena_details.md": page_of_details(root),
        root / "docs" / "arena_tables.md": page_of_tables(root),
        root / "results" / "arena" / "summary.csv": summary(root),
    }
    for path, text in written.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def draw(root: Path = ROOT) -> None:
    """Draw the ranks."""
    found = report.without_recipes(report.by_dataset(results(root / "results" / "arena")))
    ranks.figure(found).savefig(root / "docs" / "images" / "arena.png", dpi=100)


def on_pre_build(*, config: Any) -> None:
    write()


if __name__ == "__main__":
    write()
    draw()
