# Copyright 2026 The hf_vg maintainers. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Initializes word embeddings from GloVe vectors."""

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast


@dataclass
class GloveReport:
    """
    Words of a vocabulary with and without a GloVe vector.

    - **found** (`list[str]`) -- The words with a vector.
    - **missing** (`list[str]`) -- The words without one.
    """

    found: list[str]
    missing: list[str]

    def __str__(self) -> str:
        words = len(self.found) + len(self.missing)
        text = f"{len(self.found):,} of {words:,} words have a GloVe vector"
        if self.missing:
            some = ", ".join(self.missing[:10]) + (", ..." if len(self.missing) > 10 else "")
            text += f"; {len(self.missing):,} do not: {some}"
        return text + "."


def load_glove(path: str | PathLike, words: Iterable[str]) -> dict[str, np.ndarray]:
    r"""
    Reads the GloVe vectors of some words. Other lines are skipped, so the file may be larger than memory.

    Args:
        path (`str` or `PathLike`):
            A text file. Each line has a word and its numbers, separated by spaces.
        words (`Iterable[str]`):
            The words to look up.

    Returns:
        `dict[str, np.ndarray]`: The vectors of the words that are in the file.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_vg.data.glove import load_glove

    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "glove.txt").write_text("dog 0.5 1.0\ncat 0.25 2.0\n")
    >>> load_glove(Path(folder.name, "glove.txt"), ["dog", "zebra"])
    {'dog': array([0.5, 1. ], dtype=float32)}
    ```
    """
    path, wanted = Path(path), {word.encode() for word in words}
    vectors: dict[str, np.ndarray] = {}
    size = None
    with (
        open(path, "rb") as file,
        tqdm(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, delay=2) as progress,
    ):
        for number, line in enumerate(file, start=1):
            progress.update(len(line))
            fields = line.rstrip().split(b" ") if size is None else line.rstrip().rsplit(b" ", size)
            if size is None:
                size = len(fields) - 1
                if size < 2:
                    raise ValueError(f"{path}, line 1: a line must be a word and its numbers, got {line[:60]!r}.")
            if fields[0] not in wanted:
                continue
            try:
                vector = np.array(fields[1:], dtype=np.float32)
            except ValueError:
                vector = np.empty(0)
            if len(vector) != size or not np.isfinite(vector).all():
                raise ValueError(
                    f"{path}, line {number}: a line must be a word and {size} numbers, got {line[:60]!r}."
                )
            vectors[fields[0].decode()] = vector
    return vectors


@torch.no_grad()
def initialize_from_glove(
    embeddings: nn.Embedding, tokenizer: PreTrainedTokenizerFast, path: str | PathLike
) -> GloveReport:
    r"""
    Fills embeddings with GloVe vectors. Special tokens and words without a vector get a random vector with the mean
    and standard deviation of the GloVe vectors, so that all embeddings have a similar norm.

    Args:
        embeddings (`nn.Embedding`):
            The embeddings to fill. Their size must match the vectors.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Maps words to rows of the embeddings.
        path (`str` or `PathLike`):
            A file in GloVe's text format.

    Returns:
        [`GloveReport`]: The words found and missing.

    Example:

    ```python
    >>> import tempfile
    >>> from pathlib import Path
    >>> from torch import nn
    >>> from hf_vg.data import initialize_from_glove, train_word_tokenizer

    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "glove.txt").write_text("a 0.5 1.0\ndog 0.25 2.0\n")
    >>> tokenizer = train_word_tokenizer(["a dog runs"])
    >>> print(initialize_from_glove(nn.Embedding(len(tokenizer), 2), tokenizer, Path(folder.name, "glove.txt")))
    2 of 3 words have a GloVe vector; 1 do not: runs.
    ```
    """
    vocabulary = tokenizer.get_vocab()
    words = [word for word in sorted(vocabulary, key=vocabulary.get) if word not in tokenizer.all_special_tokens]
    vectors = load_glove(path, words)
    if not vectors:
        raise ValueError(f"{path} has no vector for any of the {len(words):,} words of the vocabulary.")
    size = len(next(iter(vectors.values())))
    if size != embeddings.embedding_dim:
        raise ValueError(
            f"Vectors in {path} have {size} numbers, but the model's embeddings have {embeddings.embedding_dim}: set "
            f"`embedding_size={size}`."
        )
    known = torch.from_numpy(np.stack(list(vectors.values())))
    weights = known.mean(dim=0) + known.std(dim=0, unbiased=False) * torch.randn(len(embeddings.weight), size)
    for word, vector in vectors.items():
        weights[vocabulary[word]] = torch.from_numpy(vector)
    embeddings.weight.copy_(weights)
    return GloveReport([word for word in words if word in vectors], [word for word in words if word not in vectors])
