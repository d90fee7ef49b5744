"""The commands of ``stationary``: list, run, status, report, explore, archive, data and trunk."""

from pathlib import Path
from typing import Annotated, Any

from stationary._extras import extra

with extra("experiments"):
    import typer
    from typer.core import TyperGroup

from stationary import __version__
from stationary._files import write_text
from stationary.lab.cli import places
from stationary.lab.cli.chosen import chosen, command_line
from stationary.lab.cli.console import say, warn
from stationary.lab.cli.data import data, trunk
from stationary.lab.cli.options import Names, Out, folder
from stationary.lab.cli.report import report
from stationary.lab.cli.run import run
from stationary.lab.cli.select import meant
from stationary.lab.cli.status import list_experiments, status
from stationary.lab.runs.archive import archive
from stationary.lab.runs.store import RunStore

QUOTE = "'"  # around words in messages


class Commands(TyperGroup):
    """The commands; where a folder cannot be read or written, a line says so instead of a traceback.

    A misspelt word of a few, such as that of --scale, is answered by the word that was meant.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            word, rule, known = error.message.removeprefix("Value error, ").partition(" is not one of ")
            if rule:
                error.message = f"{word}{rule}{known.rstrip('.')}{meant(word.strip(QUOTE), known.split(QUOTE)[1::2])}"
            raise
        except OSError as error:
            if (problem := places.advice(error)) is None:
                raise
            warn(f"{problem} What is finished is kept." if ctx.invoked_subcommand == "run" else problem)
            raise typer.Exit(1) from None


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _say_version(wanted: bool) -> None:
    if wanted:
        say(f"stationary {__version__}")
        raise typer.Exit


@app.callback()
def stationary(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_say_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Neural networks that know what they do not know: the experiments of the paper, from one command.

    Example: stationary list; stationary run banana; stationary status; stationary report --open
    """


app.command("list")(list_experiments)
app.command()(run)
app.command()(status)
app.command()(report)


@app.command()
def explore(
    to: Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")] = Path("out/explorer.html"),
    show: Annotated[bool, typer.Option("--open/--no-open", metavar="", help="Open it in the browser.")] = True,
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
    to: Annotated[Path, typer.Option(callback=folder, help="The folder for the files.")] = Path("results"),
) -> None:
    """Write finished runs as small JSON files with their origin, to keep them in a repository.

    Example: stationary archive uci --to results
    """
    store, nothing = RunStore(out / "runs"), True
    for name, experiment in chosen(names).items():
        known = [run for run in store.runs(name, lambda p: warn(str(p))) if run.version == experiment.config.VERSION]
        if paths := archive(known, to / name, experiment.config.LOCKSTEP):
            say(f"wrote {len(paths)} files with {len(known)} runs to {to / name}")
            nothing = False
    if nothing:
        warn(f"nothing to archive in {out}; first: {command_line('run', names, None, out, {}, None)}")
        raise typer.Exit(1)


app.command()(data)
app.command()(trunk)


def main() -> None:
    app()
