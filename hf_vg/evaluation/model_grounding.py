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
"""Where the words of any vision-language model look, judged by the boxes of what they name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from ..data.images import boxes_in_view, open_image, seen_box
from ..data.phrases import token_offsets, token_span
from ..interpretation.deletion import deletion_summary, word_curves
from ..interpretation.explainers import EXPLAINERS, evaluation_mode, head_maps_of, maps_of
from ..interpretation.families import tiles_of_images
from ..interpretation.prompts import caption_inputs
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
    The pointing game, the share of attention in the box, and average precision, for any supported model. The model
    reads captions that people wrote (teacher forcing), so that all models are judged on the same words.

    Args:
        model ([`PreTrainedModel`]), processor ([`ProcessorMixin`]):
            The model and its processor.
        dataset (`Iterable[Mapping]`):
            Rows with an `image` and

            - `captions`, `boxes` and `phrases`, as [`load_flickr30k_entities`] and [`grounded_scenes`] give them; or
            - an `expression` and its `box`, as [`load_referring`] gives them.
        methods (`Sequence[str]`, *optional*, defaults to `("attention",)`):
            The explainers to judge: see [`explain_words`].
        prompt (`str`, *optional*):
            What the model is asked, or the first words of the caption. See [`caption_inputs`].
        captions_per_image (`int`, *optional*, defaults to 1):
            How many captions of an image are read, at most: the first that name something with a box.
        words (`str`, *optional*, defaults to `"last"`):
            Which map stands for a phrase: that of its `"last"` word, in English mostly the noun, or the mean of
            `"all"` its words.
        deletion (`bool`, *optional*, defaults to `False`):
            Whether to add the [`deletion_test`] of the last words of phrases, which takes about 35 readings per
            caption and method.
        batch_size (`int`, *optional*, defaults to 16):
            Hidden images per forward pass, for `"occlusion"` and `deletion`.
        samples (`int`, *optional*, defaults to 1000):
            Sets that are drawn for the confidence intervals.

    Returns:
        `dict[str, Any]`:

        - **methods** -- For each method its metrics, see [`grounding_metrics`], each with `value`, `low` and `high`,
          over images; baselines among them. With `deletion` also `deletion` and `deletion_center`: see
          [`deletion_test`].
        - **layers** -- For each layer that looks at the image the metrics of its attention, the mean over heads.
        - **heads** -- For each layer the metrics of each head.
        - **best_head** -- The `layer` and `head` with the highest pointing accuracy on every other image, and its
          metrics on the rest: the best of many heads is partly luck, and this leaves the luck out.
        - **words**, **images** -- How many phrases, of how many images, were judged.
    """
    if unknown := sorted(set(methods) - set(EXPLAINERS)):
        raise ValueError(f"`methods` must be of {', '.join(map(repr, EXPLAINERS))}, got {unknown[0]!r}.")
    if words not in ("last", "all"):
        raise ValueError(f'`words` must be "last" or "all", got {words!r}.')
    rows: dict[str, list[np.ndarray]] = {method: [] for method in methods}
    by_head, images, curves = [], [], {method: [] for method in methods}
    with evaluation_mode(model):
        for number, row in enumerate(tqdm(dataset, desc="Pointing", unit="image")):
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
                # The mean over heads is put behind the heads.
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
        raise ValueError("No caption of these rows names anything that has a box.")
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
    The texts of a row that name things with boxes, each with its phrases: first character, the one after the last, and
    boxes in pixels.

    Args:
        row (`Mapping[str, Any]`):
            As for [`evaluate_grounding`].
        number (`int`, *optional*):
            The most texts to return.
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
    """The numbers of the words of a reading that lie in a span of characters of its text."""
    (offsets,) = token_offsets(tokenizer, [text])
    inside = set(range(*(token_span(offsets, start, end) or (0, 0))))
    return [number for number, (_, pieces) in enumerate(reading.words) if inside & set(pieces)]


def _judge(maps: torch.Tensor, named: Sequence[tuple[list[int], Sequence[Box], tuple[float, float]]]) -> np.ndarray:
    """Numbers of [`grounding_rows`] for maps of words, `(..., words, height, width)`: `(phrases, ..., 5)`."""
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
    """The head that points best on one half of the images, and how it does on the other half."""
    _, order = np.unique(images, return_inverse=True)
    is_chosen_on = order % 2 == 0
    if is_chosen_on.all():
        return None  # a single image
    pointing = table[is_chosen_on][..., 0].mean(axis=0)  # (layers, heads)
    layer, head = np.unravel_index(int(pointing.argmax()), pointing.shape)
    rest = table[~is_chosen_on][:, layer, head]
    metrics = _with_intervals(rest, images[~is_chosen_on], samples)
    return {"layer": int(layer), "head": int(head), **metrics}
