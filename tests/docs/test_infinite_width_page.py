"""The numbers of infinite width on its page, and in its table on the page about UCI, are those of the stored runs."""

import csv
import json
import math
import re
from pathlib import Path

import torch

from stationary.theory import softmax

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results", (ROOT / "docs" / "infinite_width.md").read_text()


def stored(name):
    return json.loads((RESULTS / "benchmarks" / name).read_text())


def size():
    """The lines of the table of sizes."""
    cpu, gpu = stored("infinite_width-cpu.json"), stored("infinite_width-h200.json")
    small, large = "fit, 50000 x 512, 10 classes", "fit, 1000000 x 512, 1000 classes"
    fits = [device[small]["rows"]["infinite width"] for device in (cpu, gpu)]
    huge = gpu[large]["rows"]["infinite width"]
    ratios = {name: [f"{row['ratio']:.1f}" for row in rows] for name, rows in predictions(cpu, gpu).items()}
    given, search = ([fit[f"seconds {how}"] for fit in fits] for how in ("at given numbers", "with the search"))
    return [
        f"| fit, 50,000 rows, 10 classes, at given numbers | {given[0]:.0f} s | {given[1]:.2f} s |",
        f"| the same with the search | {search[0]:.0f} s | {search[1]:.1f} s |",
        f"| fit, 10^6 rows, 1000 classes, at given numbers | | {huge['seconds at given numbers']:.0f} s, "
        f"{huge['peak GiB']:.1f} GiB |",
        "| prediction, in passes of a ResNet-18 (100 images, 500 on the H200) | "
        + " | ".join(ratios["infinite width"]),
        f"| 100 dropout samples in front of its last layer | {' | '.join(ratios['dropout, 100 samples'])} |",
        f"| Laplace approximation of the last layer (laplace-torch) | {' | '.join(ratios['Laplace, last layer'])} |",
        f"On the H200 a pass takes {gpu['prediction']['rows']['one pass']['ms']:.0f} ms",
        f"{passes(cpu)} | {passes(gpu)} |",
    ]


def predictions(cpu, gpu):
    names = cpu["prediction"]["rows"]
    return {
        name: [d["prediction"]["rows"][name] for d in (cpu, gpu) if name in d["prediction"]["rows"]] for name in names
    }


def passes(device):
    """The end of the line about fits, in passes over as many images, of a device."""
    rows = device["passes"]["rows"]
    sizes = ((5, 2000), (10, 1000), (100, 1000), (150, 1000))
    of = lambda name: ", ".join(f"{rows[f'{name}, {c} classes, M = {m}']['passes']:.2f}" for c, m in sizes)
    return f"{of('infinite width')}; laplace-torch {of('Laplace, last layer')}"


def test_the_table_of_sizes_is_that_of_the_stored_runs():
    for line in size():
        assert line in PAGE


def test_what_trunks_hide_is_that_of_the_stored_runs():
    trunks = stored("hidden_length.json")["trunks"]
    mean = {name: trunk["mean"] for name, trunk in trunks.items()}
    far = [f"{mean[name]['entropy, 100 times']:.2f}" for name in ("ReLU", "ReLU, LayerNorm", "tanh")]
    assert all(len(trunk["seeds"]) == 5 for trunk in trunks.values())
    words = " ".join(PAGE.split())
    assert f"{far[0]} log 10 behind ReLU, but {far[1]} behind LayerNorm and {far[2]} behind tanh" in words
    near = sorted(f"{mean[name]['entropy, test']:.2f}" for name in mean)
    assert f"that of the digits themselves is {near[0]} to {near[-1]}" in words


def test_the_table_of_uci_is_that_of_the_summary():
    """Means and standard deviations over folds (ddof 0); the best of each column is bold."""
    with (RESULTS / "uci" / "summary.csv").open() as file:
        rows = {(r["dataset"], r["method"], r["metric"]): r for r in csv.DictReader(file) if r["prior"] == "matern52"}
    tables, methods = (
        ("diabetes", "adult", "connect-4", "covtype"),
        ("NN exact", "infinite width", "infinite width columns"),
    )
    page = (ROOT / "docs" / "uci.md").read_text()
    bold = lambda text, best: f"**{text}**" if best else text
    for method in methods:
        cells = []
        for table in tables:
            nlpd = [float(rows[table, m, "NLPD mean-probability"]["mean"]) for m in methods]
            accuracy = [float(rows[table, m, "ACC"]["mean"]) for m in methods]
            k = methods.index(method)
            spread = float(rows[table, method, "NLPD mean-probability"]["std"])
            cells.append(
                f"{bold(f'{nlpd[k]:.3f}', nlpd[k] == min(nlpd))} ± {spread:.3f}, "
                f"{bold(f'{accuracy[k]:.3f}', accuracy[k] == max(accuracy))}"
            )
        assert f"| {method} | {' | '.join(cells)} |" in page


def test_probabilities_are_as_near_to_samples_as_the_page_says():
    """Ten classes, outputs of means within about 9 and of variances from .1 to 100."""
    generator = torch.Generator().manual_seed(0)
    means, variances = 3 * torch.randn(1000, 10, generator=generator), torch.logspace(-1, 2, 20).repeat(50)
    noise, away, errors = torch.randn(10**5, 10, generator=generator), [], []
    probs = softmax.of_gaussian(means, variances).probabilities
    for mean, variance, found in zip(means[:20], variances, probs, strict=False):
        sampled = (mean + variance.sqrt() * noise).softmax(1)
        away.append((found - sampled.mean(0)).abs().mean())
        errors.append(sampled.std(0).mean() / len(noise) ** 0.5)
    shrunk = (means * (1 + math.pi / 8 * variances[:, None]).rsqrt()).softmax(1)
    numbers = torch.stack([torch.stack(away).mean(), torch.stack(errors).mean(), (shrunk - probs).abs().max()]).tolist()
    words = " ".join(PAGE.split())
    assert f"are {numbers[0]:.4f} away on average for ten classes, less than the samples' own standard error" in words
    assert numbers[0] < numbers[1] and f"is up to {numbers[2]:.2f} away" in words, numbers


def rows_of(heading):
    """The cells of the first table below a heading of the tables of the paper, without their spreads, by their name."""
    lines = (RESULTS / "paper" / "tables.md").read_text().split(f"## {heading}\n")[1].split("\n\n")[1].splitlines()[2:]
    cells = [[cell.split("±")[0].strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {name: [float(value) if value != "–" else None for value in values] for name, *values in cells}


def test_the_verdicts_are_those_of_the_tables():
    banana, gap, digits = map(rows_of, ("Banana (Fig. 1)", "Regression with a gap (Fig. 2)", "Unknown digits"))
    network, limit, trunk = (f"{name}, Matérn-5/2" for name in ("network", "infinite width", "infinite width, trunk"))
    near = [f"{accuracy:.4f} and {nlpd:.3f}" for accuracy, nlpd in (banana[name] for name in (limit, network, trunk))]
    far = [[f"{gap[name][k]:.0f}" for k in (1, 3)] for name in (limit, "GP, Matérn-5/2")]
    finite = [f"{gap[network][k]:.2f}" for k in (1, 3)]
    found = [
        f"{digits['Matérn-5/2, infinite width'][k]:.3f} instead of {digits['Matérn-5/2'][k]:.3f}" for k in (5, 3, 4, 1)
    ]
    words = " ".join(PAGE.split())
    for part in (
        f"an accuracy and an NLPD of {near[0]}, the network {near[1]}, but the limit behind the ReLU trunk {near[2]}",
        f"in the gap is {far[0][0]} times that at the data, far away {far[0][1]} times",
        f"process has {' and '.join(far[1])} and the network {' and '.join(finite)};",
        f"AUROC {found[0]}, and the standard deviation no longer fails, {found[1]};",
        f"but the entropy is worse, {found[2]}, and so is the NLPD, {found[3]}",
    ):
        assert part in words


def test_the_table_of_trunks_is_that_of_the_stored_run():
    tables = stored("spectral.json")["tables"]
    text = (ROOT / "docs" / "howto" / "trunk.md").read_text()
    short = lambda value: f"{value:.3f}".removeprefix("0")
    for trunk in ("plain", "residual"):
        for bound in ("no bound", "stopped early", "bound 3", "bound 1"):
            cells = []
            for problem in ("banana", "digits"):
                head, limit = (
                    tables[f"{problem}, {trunk} trunk, {bound}, {answer}"]["mean"]
                    for answer in ("finite head", "infinite width")
                )
                for score in ("NLPD", "AUROC entropy", "AUROC mutual_information"):
                    cells.append(f"{short(head[score])} / {short(limit[score])}")
            assert f"| {trunk}, {bound} | {' | '.join(cells)} |" in text


def test_rays_of_trunks_are_those_of_the_tables():
    """The least uncertainty on circles around Banana, on both pages that tell of it."""
    table = (RESULTS / "paper" / "tables.md").read_text().split("The least total uncertainty on circles")[1]
    least = re.search(r"\| infinite width, trunk, Matérn-5/2 \| (\S+ ± \S+) \| 0.500 ", table)[1]
    gotchas = (ROOT / "docs" / "gotchas.md").read_text()
    assert f"Through a ReLU trunk it is {least} there, and 0.500 at radius 400" in " ".join(PAGE.split())
    assert f"On the features of a ReLU trunk the least is {least} there" in " ".join(gotchas.split())
