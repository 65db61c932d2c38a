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
"""Caption and grounding metrics with confidence intervals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.images import boxes_in_view
from ..data.scene_grammar import caption_phrases
from ..resampling import bootstrap, mean_intervals
from .captions import (
    METRICS,
    OF_A_SET,
    bleu_from_statistics,
    bleu_statistics,
    caption_metrics,
    caption_scores,
    make_corpus,
)
from .grounding import GROUNDING_METRICS, grounding_rows
from .tokenization import ptb_tokenize


def caption_intervals(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Iterable[str] = ("bleu", "rouge", "cider", "diversity"),
    true: Sequence[bool] | None = None,
    samples: int = 1000,
) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    r"""
    Computes [`caption_metrics`] with 95% confidence intervals. BLEU, ROUGE-L and CIDEr get intervals; METEOR and
    diversity do not, because they are computed for the whole set. CIDEr always uses the n-gram weights of the whole
    set.

    Args:
        predictions (`Sequence[str]`):
            One caption per image.
        references (`Sequence[Sequence[str]]`):
            The human captions, at least one per image.
        metrics (`Iterable[str]`, *optional*, defaults to `("bleu", "rouge", "cider", "diversity")`):
            The metrics, see [`caption_metrics`].
        true (`Sequence[bool]`, *optional*):
            Whether each caption is true, if that is known. Adds the metric `true`.
        samples (`int`, *optional*, defaults to 1000):
            Number of bootstrap samples, see [`bootstrap`].

    Returns:
        `tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]`: For each metric its `value`, and `low` and `high`
        if it has an interval; and the scores of each image.

    Example:

    ```python
    >>> from hf_vg.evaluation import caption_intervals

    >>> predictions, references = ["a red car", "a dog"], [["a red car"], ["the cat", "a cat"]]
    >>> results, per_image = caption_intervals(predictions, references, metrics=["bleu"])
    >>> sorted(results["bleu1"]), per_image["bleu1"].round(3).tolist()
    (['high', 'low', 'value'], [1.0, 0.5])
    ```
    """
    metrics = tuple(metrics)
    if unknown := sorted(set(metrics) - set(METRICS)):
        raise ValueError(f"unknown caption metric {unknown[0]!r}: choose from {', '.join(METRICS)}.")
    corpus = make_corpus(predictions, references, ptb_tokenize)
    per_image = caption_scores(
        predictions, references, [m for m in metrics if m in ("bleu", "bleu_no_bp", "rouge", "cider")]
    )
    if true is not None:
        per_image["true"] = np.asarray(true, dtype=np.float64)
    bleu_names = [name for name in per_image if name.startswith("bleu")]
    mean_names = [name for name in per_image if name not in bleu_names]
    statistics = np.stack([np.ones(len(predictions)), *bleu_statistics(corpus), *(per_image[n] for n in mean_names)])

    def score(sums: np.ndarray) -> np.ndarray:
        rows = dict(zip(mean_names, sums[11:] / sums[0], strict=True))
        for penalty, ending in ((True, ""), (False, "_no_bp")):
            rows |= {f"bleu{n}{ending}": row for n, row in enumerate(bleu_from_statistics(sums[1:11], penalty), 1)}
        return np.stack([rows[name] for name in bleu_names + mean_names])

    results = {}
    if bleu_names + mean_names:
        values = score(statistics.sum(axis=1, keepdims=True))[:, 0]
        ends = bootstrap(statistics, score, samples)
        for name, value, (low, high) in zip(bleu_names + mean_names, values, ends, strict=True):
            results[name] = {"value": float(value), "low": float(low), "high": float(high)}
    of_the_set = [metric for metric in metrics if metric in OF_A_SET or metric.startswith("meteor")]
    whole = caption_metrics(predictions, references, of_the_set)
    results |= {name: {"value": value} for name, value in whole.items()}
    return results, per_image


def words_with_boxes(row: Mapping[str, Any], caption: Mapping[str, Any]) -> list[tuple[int, list[list[float]]]]:
    r"""
    Finds the nouns of a caption that name an object with boxes.

    Args:
        row (`Mapping`):
            A scene with its `objects`, or a row of Flickr30k Entities with `boxes` and `phrases`. For the latter, a
            word gets the boxes of all phrases of the image that end with this word: "dog" gets the boxes of "a dog"
            and of "the brown dog".
        caption (`Mapping`):
            The output of the captioning pipeline, with `generated_text` and `words`.

    Returns:
        `list[tuple[int, list]]`: The index of each word, and its boxes `(left, top, right, bottom)` in pixels.
    """
    if "objects" in row:
        return [
            (phrase["end"] - 1, [row["objects"][index]["box"] for index in phrase["objects"]])
            for phrase in caption_phrases(row, caption["generated_text"])
            if phrase["objects"]
        ]
    boxes_of: dict[str, set[int]] = {}
    for phrase in row["phrases"]:
        words = ptb_tokenize(phrase["text"])
        if words and phrase["boxes"]:
            boxes_of.setdefault(words[-1], set()).update(phrase["boxes"])
    return [
        (number, [row["boxes"][index] for index in sorted(boxes_of[word.lower()])])
        for number, word in enumerate(caption["words"])
        if word.lower() in boxes_of
    ]


def grounding_intervals(
    rows: Sequence[Mapping[str, Any]],
    captions: Sequence[Mapping[str, Any]],
    seen: Sequence[Sequence[float]],
    image_sizes: Sequence[tuple[int, int]],
    samples: int = 1000,
) -> dict[str, dict[str, float]]:
    r"""
    Computes [`grounding_metrics`] of the nouns of captions, with 95% confidence intervals over images.

    Args:
        rows (`Sequence[Mapping]`):
            Scenes or rows of Flickr30k Entities, see [`words_with_boxes`].
        captions (`Sequence[Mapping]`):
            The output of the captioning pipeline with `return_attention=True`, one caption per image.
        seen (`Sequence`):
            The part of each image that the model sees, from [`seen_box`]. Boxes outside of it are left out.
        image_sizes (`Sequence[tuple[int, int]]`):
            Width and height of each image.
        samples (`int`, *optional*, defaults to 1000):
            Number of bootstrap samples, see [`bootstrap`].

    Returns:
        `dict[str, dict[str, float]]`: For each metric its `value`, `low` and `high`. Empty if no noun has a box.

    Example:

    ```python
    >>> import numpy as np
    >>> from hf_vg.evaluation import grounding_intervals

    >>> scene = {
    ...     "objects": [{"size": "small", "color": "red", "shape": "circle", "box": [0, 0, 32, 32]}],
    ... }
    >>> attention = np.array([[0.7, 0.1], [0.1, 0.1]])
    >>> caption = {"generated_text": "a red circle", "words": ["a", "red", "circle"], "attention": [attention] * 3}
    >>> results = grounding_intervals([scene], [caption], seen=[(0, 0, 1, 1)], image_sizes=[(64, 64)])
    >>> results["pointing"]["value"], round(results["mass"]["value"], 3)
    (1.0, 0.7)
    ```
    """
    maps, boxes, sizes, images = [], [], [], []
    for image, (row, caption, part, size) in enumerate(zip(rows, captions, seen, image_sizes, strict=True)):
        for word, truth in words_with_boxes(row, caption):
            in_view, view_size = boxes_in_view(truth, size, part)
            if in_view:
                maps.append(caption["attention"][word])
                boxes.append(in_view)
                sizes.append(view_size)
                images.append(image)
    if not maps:
        return {}
    words = grounding_rows(maps, boxes, sizes)
    intervals = mean_intervals(words, images, len(rows), samples)
    results = dict(zip(GROUNDING_METRICS, intervals, strict=True))
    # Pointing and its baselines come first.
    order = sorted(results, key=lambda name: not name.startswith("pointing"))
    return {**{name: results[name] for name in order}, "words": {"value": len(words)}}
