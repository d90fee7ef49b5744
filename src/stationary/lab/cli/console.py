"""How the command line prints: tables and progress bars on a terminal, plain lines in a pipe."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from stationary._extras import extra

with extra("experiments"):
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.table import Table as RichTable
    from rich.text import Text


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table on a terminal; in a pipe, print lines with tabs between the cells."""
    console = Console()
    if not console.is_terminal:
        for row in (columns, *rows):
            typer.echo("\t".join(map(str, row)))
        return
    table = RichTable(*columns)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


@contextmanager
def download_bar() -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar; yields a function to call with the bytes that have arrived and their total, or None."""
    console = Console()
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("download", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(text: str) -> None:
    typer.echo(text)


def warn(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def bad_parameters() -> Iterator[None]:
    """Turn a ValueError inside into an error of the command line, which prints its message and the usage."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
