"""The Gaussian process behind a network: its exact kernel, networks that approach it, and regression with GPyTorch.

How fast do networks of growing width come near the kernel of the infinite one? And what does a GP with that kernel say
far from its data? ReLU's variance grows for ever; a Matérn network's falls back to its prior, which lasts as far as
its biases reach: a Gaussian bias makes it stationary locally, a uniform one everywhere.

    python examples/gp_kernel.py --out out/examples
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

import stationary as st
from stationary.gp import kernel_of
from stationary.lab.baselines import ExactGP, gp_training
from stationary.lab.data import toy_regression
from stationary.lab.report import figures as plots

WIDTHS = (100, 400, 1600, 6400, 25_600)
ACTIVATION = st.Matern(nu=1.5, lengthscale=0.5)
AT = (1.0, 2.0, 4.0, 8.0)


def main(out: Path) -> None:
    errors = width_errors(torch.linspace(-2, 2, 21, dtype=torch.float64)[:, None])
    print("Root mean square error of the kernel matrix of a network with random weights, relative to its largest entry")
    for width, error in errors.items():
        print(f"{width:>8} units {error:9.4f}    times sqrt(width) {error * math.sqrt(width):.2f}")
    print("\nStandard deviation of the GP at distance x from the middle of the data (noise not included)")
    print(f"{'kernel':44}" + "".join(f"{f'x = {x:g}':>8}" for x in AT))
    fits = {name: fit(kernel) for name, kernel in kernels().items()}
    for name, posterior in fits.items():
        pred = st.predict(posterior, torch.tensor(AT)[:, None], family=st.Gaussian)
        print(f"{name:44}" + "".join(f"{std:8.2f}" for std in pred.epistemic_variance[:, 0].sqrt()))
    draw(errors, fits).savefig(out / "gp_kernel.png", dpi=150)


def width_errors(x: Tensor, seeds: int = 50) -> dict[int, float]:
    """Over several random networks of each width."""
    exact = kernel_of(ACTIVATION)(x).to_dense().detach()

    def error(width: int, seed: int) -> float:
        return float((st.monte_carlo_kernel(ACTIVATION, x, n_units=width, seed=seed).mean - exact).square().mean())

    return {
        width: math.sqrt(np.mean([error(width, seed) for seed in range(seeds)])) / float(exact.max())
        for width in WIDTHS
    }


def kernels() -> dict[str, Kernel]:
    return {
        "ReLU": kernel_of(nn.ReLU()),
        "Matérn-3/2, Gaussian bias": kernel_of(ACTIVATION, weights="binary", bias_std=2.0, normalize=True),
        "Matérn-3/2, uniform bias": kernel_of(
            ACTIVATION, weights="binary", bias="uniform", bias_std=10.0, normalize=True
        ),
    }


def fit(kernel: Kernel) -> Any:
    """Length-scale, variance and noise by marginal likelihood; the bias prior is our choice, and stays."""
    kernel.raw_bias_std.requires_grad_(False)
    kernel.raw_weight_std.requires_grad_(False)  # only weight_std / lengthscale matters
    split = toy_regression.load(n=20)
    return st.fit(ExactGP(), ExactGP().builder(kernel, split.train), split.train, gp_training(100))


def draw(errors: dict[int, float], fits: dict[str, Any]) -> Any:
    figure, axes = plots.panels(2, 2, width=8, height=5)
    axes = axes.ravel()
    widths = np.array(list(errors))
    axes[0].loglog(widths, list(errors.values()), "o-", color=plots.COLORS[0], label="random networks")
    axes[0].loglog(
        widths, errors[WIDTHS[0]] * (widths / WIDTHS[0]) ** -0.5, ":", color="black", label="1 / sqrt(width)"
    )
    axes[0].set(title="Networks: width against error", xlabel="hidden units", ylabel="error of the kernel matrix")
    axes[0].set_yticks((0.1, 0.03, 0.01, 0.003), ("0.1", "0.03", "0.01", "0.003"))
    axes[0].minorticks_off()
    axes[0].legend(frameon=False)
    split, x = toy_regression.load(n=20), torch.linspace(-8, 8, 321)[:, None]
    for ax, (name, posterior) in zip(axes[1:], fits.items(), strict=True):
        pred = st.predict(posterior, x, family=st.Gaussian)
        mean, std = pred.mean[:, 0], pred.epistemic_variance[:, 0].sqrt()
        ax.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, color=plots.COLORS[0], alpha=0.25, lw=0)
        ax.plot(x, mean, color=plots.COLORS[0])
        ax.plot(split.x_train, split.y_train, ".", color="black", ms=3)
        ax.set(title=f"GP: {name}", ylim=(-4, 4), xlabel="x")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out)
