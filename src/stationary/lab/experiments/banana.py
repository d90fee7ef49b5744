"""Fig. 1 of the paper: Gaussian processes and small networks on Banana, and what they believe away from the data.

Top row: variational Gaussian processes with the kernels that the activations below stand for. Bottom row: networks of
one hidden layer with 50 units, dropout 0.2, trained for 2000 epochs. The shading is sqrt(pq) of the mean probability
(the total uncertainty), the boundary comes from the pass without dropout. Beyond the paper: error on the 4,900 held-out
points; total and epistemic uncertainty on circles around the data, plain and with the restored prior, over several
seeds; the sine-cosine activation, which does not decay. Activations are scaled as in the authors' code.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stationary import metrics
from stationary.gp import kernels
from stationary.inference import ExactDropout, MCDropout, calibrate_prior, predict
from stationary.lab.baselines.exact import VGP
from stationary.lab.data import banana
from stationary.lab.experiments import paper
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.nn import StationaryHead
from stationary.predictive import Categorical
from stationary.training import train

VERSION = 1
TITLE = "Banana (Fig. 1)"
REPRODUCES = "Fig. 1: decision boundaries and uncertainty of GPs and networks on Banana"
DURATION = {"smoke": "seconds", "demo": "about a minute", "paper": "about ten minutes"}
Arrays = dict[str, np.ndarray[Any, Any]]

KERNELS: dict[str, Any] = {
    "step": kernels.ArcCos0Kernel,
    "relu": kernels.ArcCos1Kernel,
    "erf": kernels.ErfNNKernel,
    "rbf": kernels.RBFNNKernel,
    "matern52": partial(kernels.MaternKernel, 2.5),
}
KERNEL_NAMES = {"step": "ArcCos-0", "relu": "ArcCos-1", "erf": "ERF-NN", "rbf": "RBF-NN", "matern52": "Matérn-5/2"}
PLACES = ("data", "radius 4", "radius 8", "radius 20")


@dataclass(frozen=True)
class Config:
    model: str = "network"  # or "gp"
    prior: str = "matern52"
    lengthscale: float = 0.5
    hidden: int = 50
    dropout: float = 0.2
    epochs: int = 2000
    n_samples: int = 5000
    vgp_steps: int = 1000
    n_seeds: int = 5
    resolution: int = 300
    extent: float = 3.75
    seed: int = 0


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_samples": 20, "vgp_steps": 10, "n_seeds": 2, "resolution": 20},
    "demo": {"n_samples": 500, "vgp_steps": 200, "n_seeds": 3, "resolution": 120},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    gps = [Config(model="gp", prior=prior, **SCALES[scale]) for prior in KERNELS]
    return gps + [Config(prior=prior, **SCALES[scale]) for prior in (*KERNELS, "sincos")]


def run(config: Config, device: str = "cpu") -> Arrays:
    split = banana.load().to(device)
    side = torch.linspace(-config.extent, config.extent, config.resolution, device=device)
    grid = torch.cartesian_prod(side, side)
    places = {"data": split.x_train} | {f"radius {r}": circle(r, device) for r in (4, 8, 20)}
    results: Arrays = {"x": split.x_train.cpu().numpy(), "y": split.y_train.cpu().numpy()}
    if config.model == "gp":
        gp = VGP(steps=config.vgp_steps).fit(KERNELS[config.prior](), split.train)
        ask = partial(predict, gp, batch_size=5000)
        seeds = [{"plain": ask}]
        drawn = boundary = ask(grid)
    else:
        build = partial(
            StationaryHead,
            2,
            2,
            hidden=config.hidden,
            activation=paper.activation(config.prior, config.lengthscale, code_scale=True),
            dropout=config.dropout,
        )
        training = paper.toy_training(config.epochs, seed=config.seed)
        models = train(build, *split.train, training, n_members=config.n_seeds)
        seeds = []
        for model in models:
            asks = {"plain": partial(predict, model, method=ExactDropout(restore_prior=False))}
            if config.prior in paper.LOCAL:
                calibrate_prior(model, split.x_train)
                asks["restored"] = partial(predict, model, method=ExactDropout(restore_prior=True))
            seeds.append(asks)
        sampled = MCDropout(config.n_samples, restore_prior=False)
        drawn, boundary = predict(models[0], grid, sampled, batch_size=10_000), predict(models[0], grid)
        for i, model in enumerate(models):  # the picture of every seed, by the closed form
            results[f"seed {i}"] = as_map(
                predict(model, grid, ExactDropout(restore_prior=False)).bernoulli_std(), config
            )
    results["total"], results["epistemic"] = (
        as_map(drawn.bernoulli_std(), config),
        as_map(drawn.mutual_information(), config),
    )
    results["boundary"] = as_map(boundary.probs[:, 1], config)
    results["nlpd"] = np.array([metrics.nlpd(asks["plain"](split.x_test), split.y_test) for asks in seeds])
    results["accuracy"] = np.array([metrics.accuracy(asks["plain"](split.x_test), split.y_test) for asks in seeds])
    for kind in seeds[0]:
        predictions = [[asks[kind](x) for x in places.values()] for asks in seeds]
        results[f"total, {kind}"] = np.array([[mean_std(p) for p in row] for row in predictions])
        results[f"epistemic, {kind}"] = np.array(
            [[p.mutual_information().mean().item() for p in row] for row in predictions]
        )
    return results


def circle(radius: float, device: str) -> Tensor:
    angle = torch.linspace(0, 2 * math.pi, 361, device=device)[:-1]
    return radius * torch.stack([angle.cos(), angle.sin()], -1)


def mean_std(prediction: Categorical) -> float:
    return prediction.bernoulli_std().mean().item()


def as_map(values: Tensor, config: Config) -> np.ndarray[Any, Any]:
    """Values on the grid as an image: rows are x2, columns x1."""
    return values.view(config.resolution, config.resolution).mT.float().cpu().numpy()


# Report


def report(results: list[tuple[Config, Arrays]]) -> Section:
    panels = {(config.model, config.prior): (config, arrays) for config, arrays in results}
    return Section(
        title=TITLE,
        paper=(
            "Step, ReLU and ERF networks, and the Gaussian processes they stand for, are confident far from the data; "
            "RBF and Matérn show uncertainty rising all around it. Only pictures, no numbers."
        ),
        ours=_summary(panels),
        figures={
            "banana": _maps(panels, "total", 0.5),
            "banana_epistemic": _maps(panels, "epistemic", 0.35),
            "banana_seeds": _seeds(panels),
        },
        captions={
            "banana": "sqrt(pq) of the mean probability (dark is 0.5: total uncertainty), decision boundary, training "
            "data. Top: VGP. Bottom: networks of 50 units, one seed.",
            "banana_epistemic": "Mutual information (dark is 0.35 nats): what the posterior's members disagree on. For "
            "the local networks it vanishes far away, since their features do; hence the restored prior.",
            "banana_seeds": "The networks' sqrt(pq) again, one row for each seed, in closed form.",
        },
        tables=(_errors(panels), _away(panels, "total"), _away(panels, "epistemic")),
    )


Panels = dict[tuple[str, str], tuple[Config, Arrays]]


def _label(key: tuple[str, str]) -> str:
    return f"VGP, {KERNEL_NAMES[key[1]]}" if key[0] == "gp" else f"network, {paper.NAMES[key[1]]}"


def _summary(panels: Panels) -> str:
    """Panel by panel, over seeds: does the total uncertainty rise from the data to radius 8, and how far?"""
    sentences: dict[str, list[str]] = {"gp": [], "network": []}
    for (model, prior), (_, arrays) in panels.items():
        data, _, far, _ = arrays["total, plain"].T
        name = KERNEL_NAMES[prior] if model == "gp" else paper.NAMES[prior]
        rises = (
            f"in {(far > data).sum()} of {len(far)} seeds" if len(far) > 1 else ("yes" if far[0] > data[0] else "no")
        )
        sentences[model].append(f"{name} {rises} ({data.mean():.2f} to {far.mean():.2f})")
    return (
        "Does sqrt(pq) rise from the data to radius 8, where 0.5 is complete uncertainty?\n\n"
        f"Gaussian processes: {', '.join(sentences['gp'])}.\n\n"
        f"Networks: {', '.join(sentences['network'])}."
    )


def _errors(panels: Panels) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, (_, arrays) in panels.items():
        rows.append((_label(key), *(Measured.over(arrays[name]) for name in ("accuracy", "nlpd"))))
    return Table(
        "Error on the 4,900 held-out points; mean and std over seeds.", ("model", "accuracy", "NLPD"), tuple(rows)
    )


def _away(panels: Panels, kind: str) -> Table:
    names = {"total": "Total uncertainty, sqrt(pq)", "epistemic": "Epistemic uncertainty, mutual information in nats"}
    rows: list[tuple[Cell, ...]] = []
    for key, (_, arrays) in panels.items():
        for version in ("plain", "restored"):
            if f"{kind}, {version}" in arrays:
                values = arrays[f"{kind}, {version}"]
                label = _label(key) + (", restored prior" if version == "restored" else "")
                rows.append((label, *(Measured.over(column) for column in values.T)))
    caption = f"{names[kind]}: mean at the training points and on circles around them; mean and std over seeds."
    return Table(caption, ("model", *PLACES), tuple(rows))


def _maps(panels: Panels, name: str, top: float) -> Figure:
    rows = [[("gp", prior) for prior in KERNELS], [("network", prior) for prior in (*KERNELS, "sincos")]]
    figure, axes = plots.panels(2, 6, width=12, height=4.6)
    for row, keys in zip(axes, rows, strict=True):
        for ax, key in zip(row, keys, strict=False):
            if key in panels:
                config, arrays = panels[key]
                _map(ax, arrays[name], top, config, arrays)
                ax.set_title(_label(key), fontsize="small")
        for ax in row:
            ax.set_axis_off()
    return figure


def _seeds(panels: Panels) -> Figure:
    keys = [key for key in panels if key[0] == "network"]
    n_seeds = max((config.n_seeds for config, _ in panels.values()), default=1)
    figure, axes = plots.panels(n_seeds, max(1, len(keys)), width=12, height=2 * n_seeds)
    axes = np.reshape(axes, (n_seeds, -1))
    for column, key in zip(axes.T, keys, strict=False):
        config, arrays = panels[key]
        for seed, ax in enumerate(column):
            if f"seed {seed}" in arrays:
                _map(ax, arrays[f"seed {seed}"], 0.5, config, None)
        column[0].set_title(paper.NAMES[key[1]], fontsize="small")
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
