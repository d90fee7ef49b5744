"""The bundled data are what their sources say, and splits know only their training part."""

import hashlib
import lzma
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler

import stationary.lab.data.files
from stationary._files import cache_folder
from stationary.lab.data import banana, cache, toy_regression, uci

SHA256 = {  # of the uncompressed tables
    "banana": "4cfb5e17a272bd100d438597d5ac9cff351fc680863143927ee9a5cf67e51c98",
    "diabetes": "abfc58a3c439bb0828875d8095107bdeef56d8feb8485b993886a603479cf519",
    "hpobench-vehicle": "aa5d71b46d4f93936717b8528bf57eefcbe42aa10972bf10ea8b89a25c408919",
}


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    """No test reads or writes the data and the caches of whoever runs it."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "scikit-learn"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)


def test_bundled_files_are_small_and_documented():
    folder = files("stationary.lab.data.files")
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
        ("adult-scaled", (45_222, 104), [34_014, 11_208], 104),
        ("connect-4", (67_557, 42), [6_449, 16_635, 44_473], 42),
        ("connect-4-codes", (67_557, 42), [6_449, 16_635, 44_473], 42),
        ("connect-4-onehot", (67_557, 126), [6_449, 16_635, 44_473], 0),
    ],
)
def test_uci(name, shape, classes, n_numeric):
    table = uci.load(name)
    assert table.x.shape == shape and table.y.bincount().tolist() == classes
    assert table.numeric.sum() == n_numeric and len(table.feature_names) == shape[1]
    assert table.x.isfinite().all() and table.x.is_contiguous()
    assert set(table.x[:, ~table.numeric].unique().tolist()) <= {0.0, 1.0}


def test_adult_scaled_is_adult_with_every_column_standardised():
    plain, scaled = uci.load("adult"), uci.load("adult-scaled")
    assert torch.equal(plain.x, scaled.x) and torch.equal(plain.y, scaled.y)
    x = scaled.split(*scaled.fold_rows()[0]).x_train
    assert x.mean(0).abs().max() < 1e-4
    width = 1 / scaled.scaling(torch.arange(45_222))[1][~plain.numeric]  # how far a category is from its absence
    assert width.median().round() == 9 and width.max().round() == 213  # as docs/gotchas.md says
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(104), rtol=1e-3, atol=0)


def test_connect_4_is_the_same_as_numbers_and_as_columns():
    numbers, codes, columns = (uci.load(name) for name in ("connect-4", "connect-4-codes", "connect-4-onehot"))
    b, o, x = columns.x.unflatten(1, (42, 3)).unbind(2)
    assert columns.feature_names[:3] == ("a1_b", "a1_o", "a1_x") and numbers.feature_names[0] == "a1"
    assert torch.equal(numbers.x, x - o) and torch.equal(b + o + x, torch.ones_like(b))
    assert torch.equal(codes.x, o + 2 * x) and codes.feature_names == numbers.feature_names


def test_bundled_tables_are_verified(monkeypatch, tmp_path):
    path = tmp_path / "diabetes.csv.xz"
    good = (files("stationary.lab.data.files") / path.name).read_bytes()
    for module in (uci, stationary.lab.data.files):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    path.write_bytes(good)
    assert uci.load("diabetes").x.shape == (768, 8)
    path.write_bytes(good[:2000])
    with pytest.raises(ValueError, match=f"{path} must be a CSV file compressed with xz.*install stationary again"):
        uci.load("diabetes")
    lines = lzma.decompress(good).splitlines(keepends=True)
    path.write_bytes(lzma.compress(b"".join(lines[:-1])))
    with pytest.raises(ValueError, match=f"{path} must have 8 features and 768 rows.*got 8 features and 767 rows"):
        uci.load("diabetes")
    path.write_bytes(lzma.compress(b"".join(lines).replace(b"class", b"label", 1)))
    with pytest.raises(ValueError, match=f"{path} must have the columns \\['class'\\]; got .*label.*install"):
        uci.load("diabetes")


# Folds


@pytest.fixture(scope="module")
def diabetes():
    return uci.load("diabetes")


@pytest.mark.parametrize("stratified", [False, True])
def test_folds_test_every_row_once_and_standardise_on_train(diabetes, stratified):
    splits = list(diabetes.folds(10, seed=1, stratified=stratified))
    assert sum(len(split.x_test) for split in splits) == 768
    assert sum(split.y_test.sum() for split in splits) == diabetes.y.sum()
    for split in splits:
        torch.testing.assert_close(split.x_train.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
        torch.testing.assert_close(split.x_train.std(0, correction=0), torch.ones(8), atol=1e-4, rtol=0)
        assert split.x_test.mean(0).abs().max() > 0.01
    again = next(diabetes.folds(10, seed=1, stratified=stratified))
    assert torch.equal(again.x_test, splits[0].x_test)


@pytest.mark.parametrize(("stratified", "kind"), [(False, KFold), (True, StratifiedKFold)])
def test_fold_rows_are_those_of_scikit_learn_and_of_folds(diabetes, stratified, kind):
    rows = diabetes.fold_rows(5, seed=3, stratified=stratified)
    expected = kind(5, shuffle=True, random_state=3).split(np.zeros(768), diabetes.y.numpy())
    splits = diabetes.folds(5, seed=3, stratified=stratified)
    for (train, test), (its_train, its_test), split in zip(rows, expected, splits, strict=True):
        assert train.dtype == test.dtype == torch.long
        assert train.tolist() == its_train.tolist() and test.tolist() == its_test.tolist()
        assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(768))
        assert torch.equal(split.y_train, diabetes.y[train]) and torch.equal(split.y_test, diabetes.y[test])
        mean, std = diabetes.scaling(train)
        assert torch.equal(split.x_test, (diabetes.x[test] - mean) / std)
    assert torch.equal(torch.cat([test for _, test in rows]).sort().values, torch.arange(768))
    assert [len(test) for _, test in diabetes.fold_rows()] == [77] * 8 + [76] * 2


def test_scaling_is_accurate_and_leaves_other_columns_alone():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 5, generator=generator)
    x[:, 0] += 1e6  # its variance is lost in float32, and rounding its mean is seen
    x[:, 1] = 0.1  # constant, and not a float32
    x[:, 2:4] = (x[:, 2:4] > 0).float()
    numeric = torch.tensor([True, True, True, False, True])
    table = uci.Tabular(x, torch.zeros(20_000, dtype=torch.long), numeric, tuple("abcde"), ("0",))
    rows = torch.randperm(20_000, generator=generator)[:17_000]
    mean, std = table.scaling(rows)
    exact = x[rows].double().numpy()
    for found, expected in ((mean, exact.mean(0) * numeric.numpy()), (std, exact.std(0))):
        assert found.dtype == torch.float32 and found.shape == (5,)
        expected = torch.tensor(expected, dtype=torch.float32)
        check = [0, 2, 4] if found is std else [0, 1, 2, 3, 4]
        torch.testing.assert_close(found[check], expected[check], rtol=2 * torch.finfo().eps, atol=1e-9)
    assert std[1] == 1 and mean[3] == 0 and std[3] == 1


@pytest.mark.parametrize("name", ["diabetes", "adult", "connect-4-onehot"])
def test_splits_are_standardised_as_scikit_learn_does_it(name):
    """Numeric columns, by their training rows; a column that is constant there is only shifted."""
    table = uci.load(name)
    train, test = table.fold_rows(5)[2]
    x_train, x_test = table.x[train].clone(), table.x[test].clone()
    if table.numeric.any():
        scaler = StandardScaler().fit(x_train[:, table.numeric].double())
        for x in (x_train, x_test):
            x[:, table.numeric] = torch.from_numpy(scaler.transform(x[:, table.numeric].double())).float()
    split = table.split(train, test)
    torch.testing.assert_close(split.x_train, x_train, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(split.x_test, x_test, rtol=1e-5, atol=1e-5)
    assert torch.equal(table.split(train.numpy(), test.numpy()).x_test, table.split(train, test).x_test)


def test_tables_know_their_sizes_and_move(diabetes):
    assert (diabetes.n_features, diabetes.n_classes) == (8, 2)
    moved = diabetes.to("meta")
    assert {moved.x.device.type, moved.y.device.type, moved.numeric.device.type} == {"meta"}
    assert moved.feature_names == diabetes.feature_names


@pytest.mark.gpu
def test_folds_on_a_gpu_are_those_on_the_cpu(diabetes):
    moved = diabetes.to("cuda")
    assert moved.fold_rows(5)[0][0].is_cuda and moved.scaling(torch.arange(9))[1].is_cuda
    for ours, theirs in zip(moved.folds(5), diabetes.folds(5), strict=True):
        torch.testing.assert_close(ours.x_test.cpu(), theirs.x_test)
        assert ours.y_train.is_cuda and torch.equal(ours.y_train.cpu(), theirs.y_train)


def test_constant_columns_and_unknown_names():
    x, y = torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 6.0], [4.0, 6.0]]), torch.tensor([0, 1, 0, 1])
    table = uci.Tabular(x, y, torch.tensor([True, True]), ("a", "b"), ("0", "1"))
    split = table.split(torch.tensor([0, 1]), torch.tensor([2, 3]))
    assert split.x_train.tolist() == [[-1.0, 0.0], [1.0, 0.0]] and split.x_test.tolist() == [[0.0, 1.0], [2.0, 1.0]]
    assert split.to("cpu").x_train.device.type == "cpu"
    with pytest.raises(ValueError, match="name must be one of diabetes, adult"):
        uci.load("iris")


# Covtype, a small one in the format of the real one

COUNTS = {1: 20, 2: 30, 3: 5, 4: 4, 5: 3, 6: 2, 7: 1}


def test_covtype_is_expected_to_be_the_whole_data_set():
    n_features, counts = uci.EXPECTED["covtype"]
    assert n_features == 54 == len(set(uci.COVTYPE_FEATURES)) and sum(counts.values()) == 581_012
    assert list(counts.values()) == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    assert {name.split("-")[0] for name in uci.DATASETS} == {"diabetes", "adult", "connect", "covtype"}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(uci.EXPECTED, "covtype", (54, COUNTS))
    monkeypatch.setattr(uci, "fetch_covtype", lambda **_: pytest.fail("there is a file: nothing to download"))
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(-200, 7000, (65, 54)), columns=list(uci.COVTYPE_FEATURES))
    table["class"] = rng.permutation(np.repeat(list(COUNTS), list(COUNTS.values())))
    return table


def write(table, folder):
    folder.mkdir(exist_ok=True)
    path = folder / "covtype.csv.xz"
    path.write_bytes(lzma.compress(table.to_csv(index=False).encode()))
    return path


def the_cache(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_covtype_is_read_from_the_folders(small, tmp_path, monkeypatch):
    write(small, tmp_path / "a")
    for data_dir in (tmp_path / "a", str(tmp_path / "a")):
        table = uci.load("covtype", data_dir)
        assert table.x.dtype == torch.float32 and table.x.tolist() == small.iloc[:, :-1].to_numpy().tolist()
        assert table.y.dtype == torch.long and table.y.tolist() == (small["class"] - 1).tolist()
        assert table.class_names == tuple("1234567") and (table.n_features, table.n_classes) == (54, 7)
        assert table.numeric.all() and table.feature_names == uci.COVTYPE_FEATURES and table.x.is_contiguous()
    assert (table.feature_names[9:11], table.feature_names[-1]) == (
        ("Horizontal_Distance_To_Fire_Points", "Wilderness_Area1"),
        "Soil_Type40",
    )
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path / "a"))
    for data_dir in (None, tmp_path / "elsewhere"):
        assert torch.equal(uci.load("covtype", data_dir).x, table.x)
    write(small.assign(**(small.iloc[:, :-1] + 1)), tmp_path / "b")
    assert torch.equal(uci.load("covtype", tmp_path / "b").x, table.x + 1)  # data_dir goes first
    write(small[["class", *reversed(uci.COVTYPE_FEATURES)]], tmp_path / "b")
    assert torch.equal(uci.load("covtype", tmp_path / "b").x, table.x)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda table, _: b"not xz", "must be a CSV file compressed with xz"),
        (lambda table, _: b"", "must be a CSV file compressed with xz"),
        (lambda table, whole: whole[:-500], "must be a CSV file compressed with xz.*ended before the end"),
        (lambda table, _: table.assign(Slope="steep"), "must be a CSV file compressed with xz.*steep"),
        (lambda table, _: table.assign(Slope=1.5), "must be a CSV file compressed with xz"),
        (lambda table, _: table.assign(Slope=10**30), "must be a CSV file compressed with xz.*Overflow"),
        (lambda table, _: lzma.compress(b""), "must be a CSV file compressed with xz.*No columns"),
        (lambda table, _: table.iloc[:, 1:], r"must have the columns \['Elevation'\]; got \['Aspect', 'Slope'"),
        (lambda table, _: table.rename(columns={"class": "y"}), r"must have the columns \['class'\]; got"),
        (lambda table, _: table.assign(more=1), "must have 54 features and 65 rows.*got 55 features and 65 rows"),
        (lambda table, _: table[:60], "must have 54 features and 65 rows.*got 54 features and 60 rows"),
        (lambda table, _: table.replace({"class": {7: 6}}), "must have .*{1: 20, .*7: 1}; got .*{1: 20, .*6: 3}"),
    ],
)
def test_another_covtype_is_refused(small, tmp_path, damage, message):
    path = write(small, tmp_path)
    damaged = damage(small, path.read_bytes())
    path.write_bytes(damaged) if isinstance(damaged, bytes) else write(damaged, tmp_path)
    with pytest.raises(ValueError, match=f"{path} {message}.*; put the whole covtype.csv.xz into a folder.*--data-dir"):
        uci.load("covtype", tmp_path)
    write(small, tmp_path)
    assert len(uci.load("covtype", tmp_path).x) == 65


def test_covtype_is_downloaded_where_there_is_no_file(small, tmp_path, monkeypatch):
    homes = []

    def fetch(data_home):
        homes.append(data_home)
        return SimpleNamespace(data=small.iloc[:, :-1].to_numpy(float), target=small["class"].to_numpy(np.int32))

    monkeypatch.setattr(uci, "fetch_covtype", fetch)
    table = uci.load("covtype")
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path / "b"))
    uci.load("covtype"), uci.load("covtype", tmp_path / "a")
    assert homes == [None, tmp_path / "b", tmp_path / "a"]
    same = uci.load("covtype", write(small, tmp_path / "c").parent)
    for name in ("x", "y", "numeric"):
        assert torch.equal(getattr(table, name), getattr(same, name))
    assert (table.feature_names, table.class_names) == (same.feature_names, same.class_names)
    small.loc[0, "class"] += 1
    with pytest.raises(ValueError, match=f"copy of Covtype in {tmp_path / 'b'} must have .*; delete it to have it"):
        uci.load("covtype")


def test_a_failed_download_says_what_to_do(small, tmp_path, monkeypatch):
    def fetch(data_home):
        raise ConnectionResetError("no network")

    monkeypatch.setattr(uci, "fetch_covtype", fetch)
    advice = "put the whole covtype.csv.xz into a folder and give that as --data-dir or as STATIONARY_DATA"
    with pytest.raises(FileNotFoundError, match=f"no covtype.csv.xz in --data-dir or STATIONARY_DATA, which.*{advice}"):
        uci.load("covtype")
    a, b = tmp_path / "a", tmp_path / "b"
    monkeypatch.setenv("STATIONARY_DATA", str(b))
    with pytest.raises(FileNotFoundError, match=f"no covtype.csv.xz in {a} or {b}, and .*no network.*; {advice}"):
        uci.load("covtype", a)


# The cache


def test_covtype_is_parsed_once_and_the_bundled_tables_are_not_cached(small, tmp_path, monkeypatch):
    uci.load("diabetes")
    assert not (tmp_path / "cache").exists()
    write(small, tmp_path)
    first = uci.load("covtype", tmp_path)
    with np.load(the_cache(tmp_path)) as stored:
        assert stored["x"].dtype == np.int16
    monkeypatch.setattr(uci, "read_table", lambda *_, **__: pytest.fail("parsed again"))
    again = uci.load("covtype", tmp_path)
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y)


def test_a_changed_file_or_format_is_parsed_again(small, tmp_path, monkeypatch):
    write(small, tmp_path)
    before = uci.load("covtype", tmp_path)
    write(small.assign(Slope=small["Slope"] + 1), tmp_path)
    assert torch.equal(uci.load("covtype", tmp_path).x[:, 2], before.x[:, 2] + 1)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    monkeypatch.setattr(cache, "VERSION", -1)
    uci.load("covtype", tmp_path)
    assert len(list((tmp_path / "cache").iterdir())) == 3


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "flipped", "incomplete"])
def test_a_damaged_cache_is_written_again(small, tmp_path, damage):
    write(small, tmp_path)
    before = uci.load("covtype", tmp_path)
    path = the_cache(tmp_path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    if damage == "incomplete":
        np.savez(path, x=np.zeros(3))
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        path.write_bytes({"empty": b"", "text": b"hello", "truncated": whole[:middle], "flipped": flipped}[damage])
    again = uci.load("covtype", tmp_path)
    assert torch.equal(again.x, before.x) and torch.equal(again.y, before.y)
    with np.load(path) as stored:
        assert stored["x"].shape == (65, 54) and stored["y"].shape == (65,)


def test_a_cache_that_cannot_be_written_is_done_without(small, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "file" / "cache"))
    write(small, tmp_path)
    assert len(uci.load("covtype", tmp_path).x) == 65


def test_what_is_remembered_is_computed_once_for_each_name(tmp_path, monkeypatch):
    calls = []

    def remembered(name, value, keys=("a", "b")):
        def compute():
            calls.append(name)
            return {"a": np.full(3, value, np.float16), "b": np.arange(value)}

        return cache.remembered(name, keys, compute)

    first, again, other = remembered("one", 2), remembered("one", 5), remembered("two", 5)
    assert calls == ["one", "two"]
    for found, value in ((first, 2), (again, 2), (other, 5)):
        assert list(found) == ["a", "b"] and found["a"].dtype == np.float16
        assert found["a"].tolist() == [value] * 3 and found["b"].tolist() == list(range(value))
    path = next(path for path in (tmp_path / "cache").iterdir() if path.name.startswith("one-"))
    for content in (b"", path.read_bytes()[:50]):
        path.write_bytes(content)
        assert remembered("one", 4)["b"].tolist() == [0, 1, 2, 3] and calls.pop() == "one"
    np.savez(path, a=np.zeros(3))
    assert remembered("one", 1)["b"].tolist() == [0] and calls.pop() == "one", "one of its arrays was not there"
    monkeypatch.setattr(cache, "VERSION", -1)
    assert remembered("one", 3)["b"].tolist() == [0, 1, 2], "another format"
    (tmp_path / "file").touch()
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "file" / "cache"))
    assert [len(remembered("one", n)["b"]) for n in (1, 2)] == [1, 2], "nothing can be written"


def test_what_fails_is_not_remembered(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        cache.remembered("one", ("a",), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert not (tmp_path / "cache").exists()
    assert cache.remembered("one", ("a",), lambda: {"a": np.ones(1)})["a"] == 1


def test_where_the_cache_is(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("STATIONARY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/stationary")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/stationary")
