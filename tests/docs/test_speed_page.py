"""The page about speed has the numbers of the stored runs."""

import json
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "benchmarks"
NAMES = {
    "matern 1/2": "Matérn 1/2",
    "matern 3/2": "Matérn 3/2",
    "matern 5/2": "Matérn 5/2",
    "matern 2.2": "Matérn 2.2 (any nu)",
    "matern inf": "RBF",
    "sine": "sine",
    "cosine": "cosine",
    "sincos": "sine-cosine",
    "triangle wave": "triangle wave",
    "periodic ReLU": "periodic ReLU",
    "torch.compile 5/2": "torch.compile of the formula, 5/2",
    "naive eager 5/2": "the formula typed in eager mode, 5/2",
}


def stored(name):
    return json.loads((STORED / name).read_text())


def large():
    tables = [*stored("activations-h200.json")["tables"], *stored("activations-cpu.json")["tables"]]
    rows = []
    for key, name in NAMES.items():
        cells = [table["rows"].get(key) for table in tables]
        ratios = [f"{c['forward']:.2f} / {c['forward+backward']:.2f}" if c else "–" for c in cells]
        rows.append(f"| {name} | {' | '.join(ratios)} |")
    return rows


def dropout():
    cpu, gpu = stored("mc_dropout-cpu.json")["times"], stored("mc_dropout-h200.json")["times"]
    columns = [(cpu, "wall time"), (gpu, "gpu time"), (gpu, "wall time")]
    number = lambda ratio: f"{ratio:.2f}" if ratio < 20 else f"{ratio:.0f}"
    rows = []
    for name in cpu["2 classes, wall time"]:
        if name != "forward":
            ratios = [
                " / ".join(number(times[f"{c} classes, {kind}"][name]["ratio"]) for c in (2, 10))
                for times, kind in columns
            ]
            rows.append(f"| {name} | {' | '.join(ratios)} |")
    return rows


def lockstep():
    tables = stored("lockstep-h200.json")["tables"]
    names = {"covtype": "Covtype", "adult": "Adult", "connect-4": "Connect-4"}
    number = lambda seconds: f"{seconds:.1f}" if seconds > 1 else f"{seconds:.2f}"
    parts = ("training_s", "products_s", "bytes_s")
    return [f"| {name} | {' | '.join(number(tables[key][part]) for part in parts)} |" for key, name in names.items()]


def estimators():
    """Median ratios of the times over the tables, and on how many the NLPD is at most that of MLP."""
    tables = stored("estimators.json")["tables"].values()
    ratio = lambda name, key, of=None: median(rows[name][key] / rows["MLP"][of or key] for rows in tables)
    rows = []
    for name in [name for name in next(iter(tables)) if name != "MLP"]:
        better = sum(rows[name]["nlpd"] <= rows["MLP"]["nlpd"] for rows in tables)
        times = (
            f"{ratio(name, 'fit_s'):.1f} | {ratio(name, 'predict_s'):.1f} | {ratio(name, 'bare_s', 'predict_s'):.1f}"
        )
        rows.append(f"| {name} | {times} | {better} of {len(tables)} |")
    return rows


def kernels():
    rows = []
    for name, row in stored("kernels-cpu.json")["rows"].items():
        shown = name.replace("matern", "Matérn").replace("gaussian", "Gaussian")
        errors = f"{row['exact_error']:.0e} | {row['monte_carlo_error']:.0e}"
        rows.append(f"| {shown} | {row['matrix']:.2f} | {row['gradient']:.2f} | {errors} |")
    return rows


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("speed.md", large),
        ("howto/dropout.md", dropout),
        ("speed.md", lockstep),
        ("speed.md", kernels),
        ("speed.md", estimators),
    ],
)
def test_tables_are_those_of_the_stored_runs(page, rows):
    text = (ROOT / "docs" / page).read_text()
    for row in rows():
        assert row in text


def test_sentences_about_sizes_are_those_of_the_stored_runs():
    """The largest ratios to GELU: from 1 to 10^6 elements on the GPU; at 1 and from 100 to 10^6 on a CPU core.

    And those of two threads, and without C.
    """

    def worst(run, task, sizes, curve=0):
        points = stored(run)["curves"][curve]["points"]
        ours = [r for p in points if p["task"] == task and p["size"] in sizes for n, r in p["ratios"].items()]
        return f"{max(ours):.1f}"

    small, text = range(1, 10**6 + 1), (ROOT / "docs" / "speed.md").read_text()
    gpu = [worst("activation_sizes-h200.json", task, small) for task in ("forward", "forward+backward")]
    assert f"at most {gpu[0]} times as long as GELU forward, and {gpu[1]} times forward and backward" in text
    one = [worst("activation_sizes-cpu.json", task, [1]) for task in ("forward", "forward+backward")]
    more = [worst("activation_sizes-cpu.json", task, small[99:]) for task in ("forward", "forward+backward")]
    assert f"{one[0]} and {one[1]} times at a single element" in text
    assert f"at most {more[0]} and {more[1]} times from 100 to 10⁶" in text
    tasks = ("forward", "forward+backward")
    without = [worst("activation_sizes-cpu.json", task, [size], 2) for task in tasks for size in (1, 10**6)]
    assert f"up to {without[0]} times as long as GELU forward at one element and {without[1]} times at 10⁶" in text
    assert f"{without[2]} and\n{without[3]} times with the backward pass" in text
    threads = [worst("activation_sizes-cpu.json", task, small[99:], 1) for task in tasks]
    assert f"with two threads {threads[0]} and {threads[1]} times" in text


def test_sentences_about_the_start_and_the_floor_are_those_of_the_stored_runs():
    text = (ROOT / "docs" / "speed.md").read_text()
    start = [stored("startup.json")["rows"][name]["cpu_s"] for name in ("--help", "list")]
    assert f"takes {start[0]:.2f} s of processor time and `stationary list` {start[1]:.2f} s" in text
    covtype = stored("lockstep-h200.json")["tables"]["covtype"]
    assert f"a floor of {covtype['products_s'] + covtype['bytes_s']:.1f} s for Covtype" in text
    memory = {row["peak_memory"] for name, row in large_rows().items() if name in NAMES and "naive" not in name}
    assert {f"{ratio:.2f}" for ratio in memory} == {"1.00"}


def large_rows():
    return stored("activations-h200.json")["tables"][0]["rows"]


THREADS = {"all_to_one": ".2", "all_to_one_beside_a_busy_process": ".1"}


def test_sentences_about_estimators_are_those_of_the_stored_run():
    run, text = stored("estimators.json"), " ".join((ROOT / "docs" / "speed.md").read_text().split())
    finite, limit = (run["processes"][name] for name in ("finite, 300 units", "infinite width"))
    more = [f"{abs(part['first_s'] - part['second_s']):.1f} s" for part in (finite, limit)]
    assert f"fit of a finite network in a process differ by {more[0]}, of infinite width by {more[1]}" in text
    busy = [f"{part['beside_a_busy_process']:.1f}" for part in (finite, limit)]
    assert f"takes {busy[0]} times as long to fit, infinite width {busy[1]} times" in text
    assert f"each fitted {'once' if run['rounds'] == 1 else run['rounds']}" in text
    threads = [f"{run['threads'][key]:{digits}f}" for key, digits in THREADS.items()]
    said = f"of a finite network takes {threads[0]} times as long, and {threads[1]} times beside"
    assert f"With all threads a prediction {said}" in text
    of_values = [rows for name, rows in run["tables"].items() if name.startswith("friedman")]
    finite = [
        rows[f"finite, {n} units"]["predict_s"] / rows["MLP"]["predict_s"] for rows in of_values for n in (100, 300)
    ]
    assert f"takes {min(finite):.1f} to {max(finite):.1f} times with finite networks" in text
    here, there = (
        {name: rows["infinite width"]["fit_s"] / rows["MLP"]["fit_s"] for name, rows in stored(file)["tables"].items()}
        for file in ("estimators.json", "estimators-16-cores.json")
    )
    assert f"from {min(here.values()):.1f} on friedman2 to {max(here.values()):.0f} on digits" in text
    assert min(here, key=lambda name: here[name]) == "friedman2" and max(here, key=lambda name: here[name]) == "digits"
    assert f"of an Intel Xeon the median is {median(there.values()):.1f}." in text


def test_numbers_of_infinite_width_are_those_of_the_stored_runs():
    cpu, gpu = (stored(f"infinite_width-{device}.json")["rate"]["rows"] for device in ("cpu", "h200"))
    share = lambda rows: [f"{100 * rows[name]['share']:.0f} %" for name in ("fit", "10,000 predictions")]
    text = " ".join((ROOT / "docs" / "speed.md").read_text().split())
    assert f"run at {' and '.join(share(cpu))} of the rate" in text
    assert f"{gpu['fit']['seconds']:.2f} s and {1000 * gpu['10,000 predictions']['seconds']:.0f} ms" in text
    assert f"at {' and '.join(share(gpu))}:" in text
    fit, prediction = gpu["fit"], gpu["10,000 predictions"]
    covariance = [f"{100 * part['covariance, share']:.0f} %" for part in (fit, prediction)]
    assert f"products with the covariance run at {' and '.join(covariance)} of that rate" in text
    assert f"but {100 * prediction['probabilities, of the time']:.0f} % of a prediction's time" in text
    products = sum(fit[f"{part}, of the time"] for part in ("kernel matrix", "covariance"))
    said = f"of a fit's time {100 * fit['solves, of the time']:.0f} % are factorisations and solves"
    assert f"{said}, {100 * products:.0f} % products" in text
