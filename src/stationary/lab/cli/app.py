"""The command line."""

import logging
import os
import shlex
import traceback
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args

from stationary._extras import extra

with extra("experiments"):
    import typer

    from stationary.lab.cli.progress import Watch, differing, duration, in_words
    from stationary.lab.experiments import EXPERIMENTS
    from stationary.lab.report.render import render_csv, render_html, render_latex, render_markdown

from stationary import explorer
from stationary._files import write_text
from stationary.lab.cli.console import bad_parameters, print_table, say, warn
from stationary.lab.cli.data import DataDir, Device, data, train_trunk
from stationary.lab.cli.select import Choices, Selection, choices_from, select
from stationary.lab.runs import execute
from stationary.lab.runs.archive import archive
from stationary.lab.runs.execute import Task, run_missing
from stationary.lab.runs.provenance import seconds_of
from stationary.lab.runs.store import (
    ERROR,
    RESULT,
    RUNNING,
    CorruptRunError,
    Run,
    RunStore,
    State,
    running,
    save_figure,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Scale(str, Enum):
    smoke, demo, paper = "smoke", "demo", "paper"


class Engine(str, Enum):
    local, ray = "local", "ray"


class Format(str, Enum):
    html, md, latex, csv = "html", "md", "latex", "csv"


Names = Annotated[list[str] | None, typer.Argument(help=f"Which of: {', '.join(EXPERIMENTS)}. All of them if none.")]
Out = Annotated[Path, typer.Option(help="The folder of results, figures and the report.")]
OfScale = Annotated[
    Scale | None,
    typer.Option(
        help="smoke: does it work; demo: on a laptop, in minutes; paper: the paper's own settings. Without, demo."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the configurations; may be repeated."),
]
CHOICE = "Only the runs with this {}; may be repeated, or have commas. {}"
RULE = "'all' is every one. Without --scale, demo if it has what is chosen, else paper."
Dataset = Annotated[list[str] | None, typer.Option(metavar="NAME", help=CHOICE.format("data set", RULE))]
Method = Annotated[list[str] | None, typer.Option(metavar="NAME", help=CHOICE.format("method", "As --dataset."))]
Prior = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help=CHOICE.format("activation, by its prior", "As --dataset."))
]


@app.callback()
def stationary() -> None:
    """Neural networks that know what they do not know: the experiments of the paper, from one command.

    Example: stationary list; stationary run banana; stationary status; stationary report --open
    """


@app.command("list")
def list_experiments(out: Out = Path("out")) -> None:
    """Show the experiments, what each reproduces, and how long it takes; measured, where it has run here.

    Example: stationary list
    """
    rows = []
    for name, experiment in EXPERIMENTS.items():
        words = getattr(experiment, "DURATION", {})
        times = [_time_here(name, experiment, scale.value, out) or words.get(scale.value, "") for scale in Scale]
        rows.append([name, getattr(experiment, "REPRODUCES", experiment.TITLE), *times])
    print_table(["experiment", "reproduces", *(scale.value for scale in Scale)], rows)


@app.command()
def run(
    names: Names = None,
    scale: OfScale = None,
    out: Out = Path("out"),
    dataset: Dataset = None,
    method: Method = None,
    prior: Prior = None,
    settings: Settings = None,
    device: Annotated[Device, typer.Option(help="auto: cuda if there is a GPU.")] = Device.auto,
    jobs: Annotated[int, typer.Option(min=1, help="Processes on this machine; they share its cores.")] = 1,
    engine: Annotated[Engine, typer.Option(help="local: this machine; ray: a Ray cluster.")] = Engine.local,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster; without, Ray looks for one here or starts one.")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that Ray reserves for each run.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that Ray reserves for each run on cuda.")] = 1.0,
    data_dir: DataDir = None,
) -> None:
    """Run experiments; results that are there are reused. Stop it with Ctrl-C, run it again, and it continues.

    Example: stationary run banana

    Example: stationary run regression covariance --scale paper --jobs 4

    Example: stationary run banana --set hidden=100 --set prior=relu

    Example: stationary run uci --dataset diabetes --method all --prior matern32,relu --device cuda

    Example: stationary run --scale paper --engine ray --address auto --gpus 0.5
    """
    with bad_parameters():
        execute.check(engine.value, jobs, device.value, address)
    if data_dir:
        os.environ["STATIONARY_DATA"] = str(data_dir)  # which the processes started from here inherit
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
        Task(name, EXPERIMENTS[name].__name__, config, cpus, gpus)
        for name, selection in selected.items()
        for config in selection.configs
    ]
    durations = {name: getattr(EXPERIMENTS[name], "DURATION", {}).get(selected[name].scale, "") for name in selected}
    watch = Watch(tasks, durations)
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
    for why in dict.fromkeys(why for _, why in summary.failures):  # once, for those that failed together
        which = [task for task, other in summary.failures if other == why]
        paths = [f"{watch.label(task)} failed; {store.folder(*task.key) / ERROR}:" for task in which]
        warn("\n".join(["", *paths, why.rstrip()]))
    say(f"{summary.done} done, {summary.reused} reused, {len(summary.failures)} failed")
    say(f"next: {_command('report', names, scale, out, choices, settings)}")
    raise typer.Exit(1 if summary.failures else 0)


@app.command()
def status(names: Names = None, out: Out = Path("out")) -> None:
    """Show how many runs of each experiment and scale are done, running, failed, missing or corrupt, and why.

    Example: stationary status
    """
    store, rows, notes = RunStore(out / "runs"), [], []
    for name, experiment in _chosen(names).items():
        known: dict[Path, str | None] = {}  # what there is to say of a run
        for scale in Scale:
            configs = experiment.configs(scale.value)
            states = [store.state(name, experiment.VERSION, config) for config in configs]
            rows.append([name, scale.value, *(states.count(state) for state in get_args(State))])
            settings = differing(configs)
            for config, state in zip(configs, states, strict=True):
                folder = store.folder(name, experiment.VERSION, config)
                known.setdefault(folder, _note(in_words(f"{name} {scale.value}", config, settings), folder, state))
        problems: list[CorruptRunError] = []
        finished = {run.folder for run in store.runs(name, problems.append)} - set(known)
        active = {path.parent for path in (store.root / name).glob(f"*/{RUNNING}") if running(path.parent)} - set(known)
        for others, what in ((finished, "finished"), (active - finished, "running")):
            if others:
                notes.append(f"{name}: {len(others)} more {what}, of other settings or versions")
        notes += [*filter(None, known.values()), *map(str, problems)]
    foreign = [path for path in store.root.glob("[!.]*") if path.name not in EXPERIMENTS]
    notes += [f"{path}: is not the folder of an experiment; left alone" for path in sorted(foreign)]
    print_table(["experiment", "scale", *get_args(State)], rows)
    for note in notes:
        say(note)


def _note(what: str, folder: Path, state: State) -> str | None:
    if state == "failed":
        with suppress(FileNotFoundError):  # it has just been run again
            last = (folder / ERROR).read_text().strip().rpartition("\n")[2]
            return f"{what} failed, {folder / ERROR}: {last}"
    if state == "running" and (by := running(folder)):
        doubt = "" if by.here else "; whether it still runs cannot be seen from here"
        return f"{what} is running since {by.since} ({duration(by.age_s)}), process {by.pid} of {by.host}{doubt}"
    return None


@app.command()
def report(
    names: Names = None,
    scale: OfScale = None,
    out: Out = Path("out"),
    dataset: Dataset = None,
    method: Method = None,
    prior: Prior = None,
    settings: Settings = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="html: figures and tables on one page; md, latex: the tables; csv: the numbers."),
    ] = Format.html,
    show: Annotated[bool, typer.Option("--open", help="Open it when it is written.")] = False,
) -> None:
    """Write the report of what has run, the paper beside ours, and its figures as files.

    Example: stationary report --open

    Example: stationary report regression --scale paper --format latex
    """
    choices = choices_from(dataset=dataset, method=method, prior=prior)
    store, named, environments, failed = RunStore(out / "runs"), {}, [], False
    for name, selection in _selected(names, scale, choices, settings).items():
        experiment, configs = EXPERIMENTS[name], selection.configs
        found = [(config, run) for config in configs if (run := _load(store, name, experiment, config))]
        if len(found) < len(configs):
            warn(f"{name}: {len(found)} of {len(configs)} results are there; for the rest: stationary run {name} ...")
        if not found:
            continue
        try:
            named[name] = experiment.report([(config, run.arrays) for config, run in found])
            environments += [run.environment for _, run in found]
        except Exception:
            warn(f"\n{name}: its part of the report failed, and is left out:\n{traceback.format_exc()}")
            failed = True
    sections = list(named.values())
    if not sections:
        warn(f"nothing to report in {out}; first: {_command('run', names, scale, out, choices, settings)}")
        raise typer.Exit(1)
    if form is Format.csv:
        texts = {out / f"{name}.csv": render_csv(section) for name, section in named.items() if section.records}
        for path, text in texts.items():
            write_text(path, text)
        say(f"wrote {', '.join(map(str, texts))}" if texts else "none of these has numbers for a CSV file")
        raise typer.Exit(1 if failed or not texts else 0)
    for section in sections:
        for figure_name, figure in section.figures.items():
            save_figure(out / "figures" / figure_name, figure)
    if form is Format.html:
        path, text = out / "report.html", render_html(sections, environments)
    elif form is Format.md:
        path, text = out / "report.md", render_markdown(sections)
    else:
        path, text = out / "report.tex", render_latex(sections)
    write_text(path, text)
    say(f"wrote {path} and its figures in {out / 'figures'}")
    if show:
        typer.launch(str(path.resolve()))
    raise typer.Exit(1 if failed else 0)


@app.command()
def explore(
    to: Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")] = Path("out/explorer.html"),
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
) -> None:
    """Open the explorer: a page to play with activations, their kernels, and what networks believe without data.

    Example: stationary explore

    Example: stationary explore --to ~/explorer.html --no-open
    """
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
    to: Annotated[Path, typer.Option(help="The folder of the files.")] = Path("results"),
) -> None:
    """Write finished runs as small JSON files with their origin, to keep them in a repository.

    Example: stationary archive uci --to results
    """
    store = RunStore(out / "runs")
    for name, experiment in _chosen(names).items():
        known = [run for run in store.runs(name, lambda p: warn(str(p))) if run.version == experiment.VERSION]
        if paths := archive(known, to / name, getattr(experiment, "LOCKSTEP", None)):
            say(f"wrote {len(paths)} files with {len(known)} runs to {to / name}")


app.command()(data)
app.command("trunk")(train_trunk)


def main() -> None:
    app()


# What to run


def _chosen(names: Sequence[str] | None) -> dict[str, ModuleType]:
    """Those that are named; without names all of them."""
    if unknown := set(names or ()) - set(EXPERIMENTS):
        raise typer.BadParameter(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    return {name: EXPERIMENTS[name] for name in names or EXPERIMENTS}


def _selected(
    names: Sequence[str] | None, scale: Scale | None, choices: Choices, settings: Sequence[str] | None
) -> dict[str, Selection]:
    with bad_parameters():
        selected = select(_chosen(names), scale and scale.value, choices, settings or (), strict=bool(names))
    for name, selection in selected.items():
        if not scale and selection.scale != Scale.demo.value:
            warn(f"{name}: the configurations of {selection.scale}, since demo has not all that was chosen")
    return selected


def _problems(selected: dict[str, Selection], store: RunStore) -> dict[str, str]:
    """Why experiments cannot run what has no result yet."""
    found = {}
    for name, selection in selected.items():
        experiment = EXPERIMENTS[name]
        new = [c for c in selection.configs if not store.folder(name, experiment.VERSION, c).joinpath(RESULT).exists()]
        if new and (problem := getattr(experiment, "missing", lambda _: None)(new)):
            found[name] = problem
    return found


def _load(store: RunStore, name: str, experiment: ModuleType, config: Any) -> Run | None:
    try:
        return store.load(name, experiment.VERSION, config)
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
    """A command line with the same options."""
    options = [("--scale", scale.value if scale else "", ""), ("--out", str(out), "out")]
    options += [(f"--{key}", ",".join(wanted), "") for key, wanted in choices.items()]
    options += [("--set", setting, "") for setting in settings or ()]
    given = [word for option, value, default in options if value != default for word in (option, value)]
    return shlex.join(["stationary", command, *(names or ()), *given])


def _time_here(name: str, experiment: ModuleType, scale: str, out: Path) -> str | None:
    """What the runs of a scale took together, if all of them are in the store."""
    runs = [_load(RunStore(out / "runs"), name, experiment, config) for config in experiment.configs(scale)]
    times = [seconds for run in runs if run and (seconds := seconds_of(run.environment)) is not None]
    return f"{duration(sum(times))} here" if len(times) == len(runs) else None
