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
"""Whether the attention of a sentence encoder lies on the words that name something in the image."""

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
    Judges the words a sentence encoder looks at by those that name something with a box.

    Args:
        model ([`PreTrainedModel`]), tokenizer ([`PreTrainedTokenizerFast`]):
            As for [`attention_of_sentences`]. The mean of the attention rows is judged.
        rows (`Iterable[Mapping]`):
            Of [`load_flickr30k_entities`] or [`grounded_scenes`]; of them `captions` and `phrases` are read. Captions
            without a phrase that has boxes, or with nothing else, cannot be judged and are left out.
        batch_size (`int`, *optional*, defaults to 128):
            Sentences to encode at a time.

    Returns:
        `dict[str, float]`: means over captions.

        - **pointing** -- whether the word with most attention is in a phrase that has boxes. Equal largest words count
          by the share of them that is.
        - **mass** -- the share of attention on words of such phrases.
        - **average_precision** -- of the attention as a score of such words.
        - **random** -- the share of tokens, the end included, that are in such phrases: what even attention gives.
        - **sentences** -- how many there were.
    """
    sentences = []
    for row in rows:
        for number, caption in enumerate(row["captions"]):
            spans = [(p["start"], p["end"]) for p in row["phrases"] if p["caption"] == number and p["boxes"]]
            sentences.append((caption, spans))
    sentences.sort(key=lambda sentence: len(sentence[0]))  # batches of near lengths

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
