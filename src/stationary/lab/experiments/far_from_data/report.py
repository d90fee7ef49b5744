"""The report of the far-from-data experiment: curves, and how sure networks are near the data and far away."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stationary.lab.experiments.far_from_data.config import TITLE, Config
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Measured, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays


def report(results: list[tuple[Config, Arrays]]) -> Section:
    [(config, arrays)] = results
    labels = {"relu": "ReLU", "matern": f"Matérn-{plots.smoothness_label(config.nu)}"}
    edge, grid = 0.9 * config.extent, arrays["grid"]
    near = (grid >= arrays["x"].min()) & (grid <= arrays["x"].max())
    regions = {"where the data are": near, f"beyond |x| = {edge:g}": abs(grid) > edge}
    confidence = {name: np.maximum(arrays[name], 1 - arrays[name]) for name in labels}
    means = {name: [confidence[name][:, where].mean(1) for where in regions.values()] for name in labels}
    return Section(
        title=TITLE,
        paper=(
            "Fig. 1 and the introduction: a ReLU network extrapolates with growing confidence however far an input is "
            "from its training data. A Matérn activation is local, so the network falls back to its prior there, as "
            "a Gaussian process with a stationary kernel does. The paper has no one-dimensional picture of this; the "
            "network and its training are those of its toy examples."
        ),
        ours=_verdict(means["relu"][-1], means["matern"][-1]),
        figures={"far_from_data": _curves(arrays, labels)},
        captions={
            "far_from_data": f"The probability of class 1 that each of {config.n_members} networks gives, averaged "
            f"over {config.n_samples} dropout masks. Dots are the training data, all in the shaded part."
        },
        tables=(
            Table(
                f"Confidence, the probability of the likelier class, from 0.5 to 1: mean and standard deviation over "
                f"{config.n_members} networks.",
                ("activation", *regions),
                tuple((label, *map(Measured.over, means[name])) for name, label in labels.items()),
            ),
        ),
        verdicts=(_judged(means["relu"][-1], means["matern"][-1]),),
    )


def _judged(relu: np.ndarray[Any, Any], matern: np.ndarray[Any, Any]) -> Verdict:
    return Verdict(
        "Far from the data a ReLU network is confident, and a Matérn network is not.",
        "introduction, Fig. 1",
        f"Mean confidence {relu.mean():.3f} with ReLU and {matern.mean():.3f} with Matérn, where 0.5 is no idea; the "
        f"surest Matérn network has {matern.max():.3f}, the least sure ReLU network {relu.min():.3f}.",
        judged([bool(matern.max() < relu.min()), bool(matern.mean() < relu.mean())]),
    )


def _verdict(relu: np.ndarray[Any, Any], matern: np.ndarray[Any, Any]) -> str:
    """Say what the confidence far from the data, one number for each network, means for the paper's claim."""
    verdict = "The claim holds" if matern.max() < relu.min() else "The claim does not hold for every network"
    return (
        f"{verdict}. Far from the data ReLU networks give the likelier class a probability of {relu.mean():.3f} (the "
        f"least sure of them {relu.min():.3f}), Matérn networks {matern.mean():.3f} (the surest {matern.max():.3f}); "
        f"in {(matern[:, None] < relu).mean():.0%} of all pairs the Matérn network is the less sure one.\n\n"
        "What keeps a Matérn network from exactly one half is the bias of its last layer: far away its features "
        "vanish, and the bias is all that is left."
    )


def _curves(arrays: Arrays, labels: dict[str, str]) -> Figure:
    figure, axes = plots.panels(1, 2, width=9, height=3.2, sharey=True)
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        ax.axvspan(arrays["x"].min(), arrays["x"].max(), color="0.93", zorder=0)
        ax.axhline(0.5, color="0.6", linewidth=0.8, linestyle=":")
        ax.plot(arrays["grid"], arrays[name].T, color=plots.COLORS[0], alpha=0.6, linewidth=1.2)
        jitter = 0.02 * np.random.default_rng(0).standard_normal(len(arrays["y"]))
        ax.scatter(arrays["x"], arrays["y"] * 1.1 - 0.05 + jitter, s=4, color=plots.COLORS[4], linewidths=0)
        ax.set_title(label, fontsize=plots.TITLE)
        ax.set(xlabel="input (training data in the shaded part)")
    axes[0].set(ylabel="probability of class 1", yticks=(0, 0.5, 1))
    return figure
