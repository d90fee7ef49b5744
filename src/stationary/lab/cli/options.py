"""The options that several commands share, and what they may be."""

from enum import Enum
from pathlib import Path
from typing import Annotated

from stationary._extras import extra

with extra("experiments"):
    import typer

from stationary.lab.experiments import EXPERIMENTS


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


def folder(place: Path) -> Path:
    """Return the place if it is a folder or can become one, as a callback of an option."""
    for part in (place, *place.parents):
        if part.is_file():
            raise typer.BadParameter(f"{part} is a file; name a folder, or a place where there is nothing yet")
    return place


Out = Annotated[Path, typer.Option(callback=folder, help="The folder for results, figures and the report.")]
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
