import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import ModuleType
from typing import Literal

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from stationary.lab.cli import app as cli
from stationary.lab.cli import console, progress
from stationary.lab.cli import data as cli_data
from stationary.lab.cli import select as selection
from stationary.lab.cli.options import Scale
from stationary.lab.data import cifar10
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.base import Experiment
from stationary.lab.experiments.cifar10 import trunk
from stationary.lab.report.content import Section
from stationary.lab.runs.store import RunStore
from stationary.lab.runs.units import Outcome, Task

REAL = tuple(EXPERIMENTS)  # the experiments that there are, without those that a test adds


@dataclass(frozen=True)
class Config:
    seed: int = 0
    rate: float = 0.1
    name: str = "x"
    deep: bool = False
    widths: tuple[int, ...] = (10, 20)
    pair: tuple[str, float] = ("a", 1.0)
    limit: int | None = None
    kind: Literal["gp", "network"] = "gp"
    grid: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self):
        if self.rate <= 0:
            raise ValueError(f"rate must be positive, got {self.rate}")


@pytest.fixture
def fakes(monkeypatch):
    """Two experiments instead of the real ones: ``good`` has two configurations; ``bad`` fails at its second."""
    modules = {}
    for name in ("good", "bad"):
        module = modules[name] = ModuleType(name)
        module.TITLE, module.VERSION, module.Config, module.LOCKSTEP = f"The {name} one", 1, Config, None
        module.REPRODUCES, module.DURATION = "Fig. 0", {"smoke": "no time", "demo": "", "paper": ""}
        module.configs = lambda scale: [
            Config(seed) for seed in {"smoke": (0, 1), "demo": (1, 2), "paper": (5,)}[scale]
        ]
        module.run = run_bad if name == "bad" else run_good
        module.report = report_of
        as_experiment(module, monkeypatch)
    return modules


@pytest.fixture(autouse=True)
def _the_real_experiments_come_back():
    before = dict(EXPERIMENTS)
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(before)


def as_experiment(module, monkeypatch):
    """One module as all three files of an experiment, which the command line then knows."""
    for file in ("config", "run", "report"):
        monkeypatch.setitem(sys.modules, f"{module.__name__}.{file}", module)
    for real in REAL:
        EXPERIMENTS.pop(real, None)
    EXPERIMENTS[module.__name__] = Experiment(module.__name__)


def run_good(config, device):
    return {"seed": np.array(config.seed)}


def run_bad(config, device):
    if config.seed == 1:
        raise ValueError("one is bad")
    return {"seed": np.array(config.seed)}


def report_of(results):
    figure = Figure()
    figure.subplots().plot([0, 1])
    seeds = [int(arrays["seed"]) for _, arrays in results]
    return Section("Fake section", "it shows", f"seeds {seeds}", {"a_figure": figure}, {"a_figure": "A line"})


@pytest.fixture
def run(tmp_path, tmp_path_factory, monkeypatch):
    """Run the command line, with its folder in tmp_path, and a cache of its own."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path_factory.mktemp("cache")))

    def invoke(command, *arguments):
        out = () if command in ("data", "trunk") or "--help" in arguments else ("--out", str(tmp_path))
        result = CliRunner().invoke(cli.app, [command, *arguments, *out])
        assert "\x1b" not in result.output, "no escape codes in a pipe"
        return result

    return invoke


def lines(result):
    return result.output.splitlines()


def words(result):
    return " ".join(result.output.replace("│", " ").split())


# run


def test_run_again_reuses_and_names_the_next_step(run, fakes, tmp_path):
    first = run("run", "good", "--scale", "smoke")
    assert first.exit_code == 0, first.output
    assert lines(first)[0].startswith("1/2 good seed=0 done in ") and lines(first)[0].endswith(" left")
    assert lines(first)[1].startswith("2/2 good seed=1 done in ")
    assert lines(first)[2] == "2 done, 0 reused, 0 failed"
    assert lines(first)[3] == f"next: stationary report good --scale smoke --out {tmp_path}"
    second = run("run", "good")
    assert "1/2 good seed=1 reused" in second.output and "1 done, 1 reused" in second.output


def test_the_time_left_is_said_of_what_is_known(run, fakes):
    said = lines(run("run", "good", "bad", "--scale", "demo"))
    assert said[0].endswith(" left of good"), "nothing is known of bad yet"
    assert said[1].startswith("2/4 good seed=2 done in") and "left" not in said[1]
    assert "left" not in said[2], "bad failed, and took no time that says anything"
    again = lines(run("run", "good", "bad", "--scale", "smoke"))
    assert again[0] == "1/4 good seed=1 reused", "of the rest some may be reused as well"
    assert again[2].startswith("3/4 bad seed=0 done in") and again[2].endswith(" left")


def test_a_failure_is_shown_at_the_end_and_the_others_run(run, fakes, tmp_path):
    result = run("run", "--scale", "smoke")
    assert result.exit_code == 1
    assert "3 done, 0 reused, 1 failed" in result.output
    assert "bad seed=1 failed" in result.output and "ValueError: one is bad" in result.output
    status = run("status")
    assert lines(status)[0] == "experiment\tscale\tdone\trunning\tfailed\tmissing\tcorrupt"
    assert "bad\tsmoke\t1\t0\t1\t0\t0" in lines(status) and "good\tsmoke\t2\t0\t0\t0\t0" in lines(status)
    assert "good\tdemo\t1\t0\t0\t1\t0" in lines(status), "seed 1 is in both"
    path = RunStore(tmp_path / "runs").folder("bad", 1, Config(1)) / "error.txt"
    assert lines(status)[-1] == f"looked in {tmp_path / 'runs'}"
    assert lines(status)[-2] == f"bad smoke seed=1 failed, {path}: ValueError: one is bad", "once, though in two scales"


def test_ctrl_c_then_again_continues(run, fakes, monkeypatch):
    def interrupted(config, device):
        if config.seed == 1:
            raise KeyboardInterrupt
        return run_good(config, device)

    monkeypatch.setattr(fakes["good"], "run", interrupted)
    stopped = run("run", "good", "--scale", "smoke")
    assert stopped.exit_code == 1 and "Run the same command again to continue." in stopped.output
    monkeypatch.setattr(fakes["good"], "run", run_good)
    assert "1 done, 1 reused, 0 failed" in run("run", "good", "--scale", "smoke").output


def test_a_corrupt_result_is_reported_set_aside_and_run_again(run, fakes, tmp_path):
    run("run", "good", "--scale", "smoke")
    path = RunStore(tmp_path / "runs").folder("good", 1, Config(0)) / "result.npz"
    path.write_bytes(b"?")
    assert "good\tsmoke\t1\t0\t0\t0\t1" in lines(run("status"))
    report = run("report", "good", "--scale", "smoke")
    assert report.exit_code == 0 and f"{path}: cannot be read" in report.output and path.read_bytes() == b"?"
    again = run("run", "good", "--scale", "smoke")
    assert again.exit_code == 0 and "result.npz.corrupt-1, and run again" in again.output


def test_on_a_terminal_there_is_a_bar_with_the_time_left(fakes, monkeypatch, tmp_path):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=120))
    result = CliRunner().invoke(cli.app, ["run", "good", "--scale", "smoke", "--out", str(tmp_path)])
    assert result.exit_code == 0 and "1/2" not in result.output
    assert "2/2" in screen.getvalue() and "good takes no time" in screen.getvalue()


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("seed=7", "seed", 7),
        ("rate=1e-3", "rate", 1e-3),
        ("rate=inf", "rate", float("inf")),
        ("name=a=b", "name", "a=b"),
        ("deep=true", "deep", True),
        ("widths=1,2,3", "widths", (1, 2, 3)),
        ("widths=", "widths", ()),
        ("pair=b,2", "pair", ("b", 2.0)),
        ("limit=3", "limit", 3),
        ("limit=none", "limit", None),
        ("kind=network", "kind", "network"),
    ],
)
def test_set_changes_every_configuration(fakes, setting, field, value):
    configs = selection.changed(Experiment("good"), [Config(0), Config(1)], [setting])
    assert [getattr(config, field) for config in configs] == [value] * len(configs)
    assert len(configs) == (1 if field == "seed" else 2), "configurations that become equal are one"
    assert type(getattr(configs[0], field)) is type(value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sed=7", "with a setting of good, which are seed: int, rate: float, name: str"),
        ("seed", "--set takes KEY=VALUE"),
        ("seed=1.5", "--set seed=1.5: seed of good must be int; got '1.5'"),
        ("seed=", "seed of good must be int; got ''"),
        ("deep=1", "deep of good must be bool; got '1'"),
        ("widths=1,x", "widths of good must be tuple[int, ...]; got '1,x'"),
        ("pair=a", "pair of good must be tuple[str, float]; got 'a'"),
        ("limit=x", "limit of good must be int | None; got 'x'"),
        ("kind=tree", "kind of good must be Literal['gp', 'network']; got 'tree'"),
        ("grid=1,2", "grid of good must be tuple[tuple[int, ...], ...]"),
        ("rate=-1", "rate must be positive, got -1.0"),
    ],
)
def test_set_rejects(run, fakes, setting, message):
    result = run("run", "good", "--set", setting)
    assert result.exit_code == 2
    assert message in words(result)


def test_set_stores_beside_and_reports_alone(run, fakes, tmp_path):
    result = run("run", "good", "--scale", "smoke", "--set", "seed=7")
    assert "--scale smoke --out" in result.output and "--set seed=7" in result.output
    assert "good: 1 more finished, of other settings or versions" in lines(run("status", "good"))
    assert run("report", "good", "--scale", "smoke", "--set", "seed=7").exit_code == 0
    assert "seeds [7]" in (tmp_path / "report-good-seed-7.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "bananna"), "there is no experiment bananna; did you mean banana?"),
        (("status", "xyz"), "there is no experiment xyz; use far_from_data, banana"),
        (("run", "--scale", "big"), "'big' is not one of 'smoke', 'demo', 'paper'"),
        (("run", "--jobs", "0"), "'--jobs'"),
        (("run", "--address", "auto"), "address must be None for the engine local"),
        (("run", "--engine", "ray", "--jobs", "2"), "jobs must be 1 for the engine ray"),
        (("run", "--device", "cuda"), "PyTorch finds no GPU here"),
        (("run", "--data-dir", "no/such/folder"), "'no/such/folder' does not exist"),
        (("report", "--format", "pdf"), "'pdf' is not one of 'html', 'md', 'latex'"),
    ],
)
def test_bad_arguments(run, arguments, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in words(result)


def test_without_ray_the_message_names_the_extra(run, fakes, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run("run", "good", "--engine", "ray")
    assert result.exit_code == 1 and "pip install 'stationary[ray]'" in result.output


@pytest.mark.parametrize("command", ["list", "run", "status", "report", "data", "trunk"])
def test_help_has_an_example(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0 and f"Example: stationary {command}" in words(result)


def test_the_data_folder_reaches_the_runs(run, fakes, tmp_path, monkeypatch):
    monkeypatch.setenv("STATIONARY_DATA", "before")  # and puts it back at the end
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    seen = []
    monkeypatch.setattr(fakes["good"], "run", lambda config, device: seen.append(os.environ["STATIONARY_DATA"]) or {})
    run("run", "good", "--scale", "paper")
    run("run", "good", "--data-dir", "mine")
    assert seen == ["before", *[str(tmp_path / "mine")] * 2], "absolute, since workers may start elsewhere"


def test_errors_of_those_that_fail_together_are_shown_once(run, fakes, monkeypatch, tmp_path):
    def fails(config, device):
        raise ValueError("both are bad")

    monkeypatch.setattr(fakes["bad"], "run", fails)
    result = run("run", "bad", "--scale", "smoke")
    assert "0 done, 0 reused, 2 failed" in result.output and result.output.count("ValueError: both") == 1
    assert all(f"bad seed={seed} failed; {tmp_path}" in result.output for seed in (0, 1))


def test_runs_in_lockstep_count_their_share_of_the_time(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    tasks = [Task(Experiment("parts"), Config(seed)) for seed in range(4)]
    watch = progress.Watch(tasks, {}, RunStore(tmp_path))
    watch.start = 0.0
    for task in tasks[:3]:
        watch.done(task, Outcome({}, {"wall_s": 90.0, "lockstep": 3}))
    assert capsys.readouterr().out.splitlines() == [
        "1/4 parts seed=0 done in 90 s, 3 in lockstep, about 90 s left",
        "2/4 parts seed=1 done in 90 s, 3 in lockstep, about 60 s left",
        "3/4 parts seed=2 done in 90 s, 3 in lockstep, about 30 s left",
    ]


# Experiments that cannot run here


@pytest.fixture
def lacking(fakes, monkeypatch):
    """``bad`` lacks something for other scales than smoke; how much it was asked about, and in which data folder."""
    asked, small = [], fakes["bad"].configs("smoke")

    def missing(configs):
        asked.append((len(configs), os.environ.get("STATIONARY_DATA")))
        return None if all(config in small for config in configs) else "no images; get images"

    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    fakes["bad"].missing, fakes["bad"].run = missing, run_good
    return asked


@pytest.mark.parametrize(
    ("options", "left_out", "done"),
    [((), "bad: 1 of 2 runs are left out", 3), (("--scale", "paper"), "bad is left out", 1)],
)
def test_without_names_what_cannot_run_is_left_out_and_it_is_said_why(run, lacking, options, left_out, done):
    result = run("run", *options)
    assert result.exit_code == 0
    assert lines(result)[0] == f"{left_out}: no images; get images"
    assert f"{done} done, 0 reused, 0 failed, 1 left out" in result.output


def test_several_reasons_are_told_where_the_experiment_is_named(run, lacking, fakes, tmp_path):
    fakes["bad"].missing = lambda configs: f"no images of {configs[0].seed}"
    told = f"`stationary run bad --scale demo --out {tmp_path}` names them"
    everything = run("run", "--scale", "demo")
    assert lines(everything)[0] == f"bad is left out: 2 libraries or data sets are not here; {told}"
    named = run("run", "bad", "--scale", "demo")
    assert lines(named) == ["bad cannot run: no images of 1", "bad cannot run: no images of 2"]


def test_what_can_run_at_this_scale_runs(run, lacking):
    everything = run("run", "--scale", "smoke")
    assert "4 done, 0 reused, 0 failed" in everything.output and "left out" not in everything.output


def test_of_what_is_named_only_what_cannot_run_is_left_out(run, lacking):
    result = run("run", "bad")
    assert result.exit_code == 0 and lines(result)[0] == "bad: 1 of 2 runs are left out: no images; get images"
    assert lines(result)[1].startswith("1/1 bad done in ") and "1 done, 0 reused, 0 failed, 1 left out" in result.output


def test_what_is_named_and_cannot_run_is_an_error(run, lacking, tmp_path):
    named = run("run", "bad", "--scale", "paper")
    assert named.exit_code == 1 and lines(named) == ["bad cannot run: no images; get images"]
    assert not (tmp_path / "runs").exists()


def test_nothing_is_missing_for_what_has_run(run, lacking, fakes, tmp_path):
    missing = fakes["bad"].missing
    fakes["bad"].missing = lambda configs: None
    run("run", "bad")
    fakes["bad"].missing = missing
    again = run("run", "bad")
    assert again.exit_code == 0 and "0 done, 2 reused" in again.output and not lacking
    report = run("report")
    assert report.exit_code == 0 and "left out" not in report.output
    assert "seeds [1, 2]" in (tmp_path / "report.html").read_text()
    assert "bad\tdemo\t2\t0\t0\t0\t0" in lines(run("status"))


def test_what_is_missing_is_looked_for_in_the_data_folder(run, lacking, tmp_path, monkeypatch):
    monkeypatch.setenv("STATIONARY_DATA", "before")  # and puts it back at the end
    run("run", "--data-dir", str(tmp_path))
    assert {folder for _, folder in lacking} == {str(tmp_path)}


# Choices


@dataclass(frozen=True)
class Cell:
    dataset: str = "small"
    method: str = "nn"
    prior: str = "relu"
    epochs: int = 100


CELLS = {
    "smoke": [Cell("toy", epochs=1)],
    "demo": [Cell("small", "nn", epochs=10), Cell("small", "gp", epochs=10), Cell("large", "nn", epochs=10)],
    "paper": [
        Cell(data, method, prior)
        for data in ("small", "large")
        for method in ("nn", "gp", "swag")
        for prior in ("relu", "rbf")
        if (data, method) != ("large", "swag")
    ],
}


@pytest.fixture
def grid(fakes, monkeypatch):
    """A third experiment, with data sets, methods and priors."""
    module = fakes["grid"] = ModuleType("grid")
    module.TITLE, module.VERSION, module.Config, module.configs = "Grid", 1, Cell, CELLS.get
    module.run = lambda config, device: {"seed": np.array(config.epochs)}
    module.report, module.DURATION = report_of, {"smoke": "no time", "demo": "a moment", "paper": "a day"}
    module.REPRODUCES, module.LOCKSTEP = "Fig. 1", None
    as_experiment(module, monkeypatch)
    return Experiment("grid")


def chosen(grid, scale, *settings, **options):
    choices = selection.choices_from(**options)
    return selection.select({"grid": grid}, scale, choices, settings, strict=True)["grid"]


@pytest.mark.parametrize(
    ("scale", "choices", "of", "count"),
    [
        (None, {}, "demo", 3),
        ("demo", {}, "demo", 3),
        (None, {"dataset": ["small"]}, "demo", 2),
        (None, {"dataset": ["small", "large"]}, "demo", 3),
        (None, {"dataset": ["small"], "method": ["gp"]}, "demo", 1),
        (None, {"dataset": ["large,small"], "method": ["nn"]}, "demo", 2),
        (None, {"prior": ["rbf"]}, "paper", 5),  # demo has none of these
        (None, {"dataset": ["large"], "method": ["gp"]}, "paper", 2),  # demo has each, but not together
        (None, {"dataset": ["all"]}, "paper", 10),
        (None, {"dataset": ["small"], "method": ["all"], "prior": ["all"]}, "paper", 6),
        (None, {"dataset": ["large"], "method": ["all"]}, "paper", 4),
        ("smoke", {"dataset": ["toy"]}, "smoke", 1),  # which paper has not
        ("smoke", {"prior": ["all"]}, "smoke", 1),
        ("demo", {"dataset": ["all"]}, "demo", 3),
        ("paper", {"method": ["swag", "gp"], "prior": ["rbf"]}, "paper", 3),
    ],
)
def test_choices(grid, scale, choices, of, count):
    found = chosen(grid, scale, **choices)
    assert found.scale == of and len(found.configs) == count
    assert set(found.configs) <= set(CELLS[of])
    for key, texts in choices.items():
        wanted = {value for text in texts for value in text.split(",")}
        assert wanted == {"all"} or {getattr(config, key) for config in found.configs} == wanted


def test_choices_then_settings(grid):
    assert chosen(grid, None, "epochs=5", method=["gp"]).configs == [Cell("small", "gp", epochs=5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("grid", "--dataset", "smal,large"), "--dataset of grid must be all or among small, large; got smal"),
        (("grid", "--scale", "smoke", "--dataset", "x"), "must be all or among toy with --scale smoke; got x"),
        (("grid", "--scale", "smoke", "--dataset", "toy,small"), "among toy with --scale smoke; got small"),
        (("grid", "--scale", "demo", "--prior", "rbf"), "among relu with --scale demo; got rbf"),
        (("grid", "good", "--prior", "relu"), "--prior does not apply to good, whose configurations have no prior"),
        (
            ("grid", "--scale", "demo", "--dataset", "large", "--method", "gp"),
            "grid has no configuration with --dataset large together",
        ),
        (("--dataset", "smal"), "--dataset of grid must be all or among small, large; got smal"),
        (
            ("grid", "--dataset", "large", "--method", "swag"),
            "grid has no configuration with --dataset large together with the other choices; choose fewer at once",
        ),
    ],
)
def test_choices_that_do_not_fit(run, grid, arguments, message):
    for command in ("run", "report"):
        result = run(command, *arguments)
        assert result.exit_code == 2
        assert message in words(result)


def test_without_names_choices_leave_out_what_they_do_not_apply_to(run, grid, tmp_path):
    options = ("--dataset", "small", "--dataset", "large", "--method", "nn,gp", "--set", "epochs=3")
    result = run("run", *options)
    assert result.exit_code == 0, result.output
    assert "grid: the scale is paper, because demo, the usual one, lacks some of what was chosen" in result.output
    assert "8 done, 0 reused, 0 failed" in result.output and "good" not in result.output
    again = f"--out {tmp_path} --dataset small,large --method nn,gp --set epochs=3"
    assert lines(result)[-1] == f"next: stationary report {again}"
    report = run("report", *options)
    assert report.exit_code == 0 and "results are there" not in report.output
    assert f"seeds {[3] * 8}" in (tmp_path / "report-small-large-nn-gp-epochs-3.html").read_text()
    nothing = run("report", "grid", "--dataset", "small")
    assert nothing.exit_code == 1 and f"first: stationary run grid --out {tmp_path} --dataset small" in nothing.output


def test_the_time_that_is_said_is_that_of_the_scale(run, grid, monkeypatch):
    def fails(config, device):
        raise ValueError("so that no time is known")

    monkeypatch.setattr(grid.run, "run", fails)
    assert "grid takes a moment" in run("run", "grid", "--dataset", "small").output
    assert "grid takes a day" in run("run", "grid", "--dataset", "all").output


# list, status, report, data


def test_list_says_what_and_how_long(run, fakes):
    assert lines(run("list"))[:2] == ["experiment\treproduces\tsmoke\tdemo\tpaper", "good\tFig. 0\tno time\t\t"]
    run("run", "good", "--scale", "paper")
    assert lines(run("list"))[1].endswith(" here"), "measured"


def test_list_counts_time_in_lockstep_once(run, fakes, tmp_path):
    store = RunStore(tmp_path / "runs")
    for seed in (0, 1):
        store.save("good", 1, Config(seed), {}, {"wall_s": 80.0, "lockstep": 2})
    assert lines(run("list"))[1] == "good\tFig. 0\t80 s here\t\t"


def test_status_shows_what_is_running(run, fakes, tmp_path):
    store = RunStore(tmp_path / "runs")
    store.save_error("good", 1, Config(0), "ValueError: the last time")
    store.mark_running("good", 1, Config(0))
    there = {"host": "elsewhere", "pid": 1, "born": "1", "since": "2020-01-01T00:00:00+00:00"}
    store.mark_running("good", 1, Config(2)).write_text(json.dumps(there))
    store.mark_running("good", 1, Config(77))
    dead = store.mark_running("good", 1, Config(5))
    dead.write_text(dead.read_text().replace(str(os.getpid()), "0"))
    status = run("status", "good")
    assert lines(status)[1:5] == [
        "good\tsmoke\t0\t1\t0\t1\t0",
        "good\tdemo\t0\t1\t0\t1\t0",
        "good\tpaper\t0\t0\t0\t1\t0",
        "good: 1 more running, of other settings or versions",
    ]
    here, elsewhere = lines(status)[5:-1]
    assert here.startswith("good smoke seed=0 is running since 20") and f"process {os.getpid()} of " in here
    assert "cannot be seen" not in here
    assert elsewhere.startswith("good demo seed=2 is running since 2020-01-01T00:00:00+00:00 (")
    assert elsewhere.endswith(" h), process 1 of elsewhere; whether it still runs cannot be seen from here")


def test_on_a_terminal_tables_are_drawn(fakes, monkeypatch, tmp_path):
    screen = io.StringIO()
    monkeypatch.setattr(console, "Console", lambda: Console(file=screen, force_terminal=True, width=120))
    CliRunner().invoke(cli.app, ["list", "--out", str(tmp_path)])
    assert "┃" in screen.getvalue() and "Fig. 0" in screen.getvalue()


def test_status_reads_no_arrays(run, fakes, monkeypatch):
    run("run", "good", "--scale", "smoke")
    monkeypatch.setattr("numpy.load", lambda *_: pytest.fail("arrays are for run and report to read"))
    assert "good\tsmoke\t2\t0\t0\t0\t0" in lines(run("status"))


def test_status_names_what_is_foreign(run, fakes, tmp_path):
    (tmp_path / "runs" / "good" / "backup").mkdir(parents=True)
    (tmp_path / "runs" / "junk").mkdir()
    output = run("status").output
    assert "backup: is not the folder of a run" in output and "junk: is not the folder of an experiment" in output


def test_report_of_what_is_there(run, fakes, tmp_path, monkeypatch):
    nothing = run("report", "--scale", "smoke")
    assert nothing.exit_code == 1 and "first: stationary run --scale smoke" in nothing.output
    run("run", "--scale", "smoke")
    opened = []
    monkeypatch.setattr(cli.typer, "launch", opened.append)
    result = run("report", "--scale", "smoke", "--open")
    assert result.exit_code == 0, result.output
    assert "bad: 1 of 2 results are there" in result.output
    page = (tmp_path / "report.html").read_text()
    assert "seeds [0, 1]" in page and "seeds [0]" in page and "<svg" in page
    assert opened == [str(tmp_path / "report.html")]
    for kind in ("png", "svg"):
        assert (tmp_path / "figures" / f"a_figure.{kind}").exists()


def test_a_report_that_fails_altogether_says_no_more(run, fakes, monkeypatch):
    run("run", "good", "--scale", "smoke")
    monkeypatch.setattr(fakes["good"], "report", lambda results: 1 / 0)
    result = run("report", "good", "--scale", "smoke")
    assert result.exit_code == 1 and "ZeroDivisionError" in result.output
    assert "nothing to report" not in result.output, "for the results are there"


def test_report_without_a_scale_takes_what_is_there(run, fakes, tmp_path):
    nothing = run("report")
    assert nothing.exit_code == 1 and f"first: stationary run --out {tmp_path}" in nothing.output
    run("run", "good", "--scale", "paper")
    paper = run("report")
    assert paper.exit_code == 0 and "seeds [5]" in (tmp_path / "report.html").read_text()
    assert "good: the scale is paper, because there are no such results of demo, the usual one" in lines(paper)
    run("run", "good", "--scale", "demo")
    assert "the scale is" not in run("report").output and "seeds [1, 2]" in (tmp_path / "report.html").read_text()


def test_report_of_another_scale_names_the_one_that_is_there(run, fakes, tmp_path):
    run("run", "good", "--scale", "smoke", "--set", "seed=9")
    run("run", "good", "--scale", "paper")
    nothing = run("report", "--scale", "smoke")
    instead = f"stationary report --scale paper --out {tmp_path}"
    first = f"first: stationary run --scale smoke --out {tmp_path}"
    assert nothing.exit_code == 1
    assert f"{tmp_path} has nothing to report of the scale smoke, but of paper: {instead}; or {first}" in lines(nothing)
    assert "but of" not in run("report", "bad", "--scale", "smoke").output


def test_report_without_a_scale_takes_smoke_if_nothing_else_is_there(run, tmp_path):
    run("run", "covariance", "--scale", "smoke")
    report = run("report", "--format", "md")
    assert report.exit_code == 0 and "covariance: the scale is smoke" in report.output
    assert "Monte Carlo over 1,000 units" in (tmp_path / "report.md").read_text()


def test_numbers_of_a_selection_are_beside_those_of_all(run, grid, tmp_path, monkeypatch):
    section = replace(report_of([]), records=({"seed": 1},))
    monkeypatch.setattr(grid.report, "report", lambda results: section)
    run("run", "grid")
    run("report", "grid", "--format", "csv")
    run("report", "grid", "--format", "csv", "--dataset", "small")
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["grid-small.csv", "grid.csv"]


def test_report_of_a_name_is_added_to_the_full_one(run, fakes, tmp_path):
    run("run", "--scale", "demo")
    assert "report-good.html" in run("report", "good").output  # there is no full one yet
    run("report")
    full = (tmp_path / "report.html").read_text()
    assert "report.html and" in run("report", "good").output
    assert (tmp_path / "report.html").read_text() == full != (tmp_path / "report-good.html").read_text()
    run("run", "good", "--scale", "smoke")
    run("report", "good", "--scale", "smoke")
    added = (tmp_path / "report.html").read_text()
    assert re.findall(r'<section id="(\w+)"', added) == re.findall(r'<section id="(\w+)"', full)
    assert len(re.findall(r'<section id="(\w+)"', full)) > 1 and "Scale</b> smoke, demo" in added
    run("report", "good", "--set", "seed=0")
    assert (tmp_path / "report.html").read_text() == added, "some runs of an experiment are not all of them"


@pytest.mark.parametrize(("form", "name"), [("md", "report-good.md"), ("latex", "report-good.tex")])
def test_report_formats(run, fakes, tmp_path, form, name):
    run("run", "good", "--scale", "smoke")
    assert run("report", "good", "--scale", "smoke", "--format", form).exit_code == 0
    assert (tmp_path / name).exists() and not list(tmp_path.glob("*.html"))


def test_a_section_that_fails_leaves_the_others(run, fakes, tmp_path, monkeypatch):
    run("run", "--scale", "smoke")
    monkeypatch.setattr(fakes["bad"], "report", lambda results: 1 / 0)
    result = run("report", "--scale", "smoke")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.output and "seeds [0, 1]" in (tmp_path / "report.html").read_text()


def test_data_lists_the_bundled_tables(run):
    rows = [line.split("\t") for line in lines(run("data"))]
    assert rows[0] == ["file", "rows", "what", "source and licence"]
    names = ("banana", "diabetes", "adult", "connect-4", "hpobench-vehicle")
    assert [row[0] for row in rows[1:]] == [f"{name}.csv.xz" for name in names]
    assert all(len(row) == 4 for row in rows)


# trunk


@pytest.fixture
def train(run, monkeypatch, tmp_path, kept_each_epoch):
    """The command, with a small network, few images, and no GPU."""
    images, small = (
        cifar10.generated(1200, 50, seed=0),
        lambda n: nn.Sequential(nn.MaxPool2d(32), nn.Flatten(), nn.Linear(3, n)),
    )
    monkeypatch.setattr(cifar10, "load", lambda data_dir: images)
    monkeypatch.setattr(trunk, "train_trunk", partial(trunk.train_trunk, build=small))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return lambda setting, folder, *options: run("trunk", setting, "--to", str(tmp_path / folder), *options)


def stopping(monkeypatch, after):
    def stop(epoch, shown=cli_data._print_epoch):
        shown(epoch)
        if epoch["epoch"] == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_data, "_print_epoch", stop)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("setting", "n_classes"), [("paper", 10), ("strict", 5)])
def test_trunk_writes_weights_and_how_they_came_about(train, tmp_path, setting, n_classes):
    result = train(setting, "new/folder", "--epochs", "3", "--seed", "7")
    assert result.exit_code == 0, result.output
    folder, name = tmp_path / "new" / "folder", f"trunk-{n_classes}"
    assert names(folder) == [f"{name}.json", f"{name}.safetensors"], "the checkpoint is no longer needed"
    assert [line.split(",")[0] for line in lines(result)[:3]] == ["epoch 1", "epoch 2", "epoch 3"]
    assert lines(result)[4] == f"wrote {folder / name}.safetensors, and how it was trained beside it"
    about = json.loads((folder / f"{name}.json").read_text())
    assert about["recipe"] == asdict(trunk.TrunkRecipe(n_classes, epochs=3, seed=7)) and len(about["curve"]) == 3
    assert about["environment"]["device"] == "cpu" and about["environment"]["wall_s"] > 0
    last = about["curve"][-1]
    assert lines(result)[2] == f"epoch 3, loss {last['loss']:.4g}, test loss {last['test loss']:.4g}"
    assert lines(result)[3] == f"test accuracy {last['test accuracy']:.4g}"
    assert load_file(folder / f"{name}.safetensors")["2.bias"].shape == (n_classes,)


def test_trunk_continues_after_ctrl_c(train, tmp_path, monkeypatch):
    train("strict", "whole", "--epochs", "6")
    with monkeypatch.context() as patch:
        stopping(patch, after=2)
        stopped = train("strict", "a", "--epochs", "6")
    assert stopped.exit_code == 1 and lines(stopped)[-1].endswith("Run the same command again to continue.")
    assert names(tmp_path / "a") == ["trunk-5.safetensors.checkpoint"]
    again = train("strict", "a", "--epochs", "6")
    assert again.exit_code == 0 and lines(again)[:2] == lines(stopped)[:2], "what was reported is reported again"
    assert names(tmp_path / "a") == ["trunk-5.json", "trunk-5.safetensors"]
    a, whole = ((tmp_path / folder / "trunk-5.safetensors").read_bytes() for folder in ("a", "whole"))
    assert a == whole


def test_trunk_says_what_is_wrong(train, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopping(patch, after=1)
        train("paper", "a", "--epochs", "3")
    other = train("paper", "a", "--epochs", "5")
    path = tmp_path / "a" / "trunk-10.safetensors.checkpoint"
    assert (
        other.exit_code == 1
        and lines(other)[0].startswith(f"checkpoint {path} must belong to this training")
        and path.exists()
    )
    path.write_bytes(b"?")
    damaged = train("paper", "a", "--epochs", "3")
    assert damaged.exit_code == 1 and lines(damaged)[0].startswith(f"checkpoint {path} cannot be read")
    (tmp_path / "file").touch()
    nowhere = train("paper", "file", "--epochs", "3")
    assert nowhere.exit_code == 2 and "is a file; name a folder" in words(nowhere)
    for result in (other, damaged, nowhere):
        assert "Traceback" not in result.output and isinstance(result.exception, SystemExit)


def test_trunk_needs_the_images(train, tmp_path, monkeypatch):
    asked = []

    def load(data_dir):
        asked.append(data_dir)
        raise FileNotFoundError("no CIFAR-10 here")

    monkeypatch.setattr(cifar10, "load", load)
    result = train("paper", "a", "--data-dir", str(tmp_path))
    assert (result.exit_code, result.output, asked) == (1, "no CIFAR-10 here\n", [tmp_path])
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generated",), "'generated' is not one of 'paper', 'strict'"),
        (("paper", "--epochs", "0"), "'--epochs'"),
        (("paper", "--device", "cuda"), "PyTorch finds no GPU here"),
        (("paper", "--data-dir", "no/such/folder"), "'no/such/folder' does not exist"),
    ],
)
def test_bad_arguments_of_trunk(train, arguments, message):
    result = train(arguments[0], "a", *arguments[1:])
    assert result.exit_code == 2 and message in words(result)


# The real experiments


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_keeps_the_contract(name, tmp_path):
    experiment, store = EXPERIMENTS[name], RunStore(tmp_path)
    for scale in Scale:
        configs = experiment.config.configs(scale.value)
        assert configs == selection.changed(experiment, configs, []), "no configuration is there twice"
        assert len({store.folder(name, experiment.config.VERSION, config) for config in configs}) == len(configs)
    assert set(experiment.config.DURATION) == {scale.value for scale in Scale}


@pytest.mark.slow  # tests/lab/report/test_render.py sees the same figures within a page
@pytest.mark.chromium
def test_the_figure_renders_in_a_browser(run, tmp_path):
    """The SVG, opened as a reader would: the screenshot shows curves in at least three of the four colours."""
    import matplotlib.image

    run("run", "covariance", "--scale", "smoke")
    run("report", "covariance", "--scale", "smoke")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    screenshot = tmp_path / "screen.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={screenshot}", "--window-size=1000,400"]
    figure = tmp_path / "figures" / "covariance.svg"
    subprocess.run([*command, figure.as_uri()], check=True, capture_output=True, timeout=120)
    pixels = matplotlib.image.imread(screenshot)[..., :3]
    for color in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73), (0xCC, 0x79, 0xA7)):
        distance = abs(pixels - [c / 255 for c in color]).max(-1)
        assert (distance < 0.05).sum() > 50, f"colour {color} is missing"
