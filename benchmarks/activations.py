"""How long and how much memory the Matérn activation takes, as ratios to PyTorch's own functions in the same run.

    python benchmarks/activations.py                   # CPU: 10^7 float32 elements, against F.gelu
    python benchmarks/activations.py --device cuda     # GPU: 2^28 elements, float32 and bfloat16, against F.relu
    python benchmarks/activations.py --json results/benchmarks/activations-cpu.json

Every function runs in turn, round after round, and its median is compared: the machine's mood is the same for all.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import stationary as st
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

Function = Callable[[Tensor], Tensor]
NUS = {"1/2": 0.5, "3/2": 1.5, "5/2": 2.5, "7/2": 3.5, "9/2": 4.5, "2.2": 2.2}


def naive(x: Tensor, nu: float = 2.5) -> Tensor:
    """The formula as one would type it."""
    rate = math.sqrt(2 * nu)
    amplitude = (2 * rate) ** nu / math.sqrt(math.gamma(2 * nu))
    z = torch.clamp(x, min=0)
    return torch.where(x > 0, amplitude * z ** (nu - 0.5) * torch.exp(-rate * z), 0.0)


def candidates(device: str) -> dict[str, Function]:
    functions: dict[str, Function] = {"F.relu": F.relu, "F.gelu": F.gelu, "naive eager 5/2": naive}
    functions |= {f"matern {name}": partial(st.matern, nu=nu) for name, nu in NUS.items()}
    functions |= {"matern inf": st.rbf, "sine": st.sine, "cosine": st.cosine, "sincos": st.sincos}
    functions |= {"triangle wave": st.triangle_wave, "periodic ReLU": st.periodic_relu}
    if device == "cuda":
        for name in ("5/2", "2.2"):
            functions[f"torch.compile {name}"] = torch.compile(partial(st.matern, nu=NUS[name]))
    return functions


def forward(function: Function, x: Tensor, grad: Tensor) -> None:
    with torch.no_grad():
        function(x)


def forward_backward(function: Function, x: Tensor, grad: Tensor) -> None:
    x.grad = None
    function(x).backward(grad)


@cache
def head_start() -> Tensor:
    return torch.empty(2**32, dtype=torch.uint8, device="cuda")


def seconds(job: Callable[[], None], device: str) -> float:
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        head_start().zero_()  # about 1 ms of work, so that Python is ahead of the GPU, as it is in training
        start.record()
        job()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def time_all(task: Callable[..., None], x: Tensor, grad: Tensor, device: str, rounds: int) -> dict[str, float]:
    functions = candidates(device)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + 2):
        for name, function in functions.items():
            taken = seconds(partial(task, function, x, grad), device)
            if round_ >= 2:  # the first two warm up
                times[name].append(taken)
    return {name: median(t) for name, t in times.items()}


def peak_bytes(function: Function, x: Tensor, grad: Tensor) -> int:
    """Peak CUDA memory of forward and backward, beyond what x and grad take."""
    x.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function(x).backward(grad)
    return torch.cuda.max_memory_allocated() - before


def measure(device: str, dtype: torch.dtype, size: int, rounds: int, reference: str) -> dict[str, Any]:
    x = torch.randn(size, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(0)).requires_grad_()
    grad = torch.randn(size, device=device, dtype=dtype, generator=torch.Generator(device).manual_seed(1))
    only_forward = time_all(forward, x, grad, device, rounds)
    both = time_all(forward_backward, x, grad, device, rounds)
    rows = {
        name: {
            "forward": only_forward[name] / only_forward[reference],
            "forward+backward": both[name] / both[reference],
            "forward_ms": 1e3 * only_forward[name],
            "forward+backward_ms": 1e3 * both[name],
        }
        for name in both
    }
    if device == "cuda":
        memory = {name: peak_bytes(function, x, grad) for name, function in candidates(device).items()}
        for name, row in rows.items():
            row["peak_memory"] = memory[name] / memory["F.gelu"]
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "size": size,
        "rounds": rounds,
        "reference": reference,
        "rows": rows,
    }


def show(table: dict[str, Any]) -> None:
    print(
        f"\n{table['size']:,} elements, {table['dtype']}, ratios to {table['reference']} (median of {table['rounds']})"
    )
    memory = "peak_memory" in next(iter(table["rows"].values()))
    print(f"{'':20}{'forward':>10}{'fwd+bwd':>10}{'memory/gelu' if memory else '':>13}")
    for name, row in table["rows"].items():
        tail = f"{row['peak_memory']:13.2f}" if memory else ""
        print(f"{name:20}{row['forward']:10.2f}{row['forward+backward']:10.2f}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", type=int, help="elements (10^7 on the CPU, 2^28 on CUDA)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    size = arguments.size or (2**28 if cuda else 10**7)
    dtypes = (torch.float32, torch.bfloat16) if cuda else (torch.float32,)
    reference = "F.relu" if cuda else "F.gelu"
    tables = [measure(arguments.device, dtype, size, arguments.rounds, reference) for dtype in dtypes]
    for table in tables:
        show(table)
    if arguments.json:
        content = {
            "command": "benchmarks/activations.py",
            "environment": environment(arguments.device),
            "tables": tables,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
