"""The command line."""

from pathlib import Path
from typing import Annotated

from stationary.extras import extra

with extra("experiments"):
    import typer
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from stationary.experiments import EXPERIMENTS

from stationary.runs import RunStore, save_figure

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def stationary() -> None:
    """Neural networks that know what they do not know: the experiments of the paper, from one command."""


@app.command()
def run(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Which of: {', '.join(EXPERIMENTS)}. All of them if none.")
    ] = None,
    scale: Annotated[str, typer.Option(help="paper, or smoke for a quick look.")] = "paper",
    out: Annotated[Path, typer.Option(help="Where results and figures go.")] = Path("out"),
) -> None:
    """Run experiments, reuse what is already there, and draw their figures.

    Example: stationary run covariance --scale smoke --out /tmp/look
    """
    unknown = set(names or ()) - set(EXPERIMENTS)
    if unknown:
        raise typer.BadParameter(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    if scale not in ("paper", "smoke"):
        raise typer.BadParameter(f"--scale must be paper or smoke, got {scale!r}")
    store, written, console = RunStore(out / "runs"), [], Console()
    progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)
    with progress:
        for name in names or EXPERIMENTS:
            experiment = EXPERIMENTS[name]
            task = progress.add_task(experiment.TITLE, total=1)
            for config in experiment.configs(scale):
                arrays = store.load(name, experiment.VERSION, config)
                if arrays is None:
                    arrays = experiment.run(config)
                    store.save(name, experiment.VERSION, config, arrays)
                else:
                    progress.update(task, description=f"{experiment.TITLE} (results reused)")
                for figure_name, figure in experiment.draw(arrays).items():
                    written += save_figure(out / figure_name, figure)
            progress.advance(task)
    for path in written:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def main() -> None:
    app()
