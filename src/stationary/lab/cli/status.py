"""``stationary list`` and ``stationary status``: what there is to run, and how far it is."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import get_args

from stationary._extras import extra

with extra("experiments"):
    from stationary.lab.cli.progress import differing, in_words

from stationary.lab.cli import places
from stationary.lab.cli.chosen import chosen
from stationary.lab.cli.console import print_table, say
from stationary.lab.cli.options import Names, Out, Scale
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment
from stationary.lab.runs.inside import progress_of
from stationary.lab.runs.provenance import duration, seconds_of
from stationary.lab.runs.store import ERROR, RUNNING, CorruptRunError, RunStore, State, running, state_of


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


def _time_here(experiment: Experiment, scale: str, out: Path) -> str | None:
    """Return the time that all runs of a scale took together, or None if one of them is not in the store."""
    store, module, times = RunStore(out / "runs"), experiment.config, []
    for config in module.configs(scale):
        environment = store.environment(experiment.name, module.VERSION, config)
        if environment is None or (seconds := seconds_of(environment)) is None:
            return None
        times.append(seconds)
    return f"{duration(sum(times))} here"


def status(names: Names = None, out: Out = Path("out")) -> None:
    """Show how many runs of each experiment and scale are done, running, failed, missing or corrupt, and why.

    It does not read what was computed: run and report check every number that they use.

    Example: stationary status
    """
    store, rows, notes = RunStore(out / "runs"), [], []
    for name, experiment in chosen(names).items():
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
