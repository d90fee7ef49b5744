"""The command ``stationary data NAME``: a data set is downloaded and verified, or it says where it is found."""

import gzip
import hashlib
from http.client import IncompleteRead
from io import BytesIO

import pytest
from typer.testing import CliRunner

from stationary.lab.cli import app
from stationary.lab.cli.data import DOWNLOADS
from stationary.lab.data import clinc150, grey_images, uci, uci_regression

CONTENT = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(28 * 28)  # one black image, idx format
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Run the command with folders of its own; returns the exit status and what is said, in one line."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    monkeypatch.setattr(grey_images, "DEBIAN", str(tmp_path))

    def run(*arguments):
        result = CliRunner().invoke(app.app, ["data", *map(str, arguments)])
        return result.exit_code, " ".join(result.output.replace("│", " ").split())

    return run


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A folder on this machine instead of the real address, with the only file of MNIST."""
    monkeypatch.setitem(grey_images.FILES, ("mnist", "test"), {"mnist/t10k": MD5})
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "t10k.gz").write_bytes(gzip.compress(CONTENT))
    monkeypatch.setitem(grey_images.URLS, "mnist", folder.as_uri())
    return folder


def test_grey_images_are_downloaded_to_where_they_are_looked_for(data, remote, tmp_path):
    assert data("mnist") == (0, f"mnist is in {tmp_path / 'cache'}, and verified")
    assert grey_images.load("mnist").x.shape == (1, 1, 28, 28)
    assert data("mnist", "--data-dir", tmp_path / "own")[0] == 0 and (tmp_path / "own" / "mnist" / "t10k.gz").is_file()


@pytest.mark.parametrize(
    ("content", "problem"),
    [(gzip.compress(CONTENT + b"0"), f"must have the MD5 {MD5}"), (b"no archive", "could not be downloaded")],
    ids=["a byte too many", "no archive"],  # an archive has the time in it, which differs between processes
)
def test_what_arrives_damaged_is_not_kept(data, remote, tmp_path, content, problem):
    (remote / "t10k.gz").write_bytes(content)
    status, said = data("mnist")
    assert status == 1 and problem in said and not (tmp_path / "cache").exists()


def test_what_is_cut_short_is_no_traceback(data, remote, tmp_path, monkeypatch):
    class Cut(BytesIO):
        def read(self, size=-1):
            raise IncompleteRead(b"", 1000)

    for module in (grey_images, clinc150):
        monkeypatch.setattr(module, "urlopen", lambda url, timeout: Cut())
    for name in ("mnist", "clinc150"):
        status, said = data(name)
        assert status == 1 and "could not be downloaded (IncompleteRead" in said
    path = tmp_path / "notmnist-test-images.gz"
    packed = bytearray(gzip.compress(bytes(10_000)))
    packed[15] ^= 255
    path.write_bytes(packed)
    status, said = data("notmnist", "--data-dir", tmp_path)
    assert status == 1 and f"{path} cannot be read (error(" in said


def test_what_cannot_be_downloaded_is_named(data, remote):
    (remote / "t10k.gz").unlink()
    status, said = data("mnist")
    assert status == 1 and "t10k.gz could not be downloaded" in said and "put mnist/t10k there yourself" in said


def test_what_has_no_download_says_where_it_is_and_its_checksum(data, tmp_path, monkeypatch):
    status, said = data("notmnist")
    assert status == 1 and "davidflanagan/notMNIST-to-MNIST" in said and "1e78b07d677d6e4de2c8857bafff012e" in said
    monkeypatch.setitem(grey_images.FILES, ("notmnist", "test"), {"notmnist-test-images": MD5})
    path = tmp_path / "notmnist-test-images.gz"
    path.write_bytes(gzip.compress(CONTENT))
    assert data("notmnist", "--data-dir", tmp_path) == (0, f"notmnist is in {path}, and verified")
    path.write_bytes(gzip.compress(CONTENT[:-1]))
    status, said = data("notmnist", "--data-dir", tmp_path)
    assert status == 1 and f"must have the MD5 {MD5}" in said
    status, said = data("uci-regression")
    assert status == 1 and "cambridge-mlg/DUN" in said and uci_regression.SHA256["yacht"] in said


def test_covtype_is_loaded_which_downloads_it(data, tmp_path, monkeypatch):
    def load(name, folder):
        (folder / uci.COVTYPE_FILE).touch()

    monkeypatch.setattr(uci, "load", load)
    assert uci.find_covtype(tmp_path) is None
    expected = f"Covtype is in {tmp_path / uci.COVTYPE_FILE}, and verified"
    assert data("covtype", "--data-dir", tmp_path) == (0, expected)


def test_unknown_names_are_told_the_known_ones(data):
    status, said = data("iris")
    assert status == 2 and all(name in said for name in DOWNLOADS)
