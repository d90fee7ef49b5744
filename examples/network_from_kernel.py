"""From a kernel you trust to the network that has it: a signal that nearly repeats, and a gap to bridge.

A Gaussian process with the kernel Matérn x cosine is fitted with GPyTorch; ``activation_from_kernel`` finds the
activation with that kernel; and networks with this activation and random biases, of growing width, give the posterior
of the Gaussian process.

    python examples/network_from_kernel.py --out out/examples
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import CosineKernel, Kernel, MaternKernel
from torch import Tensor, nn

import stationary as st
from stationary.lab.baselines import ExactGP, gp_training
from stationary.lab.report import figures as plots
from stationary.theory.spectral import spectral_density

REACH = 60.0  # of the random biases: the data, and what the activation needs on both sides of them


def main(out: Path) -> None:
    x, y, grid = data()
    product = MaternKernel(nu=1.5) * CosineKernel()
    product.kernels[0].lengthscale, product.kernels[1].period_length = 5.0, 0.8
    gp, plain = fit(product, x, y), fit(MaternKernel(nu=1.5), x, y)
    truth, guess = (st.predict(posterior, grid, family=st.Gaussian) for posterior in (gp, plain))
    activation = activation_of(gp)
    print(f"activation: autocorrelation equals the kernel to {activation.autocorrelation_error:.0e} of its peak")
    gap = (grid[:, 0] > 5) & (grid[:, 0] < 7)
    for name, pred in (("Matérn", guess), ("Matérn x cosine", truth)):
        error = (pred.mean[:, 0] - signal(grid[:, 0]))[gap].square().mean().sqrt()
        print(f"GP with the kernel {name:16} root mean square error in the gap {error:.2f}")
    print("\nlargest difference to that GP of a Bayesian network with the same kernel")
    for width in (100, 1000, 10_000):
        mean, std = network(activation, width, x, y, grid, noise=gp.networks[0].likelihood.noise.item())
        far = (mean - truth.mean[:, 0]).abs().max(), (std - truth.epistemic_variance[:, 0].sqrt()).abs().max()
        print(f"{width:>7} units: mean {far[0]:.3f}, standard deviation {far[1]:.3f}")
    draw(activation, x, y, grid, {"GP": truth, "network": (mean, std)}).savefig(
        out / "network_from_kernel.png", dpi=150
    )


def signal(t: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * t / 1.6) * (1 + 0.4 * torch.cos(0.7 * t))


def data() -> tuple[Tensor, Tensor, Tensor]:
    """50 noisy points with a gap from 5 to 7, and a grid to predict on."""
    t = torch.cat([torch.linspace(0, 5, 35), torch.linspace(7, 9, 15)]).double()
    y = signal(t) + 0.1 * torch.randn(len(t), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return t[:, None], y, torch.linspace(-1, 12, 400).double()[:, None]


def fit(kernel: Kernel, x: Tensor, y: Tensor) -> Any:
    return st.fit(ExactGP(), ExactGP().builder(kernel, (x, y)), (x, y), gp_training(200, learning_rate=0.1))


def activation_of(gp: Any) -> nn.Module:
    """The fitted kernel has two Matérn peaks in its spectral density, at plus and minus its frequency."""
    matern, cosine = gp.networks[0].kernel.base_kernel.kernels
    variance, lengthscale = gp.networks[0].kernel.outputscale.item(), matern.lengthscale.item()
    frequency = math.pi / cosine.period_length.item()  # GPyTorch's cosine is cos(pi r / period_length)

    def density(omega: Tensor) -> Tensor:
        shifted = (spectral_density(omega + s * frequency, 1.5, lengthscale) for s in (-1, 1))
        return variance / 2 * sum(shifted)

    return st.activation_from_kernel(spectral_density=density, tail=1.5)


def network(
    activation: nn.Module, width: int, x: Tensor, y: Tensor, grid: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a network of random units whose output weights are N(0, 2 REACH / width)."""
    bias = REACH * (2 * torch.rand(width, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    features, at = (math.sqrt(2 * REACH / width) * activation(z + bias) for z in (x, grid))
    gram = features @ features.T + noise * torch.eye(len(x), dtype=torch.float64)
    solved = torch.linalg.solve(gram, torch.cat([y[:, None], features @ at.T], 1))
    variance = at.square().sum(1) - (features @ at.T * solved[:, 1:]).sum(0)
    return at @ features.T @ solved[:, 0], variance.clamp(min=0).sqrt()


def draw(activation: nn.Module, x: Tensor, y: Tensor, grid: Tensor, predictions: dict[str, Any]) -> Any:
    figure, (left, right) = plots.panels(1, 2, width=11, height=3, width_ratios=(1, 2))
    u = torch.linspace(-3, 20, 1000).double()
    left.plot(u, activation(u), color=plots.COLORS[0])
    left.set(xlabel="x", title="the activation")
    gp, (mean, std) = predictions["GP"], predictions["network"]
    deviation = gp.epistemic_variance[:, 0].sqrt()
    low, high = gp.mean[:, 0] - 2 * deviation, gp.mean[:, 0] + 2 * deviation
    right.fill_between(grid[:, 0], low, high, color=plots.COLORS[0], alpha=0.25, lw=0, label="Gaussian process")
    right.plot(grid, gp.mean, color=plots.COLORS[0])
    right.plot(grid, torch.stack([mean, mean - 2 * std, mean + 2 * std], 1), "--", lw=1, color=plots.COLORS[4])
    right.plot([], [], "--", color=plots.COLORS[4], label="network, 10,000 units")
    right.plot(x, y, ".", color="black", label="data")
    right.set(xlabel="t", title="both predictions, two standard deviations", ylim=(-3.2, 4.2))
    right.legend(frameon=False, ncols=3, loc="upper left")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/examples"), help="folder for the figure")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(arguments.out)
