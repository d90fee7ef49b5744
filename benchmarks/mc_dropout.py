"""What uncertainty costs beyond one forward pass, as ratios in the same run; how exact it is; how much memory it takes.

    python benchmarks/mc_dropout.py                    # CPU
    python benchmarks/mc_dropout.py --device cuda
    python benchmarks/mc_dropout.py --json results/benchmarks/mc_dropout-cpu.json

The network is that of the paper's UCI benchmarks, d-1000-1000-500-50-c in float32, with 500 inputs. It is trained for
100 steps, since larger logits take more nodes. All statistics are included: probabilities, entropies, mutual
information, output mean and variance. Candidates run in turn, round after round, and each is compared with the forward
passes of its own rounds.

On the CPU it also measures ``predict_proba`` of the estimators, 1000 rows and 100 units, where the network itself takes
next to no time.
"""

import argparse
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits, make_classification, make_moons
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import stationary as st
from stationary.inference.base import Method
from stationary.lab.runs.provenance import environment
from stationary.lab.runs.store import write_json

BATCH = 500
Job = Callable[[], object]


@cache
def head_start() -> Tensor:
    return torch.empty(2**32, dtype=torch.uint8, device="cuda")


def gpu_seconds(job: Job) -> float:
    """Time on the GPU: queued behind about 2 ms of work, so that Python is ahead of it."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    head_start().zero_()
    head_start().zero_()
    start.record()
    job()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def wall_seconds(job: Job) -> float:
    started = time.perf_counter()
    job()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def naive(model: nn.Module, x: Tensor, n_samples: int) -> Tensor:
    """The usual loop: the whole network once for each sample, mean of the softmax."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        mean = torch.stack([model(x).softmax(-1) for _ in range(n_samples)]).mean(0)
    model.eval()
    return mean


def candidates(model: nn.Module, x: Tensor) -> dict[str, Job]:
    def forward() -> None:
        with torch.no_grad():
            model(x)

    methods: dict[str, Method] = {
        "MCDropout(100), shared masks": st.MCDropout(100),
        "MCDropout(100), a mask per input": st.MCDropout(100, shared_masks=False),
        "ExactDropout(approximate=True)": st.ExactDropout(approximate=True),
        "ExactDropout()": st.ExactDropout(),
        "ExactDropout(tolerance=1e-12)": st.ExactDropout(tolerance=1e-12),
    }

    def moments() -> None:
        st.predict(model, x, st.ExactDropout(), family=st.Gaussian)

    jobs: dict[str, Job] = {"forward": forward}
    jobs |= {name: partial(st.predict, model, x, method) for name, method in methods.items()}
    return jobs | {
        "ExactDropout(), mean and variance": moments,
        "naive loop, 100 samples": lambda: naive(model, x, 100),
    }


def time_all(c: int, device: str, rounds: int, clock: Callable[[Job], float]) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model, x = st.MLP(8, c).eval().to(device), torch.randn(BATCH, 8, device=device)
    y = (x.sin() @ torch.randn(8, c, device=device)).argmax(-1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.train()(x), y).backward()
        optimizer.step()
    return compare(candidates(model.eval(), x), rounds, clock, "forward")


def compare(jobs: dict[str, Job], rounds: int, clock: Callable[[Job], float], unit: str) -> dict[str, dict[str, float]]:
    """The median time of each job, and its ratio to the unit's in the same rounds."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    forwards: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(rounds + 3):
        for name, job in jobs.items():
            if name.startswith("naive") and round_ % 5:
                continue
            before, taken, after = clock(jobs[unit]), clock(job), clock(jobs[unit])
            if round_ >= 3:  # the first rounds warm up
                times[name].append(taken)
                forwards[name] += [before, after]
    return {
        name: {"ratio": median(times[name]) / median(forwards[name]), "ms": 1e3 * median(times[name])} for name in jobs
    }


def time_estimators(rounds: int) -> dict[str, dict[str, float]]:
    x, y = make_classification(2000, 20, n_informative=10, random_state=0)
    jobs: dict[str, Job] = {"MLPClassifier": partial(MLPClassifier().fit(x[:1000], y[:1000]).predict_proba, x[1000:])}
    for name, method in {
        "ExactDropout()": st.ExactDropout(),
        "ExactDropout(approximate=True)": st.ExactDropout(approximate=True),
        "ExactDropout(tolerance=1e-12)": st.ExactDropout(tolerance=1e-12),
        "Point()": st.Point(),
    }.items():
        estimator = st.StationaryClassifier((100,), method=method, random_state=0).fit(x[:1000], y[:1000])
        jobs[name] = partial(estimator.predict_proba, x[1000:])
    return compare(jobs, rounds, wall_seconds, "MLPClassifier")


# Memory


def peak_bytes(n_samples: int, device: str) -> int:
    """Peak of the tensors that a prediction for 20,000 inputs makes."""
    torch.manual_seed(0)
    model, x = st.MLP(8, 2).eval().to(device), torch.randn(20_000, 8, device=device)
    st.predict(model, x[:BATCH], st.MCDropout(10))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        st.predict(model, x, st.MCDropout(n_samples))
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        st.predict(model, x, st.MCDropout(n_samples))
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def memory(device: str) -> dict[str, float]:
    peaks = {str(n_samples): float(peak_bytes(n_samples, device)) for n_samples in (10, 1000)}
    return {**peaks, "ratio": peaks["1000"] / peaks["10"]}


# Accuracy


def accuracy(name: str) -> dict[str, dict[str, float]]:
    """Difference of probabilities to 100,000 masks, on a trained network; half of the inputs are random.

    Those masks' own error is that of a second set of them, over sqrt(2).
    """
    x, y = load_digits(return_X_y=True) if name == "digits" else make_moons(1000, noise=0.2, random_state=0)
    inputs, targets = torch.tensor(x / x.max(), dtype=torch.float32), torch.tensor(y)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = st.MLP(inputs.shape[1], int(y.max()) + 1, hidden=(100, 50), activation="matern32")
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(60):
            for rows in torch.randperm(1000).split(200):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        points = torch.cat([inputs[-500:], torch.rand(500, inputs.shape[1]) * 2 - 0.5])
    reference = st.predict(model, points, st.MCDropout(100_000, seed=1)).probs

    def errors(probs: Tensor) -> dict[str, float]:
        difference = (probs - reference).abs()
        return {"max": difference.max().item(), "mean": difference.mean().item()}

    rows = {}
    for label, method in (
        ("MCDropout(100000), other masks", st.MCDropout(100_000, seed=2)),
        ("ExactDropout()", st.ExactDropout()),
        ("ExactDropout(approximate=True)", st.ExactDropout(approximate=True)),
        ("MCDropout(100)", st.MCDropout(100)),
        ("MCDropout(1000)", st.MCDropout(1000)),
        ("no dropout", st.Point()),
    ):
        rows[label] = errors(st.predict(model, points, method).probs)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the numbers and the machine they came from here")
    arguments = parser.parse_args()
    clocks = {"gpu": gpu_seconds, "wall": wall_seconds} if arguments.device == "cuda" else {"wall": wall_seconds}
    times: dict[str, Any] = {}
    for c in (2, 10):
        for clock in clocks:
            times[f"{c} classes, {clock} time"] = time_all(c, arguments.device, arguments.rounds, clocks[clock])
    for title, rows in times.items():
        print(f"\n{title}, ratio to one forward pass of {BATCH} inputs (median of {arguments.rounds})")
        for name, row in rows.items():
            print(f"  {name:36}{row['ratio']:8.2f}{row['ms']:10.3f} ms")
    peaks = memory(arguments.device)
    print(f"\npeak memory, 20,000 inputs: 10 samples {peaks['10']:,.0f} bytes, 1000 samples {peaks['ratio']:.2f} times")
    content = {
        "command": "benchmarks/mc_dropout.py",
        "environment": environment(arguments.device),
        "batch": BATCH,
        "rounds": arguments.rounds,
        "times": times,
        "peak_bytes": peaks,
    }
    if arguments.device == "cpu":
        content["predict_proba"] = time_estimators(arguments.rounds)
        print("\npredict_proba of 1000 rows, 100 units, in ms")
        for name, row in content["predict_proba"].items():
            print(f"  {name:36}{row['ms']:10.2f}")
        content["error"] = {name: accuracy(name) for name in ("moons", "digits")}
        for name, rows in content["error"].items():
            print(f"\n{name}: |difference of probability| to 100,000 masks, largest and mean")
            for label, row in rows.items():
                print(f"  {label:36}{row['max']:10.1e}{row['mean']:10.1e}")
    if arguments.json:
        print(f"\nwrote {write_json(arguments.json, content)}")


if __name__ == "__main__":
    main()
