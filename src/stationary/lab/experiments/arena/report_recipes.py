"""What recipes of a trunk bring: the same judges on trunks that were trained in other ways, beside the plain one."""

from collections.abc import Iterator

from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH, JUDGES, NETWORK_METHOD, PROTOCOL, RECIPES
from stationary.lab.experiments.arena.seeds import Methods, over_seeds
from stationary.lab.experiments.arena.words import name_of
from stationary.lab.experiments.paired import mean_difference
from stationary.lab.report.content import Cell, Measured, Table

PLAIN = next(iter(RECIPES))
UNKNOWN = "AUROC: other classes"
Found = dict[str, Methods]  # the numbers of each recipe that has run, by data set


def found_of(found: dict[tuple[str, str], Methods]) -> Found:
    """Return the plain recipe and the others, in their order; empty where no other has run."""
    by_name = {dataset: methods for (_, dataset), methods in found.items()}
    recipes = {dataset: by_name[dataset] for dataset in RECIPES if dataset in by_name}
    return recipes if recipes.keys() - {PLAIN} else {}


def gain(recipes: Found, dataset: str, method: str, name: str) -> Measured | None:
    """Return a recipe's number minus the plain one's, by ``mean_difference`` over the seeds that both have."""
    plain, other = (recipes.get(one, {}).get(method, {}) for one in (PLAIN, dataset))
    differences = [numbers[name] - plain[seed][name] for seed, numbers in other.items() if seed in plain]
    return None if dataset == PLAIN else mean_difference(differences)


def tables(recipes: Found, seconds: dict[str, float] | None = None) -> Iterator[Table]:
    """Make a table of the AUROC of every judge on every recipe, and one of how much each is above the plain recipe.

    Args:
        recipes: the numbers of each recipe.
        seconds: by data set, the mean number of seconds that one training took; None where that is not known.
    """
    if not recipes:
        return
    judges = [method for method in JUDGES if all(method in methods for methods in recipes.values())]
    columns = ("recipe", *("seconds",) * (seconds is not None), "accuracy", *(PROTOCOL[m].label for m in judges))
    rows: list[tuple[Cell, ...]] = []
    gains: list[tuple[Cell, ...]] = []
    for dataset, methods in recipes.items():
        first: tuple[Cell, ...] = (RECIPES[dataset],)
        if seconds is not None:
            first += (round(seconds[dataset]) if dataset in seconds else None,)
        of_all = [(NETWORK_METHOD, "accuracy"), *((method, UNKNOWN) for method in judges)]
        values = (over_seeds(methods[method], name) if method in methods else None for method, name in of_all)
        n_seeds = len(methods[judges[0]]) if judges else 0
        rows.append((*first, *values, n_seeds))
        if dataset != PLAIN:
            gains.append((first[0], *(gain(recipes, dataset, method, name) for method, name in of_all)))
    caption = f"{name_of(PLAIN)}, recipes of a trunk: accuracy on known classes, and AUROC of the other five. Mean and "
    caption += "standard deviation over seeds."
    if seconds is not None:
        caption += " Seconds are those of one training, with two others and at times more work on the same GPU."
    yield Table(caption, (*columns, "seeds"), tuple(rows))
    caption = f"{name_of(PLAIN)}, recipes of a trunk: each number minus that of the plain recipe, by seed. Mean "
    columns = ("recipe", "accuracy", *(PROTOCOL[method].label for method in judges))
    yield Table(caption + "and standard error over seeds.", columns, tuple(gains))


def in_words(recipes: Found) -> list[str]:
    """Say of each recipe what it brings to infinite width."""
    told = []
    for dataset in recipes:
        found = gain(recipes, dataset, INFINITE_WIDTH, UNKNOWN)
        if found:
            told.append(
                f"A trunk by the recipe {RECIPES[dataset]!r} changes the AUROC of infinite width by {found.mean:+.4f} "
                f"± {found.std or 0.0:.4f}, paired by seed with the plain recipe."
            )
    return told
