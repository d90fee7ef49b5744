"""Fig. 2 of the paper: Gaussian processes and small networks on a one-dimensional regression task with a gap.

Top: exact GP regression (its function, without the noise). Middle: networks of one hidden layer with 50 units, dropout
0.2, squared error, 1000 samples; mean and standard deviation are averaged over 20 repeats. The length-scale is 1 and
activations have unit variance. Bottom, beyond the paper: the local networks with the restored prior, and sine-cosine.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stationary.gp import kernels
from stationary.inference import MCDropout, calibrate_prior, predict
from stationary.lab.baselines.exact import ExactGP
from stationary.lab.data import toy_regression
from stationary.lab.experiments import paper
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Measured, Section, Table
from stationary.nn import StationaryHead
from stationary.predictive import Gaussian
from stationary.training import train

VERSION = 1
TITLE = "Regression with a gap (Fig. 2)"
REPRODUCES = "Fig. 2: 1-D regression, Gaussian processes over networks"
DURATION = {"smoke": "seconds", "demo": "a minute", "paper": "a few minutes"}
Arrays = dict[str, np.ndarray[Any, Any]]

KERNELS: dict[str, Any] = {
    "relu": kernels.ArcCos1Kernel,
    "rbf": kernels.RBFKernel,
    "matern52": partial(kernels.MaternKernel, 2.5),
    "matern32": partial(kernels.MaternKernel, 1.5),
    "matern12": partial(kernels.MaternKernel, 0.5),
}
PLACES = {"in the gap": 0.0, "at the edges": 2.5, "far away": 20.0}


@dataclass(frozen=True)
class Config:
    model: str = "network"  # or "gp"
    prior: str = "matern52"
    lengthscale: float = 1.0
    hidden: int = 50
    dropout: float = 0.2
    epochs: int = 2000
    n_samples: int = 1000
    gp_steps: int = 500
    n_repeats: int = 20
    extent: float = 2.5
    n_points: int = 100
    seed: int = 0


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_samples": 20, "gp_steps": 10, "n_repeats": 2, "n_points": 21},
    "demo": {"n_samples": 500, "gp_steps": 200, "n_repeats": 10},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    gps = [Config(model="gp", prior=prior, **SCALES[scale]) for prior in KERNELS]
    return gps + [Config(prior=prior, **SCALES[scale]) for prior in (*KERNELS, "sincos")]


def run(config: Config, device: str = "cpu") -> Arrays:
    split = toy_regression.load(seed=config.seed).to(device)
    grid = torch.linspace(-config.extent, config.extent, config.n_points, device=device)[:, None]
    near = split.x_train
    places = [near, *(torch.tensor([[-x], [x]], device=device) for x in PLACES.values())]
    results: Arrays = {"x": split.x_train[:, 0].cpu().numpy(), "y": split.y_train[:, 0].cpu().numpy()}
    results["grid"] = grid[:, 0].cpu().numpy()
    if config.model == "gp":
        posterior = ExactGP(steps=config.gp_steps).fit(KERNELS[config.prior](), split.train)
        asks = {"plain": [partial(_ask, posterior, None)]}
    else:
        activation = paper.activation(config.prior, config.lengthscale, code_scale=False)
        build = partial(StationaryHead, 1, 1, hidden=config.hidden, activation=activation, dropout=config.dropout)
        training = paper.toy_training(config.epochs, loss="mse", seed=config.seed)
        models = train(build, *split.train, training, n_members=config.n_repeats)
        asks = {"plain": [partial(_ask, model, MCDropout(config.n_samples, restore_prior=False)) for model in models]}
        if config.prior in paper.LOCAL:
            models = [calibrate_prior(model, *split.train) for model in models]
            asks["restored"] = [partial(_ask, model, MCDropout(config.n_samples)) for model in models]
    for kind, repeats in asks.items():
        predictions = [ask(grid) for ask in repeats]
        results[f"mean, {kind}"] = np.stack([p.mean[:, 0].cpu().numpy() for p in predictions])
        results[f"std, {kind}"] = np.stack([p.epistemic_variance[:, 0].sqrt().cpu().numpy() for p in predictions])
        results[f"places, {kind}"] = np.array([[_mean_std(ask(x)) for x in places] for ask in repeats])
    return results


def _ask(model: Any, method: MCDropout | None, x: Tensor) -> Gaussian:
    return predict(model, x, method, family=Gaussian)


def _mean_std(prediction: Gaussian) -> float:
    return prediction.epistemic_variance.sqrt().mean().item()


# Report

Panels = dict[tuple[str, str], tuple[Config, Arrays]]


def report(results: list[tuple[Config, Arrays]]) -> Section:
    panels = {(config.model, config.prior): (config, arrays) for config, arrays in results}
    return Section(
        title=TITLE,
        paper="From left to right (ReLU, RBF, Matérn-5/2, 3/2, 1/2) functions become less stiff, Gaussian processes "
        "and networks alike; both are uncertain between the clusters and outside of them.",
        ours=_summary(panels),
        figures={"regression": _figure(panels)},
        captions={
            "regression": "Mean and two standard deviations of the function. Top: exact GP. Middle: networks, mean and "
            "std averaged over repeats. Bottom: the same networks with the restored prior; sine-cosine."
        },
        tables=(_places(panels),),
    )


def _label(model: str, prior: str, kind: str = "plain") -> str:
    names = {**paper.NAMES, "relu": "ArcCos-1"} if model == "gp" else paper.NAMES
    return f"{'GP' if model == 'gp' else 'network'}, {names[prior]}" + (
        ", restored prior" if kind == "restored" else ""
    )


def _roughness(arrays: Arrays, kind: str = "plain") -> float:
    """Mean length of the second difference of the mean: the opposite of stiffness."""
    return float(np.abs(np.diff(arrays[f"mean, {kind}"].mean(0), 2)).sum())


def _summary(panels: Panels) -> str:
    """Stiffness as the uncertainty that the gap leaves: does it grow from RBF to Matérn-1/2?"""
    order = [prior for prior in KERNELS if prior != "relu"]
    texts = []
    for model, label in (("gp", "Gaussian processes"), ("network", "networks")):
        gaps = {paper.NAMES[prior]: _gap(panels[model, prior][1]) for prior in order if (model, prior) in panels}
        values = list(gaps.values())
        verdict = "grows all the way" if values == sorted(values) else "does not grow all the way"
        texts.append(f"for {label} it {verdict} ({', '.join(f'{name} {gap:.1f}' for name, gap in gaps.items())})")
    return (
        "Less stiff means more uncertainty in the gap. Relative to the uncertainty at the data, "
        + " and ".join(texts)
        + ". Far away (|x| = 20) the plain local networks are sure of their last bias; the restored prior corrects it."
    )


def _gap(arrays: Arrays) -> float:
    near, gap, *_ = arrays["places, plain"].mean(0)
    return float(gap / near)


def _places(panels: Panels) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (model, prior), (_, arrays) in panels.items():
        for kind in ("plain", "restored"):
            if f"places, {kind}" in arrays:
                values = arrays[f"places, {kind}"]
                near = values[:, :1].mean()
                ratios = [Measured(v.mean() / near, v.std() / near if len(v) > 1 else None) for v in values.T[1:]]
                rows.append((_label(model, prior, kind), float(near), *ratios, _roughness(arrays, kind)))
    return Table(
        "Standard deviation of the function at the data, and elsewhere in units of it (mean and std over repeats); "
        "roughness is the sum of |second differences| of the mean curve.",
        ("model", "std at the data", *PLACES, "roughness"),
        tuple(rows),
    )


def _figure(panels: Panels) -> Figure:
    columns = list(KERNELS)
    rows = [
        [("gp", prior, "plain") for prior in columns],
        [("network", prior, "plain") for prior in columns],
        [("network", "sincos", "plain"), *(("network", prior, "restored") for prior in columns[1:])],
    ]
    figure, axes = plots.panels(3, len(columns), width=12, height=6.5, sharey=True)
    for row, keys in zip(axes, rows, strict=True):
        for ax, (model, prior, kind) in zip(row, keys, strict=True):
            if (model, prior) not in panels:
                ax.set_axis_off()
                continue
            _, arrays = panels[model, prior]
            mean, std = arrays[f"mean, {kind}"].mean(0), arrays[f"std, {kind}"].mean(0)
            ax.fill_between(
                arrays["grid"], mean - 2 * std, mean + 2 * std, color=plots.COLORS[5], alpha=0.4, linewidth=0
            )
            ax.plot(arrays["grid"], mean, color=plots.COLORS[0], linewidth=1.2)
            ax.plot(arrays["grid"], toy_regression.function(torch.from_numpy(arrays["grid"])), "k:", linewidth=0.8)
            ax.scatter(arrays["x"], arrays["y"], s=2, color=plots.COLORS[4], linewidths=0, zorder=3)
            ax.set_title(_label(model, prior, kind), fontsize="small")
            ax.set(ylim=(-1.5, 2.2), xticks=(-2, -1, 0, 1, 2))
    return figure
