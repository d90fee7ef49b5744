"""CLINC150: questions to an assistant, of 150 intents and out of scope (Larson et al., 2019; CC BY 3.0)."""

import json
import lzma
import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from stationary._files import cache_folder, write_atomically

PLAIN = "data_full.json"  # its name in clinc/oos-eval
FILES = (PLAIN, "clinc150.json", "clinc150.json.xz")
URL = f"https://raw.githubusercontent.com/clinc/oos-eval/master/data/{PLAIN}"
SIZES = {"train": 15_000, "val": 3_000, "test": 4_500, "oos_train": 100, "oos_val": 100, "oos_test": 1_000}
SHA256 = "d7a093f8f40f891a31a0008d5ce4212f88465d4e6f87e4fa2fce1254722c2051"  # of the texts and intents, by ``digest``
REPAIR = f"download {URL} and give its folder as --data-dir or as STATIONARY_DATA"


class Questions(NamedTuple):
    """Some questions.

    Args:
        texts: the questions.
        intents: the name of the intent of each; "oos" if it is out of scope.
    """

    texts: tuple[str, ...]
    intents: tuple[str, ...]


def load(data_dir: str | Path | None = None) -> dict[str, Questions]:
    """Load the parts "train", "val" and "test" of 150 intents, and "oos_train", "oos_val" and "oos_test".

    Args:
        data_dir: the folder of data_full.json, or of clinc150.json or clinc150.json.xz with the same content. A file
            that is not there is looked for in ``$STATIONARY_DATA``, and then in the cache folder.
    """
    path = find(data_dir)
    return _parts(path.read_bytes(), path)


def download(folder: str | Path | None = None, url: str = URL) -> Path:
    """Download the file, verify it, and return its path.

    Args:
        folder: folder to put it into; None for the cache folder.
        url: address of the file.
    """
    path = Path(folder or cache_folder()).expanduser() / PLAIN
    try:
        with urlopen(url, timeout=60) as response:
            content = response.read()
    except OSError as error:
        raise OSError(f"{url} could not be downloaded ({error!r}); {REPAIR}") from error
    _parts(content, url)
    return write_atomically(path, lambda file: file.write(content))


def _parts(raw: bytes, source: object) -> dict[str, Questions]:
    try:
        content = json.loads(lzma.decompress(raw) if str(source).endswith(".xz") else raw)
        parts = {name: Questions(*map(tuple, zip(*content[name], strict=True))) for name in SIZES}
    except (ValueError, KeyError, TypeError, EOFError, lzma.LZMAError) as error:
        raise ValueError(
            f"{source} must be the JSON file of CLINC150, but reading it gave {error!r}; {REPAIR}"
        ) from error
    if digest(parts) != SHA256:
        sizes = {name: len(part.texts) for name, part in parts.items()}
        raise ValueError(
            f"{source} must have {SIZES} questions with the SHA-256 {SHA256}; got {sizes} with {digest(parts)}; "
            f"{REPAIR}"
        )
    return parts


def find(data_dir: str | Path | None = None) -> Path:
    """Return the file that ``load`` would read.

    Raises:
        FileNotFoundError: if none of the folders has one.
    """
    given = (data_dir, os.environ.get("STATIONARY_DATA"), cache_folder())
    folders = [Path(folder).expanduser() for folder in given if folder]
    for path in (folder / name for folder in folders for name in FILES):
        if path.is_file():
            return path
    raise FileNotFoundError(f"there is no {' or '.join(FILES)} in {' or '.join(map(str, folders))}; {REPAIR}")


def digest(parts: dict[str, Questions]) -> str:
    """Return the SHA-256 of all questions and intents, in the order of ``SIZES``, each on a line of its own."""
    lines = (line for name in SIZES for pair in zip(*parts[name], strict=True) for line in (name, *pair))
    return sha256("\n".join(lines).encode()).hexdigest()
