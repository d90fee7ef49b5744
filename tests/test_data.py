"""The bundled data are what their sources say, and splits know only their training part."""

import hashlib
import lzma
from importlib.resources import files

import pytest
import torch

from stationary.data import Split, banana, toy_regression, uci

SHA256 = {  # of the uncompressed tables
    "banana": "4cfb5e17a272bd100d438597d5ac9cff351fc680863143927ee9a5cf67e51c98",
    "diabetes": "abfc58a3c439bb0828875d8095107bdeef56d8feb8485b993886a603479cf519",
}


def test_bundled_files_are_small_and_documented():
    folder = files("stationary.data.files")
    tables = [f for f in folder.iterdir() if f.name.endswith(".xz")]
    assert sum(len(f.read_bytes()) for f in tables) < 1_000_000
    readme = (folder / "README.md").read_text()
    assert all(f"`{f.name}`" in readme for f in tables)
    for name, digest in SHA256.items():
        text = lzma.decompress((folder / f"{name}.csv.xz").read_bytes())
        assert hashlib.sha256(text).hexdigest() == digest


def test_banana():
    split = banana.load()
    assert split.x_train.shape == (400, 2) and split.x_test.shape == (4900, 2)
    assert split.y_train.bincount().tolist() == [183, 217]
    assert (split.n_features, split.n_classes) == (2, 2)


def test_toy_regression():
    split = toy_regression.load(seed=3)
    left = split.x_train[:100, 0]
    assert abs(left.mean() + 1) < 5 * 0.07 / 10 and abs(left.std() - 0.07) < 5 * 0.07 / 200**0.5
    noise = split.y_train - toy_regression.function(split.x_train)
    assert abs(noise.std() - 0.02) < 5 * 0.02 / 400**0.5
    torch.testing.assert_close(toy_regression.function(torch.tensor(0.5)), torch.tensor(0.125 - 0.5 + 0.2))
    assert torch.equal(split.x_train, toy_regression.load(seed=3).x_train)
    assert not torch.equal(split.x_train, toy_regression.load(seed=4).x_train)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "n_numeric"),
    [
        ("diabetes", (768, 8), [500, 268], 8),
        ("adult", (45_222, 104), [34_014, 11_208], 6),
        ("connect-4", (67_557, 42), [6_449, 16_635, 44_473], 42),
        ("connect-4-onehot", (67_557, 126), [6_449, 16_635, 44_473], 0),
    ],
)
def test_uci(name, shape, classes, n_numeric):
    table = uci.load(name)
    assert table.x.shape == shape and table.y.bincount().tolist() == classes
    assert table.numeric.sum() == n_numeric and len(table.feature_names) == shape[1]
    assert table.x.isfinite().all()
    assert set(table.x[:, ~table.numeric].unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("stratified", [False, True])
def test_folds_test_every_row_once_and_standardise_on_train(stratified):
    table = uci.load("diabetes")
    splits = list(table.folds(10, seed=1, stratified=stratified))
    assert sum(len(split.x_test) for split in splits) == 768
    assert sum(split.y_test.sum() for split in splits) == table.y.sum()
    for split in splits:
        torch.testing.assert_close(split.x_train.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
        torch.testing.assert_close(split.x_train.std(0, correction=0), torch.ones(8), atol=1e-4, rtol=0)
        assert split.x_test.mean(0).abs().max() > 0.01
    again = next(table.folds(10, seed=1, stratified=stratified))
    assert torch.equal(again.x_test, splits[0].x_test)


def test_constant_columns_and_unknown_names():
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    split = Split(x, torch.tensor([0, 1]), x + 1, torch.tensor([0, 1]), ("a", "b"), ("0", "1")).standardized()
    assert split.x_train.tolist() == [[-1.0, 0.0], [1.0, 0.0]] and split.x_test.tolist() == [[0.0, 1.0], [2.0, 1.0]]
    assert split.to("cpu").x_train.device.type == "cpu"
    with pytest.raises(ValueError, match="name must be one of diabetes, adult"):
        uci.load("iris")
