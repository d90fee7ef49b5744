"""Sentences as vectors: the frozen all-MiniLM-L6-v2 (Apache 2.0), as the package sentence-transformers applies it."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from stationary._extras import extra
from stationary.lab.data.cache import Array, remembered
from stationary.lab.torchvision_operators import declare

MODEL = "all-MiniLM-L6-v2"
HUB = f"sentence-transformers/{MODEL}"
WEIGHTS, TOKENS = "model.safetensors", 256  # the file of the weights; sentences are cut after so many tokens
BATCH = 128
RECIPE = f"mean over tokens, unit length, at most {TOKENS} tokens"


def embedded(texts: Sequence[str], data_dir: str | Path | None = None) -> Array:
    """Return the vectors (n, 384) of texts in float16: the mean of the last layer over the tokens, of length 1.

    They are cached under a digest of the texts, the recipe and the weights.

    Args:
        texts: the texts.
        data_dir: a folder with the folder all-MiniLM-L6-v2; where there is none, ``$STATIONARY_DATA``, and then the
            cache of Hugging Face, which downloads it if it has to.
    """
    folder = find(data_dir)
    parts = (RECIPE.encode(), (folder / WEIGHTS).read_bytes(), *(text.encode() for text in texts))
    key = sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()
    return remembered(f"{MODEL}-{key}", ("vectors",), lambda: {"vectors": _embed(texts, folder)})["vectors"]


def find(data_dir: str | Path | None = None) -> Path:
    """Return the folder of the model.

    Raises:
        FileNotFoundError: if it is in none of the folders, and Hugging Face has none to offer.
    """
    given = (data_dir, os.environ.get("STATIONARY_DATA"))
    folders = [Path(folder).expanduser() / MODEL for folder in given if folder]
    for folder in folders:
        if (folder / WEIGHTS).is_file():
            return folder
    with extra("arena"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(HUB, allow_patterns=["*.json", "*.txt", WEIGHTS]))
    except Exception as error:  # whether network or hub is to blame, the way out is the same
        looked = " or ".join(map(str, folders)) or f"a folder {MODEL} of --data-dir or STATIONARY_DATA, not given"
        raise FileNotFoundError(
            f"no {WEIGHTS} in {looked}, and {HUB} could not be downloaded ({error!r}); put the model's folder there"
        ) from error


@torch.inference_mode()
def _embed(texts: Sequence[str], folder: Path) -> Array:
    declare()
    with extra("arena"):
        from transformers import AutoModel, AutoTokenizer
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # sentences of a batch are padded to the longest
    vectors = np.empty((len(texts), model.config.hidden_size), np.float16)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch: Any = tokenizer(
            [texts[row] for row in rows], padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        mask = batch["attention_mask"][:, :, None]
        summed = (model(**batch).last_hidden_state * mask).sum(1)  # the direction of the mean
        vectors[rows] = F.normalize(summed, dim=-1).half().numpy()
    return vectors
