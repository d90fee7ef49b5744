"""``stationary report``: what has run, as a page, as tables for a paper, or as files of numbers."""

import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from stationary._extras import extra

with extra("experiments"):
    import typer

from stationary._files import write_text
from stationary.lab.cli.chosen import command_line, reported, scales_with_results
from stationary.lab.cli.console import say, warn
from stationary.lab.cli.options import Format, Names, OfDataset, OfMethod, OfPrior, OfScale, Out, Scale, Settings
from stationary.lab.cli.select import Choices, choices_from
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment
from stationary.lab.runs.store import CorruptRunError, Run, RunStore


def report(
    names: Names = None,
    scale: OfScale = None,
    out: Out = Path("out"),
    dataset: OfDataset = None,
    method: OfMethod = None,
    prior: OfPrior = None,
    settings: Settings = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="html: figures and tables on one page; md, latex: tables only; csv: a file for each table."
        ),
    ] = Format.html,
    show: Annotated[bool, typer.Option("--open", metavar="", help="Open the report when it is written.")] = False,
) -> None:
    """Write a report of what has run, with the paper's numbers beside ours, and its figures as files.

    The report of everything is out/report.html; where it is there, named experiments are added to it.

    Else, and where options select some of their runs, they have a file of their own, such as out/report-uci.html.

    Example: stationary report --open

    Example: stationary report regression --scale paper --format latex
    """
    from stationary.lab.report import csv_table, latex, page, render
    from stationary.lab.report.content import what_held
    from stationary.lab.report.figures import save_figure

    choices = choices_from(dataset=dataset, method=method, prior=prior)
    store, named, parts, nothing, failed = RunStore(out / "runs"), {}, {}, list[str](), False
    for name, selection in reported(names, scale, choices, settings, store).items():
        experiment, configs = EXPERIMENTS[name], selection.configs
        found = [(config, run) for config in configs if (run := _load(store, experiment, config))]
        if not found:
            nothing.append(name)
            continue
        if len(found) < len(configs):
            rest = command_line("run", [name], Scale(selection.scale), out, choices, settings)
            warn(f"{name}: {len(found)} of {len(configs)} results are there; for the rest: {rest}")
        try:
            section = experiment.report.report([(config, run.arrays) for config, run in found])
            if selection.scale == Scale.smoke.value:  # runs of a moment, whose claims hold or fail by chance
                undecided = tuple(replace(verdict, holds="not decided") for verdict in section.verdicts)
                section = replace(section, verdicts=undecided)
            named[name] = section
            parts[name] = page.Part(named[name], [run.environment for _, run in found], selection.scale)
        except Exception:
            warn(f"\n{name}: its part of the report failed, and is left out:\n{traceback.format_exc()}")
            failed = True
    sections = list(named.values())
    if not sections:
        if failed:
            raise typer.Exit(1)
        first = f"first: {command_line('run', names, scale, out, choices, settings)}"
        there = scales_with_results(names, choices, settings, store) if scale else []
        if scale and there:
            has, instead = " and ".join(there), command_line("report", names, there[0], out, choices, settings)
            warn(f"{out} has nothing to report of the scale {scale.value}, but of {has}: {instead}; or {first}")
        else:
            warn(f"nothing to report in {out}; {first}")
        raise typer.Exit(1)
    if nothing:
        warn(f"no results yet of the others: {command_line('run', nothing, scale, out, choices, settings)}")
    if form is Format.csv:
        texts = {}
        for name, section in named.items():
            if section.records:
                texts[out / f"{_file_name([name], choices, settings)}.csv"] = render.render_csv(section)
            for number, table in enumerate(section.tables, 1):
                words = [name, f"table{number}"]
                texts[out / f"{_file_name(words, choices, settings)}.csv"] = csv_table.render_table(table)
        if (verdicts := what_held(sections)).rows:
            words = ["verdicts", *(names or ())]
            texts[out / f"{_file_name(words, choices, settings)}.csv"] = csv_table.render_table(verdicts)
        for path, text in texts.items():
            write_text(path, text)
        say(f"wrote {', '.join(map(str, texts))}" if texts else "none of these has numbers for a CSV file")
        raise typer.Exit(1 if failed or not texts else 0)
    # Named experiments become a part of the report of everything, but not a selection of their runs.
    adds = form is Format.html and bool(names) and not choices and not settings and (out / "report.html").exists()
    ending = "tex" if form is Format.latex else form.value
    path = out / f"{_file_name(['report', *(() if adds else names or ())], choices, settings)}.{ending}"
    before = path.read_text(encoding="utf-8", errors="replace") if form is Format.html and path.exists() else ""
    if before and not page.is_report(before):
        warn(f"{path} is there and is no report of ours, which would replace it; move it, or choose another --out")
        raise typer.Exit(1)
    for section in sections:
        for figure_name, figure in section.figures.items():
            save_figure(out / "figures" / figure_name, figure)
    if form is Format.html:
        text = page.render_html(parts, before if adds else "")
    elif form is Format.md:
        text = render.render_markdown(sections)
    else:
        text = latex.render_latex(sections)
    write_text(path, text)
    say(f"wrote {path} and its figures in {out / 'figures'}")
    if show:
        typer.launch(str(path.resolve()))
    raise typer.Exit(1 if failed else 0)


def _file_name(words: Sequence[str], choices: Choices, settings: Sequence[str] | None) -> str:
    """Name a file, without its ending, after what was selected: a selection never replaces the file of everything."""
    chosen = [value for wanted in choices.values() for value in wanted]
    return re.sub(r"[^\w.]+", "-", "-".join([*words, *chosen, *(settings or ())]))


def _load(store: RunStore, experiment: Experiment, config: Any) -> Run | None:
    try:
        return store.load(experiment.name, experiment.config.VERSION, config)
    except CorruptRunError as problem:
        warn(str(problem))
        return None
