"""``stationary run``: what has no result yet is computed."""

import logging
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from stationary._extras import extra

with extra("experiments"):
    import typer

    from stationary.lab.cli.progress import Watch

from stationary.lab.cli import places
from stationary.lab.cli.chosen import command_line, selected_of
from stationary.lab.cli.console import bad_parameters, say, warn
from stationary.lab.cli.data import DataDir, Device
from stationary.lab.cli.options import Engine, Names, OfDataset, OfMethod, OfPrior, OfScale, Out, Settings
from stationary.lab.cli.select import Selection, choices_from
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import NeedsData
from stationary.lab.runs import execute
from stationary.lab.runs.execute import run_missing
from stationary.lab.runs.store import ERROR, RESULT, RunStore
from stationary.lab.runs.units import Task


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

    Example: stationary run banana --prior relu --set hidden=100

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
    selected, store = selected_of(names, scale, choices, settings), RunStore(out / "runs")
    left_out = 0
    for name, lacking in _lacking(selected, store).items():
        left_out += len(lacking)
        reasons = Counter(lacking.values())
        if not names and len(reasons) > 1:  # who runs everything gets a line for each experiment, no more
            told = command_line("run", [name], scale, out, choices, settings)
            reasons = Counter(
                {f"{len(reasons)} libraries or data sets are not here; `{told}` names them": len(lacking)}
            )
        if left := [config for config in selected[name].configs if config not in lacking]:
            for why, count in reasons.items():
                warn(f"{name}: {count} of {len(left) + len(lacking)} runs are left out: {why}")
            selected[name] = replace(selected[name], configs=left)
        else:
            for why in reasons:
                warn(f"{name} {'cannot run' if names else 'is left out'}: {why}")
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
    counts = f"{summary.done} done, {summary.reused} reused, {len(summary.failures)} failed"
    say(f"{counts}, {left_out} left out" if left_out else counts)
    say(f"next: {command_line('report', names, scale, out, choices, settings)}")
    raise typer.Exit(1 if summary.failures else 0)


def _lacking(selected: dict[str, Selection], store: RunStore) -> dict[str, dict[Any, str]]:
    """By experiment, say why configurations that have no result yet cannot run here, each on its own."""
    found = {}
    for name, selection in selected.items():
        version = EXPERIMENTS[name].config.VERSION
        new = [config for config in selection.configs if not (store.folder(name, version, config) / RESULT).exists()]
        if new and isinstance(module := EXPERIMENTS[name].run, NeedsData) and (of_all := module.missing(new)):
            alone = {config: why for config in new if (why := module.missing([config]))}
            found[name] = alone or dict.fromkeys(new, of_all)
    return found
