"""The second configuration of infinite width beside the first, and the third beside both, the network and the peers."""

from stationary.lab.experiments.arena.protocol import (
    CALIBRATED,
    FROM_NETWORK,
    INFINITE_WIDTH,
    MORE_ROWS,
    NETWORK_METHOD,
    PROTOCOL,
)
from stationary.lab.experiments.arena.seeds import Methods, over_seeds, signed
from stationary.lab.experiments.arena.words import listed, name_of
from stationary.lab.experiments.paired import mean_difference
from stationary.lab.report.content import Cell, Measured, Table

BESIDE_NETWORK = ("NLPD", "ECE")  # measures of known inputs, of which the network itself has some too
AUROC, ENERGY = "AUROC: ", "AUROC by the energy: "


def table(found: dict[tuple[str, str], Methods]) -> Table:
    """Make a table of both configurations, for each kind of unknown inputs and each measure of known ones."""
    rows: list[tuple[Cell, ...]] = []
    for (_, dataset), methods in found.items():
        if INFINITE_WIDTH not in methods or FROM_NETWORK not in methods:
            continue
        measures = next(iter(methods[FROM_NETWORK].values()))
        for name in (*(name for name in measures if name.startswith(AUROC)), *BESIDE_NETWORK):
            known = name in BESIDE_NETWORK
            rows.append(
                (
                    name_of(dataset),
                    f"AUROC, {name_of(name.removeprefix(AUROC))}" if name.startswith(AUROC) else name,
                    over_seeds(methods[INFINITE_WIDTH], name),
                    over_seeds(methods[FROM_NETWORK], name),
                    minus(methods, FROM_NETWORK, INFINITE_WIDTH, name),
                    minus(methods, FROM_NETWORK, NETWORK_METHOD, name) if known else None,
                    None if known else f"{ahead(methods, INFINITE_WIDTH, name)}, {ahead(methods, FROM_NETWORK, name)}",
                )
            )
    columns = ("data", "measure", "first", "second", "second minus first", "second minus network", "peers ahead")
    caption = "Both configurations: mean and standard deviation over seeds; differences with their paired standard "
    caption += "errors; and how many peers are better than the first and than the second by more than one such error."
    return Table(caption, columns, tuple(rows))


def table_of_third(found: dict[tuple[str, str], Methods]) -> Table:
    """Make a table of all three configurations where the third has run, for the same measures.

    What it is beside is the best peer of unknown inputs, and the network itself of known ones.
    """
    rows: list[tuple[Cell, ...]] = []
    for (_, dataset), methods in found.items():
        if MORE_ROWS not in methods:
            continue
        measures = next(iter(methods[MORE_ROWS].values()))
        for name in (*(name for name in measures if name.startswith(AUROC)), *BESIDE_NETWORK):
            known = name in BESIDE_NETWORK
            beside = NETWORK_METHOD if known else best_peer(methods, name)
            label = "the network" if known else PROTOCOL[beside].label
            rows.append(
                (
                    f"{name_of(dataset)}: {name if known else name_of(name.removeprefix(AUROC))}",
                    *(over_seeds(methods[ours], name) for ours in (INFINITE_WIDTH, FROM_NETWORK, MORE_ROWS)),
                    signed(minus(methods, MORE_ROWS, FROM_NETWORK, name), 4),
                    f"{label} {over_seeds(methods[beside], name).mean:.4f}",
                    signed(minus(methods, MORE_ROWS, beside, name), 4),
                    None if known else ahead(methods, MORE_ROWS, name),
                )
            )
    columns = ("known: unknown", "first", "second", "third", "third minus second", "beside", "third minus it", "ahead")
    caption = (
        "The third configuration: AUROC of unknown inputs, NLPD and ECE of known ones; mean and standard deviation "
    )
    caption += (
        "over seeds, differences with their paired standard errors, and how many peers are better than the third."
    )
    return Table(caption, columns, tuple(rows))


def table_of_calibrated(found: dict[tuple[str, str], Methods]) -> Table:
    """Make a table of the NLPD and ECE of known inputs where the third configuration was calibrated."""
    rows: list[tuple[Cell, ...]] = []
    for (_, dataset), methods in found.items():
        if CALIBRATED not in methods:
            continue
        for name in BESIDE_NETWORK:
            beside = (FROM_NETWORK, MORE_ROWS, CALIBRATED, NETWORK_METHOD)
            rows.append(
                (
                    f"{name_of(dataset)}: {name}",
                    *(over_seeds(methods[one], name) if one in methods else None for one in beside),
                    signed(minus(methods, CALIBRATED, NETWORK_METHOD, name), 4),
                )
            )
    columns = ("known", "second", "third", "calibrated", "the network", "calibrated minus the network")
    caption = (
        "The third configuration calibrated: NLPD and ECE of known inputs, means and standard deviations over seeds; "
    )
    caption += "differences with their paired standard errors."
    return Table(caption, columns, tuple(rows))


def by_energy(found: dict[tuple[str, str], Methods]) -> str:
    """List the AUROC that the third configuration would have by the energy, in the order of the table."""
    of_third = [methods[MORE_ROWS] for methods in found.values() if MORE_ROWS in methods]
    named = [(values, name) for values in of_third for name in next(iter(values.values())) if name.startswith(ENERGY)]
    return listed(f"{over_seeds(values, name).mean:.3f}" for values, name in named)


def best_peer(methods: Methods, name: str) -> str:
    """Return the method of others with the highest mean."""
    peers = [method for method in methods if not PROTOCOL[method].ours]
    return max(peers, key=lambda method: over_seeds(methods[method], name).mean)


def minus(methods: Methods, one: str, other: str, name: str) -> Measured | None:
    """Return one minus the other, its mean and standard error over the seeds that both have."""
    theirs = methods.get(other, {})
    return mean_difference([of[name] - theirs[seed][name] for seed, of in methods[one].items() if seed in theirs])


def ahead(methods: Methods, ours: str, name: str) -> int:
    """Return the number of peers whose measure, the higher the better, is above ours by more than a standard error."""
    differences = [minus(methods, ours, peer, name) for peer in methods if not PROTOCOL[peer].ours]
    return sum(found.mean < -(found.std or 0.0) for found in differences if found)


def verdict(found: dict[tuple[str, str], Methods]) -> str:
    """Say how often the AUROC of the second configuration is above the first's, and how often a peer is above each."""
    places = [
        (methods, name)
        for methods in found.values()
        if INFINITE_WIDTH in methods and FROM_NETWORK in methods
        for name in next(iter(methods[FROM_NETWORK].values()))
        if name.startswith(AUROC)
    ]
    changed = [minus(methods, FROM_NETWORK, INFINITE_WIDTH, name) for methods, name in places]
    higher = sum(one.mean > (one.std or 0.0) for one in changed if one)
    lower = sum(one.mean < -(one.std or 0.0) for one in changed if one)
    free = [sum(ahead(methods, ours, name) == 0 for methods, name in places) for ours in (INFINITE_WIDTH, FROM_NETWORK)]
    return (
        f"of {len(places)} kinds of unknown inputs, the second has the higher AUROC on {higher} and the lower on "
        f"{lower}, each by more than a paired standard error; no peer is better than the first on {free[0]}, than the "
        f"second on {free[1]}."
    )
