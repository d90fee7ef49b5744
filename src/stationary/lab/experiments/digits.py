"""The library's own out-of-distribution example: scikit-learn's digits, 0 to 4 known, 5 to 9 unknown.

A small copy of the paper's CIFAR-10 experiment that needs no download: a ReLU trunk, the activation in the last hidden
layer, dropout 0.2, five networks for each activation. Which measure tells unknown digits from known ones, plain and
with the restored prior?
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from stationary import metrics
from stationary._extras import extra
from stationary.inference import ExactDropout, calibrate_prior, predict
from stationary.lab.experiments import paper
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.nn import MLP
from stationary.training import Training, train

with extra("experiments"):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

VERSION = 1
TITLE = "Unknown digits"
REPRODUCES = "nothing: an example like the paper's CIFAR-10 experiment, on data that scikit-learn brings"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "a minute"}
Arrays = dict[str, np.ndarray[Any, Any]]

PRIORS: tuple[str, ...] = ("relu", "leaky_relu", "erf", "step", "rbf", "matern72", "matern52", "matern32", "matern12")
PRIORS += ("sine", "cosine", "sincos", "triangle_wave", "periodic_relu")  # these are periodic
COLUMNS = 7
MEASURES = ("std", "entropy", "mutual_information")


@dataclass(frozen=True)
class Config:
    prior: str = "matern52"
    lengthscale: float = 0.5
    hidden: tuple[int, ...] = (100, 50)
    dropout: float = 0.2
    epochs: int = 60
    batch_size: int = 100
    learning_rate: float = 0.003
    n_seeds: int = 5
    seed: int = 0


def configs(scale: str = "paper") -> list[Config]:
    small: dict[str, Any] = {"epochs": 5, "n_seeds": 2} if scale == "smoke" else {}
    return [Config(prior=prior, **small) for prior in PRIORS]


def run(config: Config, device: str = "cpu") -> Arrays:
    images, labels = load_digits(return_X_y=True)
    known = labels < 5
    rows, test_rows = train_test_split(known.nonzero()[0], random_state=config.seed)
    x = torch.tensor(images / 16, dtype=torch.float32, device=device)
    y = torch.tensor(labels, device=device)
    activation = paper.activation(config.prior, config.lengthscale, code_scale=True)
    build = partial(MLP, 64, 5, hidden=config.hidden, activation=activation, dropout=config.dropout)
    training = Training(
        epochs=config.epochs, batch_size=config.batch_size, learning_rate=config.learning_rate, seed=config.seed
    )
    models = train(build, x[rows], y[rows], training, n_members=config.n_seeds)
    kinds = ["plain"]
    if config.prior in paper.LOCAL:
        models = [calibrate_prior(model, x[rows]) for model in models]
        kinds.append("restored")
    results: Arrays = {}
    for kind in kinds:
        method = ExactDropout(restore_prior=kind == "restored")
        inside = [predict(model, x[test_rows], method) for model in models]
        outside = [predict(model, x[~known], method) for model in models]
        if kind == "plain":
            results["accuracy"] = np.array([metrics.accuracy(p, y[test_rows]) for p in inside])
            results["nlpd"] = np.array([metrics.nlpd(p, y[test_rows]) for p in inside])
            results["unknown_nlpd"] = np.array([metrics.unknown_nlpd(p).value for p in outside])
        for measure in MEASURES:
            scores = [[getattr(p, measure)() for p in predictions] for predictions in (inside, outside)]
            results[f"auroc {measure}, {kind}"] = np.array([metrics.auroc(a, b) for a, b in zip(*scores, strict=True)])
            results[f"known {measure}, {kind}"] = torch.cat(scores[0]).cpu().numpy()
            results[f"unknown {measure}, {kind}"] = torch.cat(scores[1]).cpu().numpy()
    return results


# Report


def report(results: list[tuple[Config, Arrays]]) -> Section:
    panels = {config.prior: arrays for config, arrays in results}
    best = max(panels, key=lambda prior: panels[prior]["auroc entropy, plain"].mean())
    upside_down = [paper.NAMES[prior] for prior, arrays in panels.items() if arrays["auroc std, plain"].mean() < 0.5]
    return Section(
        title=TITLE,
        paper="On CIFAR-10 the paper separates known from unknown classes by the standard deviation of the outputs.",
        ours=f"On these digits entropy separates best with {paper.NAMES[best]} (AUROC "
        f"{panels[best]['auroc entropy, plain'].mean():.3f}). The standard deviation of the outputs is upside down, "
        f"below 0.5, for {', '.join(upside_down) or 'no activation'}: dropout noise is proportional to the features, "
        "and unknown inputs excite them less.",
        figures={"digits": _histograms(panels)},
        captions={
            "digits": "Known (blue) and unknown (orange), all seeds: entropy (log scale) above, output std below."
        },
        tables=(_table(panels),),
    )


def _table(panels: dict[str, Arrays]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for prior, arrays in panels.items():
        for kind in ("plain", "restored"):
            if f"auroc std, {kind}" in arrays:
                errors = [Measured.over(arrays[name]) for name in ("accuracy", "nlpd", "unknown_nlpd")]
                scores = [Measured.over(arrays[f"auroc {measure}, {kind}"]) for measure in MEASURES]
                label = paper.NAMES[prior] + (", restored prior" if kind == "restored" else "")
                rows.append((label, *(errors if kind == "plain" else [None] * 3), *scores))
    columns = (
        "activation",
        "accuracy",
        "NLPD",
        "NLPD unknown",
        "AUROC std",
        "AUROC entropy",
        "AUROC mutual information",
    )
    caption = "Known classes: accuracy and NLPD. Unknown: the paper's modified NLPD, and the area under the ROC curve."
    return Table(caption, columns, tuple(rows))


def _histograms(panels: dict[str, Arrays]) -> Figure:
    """Two rows for every seven activations: entropy, and the standard deviation of the outputs."""
    rows = 2 * -(-len(panels) // COLUMNS)
    figure, axes = plots.panels(rows, COLUMNS, width=12, height=1.8 * rows)
    for i in range(len(panels), rows // 2 * COLUMNS):
        for ax in axes[2 * (i // COLUMNS) :, i % COLUMNS][:2]:
            ax.set_axis_off()
    for i, (prior, arrays) in enumerate(panels.items()):
        row, column = 2 * (i // COLUMNS), i % COLUMNS
        for ax, measure in zip(axes[row : row + 2, column], ("entropy", "std"), strict=True):
            values = [arrays[f"{group} {measure}, plain"] for group in ("known", "unknown")]
            bins = np.linspace(0, max(np.quantile(v, 0.99) for v in values) + 1e-9, 30)
            for v, color in zip(values, plots.COLORS, strict=False):
                ax.hist(v, bins, density=True, color=color, alpha=0.6, log=measure == "entropy")
            ax.set(yticks=())
            ax.minorticks_off()
            ax.set_xlabel(measure, fontsize="small")
        axes[row, column].set_title(paper.NAMES[prior], fontsize="small")
    return figure
