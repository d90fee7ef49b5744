"""How long an exact Gram matrix takes against its Monte Carlo estimate, and how far each is from the truth.

    python benchmarks/kernels.py                        # 2000 x 2000, float64, K = 10,000
    python benchmarks/kernels.py --json results/benchmarks/kernels-cpu.json

For each kernel: time of the matrix and of its gradient in all hyperparameters, as ratios to the Monte Carlo estimate of
the same matrix and to the gradient of that estimate, measured in turn in one run; the largest error of both, relative
to the largest entry. The error of the exact one is measured on 40 entries by brute-force quadrature over the prior of
the pre-activations (trapezoidal rules in their logarithms), which shares no formula with the kernels.
"""

import argparse
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import stationary as st
from stationary.gp import kernel_of
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json
from stationary.theory.monte_carlo import random_units

CASES: dict[str, tuple[float, int, str]] = {
    "matern 3/2, binary, d = 1": (1.5, 1, "binary"),
    "matern 5/2, binary, d = 1": (2.5, 1, "binary"),
    "matern 2.2, binary, d = 1": (2.2, 1, "binary"),
    "matern 1/2, gaussian, d = 3": (0.5, 3, "gaussian"),
    "matern 3/2, gaussian, d = 3": (1.5, 3, "gaussian"),
    "matern 5/2, gaussian, d = 3": (2.5, 3, "gaussian"),
    "matern 2.2, gaussian, d = 3": (2.2, 3, "gaussian"),
}


class MonteCarlo(torch.nn.Module):
    """The estimate of the same matrix, with the same hyperparameters to differentiate."""

    def __init__(self, nu: float, n_units: int, weights: str, dims: int) -> None:
        super().__init__()
        w, b = random_units(torch.zeros(1, dims, dtype=torch.float64), n_units, weights, "gaussian", 1.0, 1.0, seed=0)
        self.w, self.b, self.nu = w, b, nu
        self.log_scales = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))  # lengthscale, weight_std, bias_std

    def forward(self, x: Tensor) -> Tensor:
        lengthscale, weight_std, bias_std = self.log_scales.exp()
        features = (
            st.matern((weight_std * (x @ self.w) + bias_std * self.b) / lengthscale, self.nu) / lengthscale.sqrt()
        )
        return features @ features.mT / len(self.b)


def seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def measure(name: str, n: int, n_units: int, rounds: int) -> dict[str, Any]:
    nu, dims, weights = CASES[name]
    x = torch.randn(n, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = kernel_of(st.Matern(nu), weights=weights).double()
    estimate = MonteCarlo(nu, n_units, weights, dims)
    cotangent = torch.ones(n, n, dtype=torch.float64)

    def exact_matrix() -> Tensor:
        with torch.no_grad():
            return kernel(x).to_dense()

    def estimated_matrix() -> Tensor:
        with torch.no_grad():
            return estimate(x)

    jobs: dict[str, Callable[[], object]] = {
        "exact": exact_matrix,
        "monte carlo": estimated_matrix,
        "exact gradient": lambda: kernel(x).to_dense().backward(cotangent),
        "monte carlo gradient": lambda: estimate(x).backward(cotangent),
    }
    times: dict[str, list[float]] = {key: [] for key in jobs}
    for round_ in range(rounds + 1):
        for key, job in jobs.items():
            taken_now = seconds(job)
            if round_:  # the first warms up
                times[key].append(taken_now)
    taken = {key: median(values) for key, values in times.items()}
    exact = exact_matrix()
    return {
        "matrix": taken["exact"] / taken["monte carlo"],
        "gradient": taken["exact gradient"] / taken["monte carlo gradient"],
        "monte_carlo_error": ((estimated_matrix() - exact).abs().max() / exact.max()).item(),
        "exact_error": error_of_exact(kernel, x[:200]),
        "seconds": taken,
        "peak_memory_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def error_of_exact(kernel: Any, x: Tensor, entries: int = 40) -> float:
    """The largest difference from brute-force quadrature over entries off the diagonal, relative to the largest."""
    with torch.no_grad():
        matrix = kernel(x).to_dense()
    i, j = (torch.randperm(len(x), generator=torch.Generator().manual_seed(s))[:entries].tolist() for s in (1, 2))
    reference = brute_force_binary if hasattr(kernel, "weights") else brute_force_gaussian
    nu = kernel.activation.nu
    errors = [abs(matrix[a, b].item() - reference(nu, x[a], x[b])) for a, b in zip(i, j, strict=True) if a != b]
    return max(errors) / matrix.max().item()


def brute_force_gaussian(nu: float, x1: Tensor, x2: Tensor, step: float = 1 / 48) -> float:
    """E[sigma(z1) sigma(z2)] for z = w'x + b with unit Gaussian w and b: two trapezoidal rules in log z."""
    s1, s2 = (float((1 + x @ x) ** 0.5) for x in (x1, x2))
    correlation = float(1 + x1 @ x2) / (s1 * s2)
    z = torch.exp(torch.arange(-34, 4, step, dtype=torch.float64))
    f1, f2 = st.matern(s1 * z, nu) * z, st.matern(s2 * z, nu) * z
    rest = 1 - correlation**2
    exponent = -(z[:, None] ** 2 - 2 * correlation * z[:, None] * z + z**2) / (2 * rest)
    return float(f1 @ torch.exp(exponent) @ f2) * step**2 / (2 * math.pi * math.sqrt(rest))


def brute_force_binary(nu: float, x1: Tensor, x2: Tensor, step: float = 1 / 64) -> float:
    """The mean over w = -1, 1 of E[sigma(w x + b) sigma(w x' + b)], unit Gaussian b: trapezoidal in log(b - start)."""
    u = torch.exp(torch.arange(-60, 4, step, dtype=torch.float64))
    total = 0.0
    for sign in (1, -1):
        low, high = sorted((sign * x1.item(), sign * x2.item()))
        density = torch.exp(-0.5 * (u - low) ** 2) / math.sqrt(2 * math.pi)
        total += float((st.matern(u, nu) * st.matern(u + high - low, nu) * density * u).sum()) * step / 2
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    n = arguments.size
    print(f"{n} x {n}, float64, against Monte Carlo with {arguments.units} units")
    print(f"{'':30}{'matrix':>8}{'gradient':>10}{'error':>10}{'MC error':>10}")
    rows = {}
    for name in CASES:
        row = rows[name] = measure(name, n, arguments.units, arguments.rounds)
        errors = f"{row['exact_error']:10.0e}{row['monte_carlo_error']:10.0e}"
        print(f"{name:30}{row['matrix']:8.2f}{row['gradient']:10.2f}{errors}", flush=True)
    if arguments.json:
        setting = {"size": n, "units": arguments.units, "rounds": arguments.rounds}
        content = {"command": "benchmarks/kernels.py", "setting": setting, "environment": environment(), "rows": rows}
        print(f"wrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
