"""Commands that fetch and prepare data: ``stationary data`` and ``stationary trunk``."""

import os
import time
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stationary._extras import extra
from stationary._files import cache_folder

with extra("experiments"):
    import typer

from stationary.lab.cli.console import bad_parameters, download_bar, print_table, say, warn
from stationary.lab.cli.options import folder
from stationary.lab.experiments.cifar10.config import HELD_OUT, TRUNK_CLASSES, TRUNK_EPOCHS
from stationary.lab.runs import execute
from stationary.lab.runs.provenance import environment

if TYPE_CHECKING:
    from stationary.lab.experiments.cifar10.trunk import Epoch


class Device(str, Enum):
    auto, cpu, cuda = "auto", "cpu", "cuda"


class TrunkSetting(str, Enum):
    paper, strict, paper_held_out, strict_held_out = tuple(TRUNK_CLASSES)


DataDir = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, resolve_path=True, help="Folder of the data sets that are not bundled."),
]


def data(
    name: Annotated[str | None, typer.Argument(help="A data set to download: cifar10 or clinc150.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder to put it into; without it, the cache folder.")
    ] = None,
) -> None:
    """Show the bundled data sets, where they come from, and their licences; or download one that is not bundled.

    Example: stationary data

    Example: stationary data cifar10 --data-dir ~/data
    """
    if name not in (None, "cifar10", "clinc150"):
        raise typer.BadParameter(
            f"there is no data set {name} to download; name cifar10 or clinc150, or nothing to see the bundled ones"
        )
    if data_dir and not name:
        raise typer.BadParameter(
            f"--data-dir {data_dir} needs a data set to put there; try: stationary data cifar10 ..."
        )
    if name == "cifar10":
        _download_cifar10(data_dir)
        return
    if name == "clinc150":
        _download_clinc150(data_dir)
        return
    lines = (files("stationary.lab.data.files") / "README.md").read_text().splitlines()
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    print_table(table[0], table[2:])


def _download_clinc150(data_dir: Path | None) -> None:
    from stationary.lab.data import clinc150

    try:
        place = clinc150.download(data_dir)
    except (OSError, ValueError) as error:
        warn(str(error))
        raise typer.Exit(1) from None
    say(f"CLINC150 is in {place}, and verified")


def _download_cifar10(data_dir: Path | None) -> None:
    from stationary.lab.data import cifar10

    folders = [data_dir] if data_dir else [os.environ.get("STATIONARY_DATA"), cache_folder()]
    for place in (cifar10.verified(known) for known in folders if known):
        if place:
            say(f"CIFAR-10 is already in {place}, and verified")
            return
    say(f"downloading {cifar10.URL}")
    try:
        with download_bar() as progress:
            place = cifar10.download(data_dir, cifar10.URL, progress)
    except KeyboardInterrupt:
        warn("Stopped; what has arrived is kept. Run the same command again to continue.")
        raise typer.Exit(1) from None
    except (OSError, ValueError) as error:
        warn(str(error))
        raise typer.Exit(1) from None
    say(f"CIFAR-10 is in {place}, and verified")


def trunk(
    setting: Annotated[
        TrunkSetting,
        typer.Argument(
            help="paper: train on all ten classes; strict: on the five known ones; -held-out: without the last tenth "
            "of the images of each class."
        ),
    ],
    to: Annotated[Path, typer.Option(callback=folder, help="The folder for the trained network.")] = Path(
        "results/cifar10"
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = TRUNK_EPOCHS,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first weights, the order of the images and their augmentation.")
    ] = 0,
    device: Annotated[Device, typer.Option(help="auto: cuda if there is a GPU, else cpu.")] = Device.auto,
    data_dir: DataDir = None,
) -> None:
    """Train the GoogLeNet of the CIFAR-10 experiment. Stop it with Ctrl-C, run it again, and it continues.

    Example: stationary trunk strict --device cuda
    """
    from stationary.lab.data import cifar10
    from stationary.lab.experiments.cifar10.trunk import TrunkRecipe, file_name, save_trunk, train_trunk

    with bad_parameters():
        where = execute.choose_device(device.value)
    recipe = TrunkRecipe(TRUNK_CLASSES[setting.value], epochs, seed=seed, held_out=setting.value in HELD_OUT)
    checkpoint = to / f"{file_name(recipe.n_classes, recipe.held_out)}.checkpoint"
    start = time.perf_counter()
    try:
        images = cifar10.load(data_dir)
        model, curve = train_trunk(images, recipe, where, checkpoint=checkpoint, progress=_print_epoch)
    except KeyboardInterrupt:
        warn("Stopped; all but the last half minute or the last epoch is kept. Run the same command again to continue.")
        raise typer.Exit(1) from None
    except (OSError, ValueError) as error:
        warn(str(error))
        raise typer.Exit(1) from None
    seconds = round(time.perf_counter() - start, 3)
    path = save_trunk(to, model, recipe, curve, environment(where) | {"wall_s": seconds})
    checkpoint.unlink(missing_ok=True)
    say(f"test accuracy {curve[-1]['test accuracy']:.4g}")
    say(f"wrote {path}, and how it was trained beside it")


def _print_epoch(epoch: "Epoch") -> None:
    say(", ".join(f"{name} {value:.4g}" for name, value in epoch.items()))
