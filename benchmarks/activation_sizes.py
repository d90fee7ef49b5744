"""How long the activations take against GELU, from one element to ten million.

    python benchmarks/activation_sizes.py --json results/benchmarks/activation_sizes-cpu.json
    python benchmarks/activation_sizes.py --device cuda --json results/benchmarks/activation_sizes-h200.json
    python benchmarks/activation_sizes.py --draw results/benchmarks/activation_sizes-*.json docs/images/FILE.png

It is wall time, as the caller waits for it. At every size the modules run in turn, round after round, each call is
timed by itself, and medians are compared: what else the machine does then disturbs some calls of all of them. On the
CPU this is done with one thread and with all by the C functions, and with one by PyTorch's operations, which run where
there is no gcc. Where other work shares the cores, set OMP_WAIT_POLICY=passive: threads that wait for each other by
spinning measure nothing but that work.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from activations import forward, forward_backward
from torch import Tensor, nn

import stationary as st
from stationary import _native
from stationary.lab.report.figures import COLORS, panels
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

SIZES = (1, 100, 1_000, 10_000, 25_000, 100_000, 1_000_000, 10_000_000)
MODULES = {
    "GELU": nn.GELU(),
    "ReLU": nn.ReLU(),
    "Matérn 1/2": st.Matern(0.5),
    "Matérn 3/2": st.Matern(1.5),
    "Matérn 5/2": st.Matern(2.5),
    "Matérn 2.2 (any nu)": st.Matern(2.2),
    "RBF": st.RBF(),
    "sine": st.Sine(30.0),
    "cosine": st.Cosine(30.0),
    "sine-cosine": st.SinCos(),
    "triangle wave": st.TriangleWave(),
    "periodic ReLU": st.PeriodicReLU(),
}
DRAWN = ("Matérn 1/2", "Matérn 3/2", "Matérn 5/2", "Matérn 2.2 (any nu)", "sine-cosine", "ReLU")
TASKS: dict[str, Callable[..., None]] = {"forward": forward, "forward+backward": forward_backward}
SECONDS = 5.0  # for a size and a task, if that gives nine rounds; at most 500 rounds
LIMITS = {"forward": 3, "forward+backward": 2}


def seconds(job: Callable[[], None], device: str) -> float:
    started = time.perf_counter()
    job()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def time_all(task: Callable[..., None], x: Tensor, grad: Tensor, device: str) -> dict[str, float]:
    """Median seconds of a call, by module."""
    times: dict[str, list[float]] = {name: [] for name in MODULES}
    end = time.monotonic() + SECONDS
    for round_ in range(500):
        if round_ >= 12 and time.monotonic() > end:
            break
        for name, module in MODULES.items():
            taken = seconds(partial(task, module, x, grad), device)
            if round_ >= 3:  # the first ones warm up
                times[name].append(taken)
    return {name: median(t) for name, t in times.items()}


def curve(device: str) -> list[dict[str, Any]]:
    """For every size and task the microseconds of GELU, and the others' ratios to them."""
    points = []
    for size in SIZES:
        x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        grad = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(device)
        for name, task in TASKS.items():
            taken = time_all(task, x, grad, device)
            ratios = {module: t / taken["GELU"] for module, t in taken.items()}
            points.append({"size": size, "task": name, "gelu_us": 1e6 * taken["GELU"], "ratios": ratios})
            worst = max(ratios, key=ratios.__getitem__)
            print(f"{size:>10,} {name:17} {1e6 * taken['GELU']:10.1f} us, {worst} {ratios[worst]:.2f}", flush=True)
    return points


def measure(device: str) -> list[dict[str, Any]]:
    if device == "cuda":
        return [{"engine": "Triton", "threads": None, "points": curve(device)}]
    curves = []
    everything = torch.get_num_threads()
    for engine, threads in (("C", 1), ("C", everything), ("PyTorch", 1)):
        functions = _native.compiled() if engine == "C" else None
        if functions is None and engine == "C":
            continue
        torch.set_num_threads(threads)
        with patch.object(_native, "compiled", lambda kept=functions: kept):
            curves.append({"engine": engine, "threads": threads, "points": curve(device)})
    return curves


def show(curves: list[dict[str, Any]]) -> None:
    for one in curves:
        for task, limit in LIMITS.items():
            print(
                f"\n{task} by {one['engine']}, {one['threads']} threads: ratios to GELU, over sizes (at most {limit})"
            )
            points = [p for p in one["points"] if p["task"] == task]
            print(f"{'':22}" + "".join(f"{p['size']:>10}" for p in points))
            print(f"{'GELU, microseconds':22}" + "".join(f"{p['gelu_us']:10.1f}" for p in points))
            for name in MODULES:
                print(f"{name:22}" + "".join(f"{p['ratios'][name]:10.2f}" for p in points))


def draw(sources: list[Path], path: Path) -> None:
    """A row of panels for each stored run, of its first curve: Triton, or the C functions with one thread."""
    figure, axes = panels(len(sources), 2, width=9.0, height=3.0 * len(sources), sharey=True)
    for row, source in zip(axes.reshape(len(sources), 2), sources, strict=True):
        content = json.loads(source.read_text())
        machine = content["environment"].get("gpu") or "one CPU core"
        for ax, (task, limit) in zip(row, LIMITS.items(), strict=True):
            points = [p for p in content["curves"][0]["points"] if p["task"] == task]
            for name, color in zip(DRAWN, COLORS, strict=True):
                style = "--" if name == "ReLU" else "-"
                ax.plot(
                    [p["size"] for p in points], [p["ratios"][name] for p in points], style, color=color, label=name
                )
            ax.axhline(1, color="0.6", linewidth=0.8)
            ax.axhline(limit, color="black", linestyle=":", linewidth=1)
            goal = f"our goal: at most {limit} times GELU"
            ax.annotate(goal, (1, limit), (0, 3), textcoords="offset points", fontsize="small")
            ax.set(xscale="log", title=f"{machine}, {task.replace('+', ' and ')}", ylim=(0, 3.5))
        row[0].set_ylabel("time relative to GELU")
    for ax in axes.reshape(len(sources), 2)[-1]:
        ax.set_xlabel("elements")
    axes.flat[1].legend(frameon=False, fontsize="small", ncols=2, loc="upper right")
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    parser.add_argument("--draw", type=Path, nargs="+", help="draw the numbers of these files into the last one")
    arguments = parser.parse_args()
    if arguments.draw:
        *sources, target = arguments.draw
        draw(sources, target)
        return
    curves = measure(arguments.device)
    show(curves)
    if arguments.json:
        content = {
            "command": "benchmarks/activation_sizes.py",
            "environment": environment(arguments.device),
            "limits": LIMITS,
            "curves": curves,
        }
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
