"""The opening of the arena's page: both configurations of ours beside the best peer, at one look and in sentences."""

from collections import Counter

import numpy as np

from stationary.lab.experiments.arena import report_recipes
from stationary.lab.experiments.arena.protocol import (
    FROM_NETWORK,
    INFINITE_WIDTH,
    NETWORK_METHOD,
    PROTOCOL,
    RECIPES,
)
from stationary.lab.experiments.arena.report import KNOWN, better, has_probabilities, highest_once, unknowns
from stationary.lab.experiments.arena.report_second import BESIDE_NETWORK, minus
from stationary.lab.experiments.arena.seeds import Methods, over_seeds, signed
from stationary.lab.experiments.arena.words import called, listed, name_of
from stationary.lab.report.content import Cell, Table

OURS = (INFINITE_WIDTH, FROM_NETWORK)
Found = dict[tuple[str, str], Methods]


def table(found: Found, recipe: str | None = None) -> Table:
    """Make a table with a row for each kind of unknown inputs, of AUROC.

    Args:
        found: the numbers by event and data set.
        recipe: data set of one of the trunks of other recipes, to stand there too.
    """
    rows: list[tuple[Cell, ...]] = []
    for dataset, unknown, methods in lines(found, recipe):
        name = f"AUROC: {unknown}"
        mean = {method: over_seeds(values, name).mean for method, values in methods.items()}
        peers = [method for method in methods if not PROTOCOL[method].ours]
        best = max(peers, key=lambda method: mean[method])
        ahead, once = better(methods, unknown), highest_once(methods, unknown)
        missed = [f"no: {len(ahead)} of {len(peers)} {'is' if len(ahead) == 1 else 'are'} better"] * bool(ahead)
        missed += [f"{called(PROTOCOL[method].label)} higher, one run" for method in once]
        trunk = f", trunk {RECIPES[dataset]!r}" if dataset == recipe else ""
        rows.append(
            (
                f"{name_of(report_recipes.PLAIN if trunk else dataset)}{trunk}: {name_of(unknown)}",
                *(f"{mean[method]:.3f}" if method in mean else None for method in OURS),
                f"{PROTOCOL[best].label} {mean[best]:.3f}{' (one run)' * (len(methods[best]) == 1)}",
                signed(minus(methods, INFINITE_WIDTH, best, name), 4),
                "; ".join(missed) or "yes",
            )
        )
    columns = ("known: unknown", "first", "second", "best peer", "first minus it", "target met")
    return Table("AUROC, means over seeds; differences with their paired standard errors.", columns, tuple(rows))


def lines(found: Found, recipe: str | None = None) -> list[tuple[str, str, Methods]]:
    """Return data set, unknown inputs and numbers of each line of the table."""
    return [
        (dataset, unknown, methods)
        for (_, dataset), methods in found.items()
        if INFINITE_WIDTH in methods and (dataset not in RECIPES or dataset in (report_recipes.PLAIN, recipe))
        for unknown in unknowns(methods)
    ]


def nobody_above(found: Found, recipe: str | None = None) -> dict[str, int]:
    """Count for each method the lines on which no other one, ours included, is better by over a standard error.

    One that has run once has none, so there its mean counts.
    """
    count: Counter[str] = Counter()
    for _, unknown, methods in lines(found, recipe):
        name = f"AUROC: {unknown}"
        mean = {method: over_seeds(values, name).mean for method, values in methods.items()}
        for method in methods:
            behind = [minus(methods, other, method, name) for other in methods if mean[other] > mean[method]]
            count[method] += all(one is not None and one.std is not None and one.mean <= one.std for one in behind)
    return dict(count.most_common())


def table_of_known(found: Found) -> Table:
    """Make a table of NLPD and ECE on known inputs: both configurations minus the network itself."""
    rows: list[tuple[Cell, ...]] = [
        (
            name_of(dataset),
            *(
                signed(minus(methods, ours, NETWORK_METHOD, name), 4)
                for name in BESIDE_NETWORK
                for ours in OURS
                if ours in methods
            ),
        )
        for (_, dataset), methods in found.items()
        if NETWORK_METHOD in methods and all(ours in methods for ours in OURS)
    ]
    columns = ("known", *(f"{name}, {which}" for name in BESIDE_NETWORK for which in ("first", "second")))
    caption = "Known inputs: ours minus the network itself, with the paired standard error; below 0 ours is better."
    return Table(caption, columns, tuple(rows))


def worse_than_network(found: Found, ours: str) -> str:
    """Say where the NLPD and the ECE of a configuration are worse than the network's by over a standard error."""
    told = []
    for name in BESIDE_NETWORK:
        of_all = {dataset: minus(methods, ours, NETWORK_METHOD, name) for (_, dataset), methods in found.items()}
        worse = [name_of(dataset) for dataset, one in of_all.items() if one and one.mean > (one.std or 0.0)]
        told.append(f"{name} is higher on {'; '.join(worse) or 'none'}")
    return ". The ".join(told)


def in_recipes(recipes: report_recipes.Found) -> list[str]:
    """Say for the trunk of each recipe who is better than infinite width."""
    told = []
    for dataset, methods in recipes.items():
        ours = over_seeds(methods[INFINITE_WIDTH], report_recipes.UNKNOWN).mean
        ahead = better(methods, report_recipes.UNKNOWN.removeprefix("AUROC: "))
        auroc = {method: over_seeds(methods[method], report_recipes.UNKNOWN).mean for method in ahead}
        who = (
            listed(f"{called(PROTOCOL[method].label)} ({auroc[method]:.3f})" for method in ahead) if ahead else "nobody"
        )
        told.append(f"{RECIPES[dataset]}: {who}; ours has {ours:.3f}")
    return told


def second_in_recipes(recipes: report_recipes.Found) -> str:
    """Say of the trunk of each recipe whether the second configuration is above the first, paired by seed."""
    told = []
    for dataset, methods in recipes.items():
        if found := minus(methods, FROM_NETWORK, INFINITE_WIDTH, report_recipes.UNKNOWN):
            unclear = abs(found.mean) <= (found.std or 0.0)
            where = "level with it" if unclear else "above it" if found.mean > 0 else "below it"
            told.append(f"{where} on {RECIPES[dataset]!r} ({signed(found, 4)})")
    return listed(told)


def under_shift(methods: Methods) -> list[str]:
    """Say for each metric of corrupted inputs what ours and the best peer have, and where it is better than both."""
    told = []
    for metric, sign in KNOWN.items():
        measured = {m: v for m, v in methods.items() if has_probabilities(m)}
        names = [name for name in next(iter(measured.values()))[0] if name.startswith(f"{metric}: severity")]
        if not names:
            continue
        each = {method: {name: over_seeds(values, name).mean for name in names} for method, values in measured.items()}
        mean = {method: float(np.mean(list(of.values()))) for method, of in each.items()}
        peers = [method for method in mean if not PROTOCOL[method].ours and method != NETWORK_METHOD]
        best = max(peers, key=lambda method: sign * mean[method])
        ours = [method for method in OURS if method in mean]
        where = [
            name.removeprefix(f"{metric}: severity ")
            for name in names
            if all(sign * each[best][name] > sign * each[one][name] for one in ours)
        ]
        numbers = " and ".join(f"{mean[one]:.3f}" for one in ours)
        is_better = f"better than both at severity {listed(where)}" if where else "nowhere better than both"
        told.append(f"{metric}: ours {numbers}, {called(PROTOCOL[best].label)} {mean[best]:.3f}, {is_better}")
    return told
