"""Runs as JSON files: folds in one file, each environment once, what is missing as null."""

import json
from dataclasses import dataclass

import numpy as np

from stationary.lab.runs.archive import archive
from stationary.lab.runs.store import RunStore


@dataclass(frozen=True)
class Folded:
    dataset: str = "diabetes"
    method: str = "NN surrogate"
    prior: str = "matern12"
    folds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Plain:
    seed: int = 0


def stored(tmp_path, configs, environments, values):
    store = RunStore(tmp_path / "runs")
    for config, environment, value in zip(configs, environments, values, strict=True):
        store.save("test", 1, config, {"NLPD": np.array([value])}, environment)
    return list(store.runs("test", print))


def test_folds_are_joined_in_their_order(tmp_path):
    configs = [Folded(folds=(fold,)) for fold in (2, 0, 1)] + [Folded(prior="rbf")]
    where = [{"cpu": "a"}, {"cpu": "b"}, {"cpu": "a"}, {"cpu": "a"}]
    paths = archive(stored(tmp_path, configs, where, [0.2, np.nan, 0.1, 0.5]), tmp_path / "results", "folds")
    assert sorted(path.name for path in paths) == [
        "diabetes-nn-surrogate-matern12.json",
        "diabetes-nn-surrogate-rbf.json",
    ]
    content = json.loads((tmp_path / "results/diabetes-nn-surrogate-matern12.json").read_text())
    assert content["config"]["folds"] == [0, 1, 2] and content["numbers"] == {"NLPD": [None, 0.1, 0.2]}
    assert content["environments"] == [{"cpu": "b"}, {"cpu": "a"}]
    assert (content["experiment"], content["version"]) == ("test", 1)


def test_without_lockstep_each_run_has_its_file(tmp_path):
    runs = stored(tmp_path, [Plain(0), Plain(1)], [{}, {}], [1, 2])
    paths = archive(runs, tmp_path / "results")
    assert [path.stem for path in paths] == [run.folder.name for run in runs]
    assert {json.loads(path.read_text())["numbers"]["NLPD"][0] for path in paths} == {1, 2}


@dataclass(frozen=True)
class Named:
    prior: str = "step surrogate"
    epochs: int = 1


def test_names_that_would_be_the_same_are_those_of_the_folders(tmp_path):
    runs = stored(tmp_path, [Named(), Named("rbf"), Named("rbf", 2)], [{}] * 3, [1, 2, 3])
    paths = {path.stem: json.loads(path.read_text())["config"] for path in archive(runs, tmp_path / "results")}
    assert len(paths) == 3 and paths["step-surrogate"]["prior"] == "step surrogate" and "rbf" not in paths


def test_what_is_large_is_left_out_and_named(tmp_path):
    store = RunStore(tmp_path / "runs")
    store.save("test", 1, Plain(), {"NLPD": np.zeros(1000), "pixels": np.zeros((7, 3, 32, 32))}, {})
    (path,) = archive(store.runs("test", print), tmp_path / "results")
    content = json.loads(path.read_text())
    assert list(content["numbers"]) == ["NLPD"] and content["left out"] == ["pixels"]
