"""The numbers behind the marks of the events with tables: paired differences with errors, and all that intervals do."""

from collections.abc import Iterator

from stationary.lab.experiments.arena.protocol import INFINITE_WIDTH
from stationary.lab.experiments.arena.protocol_tables import CLASSIFIERS, KINDS, REGRESSORS, UNKNOWN
from stationary.lab.experiments.arena.report_tables import LL, Found, Methods, differences, mean
from stationary.lab.experiments.arena.seeds import signed
from stationary.lab.experiments.arena.words import listed, name_of
from stationary.lab.experiments.paired import mean_difference
from stationary.lab.report.content import Cell, Table

PAIRED = "mean and standard error of the paired differences"


def difference(methods: Methods, method: str, name: str, digits: int) -> str | None:
    """Return infinite width minus a method with its standard error, over what both have; None if below two."""
    if method == INFINITE_WIDTH or method not in methods:
        return None
    return signed(mean_difference([-value for value in differences(methods, method, name)]), digits)


def of_values(found: Found) -> Iterator[Table]:
    """Make tables of the differences in log-likelihood, and of error, coverage and width, for each kind of split."""
    columns = ("method", *map(name_of, found))
    for kind in KINDS:
        rows: list[tuple[Cell, ...]] = [
            (entry.label, *(difference(methods, method, f"{LL}: {kind}", 2) for methods in found.values()))
            for method, entry in REGRESSORS.items()
            if method != INFINITE_WIDTH
        ]
        caption = f"Log-likelihood of a test row, {kind} splits: infinite width minus the row's, {PAIRED}."
        yield Table(caption, columns, tuple(rows))
    measures = {"RMSE": "RMSE", "coverage": "Coverage of 90 % intervals", "width": "Width of 90 % intervals"}
    for kind in KINDS:
        for name, title in measures.items():
            means = {
                method: [mean(of, method, f"{name}: {kind}") if method in of else None for of in found.values()]
                for method in REGRESSORS
            }
            of_all: list[tuple[Cell, ...]] = [
                (REGRESSORS[method].label, *(None if value is None else f"{value:.2f}" for value in values))
                for method, values in means.items()
            ]
            unit = "" if name == "coverage" else ", in units of the standard deviation of the training targets"
            yield Table(f"{title}, {kind} splits: means{unit}.", columns, tuple(of_all))


def of_classes(found: Found) -> Iterator[Table]:
    """Make a table of the differences for each data set."""
    for dataset, methods in found.items():
        names = {"NLPD": "NLPD", "ECE": "ECE"} | {f"AUROC, {unknown}": f"AUROC: {unknown}" for unknown in UNKNOWN}
        names = {title: name for title, name in names.items() if any(name in of for of in methods.values())}
        rows: list[tuple[Cell, ...]] = [
            (entry.label, *(difference(methods, method, name, 3) for name in names.values()))
            for method, entry in CLASSIFIERS.items()
            if method in methods and method != INFINITE_WIDTH
        ]
        caption = f"{name_of(dataset)}: infinite width minus the row's, {PAIRED}."
        yield Table(caption, ("method", *names), tuple(rows))


def far_below(found: Found) -> list[str]:
    """Say where infinite width is over one nat below the marginal Gaussian, and what its intervals do there."""
    told = []
    for dataset, methods in found.items():
        for kind in KINDS:
            ours, floor = (methods.get(method, {}) for method in (INFINITE_WIDTH, "marginal"))
            of, least = ours.get(f"{LL}: {kind}", {}), floor.get(f"{LL}: {kind}", {})
            splits = sorted(split for split in of if split in least and of[split] < least[split] - 1)
            if splits:
                shown = {
                    name: _between([ours[f"{name}: {kind}"][k] for k in splits])
                    for name in ("RMSE", "width", "coverage")
                }
                told.append(
                    f"{name_of(dataset)}, {kind} split{'s' * (len(splits) > 1)} {listed(map(str, splits))}: RMSE "
                    f"{shown['RMSE']}, intervals {shown['width']} wide, which hold a share of {shown['coverage']}"
                )
    return told


def _between(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
