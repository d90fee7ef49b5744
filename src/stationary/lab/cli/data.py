"""Commands that fetch and prepare data: ``stationary data`` and ``stationary trunk``."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def _clinc150(data_dir: Path | None) -> str:
    from stationary.lab.data import clinc150

    return f"CLINC150 is in {clinc150.download(data_dir)}, and verified"


def _cifar10(data_dir: Path | None) -> str:
    from stationary.lab.data import cifar10

    folders = [data_dir] if data_dir else [os.environ.get("STATIONARY_DATA"), cache_folder()]
    for place in (cifar10.verified(known) for known in folders if known):
        if place:
            return f"CIFAR-10 is already in {place}, and verified"
    say(f"downloading {cifar10.URL}")
    with download_bar() as progress:
        place = cifar10.download(data_dir, cifar10.URL, progress)
    return f"CIFAR-10 is in {place}, and verified"


def _grey(name: str) -> Callable[[Path | None], str]:
    def downloaded(data_dir: Path | None) -> str:
        from stationary.lab.data import grey_images

        return f"{name} is in {grey_images.download(name, data_dir)}, and verified"

    return downloaded


def _notmnist(data_dir: Path | None) -> str:
    from stationary.lab.data import grey_images

    try:
        grey_images.load("notmnist", "test", data_dir)
    except FileNotFoundError:
        raise FileNotFoundError(grey_images.NOTMNIST) from None
    return f"notmnist is in {grey_images.find('notmnist-test-images', data_dir)}, and verified"


def _covtype(data_dir: Path | None) -> str:
    from stationary.lab.data import uci

    uci.load("covtype", data_dir)
    return f"Covtype is in {uci.find_covtype(data_dir)}, and verified"


def _uci_regression(data_dir: Path | None) -> str:
    from stationary.lab.data import uci_regression

    try:
        place = uci_regression.find(data_dir)
    except FileNotFoundError:
        raise FileNotFoundError(uci_regression.ELSEWHERE) from None
    for table in uci_regression.SHA256:
        uci_regression.load(table, data_dir)
    return f"uci-regression is in {place}, and verified"


DOWNLOADS = {  # what fetches each into a folder, or says where a person finds it, and returns a sentence
    "cifar10": _cifar10,
    "clinc150": _clinc150,
    "covtype": _covtype,
    "fashion-mnist": _grey("fashion-mnist"),
    "mnist": _grey("mnist"),
    "notmnist": _notmnist,
    "uci-regression": _uci_regression,
}


def data(
    name: Annotated[str | None, typer.Argument(help=f"A data set to download: {', '.join(DOWNLOADS)}.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder to put it into; without it, the cache folder.")
    ] = None,
) -> None:
    """Show the bundled data sets, where they come from, and their licences; or download one that is not bundled.

    Example: stationary data

    Example: stationary data cifar10 --data-dir ~/data
    """
    if name not in (None, *DOWNLOADS):
        known = ", ".join(DOWNLOADS)
        raise typer.BadParameter(
            f"there is no data set {name} to download; name {known}, or nothing to see the bundled ones"
        )
    if data_dir and not name:
        raise typer.BadParameter(
            f"--data-dir {data_dir} needs a data set to put there; try: stationary data cifar10 ..."
        )
    if name:
        with _continued_later("what has arrived"):
            say(DOWNLOADS[name](data_dir))
        return
    lines = (files("stationary.lab.data.files") / "README.md").read_text().splitlines()
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    print_table(table[0], table[2:])


@contextmanager
def _continued_later(kept: str) -> Iterator[None]:
    """End with a line where somebody stops it, saying what is kept, and where data or places are bad."""
    try:
        yield
    except KeyboardInterrupt:
        warn(f"Stopped; {kept} is kept. Run the same command again to continue.")
        raise typer.Exit(1) from None
    except (OSError, ValueError) as error:
        warn(str(error))
        raise typer.Exit(1) from None


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
    with _continued_later("all but the last half minute or the last epoch"):
        images = cifar10.load(data_dir)
        model, curve = train_trunk(images, recipe, where, checkpoint=checkpoint, progress=_print_epoch)
    seconds = round(time.perf_counter() - start, 3)
    path = save_trunk(to, model, recipe, curve, environment(where) | {"wall_s": seconds})
    checkpoint.unlink(missing_ok=True)
    say(f"test accuracy {curve[-1]['test accuracy']:.4g}")
    say(f"wrote {path}, and how it was trained beside it")


def _print_epoch(epoch: "Epoch") -> None:
    say(", ".join(f"{name} {value:.4g}" for name, value in epoch.items()))
