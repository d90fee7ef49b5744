"""The command line."""

import shlex
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from enum import Enum
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from stationary.extras import extra

with extra("experiments"):
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text

    from stationary.experiments import EXPERIMENTS
    from stationary.report import render_html, render_latex, render_markdown

from stationary import execute
from stationary.execute import Outcome, Task, run_missing
from stationary.files import write_atomically
from stationary.runs import ERROR, CorruptRunError, Run, RunStore, save_figure

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Scale(str, Enum):
    smoke, demo, paper = "smoke", "demo", "paper"


class Device(str, Enum):
    auto, cpu, cuda = "auto", "cpu", "cuda"


class Engine(str, Enum):
    local, ray = "local", "ray"


class Format(str, Enum):
    html, md, latex = "html", "md", "latex"


Names = Annotated[list[str] | None, typer.Argument(help=f"Which of: {', '.join(EXPERIMENTS)}. All of them if none.")]
Out = Annotated[Path, typer.Option(help="The folder of results, figures and the report.")]
OfScale = Annotated[
    Scale, typer.Option(help="smoke: does it work; demo: on a laptop, in minutes; paper: the paper's own settings.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the configurations; may be repeated."),
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
    _print_table(["experiment", "reproduces", *(scale.value for scale in Scale)], rows)


@app.command()
def run(
    names: Names = None,
    scale: OfScale = Scale.demo,
    out: Out = Path("out"),
    settings: Settings = None,
    device: Annotated[Device, typer.Option(help="auto: cuda if there is a GPU.")] = Device.auto,
    jobs: Annotated[int, typer.Option(min=1, help="Processes on this machine; they share its cores.")] = 1,
    engine: Annotated[Engine, typer.Option(help="local: this machine; ray: a Ray cluster.")] = Engine.local,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster; without, Ray looks for one here or starts one.")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that Ray reserves for each run.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that Ray reserves for each run on cuda.")] = 1.0,
) -> None:
    """Run experiments; results that are there are reused. Stop it with Ctrl-C, run it again, and it continues.

    Example: stationary run banana

    Example: stationary run regression covariance --scale paper --jobs 4

    Example: stationary run banana --set hidden=100 --set prior=relu

    Example: stationary run --scale paper --engine ray --address auto --gpus 0.5
    """
    with _bad_parameters():
        execute.check(engine.value, jobs, device.value, address)
    tasks = [
        Task(name, experiment.__name__, config, cpus, gpus)
        for name, experiment in _chosen(names).items()
        for config in _configs(name, experiment, scale, settings)
    ]
    store, watch = RunStore(out / "runs"), _Watch(tasks, scale)
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
        _warn("Stopped; what is finished is kept. Run the same command again to continue.")
        raise typer.Exit(1) from None
    except (ImportError, ConnectionError) as error:
        if engine is not Engine.ray:
            raise
        _warn(f"Ray cannot be used: {error}")
        raise typer.Exit(1) from None
    for problem in summary.problems:
        _warn(problem)
    for task, why in summary.failures:
        _warn(f"\n{watch.label(task)} failed; {store.folder(*task.key) / ERROR}:\n{why.rstrip()}")
    _print(f"{summary.done} done, {summary.reused} reused, {len(summary.failures)} failed")
    options = [
        ("--scale", scale.value, "demo"),
        ("--out", str(out), "out"),
        *(("--set", s, "") for s in settings or ()),
    ]
    given = [word for option, value, default in options if value != default for word in (option, value)]
    _print(f"next: {shlex.join(['stationary', 'report', *(names or ()), *given])}")
    raise typer.Exit(1 if summary.failures else 0)


@app.command()
def status(names: Names = None, out: Out = Path("out")) -> None:
    """Show how many runs of each experiment and scale are done, missing, failed or corrupt.

    Example: stationary status
    """
    store, rows, notes = RunStore(out / "runs"), [], []
    for name, experiment in _chosen(names).items():
        known = set()
        for scale in Scale:
            keys = [(name, experiment.VERSION, config) for config in experiment.configs(scale.value)]
            counts = Counter(store.state(*key) for key in keys)
            rows.append([name, scale.value, *(counts[s] for s in ("done", "missing", "failed", "corrupt"))])
            known |= {store.folder(*key) for key in keys}
        problems: list[CorruptRunError] = []
        others = sum(run.folder not in known for run in store.runs(name, problems.append))
        if others:
            notes.append(f"{name}: {others} more finished, of other settings or versions")
        errors = [folder / ERROR for folder in sorted(known) if (folder / ERROR).exists()]
        notes += [f"{path}: {path.read_text().strip().splitlines()[-1]}" for path in errors]
        notes += map(str, problems)
    foreign = [path for path in store.root.glob("[!.]*") if path.name not in EXPERIMENTS]
    notes += [f"{path}: is not the folder of an experiment; left alone" for path in sorted(foreign)]
    _print_table(["experiment", "scale", "done", "missing", "failed", "corrupt"], rows)
    for note in notes:
        _print(note)


@app.command()
def report(
    names: Names = None,
    scale: OfScale = Scale.demo,
    out: Out = Path("out"),
    settings: Settings = None,
    form: Annotated[
        Format, typer.Option("--format", help="html: figures and tables on one page; md, latex: the tables.")
    ] = Format.html,
    show: Annotated[bool, typer.Option("--open", help="Open it when it is written.")] = False,
) -> None:
    """Write the report of what has run, the paper beside ours, and its figures as files.

    Example: stationary report --open

    Example: stationary report regression --scale paper --format latex
    """
    store, sections, environments, failed = RunStore(out / "runs"), [], [], False
    for name, experiment in _chosen(names).items():
        configs = _configs(name, experiment, scale, settings)
        found = [(config, run) for config in configs if (run := _load(store, name, experiment, config))]
        if len(found) < len(configs):
            _warn(f"{name}: {len(found)} of {len(configs)} results are there; for the rest: stationary run {name} ...")
        if not found:
            continue
        try:
            sections.append(experiment.report([(config, run.arrays) for config, run in found]))
            environments += [run.environment for _, run in found]
        except Exception:
            _warn(f"\n{name}: its part of the report failed, and is left out:\n{traceback.format_exc()}")
            failed = True
    if not sections:
        _warn(f"nothing to report at scale {scale.value} in {out}; first: stationary run --scale {scale.value}")
        raise typer.Exit(1)
    for section in sections:
        for figure_name, figure in section.figures.items():
            save_figure(out / "figures" / figure_name, figure)
    if form is Format.html:
        path, text = out / "report.html", render_html(sections, environments)
    elif form is Format.md:
        path, text = out / "report.md", render_markdown(sections)
    else:
        path, text = out / "report.tex", render_latex(sections)
    write_atomically(path, lambda file: file.write(text.encode()))
    _print(f"wrote {path} and its figures in {out / 'figures'}")
    if show:
        typer.launch(str(path.resolve()))
    raise typer.Exit(1 if failed else 0)


@app.command()
def data() -> None:
    """Show the bundled data sets, where they come from, and their licences.

    Example: stationary data
    """
    lines = (files("stationary.data.files") / "README.md").read_text().splitlines()
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    _print_table(table[0], table[2:])


def main() -> None:
    app()


# What to run


def _chosen(names: Sequence[str] | None) -> dict[str, ModuleType]:
    if unknown := set(names or ()) - set(EXPERIMENTS):
        raise typer.BadParameter(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    return {name: EXPERIMENTS[name] for name in names or EXPERIMENTS}


def _configs(name: str, experiment: ModuleType, scale: Scale, settings: Sequence[str] | None) -> list[Any]:
    """The configurations of a scale, with the settings changed; those that become equal are one."""
    kinds = get_type_hints(experiment.Config)
    changes = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or key not in kinds:
            known = ", ".join(f"{field.name}: {_kind_name(kinds[field.name])}" for field in fields(experiment.Config))
            raise typer.BadParameter(
                f"--set takes KEY=VALUE with a setting of {name}, which are {known}; got {setting!r}"
            )
        try:
            changes[key] = _value(text, kinds[key])
        except ValueError:
            rule = f"{key} of {name} must be {_kind_name(kinds[key])}"
            raise typer.BadParameter(f"--set {setting}: {rule}; got {text!r}") from None
    with _bad_parameters():
        return list(dict.fromkeys(replace(config, **changes) for config in experiment.configs(scale.value)))


def _value(text: str, kind: Any) -> Any:
    """Text as a value of an annotated type; a tuple's items have commas between them."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in sorted(arguments, key=lambda argument: argument is str):  # any text is a str, so that comes last
            with suppress(ValueError):
                return _value(text, one)
    elif origin is Literal:
        words = {str(one): one for one in arguments}
        if text in words:
            return words[text]
    elif origin is tuple:
        items = [item.strip() for item in text.strip("()").split(",") if item.strip()]
        inner = arguments[:1] * len(items) if arguments[-1] is Ellipsis else arguments
        if len(items) == len(inner) and not any(get_origin(one) is tuple for one in inner):
            return tuple(map(_value, items, inner))
    elif kind in (bool, type(None)):
        words = {"true": True, "false": False} if kind is bool else {"none": None}
        if text.lower() in words:
            return words[text.lower()]
    elif kind in (int, float, str):
        return kind(text)
    raise ValueError(text)


def _kind_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _load(store: RunStore, name: str, experiment: ModuleType, config: Any) -> Run | None:
    try:
        return store.load(name, experiment.VERSION, config)
    except CorruptRunError as problem:
        _warn(str(problem))
        return None


def _time_here(name: str, experiment: ModuleType, scale: str, out: Path) -> str | None:
    """What the runs of a scale took together, if all of them are in the store."""
    runs = [_load(RunStore(out / "runs"), name, experiment, config) for config in experiment.configs(scale)]
    times = [run.environment["wall_s"] for run in runs if run and "wall_s" in run.environment]
    return f"{_duration(sum(times))} here" if len(times) == len(runs) else None


@contextmanager
def _bad_parameters() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


# What is seen


class _Watch:
    """Shows the progress of tasks: as a bar on a terminal, as lines in a pipe."""

    def __init__(self, tasks: Sequence[Task], scale: Scale) -> None:
        self.scale = scale
        self.tasks = list(tasks)
        self.left = list(tasks)
        self.seconds: dict[str, list[float]] = {}  # of each experiment's runs
        self.worked = 0.0  # seconds, in all processes
        self.start = time.monotonic()
        self.console = Console()
        self.bar: Progress | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        times = TimeElapsedColumn(), TextColumn("{task.fields[left]}")
        with Progress(*columns, *times, console=self.console) as self.bar:
            self.bar.add_task(self._current(), total=len(self.tasks), left=self._left())
            yield

    def done(self, task: Task, outcome: Outcome) -> None:
        self.left.remove(task)
        seconds = outcome.environment.get("wall_s")
        if seconds is not None:
            self.seconds.setdefault(task.experiment, []).append(seconds)
            self.worked += 0 if outcome.reused else seconds
        if self.bar:
            self.bar.update(self.bar.task_ids[0], advance=1, description=self._current(), left=self._left())
            return
        what = "failed" if outcome.error else "reused" if outcome.reused else "done"
        took = f" in {_duration(seconds)}" if seconds is not None and not outcome.reused else ""
        number = f"{len(self.tasks) - len(self.left)}/{len(self.tasks)}"
        _print(", ".join(filter(None, (f"{number} {self.label(task)} {what}{took}", self._left()))))

    def label(self, task: Task) -> str:
        """The experiment, and the settings in which its tasks differ."""
        same = [other.config for other in self.tasks if other.experiment == task.experiment]
        names = [field.name for field in fields(task.config)]
        differ = [name for name in names if len({getattr(config, name) for config in same}) > 1]
        return " ".join([task.experiment, *(f"{name}={getattr(task.config, name)}" for name in differ)])

    def _current(self) -> str:
        return self.left[0].experiment if self.left else "done"

    def _left(self) -> str:
        """The time to go, from the runs of the same experiments; until there are some, what is said of the next."""
        if not self.left:
            return ""
        current, known = self._current(), self.seconds.keys() >= {task.experiment for task in self.left}
        if current not in self.seconds:
            words = getattr(EXPERIMENTS[current], "DURATION", {}).get(self.scale.value)
            return f"{current} takes {words}" if words else ""
        counted = [task for task in self.left if known or task.experiment == current]
        work = sum(fmean(self.seconds[task.experiment]) for task in counted)
        at_once = max(1.0, self.worked / (time.monotonic() - self.start))
        return f"about {_duration(work / at_once)} left" + ("" if known else f" of {current}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table on a terminal; in a pipe, lines with tabs between the cells."""
    console = Console()
    if not console.is_terminal:
        for row in (columns, *rows):
            typer.echo("\t".join(map(str, row)))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def _print(text: str) -> None:
    typer.echo(text)


def _warn(text: str) -> None:
    typer.echo(text, err=True)
