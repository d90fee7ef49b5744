"""The report of the covariance experiment: whether Monte Carlo and exact kernels agree, and how they decay."""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stationary.lab.experiments.covariance.config import TITLE, WEIGHTS, Config
from stationary.lab.report import figures as plots
from stationary.lab.report.content import Cell, Section, Table, Verdict, judged
from stationary.lab.runs.store import Arrays


def report(results: list[tuple[Config, Arrays]]) -> Section:
    [(config, arrays)] = results
    return Section(
        title=TITLE,
        paper=(
            "Fig. 3: the activation functions of the Matérn class, from an exponentially decaying step (ν = 1/2) to a "
            "bell curve (ν = ∞), and the covariance functions of random networks that use them. A Monte Carlo "
            "estimate over 10,000 hidden units matches the exact covariance almost perfectly, so that the dashed "
            "curves are barely visible.\n\n"
            "The appendix shows Gram matrices for ℓ = 0.5 and a bias of standard deviation 1: networks with a Gaussian "
            "bias are stationary only locally, and the kernel decays along the diagonal by a Gaussian envelope."
        ),
        ours=f"{_agreement(arrays)}\n\n{_decay(config, arrays)}",
        figures={"covariance": _curves(arrays), "gram": _gram(arrays), "prior_draws": _draws(arrays)},
        captions={
            "covariance": f"Left, the activations for ℓ = {config.lengthscale:g}. Right, their covariance functions "
            f"κ(x, 0), by Monte Carlo over {config.n_units:,} units (solid) and exactly (dashed), for binary weights "
            "and, in light colours, for Gaussian weights. Peaks are shifted for clarity.",
            "gram": f"Exact Gram matrices for binary weights, ℓ = {config.lengthscale:g} and a bias of standard "
            f"deviation {config.bias_std:g}.",
            "prior_draws": "Beyond the paper: functions drawn from random networks of growing width (binary weights), "
            "and from the Gaussian process that they tend to.",
        },
        tables=(_values(config, arrays), _diagonal(config, arrays)),
        verdicts=tuple(_verdicts(config, arrays)),
    )


def _verdicts(config: Config, arrays: Arrays) -> Iterator[Verdict]:
    worst, bound, n = _largest(arrays)
    yield Verdict(
        "Random networks have the exact covariance functions.",
        "Fig. 3",
        f"Of {n:,} differences between Monte Carlo and exact covariances the largest is {worst:.1f} standard errors; "
        f"chance alone allows {bound:.1f}.",
        judged([worst < bound]),
    )
    x, exact, envelope = _relative_diagonal(config, arrays)
    *left, approximate = (float(np.interp(2, x, row)) for row in (*exact, envelope))
    yield Verdict(
        "Away from 0 the kernel decays by a Gaussian envelope.",
        "appendix",
        f"At x = 2 the kernel has {min(left):.2f} to {max(left):.2f} of its value at 0; the envelope has "
        f"{approximate:.2f}.",
        judged([bool((np.diff(exact, axis=1)[:, x[1:] > 0] < 0).all()), min(left) <= approximate <= max(left)]),
    )


def _agreement(arrays: Arrays) -> str:
    """Say whether Monte Carlo and exact kernels agree, by Bonferroni's bound, which allows any correlation."""
    worst, bound, n = _largest(arrays)
    return (
        f"Monte Carlo and exact kernels {'agree' if worst < bound else 'do not agree'}: of {n:,} differences, "
        f"for all activations and both kinds of weights, the largest is {worst:.1f} standard errors. Chance alone "
        f"would give more than {bound:.1f} at most once in a hundred times."
    )


def _largest(arrays: Arrays) -> tuple[float, float, int]:
    """Return the largest difference in standard errors, what chance allows, and the number of differences."""
    z = np.stack([_deviation(arrays, weights)[1] for weights in WEIGHTS])
    return float(z.max()), NormalDist().inv_cdf(1 - 0.01 / (2 * z.size)), z.size


def _decay(config: Config, arrays: Arrays) -> str:
    """Compare the Gram matrices' diagonals with the envelope of the paper's eq. 10, in words."""
    x, exact, envelope = _relative_diagonal(config, arrays)
    falls = (np.diff(exact, axis=1)[:, x[1:] > 0] < 0).all()
    *left, approximate = (np.interp(2, x, row) for row in (*exact, envelope))
    return (
        f"The kernel {'decays' if falls else 'does not decay everywhere'} along the diagonal: at x = 2, "
        f"{min(left):.2f} to {max(left):.2f} of its value at 0 are left, more for a smoother activation. The paper's "
        f"envelope would leave {approximate:.2f} for all of them: it is exact only in the limit of a wide bias."
    )


def _values(config: Config, arrays: Arrays) -> Table:
    at = (0.0, 0.5, 1.0)
    rows: list[tuple[Cell, ...]] = []
    for weights in WEIGHTS:
        absolute, z = _deviation(arrays, weights)
        for i, nu in enumerate(config.nus):
            exact = np.interp(at, arrays["x"], arrays[f"{weights}_exact"][i]).tolist()
            rows.append(
                (plots.smoothness_label(nu), WEIGHTS[weights], *exact, float(absolute[i].max()), float(z[i].max()))
            )
    return Table(
        f"Exact kernels, and how far Monte Carlo over {config.n_units:,} units is from them at the most.",
        ("ν", "weights", *(f"κ({x:g}, 0)" for x in at), "largest |Monte Carlo − exact|", "in standard errors"),
        tuple(rows),
    )


def _diagonal(config: Config, arrays: Arrays) -> Table:
    x, exact, envelope = _relative_diagonal(config, arrays)
    at = [point for point in (1.0, 2.0, 3.0) if point <= config.x_max]
    names = [plots.smoothness_label(nu) for nu in config.nus if math.isfinite(nu)]
    return Table(
        "The decay along the diagonal, κ(x, x) / κ(0, 0), for binary weights.",
        ("ν", *(f"x = {point:g}" for point in at)),
        tuple(
            (name, *np.interp(at, x, row).tolist())
            for name, row in zip([*names, "the paper's envelope"], [*exact, envelope], strict=True)
        ),
    )


def _deviation(arrays: Arrays, weights: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return |Monte Carlo - exact|, and the same in standard errors, in arrays (nu, x)."""
    absolute = abs(arrays[f"{weights}_monte_carlo"] - arrays[f"{weights}_exact"])
    return absolute, absolute / arrays[f"{weights}_standard_error"]


def _relative_diagonal(config: Config, arrays: Arrays) -> tuple[np.ndarray[Any, Any], ...]:
    """Return x, kappa(x, x) / kappa(0, 0) for each finite nu, and the paper's envelope.

    The envelope is exp(-x^2 / sigma_m^2) with sigma_m^2 = 2 sigma_b^2 + ell^2.
    """
    x = np.linspace(-config.x_max, config.x_max, config.n_gram)
    diagonal = arrays["gram"].diagonal(axis1=1, axis2=2)
    envelope = np.exp(-(x**2) / (2 * config.bias_std**2 + config.lengthscale**2))
    return x, diagonal / arrays["binary_exact"][: len(diagonal), [len(arrays["x"]) // 2]], envelope


def _curves(arrays: Arrays) -> Figure:
    """Draw activations on the left; on the right Monte Carlo (solid) and exact kernels (dashed)."""
    figure, (left, right) = plots.panels(1, 2, width=10, height=3.6, width_ratios=(2, 3))
    x, spacing = arrays["x"], 4.0
    for i, nu in enumerate(arrays["nu"]):
        color, label = plots.COLORS[i], plots.smoothness_label(nu)
        left.plot(x, arrays["activation"][i], color=color, label=label)
        shifted = np.where(abs(x) <= spacing / 2, x + spacing * i, np.nan)
        right.plot(shifted, arrays["gaussian_monte_carlo"][i], color=color, alpha=0.35)
        right.plot(shifted, arrays["gaussian_exact"][i], color=color, alpha=0.6, linestyle="--", linewidth=1)
        right.plot(shifted, arrays["binary_monte_carlo"][i], color=color)
        right.plot(shifted, arrays["binary_exact"][i], color="black", linestyle="--", linewidth=1)
    left.set(xlim=(-1.5, 2.5), xlabel="$x$", ylabel=r"activation $\sigma(x)$", title="Activation function")
    left.legend(title=r"smoothness $\nu$", frameon=False)
    right.set(title="Covariance function for $x' = 0$", xlabel="$x$, one peak for each activation (shifted)")
    right.set_xticks([spacing * i + d for i in range(len(arrays["nu"])) for d in (-1, 0, 1)])
    right.set_xticklabels(["−1", "0", "1"] * len(arrays["nu"]))
    right.set(xlim=(-2.2, spacing * (len(arrays["nu"]) - 1) + 2.2), ylim=(0, 1.35), yticks=(0, 0.5, 1))
    plots.line_legend(
        right,
        {
            "Monte Carlo, binary weights": {"color": "0.3"},
            "exact": {"color": "black", "linestyle": "--", "linewidth": 1},
            "Monte Carlo, Gaussian weights (light)": {"color": "0.3", "alpha": 0.35},
        },
    )
    return figure


def _gram(arrays: Arrays) -> Figure:
    """Draw the exact Gram matrices of the appendix, whose diagonals show the decay of the envelope."""
    nus, extent = [nu for nu in arrays["nu"] if math.isfinite(nu)], arrays["x"][[0, -1]]
    figure, axes = plots.panels(1, len(nus), width=8.5, height=3.1)
    for ax, nu, matrix in zip(axes, nus, arrays["gram"], strict=True):
        image = ax.imshow(matrix, cmap="gray_r", vmin=0, vmax=1, extent=(*extent, *extent[::-1]))
        ax.set(title=rf"$\nu = {plots.smoothness_label(nu)}$", xlabel="$x'$", xticks=(-2, 0, 2), yticks=(-2, 0, 2))
    axes[0].set_ylabel("$x$")
    figure.colorbar(image, ax=axes, label=r"covariance $\kappa(x, x')$", shrink=0.85)
    return figure


def _draws(arrays: Arrays) -> Figure:
    """Draw functions: a row for each activation; columns for networks of growing width and the Gaussian process."""
    widths = [f"{w} units" for w in arrays["widths"]] + ["Gaussian process"]
    figure, axes = plots.panels(len(arrays["nu"]), len(widths), width=10, height=6.5, sharey=True)
    for i, nu in enumerate(arrays["nu"]):
        for j, title in enumerate(widths):
            ax = axes[i, j]
            ax.plot(arrays["x"], arrays["draws"][i, j].T, color=plots.COLORS[i], alpha=0.8, linewidth=0.9)
            ax.set(xticks=(-2, 0, 2), yticks=(-2, 0, 2), ylim=(-2.2, 2.2))
            if i == 0:
                ax.set_title(title)
        axes[i, 0].set_ylabel(rf"$\nu$ = {plots.smoothness_label(nu)}")
    return figure
