"""The regression tables are what their files say, from a folder or an archive, and the splits what they are called."""

import hashlib
import tarfile

import numpy as np
import pytest
import torch

from stationary.lab.data import uci_regression


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table of 12 rows, three columns of which the second is the target, a standard and two gap splits."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    table = np.random.default_rng(0).standard_normal((12, 3)).round(3)
    data = tmp_path / "uci-regression" / "standard" / "yacht" / "data"
    gap = tmp_path / "uci-regression" / "gap" / "yacht" / "data"
    for place in (data, gap):
        place.mkdir(parents=True)
    np.savetxt(data / "data.txt", table)
    np.savetxt(data / "index_features.txt", [0, 2])
    np.savetxt(data / "index_target.txt", [1])
    for place, splits in ((data, [[3, 4]]), (gap, [range(4, 8), range(2, 6)])):
        for number, test in enumerate(splits):
            np.savetxt(place / f"index_test_{number}.txt", list(test))
            np.savetxt(place / f"index_train_{number}.txt", sorted(set(range(12)) - set(test)))
    digest = hashlib.sha256((data / "data.txt").read_bytes()).hexdigest()
    monkeypatch.setitem(uci_regression.SHA256, "yacht", digest)
    return tmp_path, table


def test_a_table_and_its_splits(folder):
    place, table = folder
    found = uci_regression.load("yacht", place)
    assert np.array_equal(found.x.numpy(), table[:, [0, 2]]) and np.array_equal(found.y.numpy(), table[:, [1]])
    assert found.splits["standard"][0].test.tolist() == [3, 4]
    assert [len(found.splits[kind]) for kind in ("standard", "gap", "tail")] == [1, 2, 2]
    for splits in found.splits.values():
        for rows in splits:
            assert torch.cat(rows).sort().values.tolist() == list(range(12))


def test_an_archive_is_like_the_folder(folder):
    place, _ = folder
    with tarfile.open(place / "new.tar.xz", "w:xz") as archive:
        for kind in ("standard", "gap"):
            archive.add(place / "uci-regression" / kind, kind)
    (place / "packed").mkdir()
    (place / "new.tar.xz").rename(place / "packed" / uci_regression.ARCHIVE)
    plain, packed = uci_regression.load("yacht", place), uci_regression.load("yacht", place / "packed")
    assert packed.x.equal(plain.x) and packed.y.equal(plain.y)
    assert str(packed.splits) == str(plain.splits)


def test_tails_are_outside_of_what_is_trained_on():
    column = torch.randn(100, generator=torch.Generator().manual_seed(0))
    rows = uci_regression.tail(column)
    low, high = column[rows.train].min(), column[rows.train].max()
    assert len(rows.test) == 32 and ((column[rows.test] < low).sum(), (column[rows.test] > high).sum()) == (16, 16)


def test_what_is_wrong_is_named(folder):
    place, _ = folder
    with pytest.raises(ValueError, match="name must be one of boston"):
        uci_regression.load("iris", place)
    with pytest.raises(FileNotFoundError, match=r"there is no uci-regression nor uci-regression.tar.xz"):
        uci_regression.load("yacht", place / "nowhere")
    data = place / "uci-regression" / "standard" / "yacht" / "data"
    np.savetxt(data / "index_test_0.txt", [3, 3])
    with pytest.raises(ValueError, match="split 0 of standard/yacht/data must have each of the 12 rows once"):
        uci_regression.load("yacht", place)
    (data / "data.txt").write_text("1 2 3\n")
    with pytest.raises(ValueError, match=r"data.txt of yacht .* must have the SHA-256"):
        uci_regression.load("yacht", place)
