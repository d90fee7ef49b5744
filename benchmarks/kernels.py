"""How long an exact Gram matrix takes against its Monte Carlo estimate, and how far each is from the truth.

    python benchmarks/kernels.py                        # 2000 x 2000, float64, K = 10,000
    python benchmarks/kernels.py --json results/benchmarks/kernels-cpu.json

For each kernel: time of the matrix and of its gradient in all hyperparameters, as ratios to the Monte Carlo estimate of
the same matrix and to the gradient of that estimate, measured in turn in one run; the largest error of both, relative
to the largest entry. That of the exact one is its difference from the kernel at nu + 1e-10, which takes another route
(quadrature instead of sums of special functions, or another rule), so it is the error of the less accurate of the two.
"""

import argparse
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
from stationary.monte_carlo import random_units
from stationary.runs import environment, write_json

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


def error_of_exact(kernel: Any, x: Tensor) -> float:
    """The largest difference from the same kernel at nu + 1e-10, relative to the largest entry."""
    activation = kernel.activation
    beside = kernel_of(st.Matern(activation.nu + 1e-10), weights=getattr(kernel, "weights", "gaussian")).double()
    with torch.no_grad():
        here, there = kernel(x).to_dense(), beside(x).to_dense()
    return ((here - there).abs().max() / here.max()).item()


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
