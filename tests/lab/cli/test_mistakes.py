"""A user's mistake gets a line that says what to do, never a traceback; and status says where it looked."""

import csv
import errno
import os
import tempfile

import pytest
from typer.testing import CliRunner

import stationary
from stationary.lab.cli import app as cli
from stationary.lab.cli import places, status
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.runs import store
from stationary.lab.runs.store import RunStore

SMOKE = ("covariance", "--scale", "smoke")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command in an empty folder, with a cache of its own."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *arguments: CliRunner().invoke(cli.app, list(map(str, arguments)))


def said(result):
    """What is printed, on one line, when the command ended by itself and not by an error of Python."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return " ".join(result.output.replace("│", " ").split())


def refuse(monkeypatch, number, name=""):
    """Let files whose name begins so be refused as the operating system does: a full disk when they are written."""
    make, sync, full = tempfile.mkstemp, os.fsync, set()

    def mkstemp(**options):
        refused = options["prefix"].startswith(f".{name}")
        if refused and number != errno.ENOSPC:
            raise OSError(number, os.strerror(number), f"{options['dir']}/{options['prefix']}x1y2z3")
        handle, path = make(**options)
        if refused:
            full.add(handle)
        return handle, path

    def fsync(handle):
        if handle in full:
            full.remove(handle)
            raise OSError(number, os.strerror(number))  # it names no file
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


def test_version(call):
    result = call("--version")
    assert result.exit_code == 0 and said(result) == f"stationary {stationary.__version__}"


@pytest.mark.parametrize("command", ["list", "run", "status", "report", "archive"])
def test_a_file_is_no_folder_for_results(call, command):
    with open("afile", "w"):
        pass
    result = call(command, "--out", "afile")
    assert result.exit_code == 2
    assert "'--out': afile is a file; name a folder" in said(result) and "first:" not in said(result)


def test_a_place_below_a_file_is_none(call):
    with open("afile", "w"):
        pass
    for command in (("run", *SMOKE), ("status",), ("report",), ("archive",)):
        result = call(*command, "--out", "afile/below/it")
        assert result.exit_code == 2 and "'--out': afile is a file; name a folder" in said(result), command
    for command in ("archive", ("trunk", "paper")):
        result = call(*((command,) if isinstance(command, str) else command), "--to", "afile/below")
        assert result.exit_code == 2 and "'--to': afile is a file; name a folder" in said(result), command


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="there is no place where nobody makes folders")
def test_a_place_where_no_folder_can_be_made(call):
    result = call("run", *SMOKE, "--out", "/proc/foo")
    assert result.exit_code == 1 and "/proc/foo/runs/covariance" in said(result)
    assert "no folder can be made there; choose a folder that you may read and write." in said(result)


def test_a_folder_that_cannot_be_read(call, monkeypatch):
    def unreadable(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(cli.Path, "exists", unreadable)
    result = call("status")
    assert result.exit_code == 1 and said(result).startswith("out/runs/")
    assert said(result).endswith(": Permission denied; choose a folder that you may read and write.")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Permission denied; choose a folder that you may read and write"),
        (errno.EROFS, "Read-only file system; choose a folder that you may read and write"),
        (errno.ENOSPC, "No space left on device; make room there, or choose a folder on another disk"),
    ],
)
def test_a_folder_that_takes_no_files(call, monkeypatch, number, advice):
    with monkeypatch.context() as patch:
        refuse(patch, number)
        result = call("run", *SMOKE)
    assert result.exit_code == 1 and advice in said(result) and "What is finished is kept." in said(result)
    assert "out/runs/covariance" in said(result) and ".json: " in said(result), "the file, not a temporary one"
    call("run", *SMOKE)
    for command in (("report", "covariance"), ("report", "covariance", "--format", "csv"), ("archive", "covariance")):
        with monkeypatch.context() as patch:
            refuse(patch, number)
            result = call(*command)
        assert result.exit_code == 1 and said(result).endswith(f"{advice}."), command
        assert "x1y2z3" not in said(result) and "covariance" in said(result), command


def test_a_disk_that_is_full_in_the_end_keeps_what_is_finished(call, monkeypatch):
    with monkeypatch.context() as patch:
        refuse(patch, errno.ENOSPC, store.RESULT)
        result = call("run", *SMOKE)
    assert result.exit_code == 1 and "What is finished is kept." in said(result)
    root = RunStore(cli.Path("out/runs")).root
    assert not list(root.rglob(store.RUNNING)) and not list(root.rglob(store.RESULT))
    assert "1 done, 0 reused" in said(call("run", *SMOKE))


def test_a_disk_that_is_full_inside_a_run_is_no_fault_of_the_run(call, monkeypatch):
    line = "checkpoint-0.npz: No space left on device; make room there, or choose a folder on another disk."
    with monkeypatch.context() as patch:
        refuse(patch, errno.ENOSPC, "checkpoint")
        result = call("run", "far_from_data", "--scale", "smoke")
    assert result.exit_code == 1 and f"{line} What is finished is kept." in said(result)
    root = RunStore(cli.Path("out/runs")).root
    assert "Traceback" not in said(result) and not [*root.rglob(store.ERROR), *root.rglob(store.RUNNING)]


def test_what_is_done_needs_no_folder_that_can_be_written(call, monkeypatch):
    def unlink(path, missing_ok=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    call("run", *SMOKE)
    with monkeypatch.context() as patch:
        refuse(patch, errno.EROFS)
        patch.setattr(cli.Path, "unlink", unlink)
        assert "0 done, 1 reused" in said(call("run", *SMOKE))


def test_nothing_to_archive_is_said(call):
    result = call("archive", "covariance")
    assert result.exit_code == 1 and said(result) == "nothing to archive in out; first: stationary run covariance"


def test_an_error_of_ours_is_not_hidden(call, monkeypatch):
    monkeypatch.setattr(status, "print_table", lambda *_: os.stat("no such file"))
    assert isinstance(call("list").exception, FileNotFoundError)


def test_settings_are_refused_before_anything_runs(call):
    result = call("run", "banana", "--set", "hidden=-3")
    assert result.exit_code == 2 and "hidden must be an integer of at least 1; got -3" in said(result)
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    ("experiment", "setting", "message"),
    [
        ("banana", "model=abc", "model must be one of network, gp, infinite width, infinite width, trunk; got 'abc'"),
        ("banana", "prior=abc", "prior of model='gp' must be one of step, relu, erf, rbf, matern52; got 'abc'"),
        ("banana", "prior=relu", "got 'relu'; --prior relu chooses the runs of banana that have it"),
        ("regression", "prior=step", "prior of model='gp' must be one of relu, rbf, matern52, matern32, matern12; got"),
        ("uci", "prior=relu", "prior of method='NN surrogate' must be one of step, matern12; got 'relu'"),
        ("radar", "prior=relu", "prior of method='infinite width' must be one of rbf"),
    ],
)
def test_a_name_that_nothing_has_is_refused_before_anything_runs(call, experiment, setting, message):
    result = call("run", experiment, "--scale", "smoke", "--set", setting)
    assert result.exit_code == 2 and message in said(result)
    assert not os.path.exists("out")


def test_status_says_where_it_looked_and_where_results_are(call, tmp_path):
    here = tmp_path / "here" / "out" / "runs"
    assert said(call("status")).endswith(f"looked in {here}, where no results are")
    call("run", *SMOKE, "--out", "there")
    there = tmp_path / "here" / "there"
    assert said(call("status")).endswith(
        f"looked in {here}, where no results are; results were last written to {there}: stationary status --out {there}"
    )
    assert said(call("status", "--out", "there")).endswith(f"looked in {there / 'runs'}")


def test_what_is_gone_is_not_said_to_be_there(call, tmp_path):
    places.remember(tmp_path / "gone")
    assert places.last() is None
    (tmp_path / "cache" / "last-out.txt").write_bytes(b"\xff\0")
    assert places.last() is None


def test_every_table_has_a_csv_file(call, tmp_path):
    """Those of the section, and the verdicts on top."""
    call("run", *SMOKE)
    assert call("report", "covariance", "--format", "csv").exit_code == 0
    experiment = EXPERIMENTS["covariance"]
    (config,) = experiment.config.configs("smoke")
    run = RunStore(cli.Path("out/runs")).load("covariance", experiment.config.VERSION, config)
    section = experiment.report.report([(config, run.arrays)])
    tables = section.tables
    assert tables and section.verdicts
    with open("out/verdicts-covariance.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["claim", "where", "found", "verdict"]
    assert rows == [[v.claim, v.where, v.found, "not decided"] for v in section.verdicts], "by runs of the scale smoke"
    for number, table in enumerate(tables, 1):
        lines = (tmp_path / "here" / "out" / f"covariance-table{number}.csv").read_text().splitlines()
        assert len(lines) == len(table.rows) + 1 and lines[0].split(",")[0] == table.columns[0]


def test_a_page_that_is_no_report_of_ours_is_not_replaced(call):
    call("run", *SMOKE)
    for name in ("report.html", "report-covariance.html"):
        with open(f"out/{name}", "wb") as file:
            file.write(b"my own \xff page")
        for names in ((), ("covariance",)):
            if names or name == "report.html":
                result = call("report", *names)
                assert result.exit_code == 1 and f"out/{name} is there and is no report of ours" in said(result)
        with open(f"out/{name}", "rb") as file:
            assert file.read() == b"my own \xff page"
        os.remove(f"out/{name}")
    assert call("report").exit_code == call("report").exit_code == 0, "a report of ours is replaced"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("banana", "--set", "hiden=3"), "hidden"),
        (("banana", "--prior", "matern53"), "matern52"),
        (("uci", "--dataset", "diabets"), "diabetes"),
        (("bananna",), "banana"),
        (("--device", "cudaa"), "cuda"),
        (("--scale", "smok"), "smoke"),
    ],
)
def test_a_typo_is_answered_by_what_was_meant(call, arguments, meant):
    result = call("run", "--scale", "smoke", *arguments)
    assert result.exit_code == 2 and f"did you mean {meant}?" in said(result)
    assert "Value error" not in said(result)


def test_what_is_no_typo_is_not_answered_by_itself(call):
    setting, scale = call("run", "banana", "--set", "hidden"), call("run", "--scale", "bigg")
    assert said(setting).split("│")[0].count("did you mean") == said(scale).count("did you mean") == 0
    assert "got 'hidden'; write hidden=VALUE" in said(setting)
    assert "'bigg' is not one of 'smoke', 'demo', 'paper'" in said(scale)


def test_help_shows_flags_without_a_value_and_whole_paragraphs(call):
    for command in ((), ("report",), ("explore",)):
        for line in call(*command, "--help").output.splitlines():
            assert not ("<bool>" in line and ("--version" in line or "--open" in line)), line
    for command in cli.app.registered_commands:
        for paragraph in command.callback.__doc__.strip().split("\n\n")[1:]:
            assert "\n" not in paragraph.strip(), "the help would break the line there"


def test_a_report_names_what_is_missing_once(call):
    nothing = call("report")
    assert nothing.exit_code == 1 and said(nothing) == "nothing to report in out; first: stationary run"
    call("run", *SMOKE)
    some = said(call("report", "covariance", "banana", "--scale", "smoke", "--format", "csv"))
    assert "no results yet of the others: stationary run banana --scale smoke" in some and "0 of" not in some
