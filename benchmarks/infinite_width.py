"""What the head of infinite width costs, beside one pass of a ResNet-18 and what people would take instead.

    python benchmarks/infinite_width.py --json results/benchmarks/infinite_width-cpu.json          # two cores
    python benchmarks/infinite_width.py --device cuda --json results/benchmarks/infinite_width-h200.json
    python benchmarks/infinite_width.py --only prediction       # in an environment that has laplace-torch, for its row
    python benchmarks/infinite_width.py --only passes           # the same

Fit: features (n, 512) of 10 classes, M = 1000 inducing inputs, at given numbers and with the search on 5,000 validation
rows; on a GPU also 10^6 rows and 1000 classes, with the peak of its memory. Prediction: 500 images (100 on a CPU) of
32 x 32 pixels through a ResNet-18, as a plain network, with the head of infinite width on its features, with 100
dropout samples, and, where laplace-torch is installed, with the Laplace approximation of its last layer; the ratio is
to the plain pass, measured in turn. Passes: a fit at given numbers on 5,000 feature vectors, and that of the Laplace
approximation of a last layer, with Kronecker factors, over one pass of the ResNet-18 over as many images; with numbers
of classes and of inducing inputs as in the tables of quality. Probabilities: their largest and mean distance from those
of 10^5 samples of the outputs. Rate: fit and prediction of 25,000 x 1024 features, 5 classes, M = 2000, beside the rate
of large products.
"""

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import stationary as st
from stationary.inference.infinite_width import _basis, _classes, _values, posterior
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

M, D = 1000, 512
IMAGES = {"cpu": 100, "cuda": 500}
GIVEN = st.InfiniteWidth(lengthscale=1.0, variance=10.0, temperature=0.3, geometry="polar", n_inducing=M)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return (y + self.around(x)).relu()


def resnet18(classes: int) -> nn.Sequential:
    """ResNet-18 for images of 32 x 32 pixels (He et al., 2016)."""
    widths = (64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in zip((64, *widths), widths, strict=False)]
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def features(n: int, classes: int, device: str, seed: int = 0, width: int = D) -> tuple[Tensor, Tensor]:
    """Features like those of a trained ReLU trunk: classes that overlap a little, in one orthant."""
    generator = torch.Generator(device).manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator(device).manual_seed(1), device=device)
    y = torch.randint(classes, (n,), generator=generator, device=device)
    noise = torch.randn(n, width, generator=generator, device=device)
    return (0.35 * centres[y] + noise).relu(), y


def synchronized(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def fits(device: str, n: int, classes: int, *, search: bool) -> dict[str, float]:
    data, held = features(n, classes, device), features(5000, classes, device, seed=2)
    network = nn.Linear(D, classes).to(device)
    made = {}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = synchronized(device)
    posterior = GIVEN.posterior(network, data)
    made["seconds at given numbers"] = synchronized(device) - start
    if search:
        start = synchronized(device)
        method = st.InfiniteWidth(geometry="polar", per_column=False, n_inducing=M)
        posterior = method.posterior(network, data, validation=held)
        made["seconds with the search"] = synchronized(device) - start
    if device == "cuda":
        made["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    pred = st.predict(posterior, held[0], batch_size=500)
    made["accuracy"] = (pred.predict() == held[1]).double().mean().item()
    return made


def predictions(device: str, rounds: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    network = resnet18(10).to(device).eval()
    x = torch.randn(IMAGES[device], 3, 32, 32, device=device)
    y = torch.arange(1500, device=device) % 10
    train = torch.randn(1500, 3, 32, 32, device=device)
    wide = GIVEN.posterior(network, (train, y))
    dropped = nn.Sequential(*list(network)[:-1], nn.Dropout(0.2), network[-1]).eval()
    jobs: dict[str, Callable[[], object]] = {
        "one pass": lambda: network(x),
        "infinite width": lambda: st.predict(wide, x),
        "dropout, 100 samples": lambda: st.predict(dropped, x, st.MCDropout(100)),
    }
    if find_spec("laplace"):
        laplace = st.Laplace().posterior(network, (train, y))
        jobs["Laplace, last layer"] = lambda: st.predict(laplace, x)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with torch.no_grad():
        for _ in range(rounds + 1):
            for name, job in jobs.items():
                start = synchronized(device)
                job()
                times[name].append(synchronized(device) - start)
    passes = times["one pass"][1:]
    return {
        name: {
            "ratio": median(a / b for a, b in zip(seconds[1:], passes, strict=True)),
            "ms": 1000 * median(seconds[1:]),
        }
        for name, seconds in times.items()
    }


def spent(device: str) -> float:
    """Seconds that this process has computed, which on a busy CPU say more than those that have passed."""
    return synchronized(device) if device == "cuda" else time.process_time()


def passes(device: str, rounds: int, n: int = 5000) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    network, x = resnet18(10).to(device).eval(), torch.randn(IMAGES[device], 3, 32, 32, device=device)
    times = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = spent(device)
            network(x)
            times.append(spent(device) - start)
    whole = median(times[1:]) * n / len(x)
    made = {"one pass": {"seconds": whole}}
    for classes, m in ((5, 2000), (10, 1000), (100, 1000), (150, 1000)):
        data, layer = features(n, classes, device), nn.Sequential(nn.Identity(), nn.Linear(D, classes)).to(device)
        methods: dict[str, st.Method] = {"infinite width": replace(GIVEN, n_inducing=m)}
        if find_spec("laplace"):
            methods["Laplace, last layer"] = st.Laplace()
        for name, method in methods.items():
            method.posterior(layer, (data[0][:200], data[1][:200]))  # the first fit imports and starts libraries
            start = spent(device)
            method.posterior(layer, data)
            seconds = spent(device) - start
            made[f"{name}, {classes} classes, M = {m}"] = {"seconds": seconds, "passes": seconds / whole}
    return made


def product_rate(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations a second in the product of two large matrices."""
    size = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(6):
        start = synchronized(device)
        a @ b
        times.append(synchronized(device) - start)
    return 2 * size**3 / median(times[1:])


# Operations, beyond the products that PyTorch counts, by the shapes of matrices that may be stacked.
aten = torch.ops.aten
SOLVES: dict[Any, Callable[..., float]] = {
    aten.linalg_solve_triangular: lambda a, b, *_, **__: math.prod(b) * a[-1],
    aten.cholesky_solve: lambda b, a, *_, **__: 2 * math.prod(b) * a[-1],
    aten.linalg_cholesky_ex: lambda a, *_, **__: math.prod(a) * a[-1] / 3,
    aten.cholesky_inverse: lambda a, *_, **__: math.prod(a) * a[-1] * 2 / 3,
}


PARTS: dict[str, list[tuple[Any, str]]] = {  # the functions that do them
    "kernel matrix": [(_basis, "gram")],
    "solves": [
        *((torch.linalg, name) for name in ("solve_triangular", "cholesky", "cholesky_ex")),
        *((torch, name) for name in ("cholesky_solve", "cholesky_inverse")),
    ],
    "covariance": [(_basis, "_squared_lengths"), (_classes, "outer"), (_values, "outer")],
    "probabilities": [(posterior, "of_classes")],
}


def split(device: str, job: Callable[[], object], rate: float) -> dict[str, float]:
    """The share of a job's time that each part takes, and the part's own share of the rate of large products."""
    seconds, operations = defaultdict[str, float](float), defaultdict[str, float](float)
    with FlopCounterMode(display=False, custom_mapping=SOLVES) as counter, ExitStack() as patches:

        def timed(part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            start, before = synchronized(device), counter.get_total_flops()
            result = function(*args, **kwargs)
            seconds[part] += synchronized(device) - start
            operations[part] += counter.get_total_flops() - before
            return result

        for part, functions in PARTS.items():
            for owner, name in functions:
                patches.enter_context(patch.object(owner, name, partial(timed, part, getattr(owner, name))))
        start = synchronized(device)
        job()
        whole = synchronized(device) - start
    made: dict[str, float] = {}
    for part, taken in seconds.items():
        made |= {f"{part}, of the time": taken / whole}
        made |= {f"{part}, share": operations[part] / rate / taken} if operations[part] else {}
    return made


def rates(
    device: str, n: int = 25_000, m: int = 2000, classes: int = 5, rounds: int = 3
) -> dict[str, dict[str, float]]:
    """Seconds of a fit at given numbers and of 10,000 predictions after a first one, and the linear algebra in them.

    That is matrix products, as PyTorch counts them, triangular solves and factorisations. Its share is the time that as
    many operations take in large products in float64, the dtype of the fit, over the whole time. One more run, which
    waits after each part, says what kernel matrix, solves, covariance and the integrals of probabilities have of it.
    """
    method = replace(GIVEN, n_inducing=m)
    data, (x, _) = features(n, classes, device, width=1024), features(10_000, classes, device, seed=2, width=1024)
    network = nn.Linear(1024, classes).to(device)
    rate = product_rate(device, torch.float64)
    fitted = method.posterior(network, data)
    jobs: dict[str, Callable[[], object]] = {
        "fit": lambda: method.posterior(network, data),
        "10,000 predictions": lambda: st.predict(fitted, x),
    }
    made = {"large products": {"TFLOP/s": rate / 1e12}}
    for name, job in jobs.items():
        job()
        with FlopCounterMode(display=False, custom_mapping=SOLVES) as counter:
            job()
        times = []
        for _ in range(rounds):
            start = synchronized(device)
            job()
            times.append(synchronized(device) - start)
        seconds = median(times)
        made[name] = {"seconds": seconds, "share": counter.get_total_flops() / rate / seconds}
        made[name] |= split(device, job, rate)
    return made


def probability_errors() -> dict[str, dict[str, float]]:
    """The distance to 10^5 samples, whose own standard error is stored beside it."""
    errors = {}
    generator = torch.Generator().manual_seed(0)
    for classes in (2, 3, 10, 100):
        mean = 4 * torch.randn(50, classes, generator=generator, dtype=torch.float64)
        variance = 20 * torch.rand(50, generator=generator, dtype=torch.float64)
        pred = st.Categorical.from_isotropic(mean, variance)
        total, squares = torch.zeros_like(mean), torch.zeros_like(mean)
        for _ in range(100):
            noise = torch.randn(1000, *mean.shape, generator=generator, dtype=torch.float64)
            p = (mean + variance.sqrt()[:, None] * noise).softmax(-1)
            total, squares = total + p.sum(0), squares + p.square().sum(0)
        sampled = total / 10**5
        spread = ((squares / 10**5 - sampled.square()).clamp(min=0) / 10**5).sqrt()
        probit = F.softmax(mean / (1 + math.pi / 8 * variance[:, None]).sqrt(), -1)
        errors[f"{classes} classes"] = {
            "largest": (pred.probs - sampled).abs().max().item(),
            "mean": (pred.probs - sampled).abs().mean().item(),
            "standard error of the samples, mean": spread.mean().item(),
            "moderated softmax, largest": (probit - sampled).abs().max().item(),
        }
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="only parts with this in their name, such as prediction; the others stay")
    parser.add_argument("--note", help="what else the machine did meanwhile, where it was not quiet")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = arguments.device
    content: dict[str, Any] = {"command": "benchmarks/infinite_width.py"}
    if arguments.json and arguments.json.exists():
        content = json.loads(arguments.json.read_text())
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "prediction": lambda: predictions(device, arguments.rounds),
        "passes": lambda: passes(device, arguments.rounds),
        "probabilities": probability_errors,
        "rate": lambda: rates(device),
        f"fit, {arguments.rows} x {D}, 10 classes": lambda: {
            "infinite width": fits(device, arguments.rows, 10, search=True)
        },
    }
    if device == "cuda":
        parts[f"fit, 1000000 x {D}, 1000 classes"] = lambda: {"infinite width": fits(device, 10**6, 1000, search=False)}
    for part, measure in parts.items():
        if arguments.only and arguments.only not in part:
            continue
        note = {"note": arguments.note} if arguments.note else {}
        content[part] = {"environment": environment(device), **note, "rows": measure()}
        print(f"\n{part}")
        for name, row in content[part]["rows"].items():
            print(f"  {name:28}", "  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
        if arguments.json:
            write_json(arguments.json, content)


if __name__ == "__main__":
    main()
