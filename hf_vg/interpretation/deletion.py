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
"""Can a map be believed? If what it marks is hidden, the word should become less likely."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import ModelOutput

from ..resampling import mean_intervals
from .explainers import evaluation_mode, hidden_cells
from .families import Family, Tiles
from .reading import Reading, readings


SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
CURVES = ("map", "random", "center")  # what decides which cells are hidden


def deletion_test(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
    outputs: ModelOutput | torch.Tensor | Sequence[str],
    maps: Sequence[Sequence[tuple[str, torch.Tensor]]],
    shares: Sequence[float] = SHARES,
    seeds: int = 5,
    image: int = 0,
    tiles: Tiles | None = None,
    family: Family | None = None,
    batch_size: int = 16,
    samples: int = 1000,
) -> dict[str, Any]:
    r"""
    Hides the cells of the image that the map of a word marks most, and measures how far the probability of the word
    falls: against hiding equally many cells at random, and against hiding the center of the image.

    The probability of a word is the product over its tokens, given the words before it (teacher forcing). Hidden
    cells get the mean color of the image, in the model's own pixel inputs: see [`HiddenCells`]. A sequence of `n`
    words takes `len(shares) * (seeds + 1 + n) + 1` passes over the image, 81 for ten words.

    Example:

    ```python
    >>> import hf_vg
    >>> from PIL import Image
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor
    >>> from hf_vg.interpretation import deletion_test, explain_words

    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model = AutoModelForImageTextToText.from_pretrained(folder)
    >>> processor = AutoProcessor.from_pretrained(folder)
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> inputs = processor(images=image, return_tensors="pt")
    >>> outputs = model.generate(**inputs)
    >>> maps = explain_words(model, processor, inputs, outputs, "occlusion")
    >>> result = deletion_test(model, processor, inputs, outputs, maps)
    >>> result["score"]["value"] > 0  # what the maps mark matters more to the words than the rest of the image
    True
    ```

    Args:
        model ([`PreTrainedModel`]):
            The model.
        processor ([`ProcessorMixin`] or [`PreTrainedTokenizerBase`]):
            Its processor or tokenizer.
        inputs (`Mapping[str, Any]`):
            The inputs of `generate`.
        outputs ([`ModelOutput`], `torch.Tensor` or `Sequence[str]`):
            The output of `generate`, or texts of your own. See [`explain_words`].
        maps (`Sequence[Sequence[tuple[str, torch.Tensor]]]`):
            For each sequence its words, each with a map of shape `(height, width)`: from [`explain_words`],
            [`word_maps`], or your own.
        shares (`Sequence[float]`, *optional*, defaults to 5, 10, 20, 30 and 50 percent):
            How much of the image to hide: `share * height * width` cells, rounded, but at least one.
        seeds (`int`, *optional*, defaults to 5):
            How many random orders of cells to average over.
        image (`int`, *optional*, defaults to 0):
            The number of the image, if there are several images in a row of the inputs.
        tiles (`tuple[int, int]` or a sequence of them, *optional*):
            The rows and columns of tiles that an image was cut into. See [`word_maps`].
        family ([`Family`], *optional*):
            Where the image tokens are, for a model that hf_vg does not know. See [`record_attention`].
        batch_size (`int`, *optional*, defaults to 16):
            Hidden images per forward pass.
        samples (`int`, *optional*, defaults to 1000):
            How many times to resample for the confidence intervals.

    Returns:
        `dict[str, Any]`:

        - **score** -- How much further the probability falls than if cells are hidden at random: the mean over shares
          and words, with `value`, `low` and `high`. This is the area between the two curves. Above 0 the map is better
          than chance. The interval is over images, or over words if there is only one image.
        - **score_center** -- The same against hiding the center.
        - **shares** -- The shares that are hidden, beginning with 0.
        - **probability** -- The curves `map`, `random` and `center`: the mean probability of words at each share.
        - **words** -- For each word: its `word`, the number of its `sequence` and of its `image` row, its `score`, and
          its own curves `map`, `random` and `center`.
    """
    words = []
    with evaluation_mode(model):
        for number, (reading, of_sequence) in enumerate(
            zip(readings(model, processor, inputs, outputs, family, tiles), maps, strict=True)
        ):
            if len(of_sequence) != len(reading.words):
                raise ValueError(
                    f"Sequence {number} must have one map per word, got {len(of_sequence)} maps and "
                    f"{len(reading.words)} words."
                )
            chosen = {place: word_map for place, (_, word_map) in enumerate(of_sequence)}
            curves = word_curves(reading, chosen, shares, seeds, image, batch_size)
            words += [{"sequence": number, "image": reading.row, **curve} for curve in curves]
    return deletion_summary(words, shares, samples=samples)


def deletion_summary(
    words: Sequence[Mapping[str, Any]], shares: Sequence[float] = SHARES, samples: int = 1000
) -> dict[str, Any]:
    r"""
    Combines the words of several calls of [`deletion_test`] into one result.

    Example:

    ```python
    >>> from hf_vg.interpretation import deletion_summary

    >>> curves = {"map": [0.9, 0.1], "random": [0.9, 0.5], "center": [0.9, 0.6]}
    >>> words = [{"word": "dog", "image": n, "score": 0.4, "score_center": 0.5, **curves} for n in (0, 1)]
    >>> round(deletion_summary(words, shares=[0.2])["score"]["value"], 2)
    0.4
    ```

    Args:
        words (`Sequence[Mapping]`):
            The `words` of results of [`deletion_test`]. Number the `image` of each word anew, so that equal numbers
            mean equal images.
        shares (`Sequence[float]`, *optional*, defaults to 5, 10, 20, 30 and 50 percent):
            The shares that those calls of [`deletion_test`] hid.
        samples (`int`, *optional*, defaults to 1000):
            How many times to resample for the confidence intervals.

    Returns:
        `dict[str, Any]`: As [`deletion_test`] returns it, over all the words.
    """
    if not words:
        raise ValueError("There are no words to test.")
    falls = np.array([[word["score"], word["score_center"]] for word in words])
    score, score_center = mean_intervals(falls, [word["image"] for word in words], samples=samples)
    return {
        "score": score,
        "score_center": score_center,
        "shares": [0.0, *map(float, shares)],
        "probability": {name: np.mean([word[name] for word in words], axis=0).tolist() for name in CURVES},
        "words": list(words),
    }


def word_curves(
    reading: Reading,
    maps: Mapping[int, torch.Tensor],
    shares: Sequence[float] = SHARES,
    seeds: int = 5,
    image: int = 0,
    batch_size: int = 16,
) -> list[dict[str, Any]]:
    """
    The probability of words as more is hidden: what their maps mark, cells at random, or the center. The keys of
    `maps` are the numbers of words in the reading.
    """
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"`shares` must be above 0 and at most 1, got {list(shares)}.")
    if not maps:
        return []
    height, width = next(iter(maps.values())).shape
    cells = hidden_cells(reading, (height, width), image)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(height * width, generator=generator) for _ in range(seeds)]
    ys, xs = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
    orders.append(_order(-((ys - 0.5) ** 2 + (xs - 0.5) ** 2), generator))
    orders += [_order(torch.as_tensor(word_map), generator) for word_map in maps.values()]
    counts = [max(1, round(share * height * width)) for share in shares]
    hidden = torch.zeros(len(orders), len(shares), height * width, dtype=torch.bool)
    for order, row in zip(orders, hidden, strict=True):
        for count, variant in zip(counts, row, strict=True):
            variant[order[:count]] = True
    nothing = torch.zeros(1, height * width, dtype=torch.bool)
    probabilities = cells.log_probabilities(torch.cat([nothing, hidden.flatten(0, 1)]), batch_size).exp().double()
    shown, by_order = probabilities[0], probabilities[1:].unflatten(0, (len(orders), len(shares)))
    found = []
    for place, number in enumerate(maps):
        # (orders, shares) of this word
        at_random = by_order[:seeds, :, number].mean(dim=0)
        center, by_map = by_order[seeds, :, number], by_order[seeds + 1 + place, :, number]
        first = [shown[number].item()]
        found.append(
            {
                "word": reading.words[number][0],
                "score": (at_random - by_map).mean().item(),
                "score_center": (center - by_map).mean().item(),
                "map": first + by_map.tolist(),
                "random": first + at_random.tolist(),
                "center": first + center.tolist(),
            }
        )
    return found


def _order(weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Cells from the largest weight to the smallest. Ties are in random order, so that no corner is preferred."""
    shuffled = torch.randperm(weights.numel(), generator=generator)
    return shuffled[weights.flatten()[shuffled].argsort(descending=True, stable=True)]


__all__ = ["deletion_summary", "deletion_test"]
