"""The report of the Banana experiment: the pictures, and uncertainty in numbers at the data and away from them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stationary.lab.experiments import paper
from stationary.lab.experiments.banana.config import CIRCLES, INFINITE, PLACES, PRIORS, TITLE, Config
from stationary.lab.experiments.rows import ByModel, by_model
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays

GLOBAL = ("step", "relu", "erf")  # activations of which the paper says that they are confident far away
RESTORED_MAP = "total, restored map"  # of results that are older there is none
KERNEL_NAMES = {"step": "ArcCos-0", "relu": "ArcCos-1", "erf": "ERF-NN", "rbf": "RBF-NN", "matern52": "Matérn-5/2"}


def report(results: list[tuple[Config, Arrays]]) -> Section:
    found = by_model(results)
    return Section(
        title=TITLE,
        paper=(
            "Step, ReLU and ERF networks, and the Gaussian processes they stand for, are confident far from the data; "
            "RBF and Matérn show uncertainty rising all around it. Only pictures, no numbers."
        ),
        ours=_summary(found),
        figures={
            **_beside_the_process(found),
            "banana": _maps(found, "total", 0.5),
            "banana_epistemic": _maps(found, "epistemic", 0.35),
            "banana_seeds": _seeds(found),
        },
        captions={
            "banana_four": "Four models with the same Matérn-5/2 prior: dark is no idea, light is sure. The line is "
            "where both classes are equally likely, dots are training data. The finite "
            "network stays sure along rays, and the restored prior hardly changes that so near to the data. The limit "
            "of infinite width has no rays, like the Gaussian process.",
            "banana": "Total uncertainty, the standard deviation of the class: dark is 0.5, no idea; light is sure. "
            "The line is the decision boundary, dots are training data. Top: VGP, and infinite width. Bottom: networks "
            "of 50 units, one seed.",
            "banana_epistemic": "Mutual information (dark is 0.35 nats): what the posterior's members disagree on. For "
            "the local networks it vanishes far away, since their features do; hence the restored prior.",
            "banana_seeds": "The networks' total uncertainty again, one row for each seed, in closed form.",
        },
        tables=tables(results),
        verdicts=verdicts(results),
    )


def tables(results: list[tuple[Config, Arrays]]) -> tuple[Table, ...]:
    """Make four tables: errors, total and epistemic uncertainty at the data and around them, and where it is least."""
    found = by_model(results)
    return _errors(found), _away(found, "total"), _away(found, "epistemic"), _least(found)


def verdicts(results: list[tuple[Config, Arrays]]) -> tuple[Verdict, ...]:
    """Judge the claims of the figure; this needs no maps."""
    return tuple(_verdicts(by_model(results)))


def _label(key: tuple[str, str]) -> str:
    model, prior = key
    return f"VGP, {KERNEL_NAMES[prior]}" if model == "gp" else f"{model}, {paper.NAMES[prior]}"


def _summary(found: ByModel) -> str:
    """Say for each panel whether the total uncertainty rises from the data to radius 8, and how far, over seeds."""
    sentences: dict[str, list[str]] = {"gp": [], "network": [], **{model: [] for model in INFINITE}}
    for (model, prior), (_, arrays) in found.items():
        data, _, far, _ = arrays["total, plain"].T
        name = KERNEL_NAMES[prior] if model == "gp" else paper.NAMES[prior]
        rises = (
            f"in {(far > data).sum()} of {len(far)} seeds" if len(far) > 1 else ("yes" if far[0] > data[0] else "no")
        )
        sentences[model].append(f"{name} {rises} ({data.mean():.2f} to {far.mean():.2f})")
    titles = {"gp": "Gaussian processes", "network": "Networks"}
    return "\n\n".join(
        ["Does the uncertainty rise from the data to radius 8? It is 0 where a model is sure, and 0.5 is no idea."]
        + [f"{titles.get(model, model.capitalize())}: {', '.join(said)}." for model, said in sentences.items() if said]
        + [
            f"With Matérn-5/2, the least in any direction at radius {CIRCLES[0]}, in the worst seed: {rays}."
            for rays in [_rays(found)]
            if rays
        ]
    )


def _verdicts(found: ByModel) -> Iterator[Verdict]:
    """Judge the two claims of the figure: who is unsure far away, and whether in every direction."""
    paper_has = {key: arrays["total, plain"].T for key, (_, arrays) in found.items() if key[0] in ("gp", "network")}
    local = {key: float((far > data).mean()) for key, (data, _, far, _) in paper_has.items() if key[1] in paper.LOCAL}
    others = {key: float((far > data).mean()) for key, (data, _, far, _) in paper_has.items() if key[1] in GLOBAL}
    if local and others:
        unsure, sure = sum(share == 1 for share in local.values()), sum(share < 1 for share in others.values())
        yield Verdict(
            "Far from the data RBF and Matérn are unsure; step, ReLU and ERF stay confident.",
            "Fig. 1",
            f"From the data to radius 8 the uncertainty rises in all seeds for {unsure} of {len(local)} models with "
            f"RBF or Matérn; it does not for {sure} of {len(others)} with the others.",
            judged([*(share == 1 for share in local.values()), *(share < 1 for share in others.values())]),
        )
    if "least, plain" in found.get(("network", "matern52"), (None, {}))[1]:
        arrays = found["network", "matern52"][1]
        data, least = arrays["total, plain"][:, 0], arrays["least, plain"][:, 0]
        yield Verdict(
            "Uncertainty rises all around the data.",
            "Fig. 1",
            f"At radius {CIRCLES[0]}, in the direction in which a Matérn-5/2 network is surest, its uncertainty is "
            f"{least.mean():.2f} of at most 0.5; at the data it is {data.mean():.2f}.",
            judged(least > data),
        )


def _rays(found: ByModel) -> str:
    """Say how sure each model with the Matérn prior is in the direction in which it is surest, in the worst seed."""
    shown = {key: arrays["least, plain"][:, 0].min() for key, (_, arrays) in found.items() if "least, plain" in arrays}
    names = {"gp": "VGP", "infinite width, trunk": "infinite width on a trunk"}
    return ", ".join(f"{names.get(m, m)} {least:.2f}" for (m, prior), least in shown.items() if prior == "matern52")


def _errors(found: ByModel) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, (_, arrays) in found.items():
        rows.append((_label(key), *(Measured.over(arrays[name]) for name in ("accuracy", "nlpd"))))
    return Table(
        "Error on the 4,900 held-out points; mean and std over seeds.", ("model", "accuracy", "NLPD"), tuple(rows)
    )


def _away(found: ByModel, kind: str) -> Table:
    names = {
        "total": "Total uncertainty, from 0, sure, to 0.5, no idea",
        "epistemic": "Epistemic uncertainty, mutual information in nats",
    }
    rows: list[tuple[Cell, ...]] = []
    for key, (_, arrays) in found.items():
        for version in ("plain", "restored"):
            if f"{kind}, {version}" in arrays:
                values = arrays[f"{kind}, {version}"]
                label = _label(key) + (", restored prior" if version == "restored" else "")
                rows.append((label, *(Measured.over(column) for column in values.T)))
    caption = f"{names[kind]}: mean at the training points and on circles around them; mean and std over seeds."
    return Table(caption, ("model", *PLACES), tuple(rows))


def _least(found: ByModel) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, (_, arrays) in found.items():
        for version in ("plain", "restored"):
            if f"least, {version}" in arrays:
                label = _label(key) + (", restored prior" if version == "restored" else "")
                rows.append((label, *(Measured.over(column) for column in arrays[f"least, {version}"].T)))
    caption = (
        "The least total uncertainty on circles around the data, where 0.5 is no idea: what a ray leaves of it in its "
        "direction; mean and std over seeds."
    )
    return Table(caption, ("model", *(f"radius {radius}" for radius in CIRCLES)), tuple(rows))


def _beside_the_process(found: ByModel) -> dict[str, Figure]:
    """Draw a network, plain and with the restored prior, infinite width and the process, if all of them have run."""
    network, limit, process = (found.get((model, "matern52")) for model in ("network", "infinite width", "gp"))
    if network is None or limit is None or process is None or RESTORED_MAP not in network[1]:
        return {}
    shown = {
        f"network, {network[0].hidden} units": (network, "total"),
        "with restored prior": (network, RESTORED_MAP),
        "infinite width": (limit, "total"),
        "Gaussian process": (process, "total"),
    }
    figure, axes = plots.panels(2, 2, width=4.2, height=4.5)  # whose words are still read where it is 400 pixels wide
    for ax, (title, ((config, arrays), name)) in zip(axes.flat, shown.items(), strict=True):
        _map(ax, arrays[name], 0.5, config, arrays)
        ax.set_title(title, fontsize=plots.TITLE)
        ax.set_axis_off()
    return {"banana_four": figure}


def _maps(found: ByModel, name: str, top: float) -> Figure:
    gps, limits = [("gp", prior) for prior in PRIORS], [(model, "matern52") for model in INFINITE]
    rows = [gps + limits, [("network", prior) for prior in (*PRIORS, "sincos")]]
    figure, axes = plots.panels(2, 7, width=13, height=5)
    for row, keys in zip(axes, rows, strict=True):
        for ax, key in zip(row, keys, strict=False):
            if key in found:
                config, arrays = found[key]
                _map(ax, arrays[name], top, config, arrays)
                ax.set_title(_label(key).replace(", ", "\n", 1), fontsize=plots.TITLE)
        for ax in row:
            ax.set_axis_off()
    return figure


def _seeds(found: ByModel) -> Figure:
    keys = [key for key in found if key[0] == "network"]
    n_seeds = max((config.n_seeds for config, _ in found.values()), default=1)
    figure, axes = plots.panels(n_seeds, max(1, len(keys)), width=12, height=2 * n_seeds)
    axes = np.reshape(axes, (n_seeds, -1))
    for column, key in zip(axes.T, keys, strict=False):
        config, arrays = found[key]
        for seed, ax in enumerate(column):
            if f"seed {seed}" in arrays:
                _map(ax, arrays[f"seed {seed}"], 0.5, config, None)
        column[0].set_title(paper.NAMES[key[1]], fontsize=plots.TITLE)
    for ax in axes.flat:
        ax.set_axis_off()
    return figure


def _map(ax: Any, image: np.ndarray[Any, Any], top: float, config: Config, data: Arrays | None) -> None:
    extent = (-config.extent, config.extent) * 2
    ax.imshow(image, origin="lower", extent=extent, cmap="gray_r", vmin=0, vmax=top, interpolation="bilinear")
    if data is not None:
        ax.contour(data["boundary"], levels=[0.5], extent=extent, colors=plots.COLORS[4], linewidths=1.2)
        for label, color in ((0, plots.COLORS[0]), (1, plots.COLORS[1])):
            points = data["x"][data["y"] == label]
            ax.scatter(*points.T, s=3, color=color, linewidths=0, alpha=0.8)
    ax.set(xlim=extent[:2], ylim=extent[:2])
