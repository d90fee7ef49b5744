"""The report of the arena: every method on every data set, the best first, and how far each is from ours."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stationary.lab.experiments.arena import ranks, report_recipes, report_tables
from stationary.lab.experiments.arena.config import SHIFT, TITLE, TRAINING, Config
from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH, NETWORK_METHOD, PROTOCOL
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT
from stationary.lab.experiments.arena.seeds import Methods as Methods
from stationary.lab.experiments.arena.seeds import measured
from stationary.lab.experiments.arena.seeds import over_seeds as over_seeds
from stationary.lab.experiments.arena.words import called, listed, name_of
from stationary.lab.experiments.paired import mean_difference
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.lab.runs.store import Arrays

KNOWN, UNKNOWN = {"accuracy": 1, "NLPD": -1, "ECE": -1}, {"AUROC": 1, "FPR95": -1, "AUPR": 1}  # 1: higher is better
OURS = INFINITE_WIDTH  # the method that differences are taken from
BETTER = (
    "A method is called better than infinite width where its AUROC is higher by more than a paired standard error over "
    "the seeds. One that has run once has no such error; where it is higher, it is named with the words 'one run'."
)


def by_dataset(results: list[tuple[Config, Arrays]]) -> dict[tuple[str, str], Methods]:
    """Return the numbers by event and data set, method and seed, but for seconds, which depend on the machine."""
    found: dict[tuple[str, str], Methods] = {}
    for config, arrays in results:
        methods = found.setdefault((config.event, config.dataset), {})
        for place, seed in enumerate(config.seeds):
            shown = (name for name in arrays if name != "features" and not name.startswith("seconds"))
            numbers = {name: float(arrays[name][place]) for name in shown}
            methods.setdefault(config.method, {})[seed] = numbers
    return found


def without_recipes(found: dict[tuple[str, str], Methods]) -> dict[tuple[str, str], Methods]:
    """Leave out the trunks of other recipes, which are compared with each other and not by the methods' ranks."""
    return {place: methods for place, methods in found.items() if place[0] != TRAINING}


def paired(methods: Methods, method: str, name: str) -> list[float]:
    """Return ours minus the method's, for each seed that both have."""
    ours, theirs = methods.get(OURS, {}), methods[method]
    return [ours[seed][name] - numbers[name] for seed, numbers in theirs.items() if seed in ours and method != OURS]


def difference(methods: Methods, method: str, name: str) -> Measured | None:
    """Return ours minus the method's, its mean and standard error over the paired seeds; None if below two."""
    return mean_difference(paired(methods, method, name))


def unknowns(methods: Methods) -> list[str]:
    names = next(iter(next(iter(methods.values())).values()))
    return [name.removeprefix("AUROC: ") for name in names if name.startswith("AUROC: ")]


def has_probabilities(method: str) -> bool:
    """Whether the probabilities are the method's own, or it is the one that stands for the network itself."""
    return PROTOCOL[method].probabilities == "own" or method == NETWORK_METHOD


def whose(method: str) -> str:
    """Say whose probabilities they are."""
    return "the network itself" if method == NETWORK_METHOD else PROTOCOL[method].label


def better(methods: Methods, unknown: str) -> list[str]:
    """Return the peers whose AUROC is higher than ours by more than a paired standard error, the highest first."""
    found = {}
    for method in methods:
        ours = difference(methods, method, f"AUROC: {unknown}")
        if ours and ours.mean < -(ours.std or 0.0) and not PROTOCOL[method].ours:
            found[method] = ours.mean
    return sorted(found, key=lambda method: found[method])


def highest_once(methods: Methods, unknown: str) -> list[str]:
    """Return the peers that have run once and whose AUROC is above our mean; they have no standard error."""
    auroc = {method: over_seeds(values, f"AUROC: {unknown}").mean for method, values in methods.items()}
    once = [method for method, values in methods.items() if len(values) == 1 and not PROTOCOL[method].ours]
    return [method for method in once if OURS in auroc and auroc[method] > auroc[OURS]]


def report(results: list[tuple[Config, Arrays]]) -> Section:
    every = by_dataset([(config, arrays) for config, arrays in results if config.event not in OF_EVENT])
    found = without_recipes(every)
    recipes = report_recipes.found_of(every)
    on_tables = report_tables.in_words(results)
    return Section(
        title=TITLE,
        paper="The paper compares with other priors and with Gaussian process hybrids, not with other detectors.",
        ours="\n\n".join(
            [BETTER] * bool(found)
            + [f"{name_of(dataset)}, {event}. {' '.join(in_words(of))}" for (event, dataset), of in found.items()]
            + report_recipes.in_words(recipes)
            + ["On tables:"] * bool(on_tables)
            + on_tables
        ),
        figures={"arena": ranks.figure(found)} if ranks.ranks(found) else {},
        captions={
            "arena": "Rank of each method by AUROC, 1 is the best, on each kind of unknown inputs; ours in orange."
        },
        tables=(
            *(table for place, methods in found.items() for table in tables(*place, methods)),
            *report_recipes.tables(recipes),
            *report_tables.tables(results),
        ),
        records=(
            *(record for place, methods in every.items() for record in records(*place, methods)),
            *report_tables.records(results),
        ),
    )


def tables(event: str, dataset: str, methods: Methods) -> Iterator[Table]:
    """Make a table of the unknown inputs, for each kind, and one of the known ones."""
    for unknown in unknowns(methods):
        metrics = [f"{metric}: {unknown}" for metric in UNKNOWN]
        order = sorted(methods, key=lambda method: -over_seeds(methods[method], metrics[0]).mean)
        rows: list[tuple[Cell, ...]] = [
            (
                PROTOCOL[method].label,
                *(over_seeds(methods[method], metric) for metric in metrics),
                difference(methods, method, metrics[0]),
                len(methods[method]),
            )
            for method in order
        ]
        caption = (
            f"{name_of(dataset)} against {name_of(unknown)}: mean and standard deviation over seeds. Ours minus it "
        )
        caption += "is the AUROC of infinite width minus the row's, with its paired standard error."
        yield Table(caption, ("method", *UNKNOWN, "ours minus it", "seeds"), tuple(rows))
    order = sorted(methods, key=lambda method: over_seeds(methods[method], "NLPD").mean)
    known: list[tuple[Cell, ...]] = [
        (whose(method), *(over_seeds(methods[method], metric) for metric in KNOWN), len(methods[method]))
        for method in order
        if has_probabilities(method)
    ]
    yield Table(f"{name_of(dataset)}, known inputs.", ("method", *KNOWN, "seeds"), tuple(known))
    yield from shift_tables(dataset, methods)


def shift_tables(dataset: str, methods: Methods) -> Iterator[Table]:
    """Make a table of the corrupted inputs for each metric, with a column for each severity, where there are any."""
    for metric, sign in KNOWN.items():
        found = {
            method: {name: over_seeds(values, name) for name in next(iter(values.values())) if _shifted(name, metric)}
            for method, values in methods.items()
        }
        found = {method: numbers for method, numbers in found.items() if numbers}
        if not found:
            continue
        severities = list(next(iter(found.values())))
        averaged = {
            method: {seed: {metric: float(np.mean([of[name] for name in severities]))} for seed, of in values.items()}
            for method, values in methods.items()
            if method in found
        }
        mean = {method: over_seeds(values, metric) for method, values in averaged.items()}
        rows: list[tuple[Cell, ...]] = [
            (
                whose(method),
                *(found[method][name] for name in severities),
                mean[method],
                difference(averaged, method, metric),
            )
            for method in sorted(mean, key=lambda method: -sign * mean[method].mean)
        ]
        columns = ("method", *(name.removeprefix(f"{metric}: ") for name in severities), "mean", "ours minus it")
        caption = (
            f"{name_of(dataset)}, {SHIFT}: {metric} of 15 corruptions. Ours minus it is the mean of infinite width "
        )
        yield Table(f"{caption}minus the row's, with its paired standard error.", columns, tuple(rows))


def _shifted(name: str, metric: str = "") -> bool:
    """Whether a number is of corrupted inputs, and of the metric if one is given."""
    kind, _, place = name.partition(": ")
    return place.startswith("severity") and metric in ("", kind)


def records(event: str, dataset: str, methods: Methods) -> Iterator[dict[str, Any]]:
    """Yield the numbers of summary.csv, and of each AUROC how much ours is above it."""
    for method, values in methods.items():
        for name in next(iter(values.values())):
            metric, _, unknown = name.partition(": ")
            place = {
                "event": SHIFT if _shifted(name) else event,
                "data": dataset,
                "unknown": unknown or None,
                "method": method,
            }
            found = over_seeds(values, name)
            yield place | {"metric": metric, "mean": found.mean, "std": found.std, "n": len(values)}
            if metric == "AUROC" and (differences := paired(methods, method, name)):
                found = measured(differences)
                of_both = {"mean": found.mean, "std": found.std, "n": len(differences)}
                yield place | {"metric": "AUROC of infinite width minus it"} | of_both


def in_words(methods: Methods) -> list[str]:
    """Say what is better than ours, in whole sentences: against each kind of unknown inputs, and on known ones."""
    said = [_against(methods, unknown, first=k == 0) for k, unknown in enumerate(unknowns(methods))]
    if any(has_probabilities(method) for method in methods):
        said.append(_on_known(methods))
    everywhere = {method: entry for method, entry in PROTOCOL.items() if not entry.only}
    if left_out := [called(entry.label) for method, entry in everywhere.items() if method not in methods]:
        said.append(f"There are no results of {listed(left_out)} here.")
    return said


def _against(methods: Methods, unknown: str, *, first: bool) -> str:
    auroc = {method: over_seeds(values, f"AUROC: {unknown}").mean for method, values in methods.items()}
    if len(methods.get(OURS, ())) < 2:
        best = max(auroc, key=lambda method: auroc[method])
        ours = "has run with one seed" if OURS in methods else "has not run"
        return (
            f"Against {name_of(unknown)} {called(PROTOCOL[best].label)} has the highest AUROC, {auroc[best]:.3f}; "
            f"infinite width {ours}, so that there is no standard error."
        )
    ahead, once = better(methods, unknown), highest_once(methods, unknown)
    told = f"Against {name_of(unknown)} {'infinite width has an AUROC of' if first else 'it has'} {auroc[OURS]:.3f}"
    named = [f"{called(PROTOCOL[method].label)} ({auroc[method]:.3f})" for method in ahead]
    named += [f"{called(PROTOCOL[method].label)} ({auroc[method]:.3f}, one run)" for method in once]
    if not named:
        return f"{told}, and no other method is better."
    return f"{told}; better {'is' if len(named) == 1 else 'are'} {listed(named)}."


def _on_known(methods: Methods) -> str:
    """Say who has the best accuracy, NLPD and ECE, where it is none of ours."""
    winners: dict[str, list[str]] = {}
    for metric, sign in KNOWN.items():
        values = {m: over_seeds(methods[m], metric).mean for m in methods if has_probabilities(m)}
        order = sorted(values, key=lambda method: -sign * values[method])
        ours = next((method for method in order if PROTOCOL[method].ours), None)
        if ours != (best := order[0]):
            own = f", {called(PROTOCOL[ours].label)} {values[ours]:.3f}" if ours else ""
            winners.setdefault(called(whose(best)), []).append(f"{metric} ({values[best]:.3f}{own})")
    if not winners:
        return "On known inputs nobody has a better accuracy, NLPD or ECE than the best of ours."
    return f"On known inputs {'; '.join(f'{best} has the best {listed(of)}' for best, of in winners.items())}."
