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
"""From a record of attention to a map of the image for each word."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import ModelOutput

from .families import Layout
from .recording import AttentionRecord


# A word with its apostrophes and hyphens, or a run of punctuation.
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]+")


def word_maps(
    record: AttentionRecord,
    outputs: ModelOutput,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
    image: int = 0,
    grid: tuple[int, int] | None = None,
    tiles: tuple[int, int] | None = None,
) -> list[list[tuple[str, torch.Tensor]]]:
    r"""
    The words that were generated, each with a map of where the model looked when it wrote them.

    Args:
        record ([`AttentionRecord`]):
            Of [`record_attention`], around `generate`.
        outputs ([`ModelOutput`]):
            Of `generate(..., return_dict_in_generate=True)`. After a beam search the maps follow the winning beams.
        processor ([`ProcessorMixin`] or [`PreTrainedTokenizerBase`]):
            The model's.
        inputs (`Mapping[str, Any]`):
            What `generate` was called with, which tells the geometry of the images.
        image (`int`, *optional*, defaults to 0):
            Which image of a prompt with several.
        grid (`tuple[int, int]`, *optional*):
            Height and width of the grid of image tokens, where the family's own does not fit.
        tiles (`tuple[int, int]`, *optional*):
            Rows and columns of tiles that an image was cut into, for models that do not tell.

    Returns:
        `list[list[tuple[str, torch.Tensor]]]`: For each returned sequence its words, each with a map of shape
        `(height, width)` that sums to 1: the mean over layers, heads, and the pieces of the word.
    """
    attention, rows = attention_of_tokens(record, outputs)
    attention = attention.mean(dim=(1, 2))  # (sequences, tokens, image tokens)
    tokenizer = getattr(processor, "tokenizer", processor)
    # Beams, or sequences to sample, of one image lie side by side.
    decoded = next(iter(record.calls[0].attention.values())).shape[0]
    images = next(len(inputs[name]) for name in ("input_ids", "pixel_values", "flattened_patches") if name in inputs)
    rows = (rows * images // decoded).tolist()
    found = []
    for ids, weights, row in zip(generated_ids(record, outputs).tolist(), attention, rows, strict=True):
        layout = [grid_by_hand(grid, weights)] if grid else layout_of(record, inputs, row, image, tiles)
        maps = fold(weights, layout)
        maps = maps / maps.sum(dim=(-2, -1), keepdim=True).clamp(min=1e-12)
        found.append([(word, maps[pieces].mean(dim=0)) for word, pieces in words_of(tokenizer, ids)])
    return found


def attention_of_tokens(record: AttentionRecord, outputs: ModelOutput) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    The attention to the image behind each generated token, along the winning beams.

    Returns:
        `tuple`: A tensor of shape `(sequences, layers, heads, tokens, image tokens)`, zero after the end of a
        sequence; and for each sequence the row that it was generated in.
    """
    if not record.calls or not record.calls[0].attention:
        raise ValueError("Nothing was recorded: run `model.generate(...)` inside `with record_attention(model)`.")
    # (tokens, rows, layers, heads, columns)
    steps = torch.stack([torch.stack([a[:, :, -1] for a in call.attention.values()], dim=1) for call in record.calls])
    if record.patches:
        # Where image tokens look, as the mean over layers and heads: (rows, image tokens, patches)
        patches = torch.stack([a.mean(dim=1) for a in record.patches.values()]).mean(dim=0)
        patches = patches.repeat_interleave(steps.shape[1] // patches.shape[0], dim=0)
        steps = torch.einsum("trlhq,rqp->trlhp", steps, patches)
    beams = getattr(outputs, "beam_indices", None)
    if beams is None:
        return steps.permute(1, 2, 3, 0, 4), torch.arange(steps.shape[1])
    tokens = torch.arange(beams.shape[1], device=beams.device)
    steps = steps[tokens, beams.clamp(min=0)]  # (sequences, tokens, layers, heads, columns)
    steps = steps * (beams >= 0)[..., None, None, None]
    return steps.permute(0, 2, 3, 1, 4), beams[:, 0].cpu()


def generated_ids(record: AttentionRecord, outputs: ModelOutput) -> torch.Tensor:
    """The ids of the generated tokens, without those of the prompt."""
    beams = getattr(outputs, "beam_indices", None)
    return outputs.sequences[:, -(len(record.calls) if beams is None else beams.shape[1]) :]


def layout_of(
    record: AttentionRecord,
    inputs: Mapping[str, Any],
    row: int,
    image: int = 0,
    tiles: tuple[int, int] | None = None,
) -> Layout:
    """The grids of an image of a row."""
    inputs = dict(inputs) if tiles is None else {**inputs, "tiles": tiles}
    layouts = record.family.layout(record.config, inputs, row)
    if not 0 <= image < len(layouts):
        raise ValueError(f"There is no image {image} in row {row}, which has {len(layouts)}.")
    return layouts[image]


def grid_by_hand(grid: tuple[int, int], weights: torch.Tensor) -> torch.Tensor:
    height, width = grid
    if height * width != weights.shape[-1]:
        raise ValueError(f"A grid of {height} x {width} does not hold {weights.shape[-1]} image tokens.")
    return torch.arange(height * width).view(height, width)


def fold(weights: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Puts weights of shape `(..., image tokens)` onto the finest grid of an image: `(..., height, width)`."""
    largest = max(int(places.max()) for places in layout)
    if largest >= weights.shape[-1]:
        raise ValueError(
            f"The grids of this image have {largest + 1} places, and there are only {weights.shape[-1]} image tokens. "
            "Give the grid by hand with `grid=(height, width)`."
        )
    height, width = max((places.shape for places in layout), key=lambda shape: shape[0] * shape[1])
    total = weights.new_zeros(*weights.shape[:-1], height, width)
    for places in layout:
        values = weights[..., places.clamp(min=0).to(weights.device)] * (places >= 0).to(weights)
        if values.shape[-2:] != total.shape[-2:]:
            mass = values.sum(dim=(-2, -1), keepdim=True)
            flat = values.reshape(-1, 1, *values.shape[-2:])
            values = torch.nn.functional.interpolate(flat, (height, width), mode="bilinear").view(total.shape)
            values = values * mass / values.sum(dim=(-2, -1), keepdim=True).clamp(min=1e-12)
        total = total + values
    return total


def words_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Merges the pieces of tokens into words: each word with the places of its tokens."""
    special = set(tokenizer.all_special_ids)
    kept = [place for place, id in enumerate(ids) if id not in special]

    def decode(number: int) -> str:
        return tokenizer.decode([ids[place] for place in kept[:number]], clean_up_tokenization_spaces=False)

    text = decode(len(kept))
    ends = [len(decode(number)) for number in range(1, len(kept) + 1)]
    words: list[tuple[str, list[int]]] = []
    for match in _WORD.finditer(text):
        # A token belongs to the word that its last character but spaces lies in.
        places = []
        start = 0
        for place, end in zip(kept, ends, strict=True):
            last = start + len(text[start:end].rstrip()) - 1
            if match.start() <= last < match.end() and text[start:end].strip():
                places.append(place)
            start = end
        if places:
            words.append((match[0], places))
    return words


__all__ = ["attention_of_tokens", "fold", "generated_ids", "layout_of", "word_maps", "words_of"]
