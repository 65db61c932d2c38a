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
"""Rewards for training by reinforcement, with the signature of TRL: `(completions, **columns) -> list[float]`.

[`SelfCriticalTrainer`] takes them, and so do TRL's `GRPOTrainer` and `RLOOTrainer`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from .captions import DocumentFrequencies, caption_scores
from .grounding import grounding_rows
from .tokenization import ptb_tokenize


# A completion is a text, or the messages of a conversation.
Completion = str | Sequence[Mapping[str, Any]]
Tokenize = Callable[[str], list[str]]

_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
# Four numbers in brackets: [12, 30, 140, 96] or (12, 30, 140, 96).
_BRACKETS = re.compile(rf"[\[(]{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}[\])]")
# Boxes in tokens: of PaliGemma (top, left, bottom, right; of 1,024) and of Florence-2 (left, top, right, bottom).
_PALIGEMMA = re.compile(r"<loc(\d{4})>" * 4)
_FLORENCE = re.compile(r"<loc_(\d+)>" * 4)


def cider_reward(
    completions: Sequence[Completion],
    references: Sequence[Sequence[str]],
    df: DocumentFrequencies | None = None,
    tokenize: Tokenize = ptb_tokenize,
    **columns: Any,
) -> list[float]:
    r"""
    Rewards captions by CIDEr-D.

    Args:
        completions (`Sequence[str]`, or of conversations):
            The captions.
        references (`Sequence[Sequence[str]]`):
            What people wrote about the image of each caption. With TRL this is a column of the dataset.
        df ([`DocumentFrequencies`]):
            Statistics of the training captions, from [`document_frequencies`]. Pass them with `functools.partial`.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words.
        columns (`dict`, *optional*):
            Other columns of the dataset, which TRL passes too. They are ignored.

    Returns:
        `list[float]`: A score from 0 to 10 for each caption.

    Example:

    ```python
    >>> from functools import partial
    >>> from hf_vg.evaluation import cider_reward, document_frequencies
    >>> captions = [["a dog runs", "a brown dog"], ["a cat sleeps"], ["two birds"]]
    >>> reward = partial(cider_reward, df=document_frequencies(captions))
    >>> [round(score, 2) for score in reward(["a dog runs", "a cat"], references=[captions[0]] * 2)]
    [4.41, 0.22]

    >>> # GRPOTrainer(model, reward_funcs=reward, train_dataset=...) with a column `references`
    ```
    """
    if df is None:
        raise ValueError(
            "`cider_reward` needs the document frequencies of your training captions: "
            "`functools.partial(cider_reward, df=document_frequencies(captions))`."
        )
    return _scores(completions, references, "cider", "cider_d", tokenize, df)


def bleu_reward(
    completions: Sequence[Completion],
    references: Sequence[Sequence[str]],
    order: int = 4,
    tokenize: Tokenize = ptb_tokenize,
    **columns: Any,
) -> list[float]:
    r"""
    Rewards captions by BLEU of each caption by itself.

    Args:
        completions (`Sequence[str]`, or of conversations):
            The captions.
        references (`Sequence[Sequence[str]]`):
            What people wrote about the image of each caption. With TRL this is a column of the dataset.
        order (`int`, *optional*, defaults to 4):
            The longest n-grams that count, from 1 to 4. A caption without a right 4-gram has nearly no BLEU-4.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words.
        columns (`dict`, *optional*):
            Other columns of the dataset, which TRL passes too. They are ignored.

    Returns:
        `list[float]`: A score from 0 to 1 for each caption.

    Example:

    ```python
    >>> from hf_vg.evaluation import bleu_reward
    >>> scores = bleu_reward(["a dog runs", "a cat runs"], references=[["a dog runs"]] * 2, order=2)
    >>> [round(score, 2) for score in scores]
    [1.0, 0.0]
    ```
    """
    if order not in (1, 2, 3, 4):
        raise ValueError(f"`order` must be 1, 2, 3 or 4, got {order!r}.")
    return _scores(completions, references, "bleu", f"bleu{order}", tokenize)


def meteor_reward(
    completions: Sequence[Completion],
    references: Sequence[Sequence[str]],
    tokenize: Tokenize = ptb_tokenize,
    **columns: Any,
) -> list[float]:
    r"""
    Rewards captions by METEOR without paraphrases (`meteor_python` of [`caption_metrics`]). It needs no Java.

    Args:
        completions (`Sequence[str]`, or of conversations):
            The captions.
        references (`Sequence[Sequence[str]]`):
            What people wrote about the image of each caption. With TRL this is a column of the dataset.
        tokenize (`Callable[[str], list[str]]`, *optional*, defaults to [`ptb_tokenize`]):
            Splits a caption into words.
        columns (`dict`, *optional*):
            Other columns of the dataset, which TRL passes too. They are ignored.

    Returns:
        `list[float]`: A score from 0 to 1 for each caption.

    Example:

    ```python
    >>> from hf_vg.evaluation import meteor_reward
    >>> same, other = meteor_reward(["a dog runs", "two birds"], references=[["a dog runs"]] * 2)
    >>> same, other
    (1.0, 0.0)
    ```
    """
    return _scores(completions, references, "meteor_python", "meteor_python", tokenize)


def pointing_reward(
    completions: Sequence[Completion],
    boxes: Sequence[Sequence[Sequence[float]]],
    image_size: Sequence[tuple[float, float]] | None = None,
    image: Sequence[Image.Image] | None = None,
    maps: Sequence[np.ndarray] | None = None,
    scale: float | None = None,
    **columns: Any,
) -> list[float]:
    r"""
    Rewards pointing at the right place, as in the pointing game. There are two ways to point:

    - The completion contains boxes. The reward is the share of them whose center lies in a box of the row, and 0 if
      there are none. A box is four numbers in brackets, `[left, top, right, bottom]`, or four location tokens of
      PaliGemma (`<loc0123>`) or Florence-2 (`<loc_123>`).
    - `maps` are given, for example the attention of the words that a model wrote. The reward is the share of the maps
      whose peak lies in a box of the row. Completions are not read.

    Args:
        completions (`Sequence[str]`, or of conversations):
            What the model wrote.
        boxes (`Sequence` of lists of `(left, top, right, bottom)`):
            For each row the boxes that are right, in pixels. With TRL this is a column of the dataset.
        image_size (`Sequence[tuple[float, float]]`, *optional*):
            For each row the width and height of its image. By default that of `image`.
        image (`Sequence[PIL.Image.Image]`, *optional*):
            The images, a column that datasets for TRL have.
        maps (`Sequence[np.ndarray]`, *optional*):
            For each row a map of shape `(height, width)`, or several, `(words, height, width)`.
        scale (`float`, *optional*):
            What the right and the lower edge of an image are in the model's numbers: 1000 for models that count in
            thousandths (Qwen3-VL, InternVL), 1 for fractions. By default numbers are pixels (Qwen2.5-VL).
        columns (`dict`, *optional*):
            Other columns of the dataset, which TRL passes too. They are ignored.

    Returns:
        `list[float]`: A score from 0 to 1 for each completion.

    Example:

    ```python
    >>> from hf_vg.evaluation import pointing_reward
    >>> pointing_reward(
    ...     ['{"bbox_2d": [10, 10, 30, 30]}', "a dog [60, 60, 90, 90] and a cat [10, 12, 20, 22]", "a dog"],
    ...     boxes=[[[0, 0, 50, 50]]] * 3,
    ...     image_size=[(100, 100)] * 3,
    ... )
    [1.0, 0.5, 0.0]
    ```
    """
    if image_size is None:
        if image is None:
            raise ValueError("`pointing_reward` needs a column `image_size` with (width, height), or `image`.")
        image_size = [one.size for one in image]
    for name, column in {"boxes": boxes, "image_size": image_size, "maps": maps}.items():
        if column is not None and len(column) != len(completions):
            raise ValueError(f"there are {len(completions)} completions, but {len(column)} rows of `{name}`.")
    rewards = []
    for row, (completion, right, size) in enumerate(zip(completions, boxes, image_size, strict=True)):
        if maps is None:
            hits = [
                any(left <= x <= r and top <= y <= bottom for left, top, r, bottom in right)
                for x, y in _centers(_text(completion), size, scale)
            ]
        else:
            of_words = np.asarray(maps[row], dtype=np.float64)
            of_words = of_words.reshape(-1, *of_words.shape[-2:])
            hits = grounding_rows(list(of_words), [right] * len(of_words), [size] * len(of_words))[:, 0]
        rewards.append(float(np.mean(hits)) if len(hits) else 0.0)
    return rewards


def _centers(text: str, size: tuple[float, float], scale: float | None) -> list[tuple[float, float]]:
    """The centers of the boxes in a text, in pixels."""
    width, height = size
    found: list[tuple[Any, float | None, tuple[int, ...]]] = [
        (box, 1024, (1, 0, 3, 2)) for box in _PALIGEMMA.findall(text)
    ]
    found += [(box, 1000, (0, 1, 2, 3)) for box in _FLORENCE.findall(text)]
    found += [(box, scale, (0, 1, 2, 3)) for box in _BRACKETS.findall(text)]
    centers = []
    for box, whole, order in found:
        left, top, right, bottom = (float(box[place]) for place in order)
        x, y = (left + right) / 2, (top + bottom) / 2
        centers.append((x, y) if whole is None else (x * width / whole, y * height / whole))
    return centers


def _scores(
    completions: Sequence[Completion],
    references: Sequence[Sequence[str]],
    metric: str,
    name: str,
    tokenize: Tokenize,
    df: DocumentFrequencies | None = None,
) -> list[float]:
    if not len(completions):
        return []
    words: dict[str, list[str]] = {}

    def tokenize_once(caption: str) -> list[str]:
        # The references of an image come again with each of its completions.
        if caption not in words:
            words[caption] = tokenize(caption)
        return words[caption]

    texts = [_text(completion) for completion in completions]
    return caption_scores(texts, references, (metric,), df, tokenize_once)[name].tolist()


def _text(completion: Completion) -> str:
    """The text of a completion: of a conversation, that of its last message."""
    if isinstance(completion, str):
        return completion
    if not len(completion):
        return ""
    content = completion[-1]["content"] or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
