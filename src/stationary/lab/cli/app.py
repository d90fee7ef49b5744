"""The commands of ``stationary``: list, run, status, report, explore, archive, data and trunk."""

import logging
import os
import re
import shlex
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args

from stationary._extras import extra

with extra("experiments"):
    import typer
    from typer.core import TyperGroup

    from stationary.lab.cli.progress import Watch, differing, in_words

from stationary import __version__
from stationary._files import write_text
from stationary.lab.cli import places
from stationary.lab.cli.console import bad_parameters, print_table, say, warn
from stationary.lab.cli.data import DataDir, Device, data, trunk
from stationary.lab.cli.select import Choices, Selection, choices_from, select
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment, NeedsData
from stationary.lab.runs import execute
from stationary.lab.runs.archive import archive
from stationary.lab.runs.execute import Task, run_missing
from stationary.lab.runs.inside import progress_of
from stationary.lab.runs.provenance import duration, seconds_of
from stationary.lab.runs.store import ERROR, RESULT, RUNNING, CorruptRunError, Run, RunStore, State, running, state_of


class Commands(TyperGroup):
    """The commands; where a folder cannot be read or written, a line says so instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if (problem := places.advice(error)) is None:
                raise
            warn(problem)
            raise typer.Exit(1) from None


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Scale(str, Enum):
    smoke, demo, paper = "smoke", "demo", "paper"


class Engine(str, Enum):
    local, ray = "local", "ray"


class Format(str, Enum):
    html, md, latex, csv = "html", "md", "latex", "csv"


Names = Annotated[
    list[str] | None,
    typer.Argument(help=f"Names of experiments, of: {', '.join(EXPERIMENTS)}. Without a name, all of them."),
]


def _folder(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file; name a folder, or a place where there is nothing yet")
    return out


Out = Annotated[Path, typer.Option(callback=_folder, help="The folder for results, figures and the report.")]
OfScale = Annotated[
    Scale | None,
    typer.Option(
        help="smoke: a moment, to see that it works; demo: minutes on a laptop; paper: the paper's own settings. "
        "Without --scale it is demo; a report takes demo if there are results of it, else a scale that has results."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all configurations; may be repeated."),
]
CHOICE = "Choose only the runs with this {}; may be repeated, or name several with commas between them. {}"
RULE = "'all' chooses every one. Without --scale, the scale is demo if it has all that is chosen, else paper."
OfDataset = Annotated[list[str] | None, typer.Option(metavar="NAME", help=CHOICE.format("data set", RULE))]
OfMethod = Annotated[list[str] | None, typer.Option(metavar="NAME", help=CHOICE.format("method", "See --dataset."))]
OfPrior = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help=CHOICE.format("activation, by the name of its prior", "See --dataset.")),
]


def _say_version(wanted: bool) -> None:
    if wanted:
        say(f"stationary {__version__}")
        raise typer.Exit


@app.callback()
def stationary(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Neural networks that know what they do not know: the experiments of the paper, from one command.

    Example: stationary list; stationary run banana; stationary status; stationary report --open
    """


@app.command("list")
def list_experiments(out: Out = Path("out")) -> None:
    """Show the experiments, what each reproduces and how long it takes, as measured here if it has run here.

    Example: stationary list
    """
    rows = []
    for name, experiment in EXPERIMENTS.items():
        module = experiment.config
        times = [_time_here(experiment, scale.value, out) or module.DURATION[scale.value] for scale in Scale]
        rows.append([name, module.REPRODUCES, *times])
    print_table(["experiment", "reproduces", *(scale.value for scale in Scale)], rows)


@app.command()
def run(
    names: Names = None,
    scale: OfScale = None,
    out: Out = Path("out"),
    dataset: OfDataset = None,
    method: OfMethod = None,
    prior: OfPrior = None,
    settings: Settings = None,
    device: Annotated[Device, typer.Option(help="auto: cuda if there is a GPU, else cpu.")] = Device.auto,
    jobs: Annotated[int, typer.Option(min=1, help="Processes on this machine; they share its cores.")] = 1,
    engine: Annotated[Engine, typer.Option(help="local: run on this machine; ray: on a Ray cluster.")] = Engine.local,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster; without it, Ray looks for one here or starts one."),
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that Ray reserves for each run.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that Ray reserves for each run on cuda.")] = 1.0,
    data_dir: DataDir = None,
) -> None:
    """Run experiments and reuse results that are there. Stop it with Ctrl-C, run it again, and it continues.

    Example: stationary run banana

    Example: stationary run regression covariance --scale paper --jobs 4

    Example: stationary run banana --set hidden=100 --set prior=relu

    Example: stationary run uci --dataset diabetes --method all --prior matern32,relu --device cuda

    Example: stationary run --scale paper --engine ray --address auto --gpus 0.5
    """
    with bad_parameters():
        execute.check(engine.value, jobs, device.value, address)
    if data_dir:
        os.environ["STATIONARY_DATA"] = str(data_dir)  # an environment variable, so that worker processes inherit it
    logging.basicConfig(format="%(message)s")
    logging.getLogger("stationary").setLevel(logging.INFO)
    choices = choices_from(dataset=dataset, method=method, prior=prior)
    selected, store = _selected(names, scale, choices, settings), RunStore(out / "runs")
    for name, problem in _problems(selected, store).items():
        warn(f"{name} {'cannot run' if names else 'is left out'}: {problem}")
        if names:
            raise typer.Exit(1)
        del selected[name]
    tasks = [
        Task(EXPERIMENTS[name], config, cpus, gpus)
        for name, selection in selected.items()
        for config in selection.configs
    ]
    durations = {name: EXPERIMENTS[name].config.DURATION[selected[name].scale] for name in selected}
    watch = Watch(tasks, durations, store)
    places.remember(out)
    try:
        with watch.shown():
            summary = run_missing(
                tasks,
                store,
                engine=engine.value,
                jobs=jobs,
                device=device.value,
                address=address,
                on_done=watch.done,
            )
    except KeyboardInterrupt:
        warn("Stopped; what is finished is kept. Run the same command again to continue.")
        raise typer.Exit(1) from None
    except (ImportError, ConnectionError) as error:
        if engine is not Engine.ray:
            raise
        warn(f"Ray cannot be used: {error}")
        raise typer.Exit(1) from None
    for problem in summary.problems:
        warn(problem)
    for why in dict.fromkeys(why for _, why in summary.failures):  # runs that failed together share one message
        which = [task for task, other in summary.failures if other == why]
        paths = [f"{watch.label(task)} failed; {store.folder(*task.key) / ERROR}:" for task in which]
        warn("\n".join(["", *paths, why.rstrip()]))
    say(f"{summary.done} done, {summary.reused} reused, {len(summary.failures)} failed")
    say(f"next: {_command('report', names, scale, out, choices, settings)}")
    raise typer.Exit(1 if summary.failures else 0)


@app.command()
def status(names: Names = None, out: Out = Path("out")) -> None:
    """Show how many runs of each experiment and scale are done, running, failed, missing or corrupt, and why.

    It does not read what was computed: run and report check every number that they use.

    Example: stationary status
    """
    store, rows, notes = RunStore(out / "runs"), [], []
    for name, experiment in _chosen(names).items():
        problems: list[CorruptRunError] = []
        readable = set(store.finished(name, problems.append))  # arrays are for run and report to check
        known: set[Path] = set()
        about: dict[Path, str] = {}  # by folder of a run, the note about it
        for scale in Scale:
            configs = experiment.config.configs(scale.value)
            folders = [store.folder(name, experiment.config.VERSION, config) for config in configs]
            states = [state_of(folder, readable) for folder in folders]
            rows.append([name, scale.value, *(states.count(state) for state in get_args(State))])
            settings = differing(configs)
            for config, folder, state in zip(configs, folders, states, strict=True):
                if state in ("failed", "running") and folder not in known:
                    about[folder] = _note(in_words(f"{name} {scale.value}", config, settings), folder, state)
            known.update(folders)
        finished = readable - known
        active = {path.parent for path in (store.root / name).glob(f"*/{RUNNING}") if running(path.parent)} - known
        for others, what in ((finished, "finished"), (active - finished, "running")):
            if others:
                notes.append(f"{name}: {len(others)} more {what}, of other settings or versions")
        notes += [*filter(None, about.values()), *map(str, problems)]
    foreign = [path for path in store.root.glob("[!.]*") if path.name not in EXPERIMENTS]
    notes += [f"{path}: is not the folder of an experiment; left alone" for path in sorted(foreign)]
    print_table(["experiment", "scale", *get_args(State)], rows)
    for note in notes:
        say(note)
    say(_where_it_looked(store, out))


def _where_it_looked(store: RunStore, out: Path) -> str:
    """Say in which folder results were looked for; if there are none, also where some were last written."""
    looked = f"looked in {store.root.resolve()}"
    if any(store.root.glob("*/*/*")):
        return looked
    before = places.last()
    there = f"; results were last written to {before}: stationary status --out {shlex.quote(str(before))}"
    return f"{looked}, where no results are{there if before and before != out.resolve() else ''}"


def _note(what: str, folder: Path, state: State) -> str:
    """Say why a run failed, or which process runs it; empty if its state has changed since it was looked at."""
    if state == "failed":
        with suppress(FileNotFoundError):  # the run has started again in the meantime
            last = (folder / ERROR).read_text().strip().rpartition("\n")[2]
            return f"{what} failed, {folder / ERROR}: {last}"
    elif by := running(folder):
        doubt = "" if by.here else "; whether it still runs cannot be seen from here"
        far = f", {inside.words}" if (inside := progress_of(folder)) else ""
        return f"{what} is running since {by.since} ({duration(by.age_s)}{far}), process {by.pid} of {by.host}{doubt}"
    return ""


@app.command()
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
    show: Annotated[bool, typer.Option("--open", help="Open the report when it is written.")] = False,
) -> None:
    """Write a report of what has run, with the paper's numbers beside ours, and its figures as files.

    The report of everything is out/report.html. Where it is there, named experiments are added to it; else, and where
    options select some of their runs, they have a file of their own, such as out/report-uci.html.

    Example: stationary report --open

    Example: stationary report regression --scale paper --format latex
    """
    from stationary.lab.report import csv_table, latex, page, render
    from stationary.lab.report.figures import save_figure

    choices = choices_from(dataset=dataset, method=method, prior=prior)
    store, named, parts, nothing, failed = RunStore(out / "runs"), {}, {}, list[str](), False
    for name, selection in _reported(names, scale, choices, settings, store).items():
        experiment, configs = EXPERIMENTS[name], selection.configs
        found = [(config, run) for config in configs if (run := _load(store, experiment, config))]
        if not found:
            nothing.append(name)
            continue
        if len(found) < len(configs):
            rest = _command("run", [name], Scale(selection.scale), out, choices, settings)
            warn(f"{name}: {len(found)} of {len(configs)} results are there; for the rest: {rest}")
        try:
            named[name] = experiment.report.report([(config, run.arrays) for config, run in found])
            parts[name] = page.Part(named[name], [run.environment for _, run in found], selection.scale)
        except Exception:
            warn(f"\n{name}: its part of the report failed, and is left out:\n{traceback.format_exc()}")
            failed = True
    sections = list(named.values())
    if not sections:
        first = f"first: {_command('run', names, scale, out, choices, settings)}"
        there = _scales_with_results(names, choices, settings, store) if scale else []
        if scale and there:
            has, instead = " and ".join(there), _command("report", names, there[0], out, choices, settings)
            warn(f"{out} has nothing to report of the scale {scale.value}, but of {has}: {instead}; or {first}")
        else:
            warn(f"nothing to report in {out}; {first}")
        raise typer.Exit(1)
    if nothing:
        warn(f"no results yet of the others: {_command('run', nothing, scale, out, choices, settings)}")
    if form is Format.csv:
        texts = {}
        for name, section in named.items():
            if section.records:
                texts[out / f"{_file_name([name], choices, settings)}.csv"] = render.render_csv(section)
            for number, table in enumerate(section.tables, 1):
                words = [name, f"table{number}"]
                texts[out / f"{_file_name(words, choices, settings)}.csv"] = csv_table.render_table(table)
        for path, text in texts.items():
            write_text(path, text)
        say(f"wrote {', '.join(map(str, texts))}" if texts else "none of these has numbers for a CSV file")
        raise typer.Exit(1 if failed or not texts else 0)
    for section in sections:
        for figure_name, figure in section.figures.items():
            save_figure(out / "figures" / figure_name, figure)
    words = ["report", *(names or ())]
    if form is Format.html:
        whole = out / "report.html"  # of which named experiments become a part, but not a selection of their runs
        adds = bool(names) and not choices and not settings and whole.exists()
        ending, text = "html", page.render_html(parts, whole.read_text(encoding="utf-8") if adds else "")
        words = ["report"] if adds else words
    elif form is Format.md:
        ending, text = "md", render.render_markdown(sections)
    else:
        ending, text = "tex", latex.render_latex(sections)
    path = write_text(out / f"{_file_name(words, choices, settings)}.{ending}", text)
    say(f"wrote {path} and its figures in {out / 'figures'}")
    if show:
        typer.launch(str(path.resolve()))
    raise typer.Exit(1 if failed else 0)


def _file_name(words: Sequence[str], choices: Choices, settings: Sequence[str] | None) -> str:
    """Name a file, without its ending, after what was selected: a selection never replaces the file of everything."""
    chosen = [value for wanted in choices.values() for value in wanted]
    return re.sub(r"[^\w.]+", "-", "-".join([*words, *chosen, *(settings or ())]))


@app.command()
def explore(
    to: Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")] = Path("out/explorer.html"),
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
) -> None:
    """Open the explorer: a page to play with activations, their kernels, and what networks believe without data.

    Example: stationary explore

    Example: stationary explore --to ~/explorer.html --no-open
    """
    from stationary import explorer

    try:
        write_text(to, explorer.page())
    except OSError as error:
        warn(f"the explorer cannot be written: {error}; choose another place with --to")
        raise typer.Exit(1) from None
    say(f"wrote {to}: one file that needs no network")
    if show:
        typer.launch(str(to.resolve()))


@app.command("archive")
def archive_runs(
    names: Names = None,
    out: Out = Path("out"),
    to: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("results"),
) -> None:
    """Write finished runs as small JSON files with their origin, to keep them in a repository.

    Example: stationary archive uci --to results
    """
    store = RunStore(out / "runs")
    for name, experiment in _chosen(names).items():
        known = [run for run in store.runs(name, lambda p: warn(str(p))) if run.version == experiment.config.VERSION]
        if paths := archive(known, to / name, experiment.config.LOCKSTEP):
            say(f"wrote {len(paths)} files with {len(known)} runs to {to / name}")


app.command()(data)
app.command()(trunk)


def main() -> None:
    app()


# What to run


def _chosen(names: Sequence[str] | None) -> dict[str, Experiment]:
    """Return the named experiments, or all of them if there are no names."""
    for unknown in sorted(set(names or ()) - set(EXPERIMENTS)):
        near = get_close_matches(unknown, EXPERIMENTS, n=1)
        meant = f"did you mean {near[0]}? All are" if near else "use"
        raise typer.BadParameter(f"there is no experiment {unknown}; {meant} {', '.join(EXPERIMENTS)}")
    return {name: EXPERIMENTS[name] for name in names or EXPERIMENTS}


def _selected(
    names: Sequence[str] | None, scale: Scale | None, choices: Choices, settings: Sequence[str] | None
) -> dict[str, Selection]:
    with bad_parameters():
        selected = select(_chosen(names), scale and scale.value, choices, settings or (), strict=bool(names))
    for name, selection in selected.items():
        if not scale and selection.scale != Scale.demo.value:
            warn(f"{name}: the scale is {selection.scale}, because demo, the usual one, lacks some of what was chosen")
    return selected


def _reported(
    names: Sequence[str] | None,
    scale: Scale | None,
    choices: Choices,
    settings: Sequence[str] | None,
    store: RunStore,
) -> dict[str, Selection]:
    """Return the selected configurations of each experiment.

    Without a scale, an experiment that has no results of the default scale is reported at a scale that has some.
    """
    if scale:
        return _selected(names, scale, choices, settings)
    with bad_parameters():
        selected = select(_chosen(names), None, choices, settings or (), strict=bool(names))
    for name, selection in selected.items():
        others = [_selection_of(name, other, choices, settings) for other in (Scale.demo, Scale.paper, Scale.smoke)]
        found = [one for one in (selection, *filter(None, others)) if _has_results(name, one, store)]
        if found and found[0].scale != Scale.demo.value:
            say(f"{name}: the scale is {found[0].scale}, because there are no such results of demo, the usual one")
        selected[name] = (found or [selection])[0]
    return selected


def _selection_of(name: str, scale: Scale, choices: Choices, settings: Sequence[str] | None) -> Selection | None:
    """Return the configurations of one experiment at one scale, or None where that scale lacks what is chosen."""
    try:
        return select({name: EXPERIMENTS[name]}, scale.value, choices, settings or (), strict=True)[name]
    except ValueError:
        return None


def _has_results(name: str, selection: Selection, store: RunStore) -> bool:
    version = EXPERIMENTS[name].config.VERSION
    return any((store.folder(name, version, config) / RESULT).exists() for config in selection.configs)


def _scales_with_results(
    names: Sequence[str] | None, choices: Choices, settings: Sequence[str] | None, store: RunStore
) -> list[Scale]:
    def has(name: str, scale: Scale) -> bool:
        selection = _selection_of(name, scale, choices, settings)
        return selection is not None and _has_results(name, selection, store)

    return [scale for scale in Scale if any(has(name, scale) for name in _chosen(names))]


def _problems(selected: dict[str, Selection], store: RunStore) -> dict[str, str]:
    """By experiment, say why configurations that have no result yet cannot run here."""
    found = {}
    for name, selection in selected.items():
        version = EXPERIMENTS[name].config.VERSION
        new = [config for config in selection.configs if not (store.folder(name, version, config) / RESULT).exists()]
        if new and isinstance(module := EXPERIMENTS[name].run, NeedsData) and (problem := module.missing(new)):
            found[name] = problem
    return found


def _load(store: RunStore, experiment: Experiment, config: Any) -> Run | None:
    try:
        return store.load(experiment.name, experiment.config.VERSION, config)
    except CorruptRunError as problem:
        warn(str(problem))
        return None


def _command(
    command: str,
    names: Sequence[str] | None,
    scale: Scale | None,
    out: Path,
    choices: Choices,
    settings: Sequence[str] | None,
) -> str:
    """Write the command line of another command with the same options."""
    options = [("--scale", scale.value if scale else "", ""), ("--out", str(out), "out")]
    options += [(f"--{key}", ",".join(wanted), "") for key, wanted in choices.items()]
    options += [("--set", setting, "") for setting in settings or ()]
    given = [word for option, value, default in options if value != default for word in (option, value)]
    return shlex.join(["stationary", command, *(names or ()), *given])


def _time_here(experiment: Experiment, scale: str, out: Path) -> str | None:
    """Return the time that all runs of a scale took together, or None if one of them is not in the store."""
    store, module, times = RunStore(out / "runs"), experiment.config, []
    for config in module.configs(scale):
        environment = store.environment(experiment.name, module.VERSION, config)
        if environment is None or (seconds := seconds_of(environment)) is None:
            return None
        times.append(seconds)
    return f"{duration(sum(times))} here"
