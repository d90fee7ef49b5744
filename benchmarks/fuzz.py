"""Random bit patterns through every activation, forward and backward: is every finite input safe?

    python benchmarks/fuzz.py                        # CPU: 10^7 patterns in all
    python benchmarks/fuzz.py --device cuda          # GPU: 10^9 patterns in all, minutes

A random bit pattern reaches subnormal numbers, huge ones, infinities and NaN alike. Half precision has only 65536
patterns, and all of them are tried; the rest of the patterns is shared by float32 and float64. A violation is

- a finite input with a value or a gradient that is not finite;
- a NaN with a value that is not NaN;
- an infinity with a value that is neither its limit nor NaN.

The table and the JSON file count patterns and violations for each activation and dtype; the file has the bit patterns
of the first few violations of each. The exit status is 1 if there is any.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stationary as st
from stationary.activations import ACTIVATIONS
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

INF = math.inf
EXTREMES = (1e-15, 1e15)  # length-scales
BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
CHUNK = {"cpu": 2**16, "cuda": 2**26}  # patterns at a time: the cache of a core, a good part of a GPU's memory
SHOWN = 5  # violations that are written out, of each kind for each activation and dtype
# What an activation tends to at -inf and at inf; None where there is no limit. All others tend to 0.
LIMITS: dict[str, tuple[float | None, float | None]] = {
    "erf": (-1.0, 1.0),
    "step": (0.0, 1.0),
    "step, surrogate 0.2": (0.0, 1.0),
    "relu": (0.0, INF),
    "leaky_relu": (-INF, INF),
    **dict.fromkeys(("sine", "siren", "cosine", "sincos", "triangle_wave", "periodic_relu"), (None, None)),
}
VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "matern 0.3": partial(st.Matern, 0.3),
    "matern 2.2": partial(st.Matern, 2.2),
    "matern 50": partial(st.Matern, 50.0),
    "matern inf": partial(st.Matern, INF),
    "matern 1.5, centered": partial(st.Matern, 1.5, centered=True),
    "matern 2.2, centered": partial(st.Matern, 2.2, centered=True),
    "matern 2.5, dim 3": partial(st.Matern, 2.5, dim=3),
    "matern 0.5, surrogate 0.1": partial(st.Matern, 0.5, surrogate=0.1),
    "matern 2.2, learnable": partial(st.Matern, 2.2, learnable=True),
    "rbf, learnable": partial(st.RBF, 0.5, learnable=True),
    "step, surrogate 0.2": partial(st.Step, surrogate=0.2),
    "matern 1.5, lengthscale 0.001": partial(st.Matern, 1.5, 1e-3),
    "matern 2.5, dim 3, lengthscale 1e-06": partial(st.Matern, 2.5, 1e-6, dim=3),
    **{f"matern {nu}, lengthscale {s}": partial(st.Matern, nu, s) for nu in (0.3, 0.5, 1.5, 2.2) for s in EXTREMES},
    **{f"rbf, lengthscale {s}": partial(st.RBF, s) for s in EXTREMES},
}
ALL: dict[str, Callable[[], nn.Module]] = {**ACTIVATIONS, **VARIANTS}


def patterns(dtype: torch.dtype, n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Every number of a half-precision dtype, else n random ones, in chunks."""
    device, bits = generator.device, BITS[dtype]
    if bits == torch.int16:
        yield torch.arange(-(2**15), 2**15, device=device).to(bits).view(dtype)
        return
    while n > 0:
        size = min(n, CHUNK[device.type])
        words = torch.randint(-(2**31), 2**31, (size * dtype.itemsize // 4,), generator=generator, device=device)
        yield words.to(torch.int32).view(dtype)
        n -= size


def violations(module: nn.Module, x: Tensor, limits: tuple[float | None, float | None]) -> dict[str, Tensor]:
    """Where each rule is broken, as a mask over x."""
    x = x.detach().requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y))
    slope = x.grad
    assert slope is not None
    x, y = x.detach(), y.detach()
    finite, nan = x.isfinite(), y.isnan()
    found = {
        "value": finite & ~y.isfinite(),
        "gradient": finite & ~slope.isfinite(),
        "NaN": x.isnan() & ~nan,
    }
    at_infinity = torch.zeros_like(finite)
    for end, limit in zip((-INF, INF), limits, strict=True):
        at_infinity |= (x == end) & ~(nan if limit is None else nan | (y == limit))
    return found | {"infinity": at_infinity}


def fuzz(name: str, dtype: torch.dtype, n: int, generator: torch.Generator) -> dict[str, Any]:
    """Count, for one activation and dtype, the patterns tried and those that break a rule."""
    module = ALL[name]().to(generator.device)
    tried, counts = 0, dict.fromkeys(("value", "gradient", "NaN", "infinity"), 0)
    shown: list[dict[str, str]] = []
    for x in patterns(dtype, n, generator):
        tried += x.numel()
        for rule, broken in violations(module, x, LIMITS.get(name, (0.0, 0.0))).items():
            counts[rule] += (found := int(broken.sum()))
            if found and sum(s["rule"] == rule for s in shown) < SHOWN:
                words = x.view(BITS[dtype])[broken][:SHOWN].tolist()
                width = dtype.itemsize * 2
                shown += [
                    {"rule": rule, "bits": f"0x{word % 16**width:0{width}x}", "x": repr(number)}
                    for word, number in zip(words, x[broken][:SHOWN].tolist(), strict=True)
                ]
    dtype_name = str(dtype).removeprefix("torch.")
    return {"activation": name, "dtype": dtype_name, "patterns": tried, "violations": counts, "examples": shown}


def fuzz_all(n: int, device: str, seed: int) -> list[dict[str, Any]]:
    """n patterns in all, over every activation and dtype; more where half precision alone has more."""
    generator = torch.Generator(device).manual_seed(seed)
    each = max(
        1000, math.ceil((n / len(ALL) - 2 * 2**16) / 2)
    )  # of float32 and of float64, beside all of half precision
    return [fuzz(name, dtype, each, generator) for name in ALL for dtype in BITS]


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'activation':40}{'dtype':>10}{'patterns':>14}{'value':>9}{'gradient':>9}{'NaN':>9}{'infinity':>9}")
    for row in rows:
        counts = "".join(f"{count:>9}" for count in row["violations"].values())
        print(f"{row['activation']:40}{row['dtype']:>10}{row['patterns']:>14,}{counts}")
        for example in row["examples"]:
            print(f"    {example['rule']} at {example['bits']} = {example['x']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, help="patterns in all (10^7 on the CPU, 10^9 on CUDA)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the file to write (results/benchmarks/fuzz-<device name>.json)")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    started = time.perf_counter()
    n = arguments.n or (10**9 if cuda else 10**7)
    rows = fuzz_all(n, arguments.device, arguments.seed)
    show(rows)
    tried, broken = sum(row["patterns"] for row in rows), sum(sum(row["violations"].values()) for row in rows)
    print(f"\n{tried:,} patterns, {broken} violations, {time.perf_counter() - started:.0f} s")
    name = torch.cuda.get_device_name().split()[-1].lower() if cuda else "cpu"
    content = {
        "command": "benchmarks/fuzz.py",
        "configuration": {"n": n, "device": arguments.device, "seed": arguments.seed},
        "environment": environment(arguments.device),
        "patterns": tried,
        "violations": broken,
        "rows": rows,
    }
    print(f"wrote {write_json(arguments.out or Path(f'results/benchmarks/fuzz-{name}.json'), content)}")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
