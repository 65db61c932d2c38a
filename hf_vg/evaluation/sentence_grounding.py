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
"""Evaluates whether a sentence encoder attends to the words that name objects in the image."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..interpretation.sentence_attention import attention_of_sentences
from .grounding import average_precision


def sentence_grounding_metrics(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Iterable[Mapping[str, Any]],
    batch_size: int = 128,
) -> dict[str, float]:
    r"""
    Scores the attention of a sentence encoder: does it attend to the words of phrases with boxes?

    Args:
        model ([`PreTrainedModel`]):
            The sentence encoder, see [`attention_of_sentences`]. The mean of its attention rows is scored.
        tokenizer ([`PreTrainedTokenizerFast`]):
            The model's tokenizer.
        rows (`Iterable[Mapping]`):
            Rows of [`load_flickr30k_entities`] or [`grounded_scenes`] with `captions` and `phrases`. Captions without
            a phrase that has boxes, and captions with no other words, are left out.
        batch_size (`int`, *optional*, defaults to 128):
            Number of sentences per batch.

    Returns:
        `dict[str, float]`: Means over captions.

        - **pointing** -- whether the word with the most attention is in a phrase with boxes. If several words have the
          most attention, the share of them counts.
        - **mass** -- the share of attention on words of such phrases.
        - **average_precision** -- the average precision of the attention in finding such words.
        - **random** -- the share of tokens, including the end token, in such phrases: the score of uniform attention.
        - **sentences** -- the number of captions.

    Example:

    ```python
    >>> from hf_vg import SelfAttnGroundedEncoderConfig, SelfAttnGroundedEncoderModel
    >>> from hf_vg.data import grounded_scenes, load_scenes, train_word_tokenizer
    >>> from hf_vg.evaluation import sentence_grounding_metrics

    >>> scenes = grounded_scenes(load_scenes(2, 1, 1)["train"])
    >>> tokenizer = train_word_tokenizer(caption for captions in scenes["captions"] for caption in captions)
    >>> config = SelfAttnGroundedEncoderConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=16)
    >>> sentence_grounding_metrics(SelfAttnGroundedEncoderModel(config), tokenizer, scenes)["sentences"]
    10
    ```
    """
    sentences = []
    for row in rows:
        for number, caption in enumerate(row["captions"]):
            spans = [(p["start"], p["end"]) for p in row["phrases"] if p["caption"] == number and p["boxes"]]
            sentences.append((caption, spans))
    sentences.sort(key=lambda sentence: len(sentence[0]))  # batches of similar lengths

    scores = []
    for start in range(0, len(sentences), batch_size):
        batch = sentences[start : start + batch_size]
        examples = attention_of_sentences(model, tokenizer, [caption for caption, _ in batch])
        for (_, spans), example in zip(batch, examples, strict=True):
            named = np.array([any(a < last and first < b for a, b in spans) for first, last in example["spans"]])
            if not named.any() or named.all():
                continue
            attention = example["attention"].mean(axis=0)
            peak = attention == attention.max()
            mass = attention[named].sum() / attention.sum()
            scores.append((named[peak].mean(), mass, average_precision(attention, named), named.mean()))
    names = ("pointing", "mass", "average_precision", "random")
    means = np.mean(scores, axis=0).tolist() if scores else [float("nan")] * len(names)
    return {**dict(zip(names, means, strict=True)), "sentences": len(scores)}
