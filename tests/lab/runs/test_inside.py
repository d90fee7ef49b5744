"""Runs say how far they are, and one that is stopped continues after its last epoch."""

import io
import json
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np
import pytest
from rich.console import Console

from stationary import _files
from stationary.inference.infinite_width import _classes
from stationary.lab.cli import progress
from stationary.lab.experiments import EXPERIMENTS
from stationary.lab.experiments.arena.protocol import PROTOCOL
from stationary.lab.experiments.arena.protocol_tables import OF_EVENT
from stationary.lab.experiments.arena.run import generated
from stationary.lab.runs import inside
from stationary.lab.runs.execute import run_missing
from stationary.lab.runs.inside import PROGRESS, Progress, Watched, progress_of
from stationary.lab.runs.store import RunStore
from stationary.lab.runs.units import Outcome, Task
from stationary.training import _checkpoint

UCI = EXPERIMENTS["uci"]
LONG = replace(UCI.config.Config(), dataset="adult", hidden=(8, 4), epochs=4)  # 29,304 rows
EPOCH = Watched.epoch

pytestmark = pytest.mark.usefixtures("kept_each_epoch")


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


@pytest.fixture
def seen(monkeypatch):
    """The epochs that were noted; ``seen.stop`` is after how many a run is stopped as by Ctrl-C."""

    @dataclass
    class Seen:
        epochs: list
        stop: int | None = None

    seen = Seen([])

    def epoch(self, number, *losses):
        EPOCH(self, number, *losses)
        seen.epochs.append(number)
        if number == seen.stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watched, "epoch", epoch)
    monkeypatch.setattr(inside, "EVERY_S", 0.0)
    return seen


def metrics_of(run):
    return {name: array for name, array in run.arrays.items() if not name.startswith("seconds")}


@pytest.mark.parametrize("method", ["NN", "NN SWAG", pytest.param("SVGP", marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_continues_after_its_last_epoch(store, seen, tmp_path, monkeypatch, method):
    task = Task(UCI, replace(LONG, method=method, n_inducing=10))
    folder = store.folder(*task.key)
    seen.stop = 3
    with pytest.raises(KeyboardInterrupt):
        run_missing([task], store)
    assert seen.epochs == [1, 2, 3] and store.state(*task.key) == "missing"
    assert [path.name for path in folder.iterdir()] == ["checkpoint-0.npz"]
    written = []
    note = lambda path, about, tensors: written.append(len(about["history"]))
    monkeypatch.setattr(_checkpoint, "write_checkpoint", note)
    seen.stop = None
    assert run_missing([task], store).done == 1
    assert written == [4], "the first three epochs are not trained again"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "environment.json", "result.npz"]
    whole = RunStore(tmp_path / "whole")
    run_missing([task], whole)
    found, expected = store.load(*task.key), whole.load(*task.key)
    assert metrics_of(found).keys() == metrics_of(expected).keys()
    for name, array in metrics_of(expected).items():
        np.testing.assert_array_equal(metrics_of(found)[name], array, err_msg=name)
    assert np.isnan(found.arrays["seconds training"]).all(), "of which only a part was measured"
    assert np.isfinite(expected.arrays["seconds training"]).all()


def test_infinite_width_that_is_stopped_continues_in_its_search(store, tmp_path, monkeypatch):
    task = Task(UCI, replace(LONG, dataset="diabetes", method="infinite width", n_inducing=20))
    made, solve = [], _classes.solve

    def stopping(*arguments, **options):
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(arguments)
        return solve(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(_classes, "solve", stopping)
        with pytest.raises(KeyboardInterrupt):
            run_missing([task], store)
    folder = store.folder(*task.key)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-0.npz", "checkpoint-fit-0.safetensors"]
    assert run_missing([task], store).done == 1
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "environment.json", "result.npz"]
    whole = RunStore(tmp_path / "whole")
    run_missing([task], whole)
    found, expected = store.load(*task.key), whole.load(*task.key)
    for name, array in metrics_of(expected).items():
        np.testing.assert_array_equal(metrics_of(found)[name], array, err_msg=name)
    assert np.isnan(found.arrays["seconds training"]).all() and np.isfinite(expected.arrays["seconds training"]).all()


def test_a_checkpoint_that_fits_no_more_fails_once(store, seen):
    task = Task(UCI, LONG)
    seen.stop = 1
    with pytest.raises(KeyboardInterrupt):
        run_missing([task], store)
    (store.folder(*task.key) / "checkpoint-0.npz").write_bytes(b"?")
    seen.stop = None
    ((_, error),) = run_missing([task], store).failures
    assert "cannot be read" in error
    assert run_missing([task], store).done == 1, "the next try starts anew"


def test_a_run_of_less_than_half_a_minute_has_progress_and_no_checkpoint(store, seen, monkeypatch):
    monkeypatch.setattr(_files, "EVERY_S", 30.0)
    task = Task(UCI, replace(LONG, dataset="diabetes"))
    seen.stop = 2
    with pytest.raises(KeyboardInterrupt):
        run_missing([task], store)
    assert seen.epochs == [1, 2] and not store.folder(*task.key).exists()


def test_progress_is_noted_where_the_run_is_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(inside, "EVERY_S", 0.0)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    inside.watched(10).epoch(1)  # in no run
    with inside.a_run(folders, tmp_path):
        first = inside.watched(4, of=2)
        first.epoch(1)
        assert [progress_of(folder) for folder in folders] == [Progress(1 / 8, "training 1 of 2, epoch 1 of 4")] * 2
        second = inside.watched(4, of=2)
        second.epoch(2)
        assert progress_of(folders[0]) == Progress(6 / 8, "training 2 of 2, epoch 2 of 4")
        assert inside.watched(4).checkpoint == tmp_path / "checkpoint-2.npz"
    assert [path.name for path in folders[0].iterdir()] == [PROGRESS]
    (folders[0] / PROGRESS).write_text("{")
    assert progress_of(folders[0]) is None


def test_what_is_noted_in_a_part_is_a_share_of_that_part(tmp_path, monkeypatch):
    monkeypatch.setattr(inside, "EVERY_S", 0.0)
    noted = lambda: progress_of(tmp_path)
    assert list(inside.parts("ab", "letter")) == ["a", "b"], "in no run"
    with inside.a_run([tmp_path], tmp_path):
        for fold in inside.parts(range(2), "fold"):
            assert noted() == Progress(fold / 2, f"fold {fold + 1} of 2")
            for number in inside.parts(range(4), "round"):
                inside.watched(10).epoch(5)
                words = f"fold {fold + 1} of 2, round {number + 1} of 4, epoch 5 of 10"
                assert noted() == Progress(fold / 2 + (number + 0.5) / 8, words)
        with inside.part(0, 1, "seed"):
            inside.watched(10).epoch(1)
        assert noted() == Progress(0.1, "epoch 1 of 10"), "one of one is no news"
        assert inside.watched(10).checkpoint == tmp_path / "checkpoint-9.npz", "counted over all parts"


def test_a_fit_of_infinite_width_says_how_many_steps_it_has_taken(store, monkeypatch):
    noted = []
    monkeypatch.setattr(inside.Inside, "note", lambda run, share, words: noted.append((run.begin, share, words)))
    run_missing([Task(UCI, replace(LONG, dataset="diabetes", method="infinite width", n_inducing=20))], store)
    fit = [(begin, share) for begin, share, words in noted if "of the fit" in words]
    assert noted[-1][2] == f"step {len(fit)} of the fit" and len(fit) > 5
    assert {begin for begin, _ in fit} == {0.5}, "after the training"
    assert fit == sorted(set(fit)) and all(0 < share < 1 for _, share in fit)


def test_heads_of_the_arena_and_their_grids_say_how_far_they_are(store, monkeypatch):
    noted = []
    monkeypatch.setattr(inside.Inside, "note", lambda run, share, words: noted.append((run.words, words)))
    arena = EXPERIMENTS["arena"]
    (config,) = (c for c in arena.config.configs("smoke") if c.method == "mc dropout" and c.event not in OF_EVENT)
    generated.cache_clear()  # another test may have trained its network
    run_missing([Task(arena, config)], store)
    ((_, grid),) = PROTOCOL["mc dropout"].grid
    assert {words for words, _ in noted if words} == {f"candidate {k + 1} of {len(grid)}" for k in range(len(grid))} | {
        f"candidate {k + 1} of 4" for k in range(4)
    }, "of dropout, and of the weight decay of the network itself"
    assert ("candidate 1 of 4", "epoch 1 of 100") in noted


def test_the_bar_and_the_estimate_move_inside_a_run(store, monkeypatch):
    monkeypatch.setattr(progress, "LOOK_S", 0.0)
    monkeypatch.setattr(progress, "Console", lambda: Console(file=io.StringIO(), force_terminal=True, width=120))
    tasks = [Task(UCI, replace(LONG, seed=seed)) for seed in (0, 1)]
    watch = progress.Watch(tasks, {"uci": "a minute"}, store)
    with watch.shown():
        (row,) = watch.bar.tasks
        assert row.fields["left"] == "uci takes a minute" and row.completed == 0
        mark = store.mark_running(*tasks[0].key)
        about = json.loads(mark.read_text())
        shown = []
        for minutes, share in ((1, 0.25), (2, 0.5), (3, 0.6)):
            began = time.time() - 60 * minutes
            about["since"] = datetime.fromtimestamp(began, timezone.utc).isoformat()
            mark.write_text(json.dumps(about))
            (mark.parent / PROGRESS).write_text(json.dumps(vars(Progress(share, f"share {share}"))))
            watch.look()
            shown.append((row.description, row.completed, row.fields["left"]))
        assert shown == [
            ("uci, share 0.25", 0.25, "about 7 min left"),
            ("uci, share 0.5", 0.5, "about 6 min left"),
            ("uci, share 0.6", 0.6, "about 7 min left"),
        ]
        watch.done(tasks[0], Outcome({}, {"wall_s": 300.0}))
        assert (row.description, row.completed) == ("uci", 1)
