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
"""Word vectors in GloVe's text format, as the first values of a model's embeddings."""

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
    """Which words of a vocabulary have a vector, and which have none."""

    found: list[str]
    missing: list[str]

    def __str__(self) -> str:
        words = len(self.found) + len(self.missing)
        text = f"{len(self.found):,} of {words:,} words have a GloVe vector"
        if self.missing:
            some = ", ".join(self.missing[:10]) + (", ..." if len(self.missing) > 10 else "")
            text += f"; {len(self.missing):,} have none: {some}"
        return text + "."


def load_glove(path: str | PathLike, words: Iterable[str]) -> dict[str, np.ndarray]:
    r"""
    Reads the vectors of `words`. The other lines are passed over, so that a file larger than memory can be read.

    Args:
        path (`str` or `PathLike`):
            A text file with a word and its numbers on each line, parted by spaces.
        words (`Iterable[str]`):
            The words that are wanted.

    Returns:
        `dict[str, np.ndarray]`: The vectors of the words that the file has.
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
    Fills embeddings with GloVe vectors. A word that has none, and a special token, gets a random vector with the mean
    and the standard deviation of those that have one, so that no word stands out by its length.

    Args:
        embeddings (`nn.Embedding`):
            As wide as the vectors.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Says which row belongs to which word.
        path (`str` or `PathLike`):
            A file in GloVe's text format.

    Returns:
        [`GloveReport`]: The words found and missing.
    """
    vocabulary = tokenizer.get_vocab()
    words = [word for word in sorted(vocabulary, key=vocabulary.get) if word not in tokenizer.all_special_tokens]
    vectors = load_glove(path, words)
    if not vectors:
        raise ValueError(f"{path} has a vector for none of the {len(words):,} words of the vocabulary.")
    size = len(next(iter(vectors.values())))
    if size != embeddings.embedding_dim:
        raise ValueError(
            f"Vectors in {path} have {size} numbers, and the model's embeddings {embeddings.embedding_dim}: set "
            f"`embedding_size={size}`."
        )
    known = torch.from_numpy(np.stack(list(vectors.values())))
    weights = known.mean(dim=0) + known.std(dim=0, unbiased=False) * torch.randn(len(embeddings.weight), size)
    for word, vector in vectors.items():
        weights[vocabulary[word]] = torch.from_numpy(vector)
    embeddings.weight.copy_(weights)
    return GloveReport([word for word in words if word in vectors], [word for word in words if word not in vectors])
