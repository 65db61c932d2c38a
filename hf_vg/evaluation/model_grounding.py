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
"""Evaluates where the words of any vision-language model look, against the boxes of the objects that they name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from ..data.images import boxes_in_view, open_image, seen_box
from ..data.phrases import token_offsets, token_span
from ..data.prompts import caption_inputs
from ..interpretation.deletion import deletion_summary, word_curves
from ..interpretation.explainers import EXPLAINERS, evaluation_mode, head_maps_of, maps_of
from ..interpretation.families import tiles_of_images
from ..interpretation.reading import Reading, readings
from ..resampling import mean_intervals
from .grounding import GROUNDING_METRICS, grounding_rows


Box = Sequence[float]


def evaluate_grounding(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    dataset: Iterable[Mapping[str, Any]],
    methods: Sequence[str] = ("attention",),
    prompt: str | None = None,
    captions_per_image: int = 1,
    words: str = "last",
    deletion: bool = False,
    batch_size: int = 16,
    samples: int = 1000,
) -> dict[str, Any]:
    r"""
    Evaluates the grounding of any supported model: the pointing game, the share of attention in the box, and average
    precision. The model reads human captions (teacher forcing), so that all models are scored on the same words.

    Args:
        model ([`PreTrainedModel`]):
            The model.
        processor ([`ProcessorMixin`]):
            The model's processor.
        dataset (`Iterable[Mapping]`):
            Rows with an `image` and one of these:

            - `captions`, `boxes` and `phrases`, as in [`load_flickr30k_entities`] and [`grounded_scenes`].
            - an `expression` and its `box`, as in [`load_referring`].
        methods (`Sequence[str]`, *optional*, defaults to `("attention",)`):
            The explainers to evaluate, see [`explain_words`].
        prompt (`str`, *optional*):
            The question to the model, or the first words of the caption, see [`caption_inputs`].
        captions_per_image (`int`, *optional*, defaults to 1):
            Maximum number of captions per image. The first captions that name an object with a box are used.
        words (`str`, *optional*, defaults to `"last"`):
            The map of a phrase: `"last"` uses the map of its last word, in English usually the noun, and `"all"` the
            mean of the maps of all its words.
        deletion (`bool`, *optional*, defaults to `False`):
            Whether to run the [`deletion_test`] on the last words of phrases. It takes about 35 forward passes per
            caption and method.
        batch_size (`int`, *optional*, defaults to 16):
            Number of partly hidden images per forward pass, for `"occlusion"` and `deletion`.
        samples (`int`, *optional*, defaults to 1000):
            Number of bootstrap samples for the confidence intervals.

    Returns:
        `dict[str, Any]`: The results.

        - **methods** -- for each method, the metrics and baselines of [`grounding_metrics`], each with `value`, `low`
          and `high` over images. With `deletion`, also `deletion` and `deletion_center`, see [`deletion_test`].
        - **layers** -- for each layer that attends to the image, the metrics of its attention, averaged over heads.
        - **heads** -- for each layer, the metrics of each head.
        - **best_head** -- the `layer` and `head` with the highest pointing accuracy on every second image, with its
          metrics on the other images. The two halves are separate because the best of many heads is partly luck.
        - **words**, **images** -- the numbers of phrases and images.

    Example:

    ```python
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor
    >>> from hf_vg.data import grounded_scenes, load_scenes
    >>> from hf_vg.evaluation import evaluate_grounding
    >>> from hf_vg.examples import checkpoint

    >>> model = AutoModelForImageTextToText.from_pretrained(checkpoint("spatial_transformer"))
    >>> processor = AutoProcessor.from_pretrained(checkpoint("spatial_transformer"))
    >>> results = evaluate_grounding(model, processor, grounded_scenes(load_scenes(2, 1, 1)["train"]))
    >>> results["images"], results["words"]
    (2, 3)
    ```
    """
    if unknown := sorted(set(methods) - set(EXPLAINERS)):
        raise ValueError(f"`methods` must be from {', '.join(map(repr, EXPLAINERS))}, got {unknown[0]!r}.")
    if words not in ("last", "all"):
        raise ValueError(f'`words` must be "last" or "all", got {words!r}.')
    rows: dict[str, list[np.ndarray]] = {method: [] for method in methods}
    by_head, images, curves = [], [], {method: [] for method in methods}
    with evaluation_mode(model):
        for number, row in enumerate(tqdm(dataset, desc="Evaluating grounding", unit="image")):
            image = open_image(row["image"])
            seen = seen_box(processor.image_processor, image.size)
            texts = texts_with_boxes(row, captions_per_image)
            if not texts:
                continue
            inputs = caption_inputs(model.config, processor, [image], prompt).to(model.device, model.dtype)
            tiles = tiles_of_images(model.config, processor.image_processor, [image])
            read = readings(model, processor, inputs, [text for text, _ in texts], tiles=tiles)
            for reading, (text, phrases) in zip(read, texts, strict=True):
                named = [
                    (numbers if words == "all" else numbers[-1:], *in_view)
                    for start, end, boxes in phrases
                    if (in_view := boxes_in_view(boxes, image.size, seen))[0]
                    and (numbers := words_of_span(reading, processor.tokenizer, text, start, end))
                ]
                if not named:
                    continue
                heads = head_maps_of(reading)  # (layers, heads, words, height, width)
                layers = heads.mean(dim=1, keepdim=True)
                # The mean over heads is added as one more head.
                by_head += list(_judge(torch.cat([heads, layers], dim=1), named))
                for method in methods:
                    maps = (
                        heads.mean(dim=(0, 1))
                        if method == "attention"
                        else maps_of(reading, method, batch_size=batch_size)
                    )
                    rows[method] += list(_judge(maps, named))
                    if deletion:
                        chosen = {numbers[-1]: maps[numbers[-1]] for numbers, _, _ in named}
                        found = word_curves(reading, chosen, batch_size=batch_size)
                        curves[method] += [{"image": number, **curve} for curve in found]
                images += [number] * len(named)
    if not images:
        raise ValueError("No caption in `dataset` names an object with a box.")
    results: dict[str, Any] = {"methods": {}}
    for method in methods:
        results["methods"][method] = _with_intervals(np.stack(rows[method]), images, samples)
        if deletion:
            summary = deletion_summary(curves[method], samples=samples)
            results["methods"][method] |= {
                "deletion": summary["score"], "deletion_center": summary["score_center"],
                "curve": {"shares": summary["shares"], **summary["probability"]},
            }  # fmt: skip
    table = np.stack(by_head)  # (phrases, layers, heads + 1, metrics)
    means = table.mean(axis=0)
    names = GROUNDING_METRICS[:3]
    results["layers"] = [dict(zip(names, layer[-1].tolist(), strict=False)) for layer in means]
    results["heads"] = [[dict(zip(names, head.tolist(), strict=False)) for head in layer[:-1]] for layer in means]
    results["best_head"] = _best_head(table[:, :, :-1], np.array(images), samples)
    return {**results, "words": len(images), "images": len(set(images))}


def texts_with_boxes(
    row: Mapping[str, Any], number: int | None = None
) -> list[tuple[str, list[tuple[int, int, list[Box]]]]]:
    r"""
    Finds the texts of a row that name objects with boxes.

    Args:
        row (`Mapping[str, Any]`):
            A row of the dataset of [`evaluate_grounding`].
        number (`int`, *optional*):
            Maximum number of texts.

    Returns:
        `list[tuple[str, list[tuple[int, int, list]]]]`: Each text with its phrases. A phrase has its start and end in
        characters, and its boxes in pixels.

    Example:

    ```python
    >>> from hf_vg.evaluation.model_grounding import texts_with_boxes

    >>> texts_with_boxes({"expression": "the left dog", "box": [10, 20, 40, 60]})
    [('the left dog', [(0, 12, [[10, 20, 40, 60]])])]
    ```
    """
    if "expression" in row:
        return [(row["expression"], [(0, len(row["expression"]), [row["box"]])])]
    phrases: dict[int, list[tuple[int, int, list[Box]]]] = {}
    for phrase in row["phrases"]:
        if phrase["boxes"]:
            boxes = [row["boxes"][index] for index in phrase["boxes"]]
            phrases.setdefault(phrase["caption"], []).append((phrase["start"], phrase["end"], boxes))
    return [(row["captions"][caption], phrases[caption]) for caption in sorted(phrases)[:number]]


def words_of_span(reading: Reading, tokenizer: Any, text: str, start: int, end: int) -> list[int]:
    """Returns the indices of the words of a reading that are inside a span of characters of its text."""
    (offsets,) = token_offsets(tokenizer, [text])
    inside = set(range(*(token_span(offsets, start, end) or (0, 0))))
    return [number for number, (_, pieces) in enumerate(reading.words) if inside & set(pieces)]


def _judge(maps: torch.Tensor, named: Sequence[tuple[list[int], Sequence[Box], tuple[float, float]]]) -> np.ndarray:
    """Computes [`grounding_rows`] for maps `(..., words, height, width)`: the result is `(phrases, ..., 5)`."""
    found = []
    for numbers, boxes, size in named:
        of_phrase = maps[..., numbers, :, :].mean(dim=-3)  # (..., height, width)
        flat = list(of_phrase.reshape(-1, *of_phrase.shape[-2:]).numpy())
        judged = grounding_rows(flat, [boxes] * len(flat), [size] * len(flat))
        found.append(judged.reshape(*of_phrase.shape[:-2], -1))
    return np.stack(found)


def _with_intervals(rows: np.ndarray, images: Sequence[int] | np.ndarray, samples: int) -> dict[str, Any]:
    return dict(zip(GROUNDING_METRICS, mean_intervals(rows, images, samples=samples), strict=True))


def _best_head(table: np.ndarray, images: np.ndarray, samples: int) -> dict[str, Any] | None:
    """Finds the head that points best on one half of the images, and scores it on the other half."""
    _, order = np.unique(images, return_inverse=True)
    is_chosen_on = order % 2 == 0
    if is_chosen_on.all():
        return None  # there is only one image
    pointing = table[is_chosen_on][..., 0].mean(axis=0)  # (layers, heads)
    layer, head = np.unravel_index(int(pointing.argmax()), pointing.shape)
    rest = table[~is_chosen_on][:, layer, head]
    metrics = _with_intervals(rest, images[~is_chosen_on], samples)
    return {"layer": int(layer), "head": int(head), **metrics}
