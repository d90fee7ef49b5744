"""CIFAR-10 is what its files say, is downloaded once and whole, and nothing in an archive gets out of its folder."""

import hashlib
import io
import re
import shlex
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from stationary.lab.cli import app as cli
from stationary.lab.cli import console
from stationary.lab.data import cifar10

FOLDER, ROWS = "cifar-10-batches-bin", 20
TRAIN, TEST = [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    """No test reads or writes the data and the caches of whoever runs it, and none leaves this machine."""
    monkeypatch.setenv("STATIONARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STATIONARY_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def small(monkeypatch):
    """Six files of 20 random images each, instead of the real ones."""
    rng = np.random.default_rng(0)
    contents = {}
    for name in (*TRAIN, TEST):
        records = rng.integers(0, 256, (ROWS, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        contents[name] = records.tobytes()
    monkeypatch.setattr(cifar10, "IMAGES_PER_FILE", ROWS)
    monkeypatch.setattr(cifar10, "MD5", {name: md5(content) for name, content in contents.items()})
    return contents


def md5(content):
    return hashlib.md5(content).hexdigest()


def write(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def only(path):
    return sorted(file.name for file in path.iterdir())


# What there is


def test_the_names():
    assert [cifar10.CLASSES[i] for i in cifar10.KNOWN] == ["plane", "car", "bird", "cat", "deer"]
    assert cifar10.CLASSES[len(cifar10.KNOWN) :] == ("dog", "frog", "horse", "ship", "truck")
    assert list(cifar10.MD5) == [*TRAIN, TEST] and cifar10.IMAGES_PER_FILE * cifar10.RECORD == 30_730_000


def test_images_are_read_in_the_order_of_the_files(small, tmp_path):
    images = cifar10.load(write(tmp_path, small))
    records = np.frombuffer(b"".join(small.values()), np.uint8).reshape(-1, 3073)
    assert images.x_train.shape == (100, 3, 32, 32) and images.x_test.shape == (20, 3, 32, 32)
    assert images.x_train.dtype == images.x_test.dtype == torch.uint8 and images.x_train.is_contiguous()
    assert images.y_train.dtype == images.y_test.dtype == torch.int64
    assert torch.cat([images.y_train, images.y_test]).tolist() == records[:, 0].tolist()
    assert images.x_train.flatten(1).numpy().tolist() == records[:100, 1:].tolist()
    assert images.x_test.flatten(1).numpy().tolist() == records[100:, 1:].tolist()
    blue, row, column = 2, 5, 7
    assert images.x_train[30, blue, row, column] == small[TRAIN[1]][10 * 3073 + 1 + 2048 + 5 * 32 + 7]
    assert images.x_train is images.x_train, "put together once"


def test_pixels_are_mapped_and_the_files_stay_as_they_are(small, tmp_path):
    write(tmp_path, small)
    images = cifar10.load(tmp_path)
    for part in (*images.train, images.test):
        assert part.x.untyped_storage().nbytes() == ROWS * 3073, "the file itself, with its labels: no copy"
    if Path("/proc/self/maps").exists():
        assert str(tmp_path / TEST) in Path("/proc/self/maps").read_text()
    images.x_test.zero_()
    assert cifar10.load(tmp_path).x_test.any() and (tmp_path / TEST).read_bytes() == small[TEST]


def test_the_folders_in_their_order(small, tmp_path, monkeypatch):
    folders = {"argument": tmp_path / "a", "variable": tmp_path / "b", "cache": tmp_path / "cache"}
    monkeypatch.setenv("STATIONARY_DATA", str(folders["variable"]))
    write(folders["cache"] / FOLDER, small)

    def source(data_dir=None):
        read = []
        monkeypatch.setattr(cifar10, "_verify_file", lambda path: read.append(path))
        cifar10.load(data_dir)
        assert [path.name for path in read] == [*TRAIN, TEST]
        (folder,) = {path.parent for path in read}
        return folder

    assert source() == source(folders["argument"]) == folders["cache"] / FOLDER
    write(folders["variable"], small)
    assert source() == source(folders["argument"]) == folders["variable"]
    write(folders["argument"] / FOLDER, small)
    assert source(folders["argument"]) == source(str(folders["argument"])) == folders["argument"] / FOLDER
    assert source(folders["argument"] / FOLDER) == folders["argument"] / FOLDER
    monkeypatch.setenv("HOME", str(tmp_path))
    assert source("~/a") == folders["argument"] / FOLDER and source() == folders["variable"]


def test_without_files_the_error_says_where_and_what_next(tmp_path, monkeypatch):
    monkeypatch.setenv("STATIONARY_DATA", "/of/variable")
    with pytest.raises(FileNotFoundError) as error:
        cifar10.load(tmp_path / "mine")
    said = str(error.value)
    assert f"no CIFAR-10 in {tmp_path}/mine or /of/variable or {tmp_path}/cache, nor in a folder {FOLDER} there" in said
    assert "`stationary data cifar10` downloads it; or give the folder of" in said and "--data-dir" in said


@pytest.mark.parametrize("name", [TRAIN[0], TRAIN[3], TEST])
@pytest.mark.parametrize("damage", ["truncated", "empty", "longer", "flipped", "missing"])
def test_damaged_files_are_named(small, tmp_path, name, damage):
    folder = write(tmp_path / "my data", small)
    good = small[name]
    flipped = good[:1000] + bytes([good[1000] ^ 1]) + good[1001:]
    bad = {"truncated": good[:-1], "empty": b"", "longer": good + b"0", "flipped": flipped}.get(damage)
    (folder / name).write_bytes(bad) if bad is not None else (folder / name).unlink()
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        cifar10.load(folder)
    repair = f"`stationary data cifar10 --data-dir {shlex.quote(str(folder))}` downloads it again"
    if damage == "missing":
        assert str(error.value) == f"{folder / name} is missing, though other files of CIFAR-10 are there; {repair}"
    else:
        expected = f"61,460 bytes with the MD5 {md5(good)}; got {len(bad):,} bytes with the MD5 {md5(bad)}"
        assert str(error.value) == f"{folder / name} must have {expected}; {repair}"
    assert cifar10.verified(folder) is None


def test_verified_says_where(small, tmp_path):
    assert cifar10.verified(tmp_path) is None and cifar10.verified(tmp_path / "missing") is None
    place = write(tmp_path / FOLDER, small)
    assert cifar10.verified(tmp_path) == cifar10.verified(str(place)) == place


# Generated images


def test_generated_images_are_like_the_real_ones_and_depend_on_the_seed():
    images = cifar10.generated(103, 50, seed=3)
    assert images.x_train.shape == (103, 3, 32, 32) and images.x_test.shape == (50, 3, 32, 32)
    assert images.x_train.dtype == torch.uint8 and images.y_train.dtype == torch.int64
    assert images.y_test.bincount().tolist() == [5] * 10 and sorted(images.y_train.bincount().tolist())[::9] == [10, 11]
    assert not torch.equal(images.x_train[:50], images.x_test)
    again, other = cifar10.generated(103, 50, seed=3), cifar10.generated(103, 50, seed=4)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(images, name), getattr(again, name))
        assert not torch.equal(getattr(images, name), getattr(other, name))
    saturated = (images.x_train == 0) | (images.x_train == 255)
    assert saturated.float().mean() < 0.02 and 40 < images.x_train.float().std() < 80


def test_generated_images_can_be_learned_a_little():
    images = cifar10.generated(1000, 500, seed=0)

    def floats(x):
        return (x.float() - 128) / 64

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(100):
        rows = torch.arange(100) + 100 * (step % 10)
        loss = torch.nn.functional.cross_entropy(net(floats(images.x_train[rows])), images.y_train[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (net(floats(images.x_test)).argmax(1) == images.y_test).float().mean()
    assert 0.4 < right < 0.99, f"chance is 0.1, and classes overlap; got {right}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 0), "n_train must be an integer of at least 1, got 0; try generated"),
        ((5, 2.5, 0), "n_test must be an integer of at least 1, got 2.5"),
        ((5, True, 0), "n_test must be an integer of at least 1, got True"),
        ((5, 5, -1), "seed must be an integer of at least 0, got -1"),
        ((5, 5, None), "seed must be an integer of at least 0, got None"),
    ],
)
def test_bad_arguments_of_generated(arguments, message):
    with pytest.raises(ValueError, match=message):
        cifar10.generated(*arguments)


# Download, from a server in this process


def packed(members):
    """An archive of (name, content) pairs, or of whole members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for member, content in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def of_cifar10(contents):
    readme = (f"{FOLDER}/readme.html", b"hello")
    return [readme, *((f"{FOLDER}/{name}", content) for name, content in contents.items())]


@pytest.fixture
def server(small, monkeypatch):
    """Serves ``archive``; ``ranges`` has the Range of each request; the other attributes make it misbehave."""
    state = SimpleNamespace(ranges=[], cut=None, ignores_range=False, chunked=False, status=None)

    def serve(members):
        state.archive = packed(members)
        monkeypatch.setattr(cifar10, "URL_MD5", md5(state.archive))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            state.ranges.append(self.headers["Range"])
            start = 0 if state.ignores_range else int(re.findall(r"\d+", self.headers["Range"] or "0")[0])
            status = state.status or (416 if start >= len(state.archive) else 206 if start else 200)
            body = state.archive[start:] if status < 300 else b"no"
            self.send_response(status)
            if not state.chunked:  # then the end of the connection is the end of the body
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut])

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url, state.serve = f"http://127.0.0.1:{http.server_port}/archive.tar.gz", serve
    serve(of_cifar10(small))
    monkeypatch.setattr(cifar10, "URL", state.url)
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def part(tmp_path):
    """Where what has arrived is kept."""
    return tmp_path / "data" / FOLDER / "cifar-10-binary.tar.gz.part"


def test_downloaded_once_and_whole(small, server, tmp_path):
    seen = []
    place = cifar10.download(tmp_path / "data", server.url, lambda done, total: seen.append((done, total)))
    assert place == tmp_path / "data" / FOLDER and only(place) == sorted(small), "and no archive, no other member"
    assert all((place / name).read_bytes() == content for name, content in small.items())
    size = len(server.archive)
    assert seen[0] == (0, size) and seen[-1] == (size, size) and seen == sorted(seen) and len(seen) > 3
    assert len(cifar10.load(tmp_path / "data").x_train) == 100
    for folder in (tmp_path / "data", str(place)):
        assert cifar10.download(folder, server.url) == place
    assert server.ranges == [None], "nothing is downloaded again"


def test_downloaded_into_the_cache(server, tmp_path):
    assert cifar10.download(url=server.url) == tmp_path / "cache" / FOLDER
    assert len(cifar10.load().x_test) == 20


def test_an_interrupted_download_continues(server, part):
    server.cut = 200_000
    with pytest.raises(OSError, match=r"closed after 200,000 of .*continues where this ended, or unpack a copy"):
        cifar10.download(part.parents[1], server.url)
    assert part.read_bytes() == server.archive[:200_000] and only(part.parent) == [part.name]
    server.cut = None

    def stop(done, total):
        assert total == len(server.archive) and done >= 200_000
        if done > 250_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cifar10.download(part.parents[1], server.url, stop)
    reached = part.stat().st_size
    assert part.read_bytes() == server.archive[:reached] and 250_000 < reached < len(server.archive)
    cifar10.download(part.parents[1], server.url)
    assert server.ranges == [None, "bytes=200000-", f"bytes={reached}-"]
    assert cifar10.verified(part.parent) and not part.exists()


@pytest.mark.parametrize("ignores_range", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_servers_that_ignore_range_or_do_not_say_the_length(server, part, ignores_range, chunked):
    write(part.parent, {part.name: server.archive[:1000]})
    server.ignores_range, server.chunked = ignores_range, chunked
    seen = []
    cifar10.download(part.parents[1], server.url, lambda done, total: seen.append((done, total)))
    size = len(server.archive)
    assert seen[0][0] == (0 if ignores_range else 1000) and seen[-1] == (size, None if chunked else size)
    assert server.ranges == ["bytes=1000-"] and cifar10.verified(part.parent)


@pytest.mark.parametrize("extra", [0, 7])
def test_a_part_that_is_too_long_or_another_file_is_downloaded_anew(server, part, extra):
    write(part.parent, {part.name: bytes(len(server.archive) + extra)})
    cifar10.download(part.parents[1], server.url)
    assert server.ranges == [f"bytes={len(server.archive) + extra}-", None] and cifar10.verified(part.parent)


def test_a_whole_archive_is_unpacked_without_the_network(server, part):
    write(part.parent, {part.name: server.archive})
    assert cifar10.download(part.parents[1], "http://127.0.0.1:1/") == part.parent and not part.exists()


@pytest.mark.parametrize("status", [404, 416, 503])
def test_refusals_of_the_server_say_what_next(server, part, status):
    server.status = status
    with pytest.raises(OSError, match=f"{server.url} could not be downloaded .*{status}.*; download it again"):
        cifar10.download(part.parents[1], server.url)
    assert server.ranges == [None] and not part.exists()


def test_without_a_network_the_error_says_what_next(part):
    with pytest.raises(OSError, match=r"http://127.0.0.1:1/ could not be downloaded .*refused.*give its folder as"):
        cifar10.download(part.parents[1], "http://127.0.0.1:1/")


def test_another_archive_is_deleted(small, server, part, monkeypatch):
    good = md5(server.archive)
    write(part.parent, {part.name: b"something else"})  # to which the rest of the archive is appended
    mixed = b"something else" + server.archive[14:]
    expected = f"must have the MD5 {good}; got {len(mixed):,} bytes with the MD5 {md5(mixed)}, which are deleted"
    with pytest.raises(ValueError, match=f"{server.url} {expected}; download it again, or unpack"):
        cifar10.download(part.parents[1], server.url)
    assert only(part.parent) == [], "nothing is unpacked"
    cifar10.download(part.parents[1], server.url)
    assert cifar10.verified(part.parent)


@pytest.mark.parametrize("nested", [True, False])
def test_damaged_files_are_replaced_where_they_are(small, server, tmp_path, nested):
    place = write(tmp_path / FOLDER if nested else tmp_path, small)
    (place / TRAIN[2]).write_bytes(b"short"), (place / TEST).unlink()
    assert cifar10.download(tmp_path, server.url) == place
    assert len(cifar10.load(tmp_path).x_test) == 20


# Archives that want out


def of_type(name, kind, to=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member, b""


def test_members_outside_the_folder_are_not_written(small, server, tmp_path):
    outside = ["../evil", f"{FOLDER}/../../evil", str(tmp_path / "evil"), f"../{TEST}", f"{FOLDER}/../{TEST}", TEST]
    link = of_type(f"{FOLDER}/sub", tarfile.SYMTYPE, str(tmp_path))
    server.serve([*((name, b"evil") for name in outside), link, (f"{FOLDER}/sub/evil", b"evil"), *of_cifar10(small)])
    place = cifar10.download(tmp_path / "a" / "b", server.url)
    everything = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert sorted(everything) == sorted(place / name for name in small) and cifar10.verified(place)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(small, server, tmp_path, kind):
    secret = (f"{FOLDER}/copy", small[TRAIN[0]])  # the right content, but by a link
    link = of_type(f"{FOLDER}/{TRAIN[0]}", kind, "copy" if kind == tarfile.SYMTYPE else f"{FOLDER}/copy")
    server.serve([secret, link, *of_cifar10(small)[2:]])
    with pytest.raises(ValueError, match=f"{FOLDER}/{TRAIN[0]} in .* must be a file, not a link or device; unpack"):
        cifar10.download(tmp_path, server.url)
    assert only(tmp_path / FOLDER) == ["cifar-10-binary.tar.gz.part"]


def test_a_link_that_lies_in_the_folder_is_replaced_not_followed(small, server, tmp_path):
    place, mine = write(tmp_path / FOLDER, {}), tmp_path / "mine"
    mine.write_bytes(b"precious")
    (place / TEST).symlink_to(mine)
    cifar10.download(tmp_path, server.url)
    assert mine.read_bytes() == b"precious" and (place / TEST).read_bytes() == small[TEST]


def test_members_are_verified_before_they_get_their_names(small, server, tmp_path):
    server.serve(of_cifar10({**small, TRAIN[1]: small[TRAIN[1]][:-1] + b"?"}))
    with pytest.raises(ValueError, match=f"{TRAIN[1]} must have 61,460 bytes with the MD5 .*; got 61,460 .*; unpack"):
        cifar10.download(tmp_path, server.url)
    assert only(tmp_path / FOLDER) == ["cifar-10-binary.tar.gz.part", TRAIN[0]]


def test_an_archive_must_have_all_files(small, server, tmp_path):
    server.serve(of_cifar10({name: small[name] for name in TRAIN}))
    with pytest.raises(ValueError, match=f"must have the files .*; {FOLDER}/{TEST} are missing; unpack"):
        cifar10.download(tmp_path, server.url)


# The command line


def run(*arguments):
    result = CliRunner().invoke(cli.app, ["data", *map(str, arguments)], terminal_width=200)
    assert "\x1b" not in result.output, "no escape codes in a pipe"
    return result


@pytest.mark.parametrize("where", ["argument", "cache"])
def test_the_command_downloads_once(server, tmp_path, where):
    folder, options = (
        (tmp_path / "a", ["--data-dir", tmp_path / "a"]) if where == "argument" else (tmp_path / "cache", [])
    )
    first, second = run("cifar10", *options), run("cifar10", *options)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.output == f"downloading {server.url}\nCIFAR-10 is in {folder / FOLDER}, and verified\n"
    assert second.output == f"CIFAR-10 is already in {folder / FOLDER}, and verified\n"
    assert server.ranges == [None]


def test_the_command_looks_where_load_does_unless_told_where(small, server, tmp_path, monkeypatch):
    place = write(tmp_path / "mine", small)
    monkeypatch.setenv("STATIONARY_DATA", str(place))
    assert run("cifar10").output == f"CIFAR-10 is already in {place}, and verified\n" and server.ranges == []
    assert run("cifar10", "--data-dir", tmp_path / "a").exit_code == 0 and cifar10.verified(tmp_path / "a")


def test_what_an_error_of_load_advises_repairs(small, server, tmp_path, monkeypatch):
    place = write(tmp_path / "mine" / FOLDER, small)
    (place / TEST).write_bytes(b"")
    monkeypatch.setenv("STATIONARY_DATA", str(tmp_path / "mine"))
    with pytest.raises(ValueError) as error:
        cifar10.load()
    command = shlex.split(re.findall("`(.*)`", str(error.value))[0])
    assert command[:2] == ["stationary", "data"] and run(*command[2:]).exit_code == 0
    assert len(cifar10.load().x_test) == 20


def test_the_command_shows_a_bar_on_a_terminal(server, tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "Console", lambda: Console(file=screen, force_terminal=True, width=100))
    assert run("cifar10").exit_code == 0
    assert "download" in screen.getvalue() and re.search(r"(\d+)\.\d/\1\.\d MB|(\d+)\.\d/\2\.\d kB", screen.getvalue())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["iris"], "there is no data set iris to download; name cifar10"),
        (
            ["--data-dir", "somewhere"],
            "--data-dir somewhere needs a data set to put there; try: stationary data cifar10",
        ),
        (["cifar10", "--data-dir", __file__], "is a file"),
    ],
)
def test_bad_arguments_of_the_command(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.replace("│", " ").split())


def test_a_failed_download_and_ctrl_c_say_what_next(server, tmp_path, monkeypatch):
    server.status = 404
    failed = run("cifar10")
    assert failed.exit_code == 1 and "404" in failed.output and "download it again" in failed.output
    assert "Traceback" not in failed.output

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cifar10, "download", interrupted)
    stopped = run("cifar10")
    assert stopped.exit_code == 1 and "Run the same command again to continue." in stopped.output


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").touch()
    result = run("cifar10", "--data-dir", tmp_path / "file" / "a")
    assert result.exit_code == 1 and f"Not a directory: '{tmp_path / 'file' / 'a'}" in result.output
