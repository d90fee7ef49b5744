"""The appendix's Banana grid: how the picture changes with hidden units and MC dropout samples.

Matérn-5/2 networks with 10, 50 and 500 hidden units, the picture drawn with 10, 100 and 1000 samples; all else as in
``banana``.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from stationary import metrics
from stationary.inference import ExactDropout, MCDropout, predict
from stationary.lab.data import banana
from stationary.lab.experiments import paper
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Measured, Section, Table
from stationary.nn import StationaryHead
from stationary.training import train

VERSION = 1
TITLE = "Banana: units and samples (appendix)"
REPRODUCES = "the appendix's 3 x 3 grid: 10, 50, 500 hidden units and 10, 100, 1000 samples"
DURATION = {"smoke": "seconds", "demo": "half a minute", "paper": "a minute"}
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Config:
    hidden: int = 50
    n_samples: tuple[int, ...] = (10, 100, 1000)
    lengthscale: float = 0.5
    dropout: float = 0.2
    epochs: int = 2000
    n_seeds: int = 5
    resolution: int = 300
    extent: float = 3.75
    seed: int = 0


SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 30, "n_seeds": 2, "resolution": 20},
    "demo": {"n_seeds": 3, "resolution": 120},
    "paper": {},
}


def configs(scale: str = "paper") -> list[Config]:
    return [Config(hidden=hidden, **SCALES[scale]) for hidden in (10, 50, 500)]


def run(config: Config, device: str = "cpu") -> Arrays:
    split = banana.load().to(device)
    side = torch.linspace(-config.extent, config.extent, config.resolution, device=device)
    grid = torch.cartesian_prod(side, side)
    activation = paper.activation("matern52", config.lengthscale, code_scale=True)
    build = partial(StationaryHead, 2, 2, hidden=config.hidden, activation=activation, dropout=config.dropout)
    training = paper.toy_training(config.epochs, seed=config.seed)
    models = train(build, *split.train, training, n_members=config.n_seeds)
    exact = predict(models[0], grid[::7], ExactDropout())  # the closed form costs more than the picture
    results: Arrays = {"x": split.x_train.cpu().numpy(), "y": split.y_train.cpu().numpy()}
    results["boundary"] = _as_map(predict(models[0], grid).probs[:, 1], config)
    for n in config.n_samples:
        sampled = predict(models[0], grid, MCDropout(n), batch_size=10_000)
        results[f"total {n}"] = _as_map(sampled.bernoulli_std(), config)
        results[f"error {n}"] = np.array((sampled.probs[::7] - exact.probs).abs().mean().item())
    tested = [predict(model, split.x_test, ExactDropout(approximate=True)) for model in models]
    results["nlpd"] = np.array([metrics.nlpd(prediction, split.y_test) for prediction in tested])
    results["accuracy"] = np.array([metrics.accuracy(prediction, split.y_test) for prediction in tested])
    return results


def _as_map(values: torch.Tensor, config: Config) -> np.ndarray[Any, Any]:
    return values.view(config.resolution, config.resolution).mT.float().cpu().numpy()


def report(results: list[tuple[Config, Arrays]]) -> Section:
    results = sorted(results, key=lambda pair: pair[0].hidden)
    samples = results[0][0].n_samples
    figure, axes = plots.panels(len(samples), len(results), width=8, height=8)
    axes = np.reshape(axes, (len(samples), len(results)))
    for column, (config, arrays) in zip(axes.T, results, strict=True):
        extent = (-config.extent, config.extent) * 2
        for ax, n in zip(column, samples, strict=True):
            image = arrays[f"total {n}"]
            ax.imshow(image, origin="lower", extent=extent, cmap="gray_r", vmin=0, vmax=0.5, interpolation="bilinear")
            ax.contour(arrays["boundary"], levels=[0.5], extent=extent, colors=plots.COLORS[4], linewidths=1.2)
            ax.set_title(f"{config.hidden} units, {n} samples", fontsize="small")
            ax.set_axis_off()
    rows = [
        (
            config.hidden,
            *(Measured.over(arrays[name]) for name in ("accuracy", "nlpd")),
            *(arrays[f"error {n}"].item() for n in samples),
        )
        for config, arrays in results
    ]
    errors = {n: float(np.mean([arrays[f"error {n}"] for _, arrays in results])) for n in samples}
    return Section(
        title=TITLE,
        paper="More samples make the picture smoother, more units bring it nearer to the Gaussian process.",
        ours="More samples do: the mean error of the probability against the closed form falls from "
        + ", ".join(f"{error:.4f} with {n}" for n, error in errors.items())
        + ". Width changes how the rays between units fall; the numbers below say what it does to the error.",
        figures={"banana_grid": figure},
        captions={"banana_grid": "sqrt(pq) of Matérn-5/2 networks: columns by hidden units, rows by dropout samples."},
        tables=(
            Table(
                "Error on the 4,900 held-out points over seeds (infinitely many samples), and the mean error of the "
                "probability on the grid with finitely many.",
                ("units", "accuracy", "NLPD", *(f"{n} samples" for n in samples)),
                tuple(rows),
            ),
        ),
    )
