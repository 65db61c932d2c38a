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
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import ModelOutput

from ..data.images import seen_box
from .families import Tiles, deal
from .recording import AttentionRecord


if TYPE_CHECKING:
    # transformers' pipelines import ours, which imports this module.
    from transformers import Pipeline


# A word with its apostrophes and hyphens, or a run of punctuation.
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]+")
# Chinese and Japanese have no spaces between words: there a token is a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def word_maps(
    record: AttentionRecord,
    outputs: ModelOutput,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
    image: int = 0,
    grid: tuple[int, int] | None = None,
    tiles: Tiles | None = None,
    by_head: bool = False,
) -> list[list[tuple[str, torch.Tensor]]]:
    r"""
    Turns a record into the words that the model wrote, each with a map of where the model looked.

    If a model sees an image both whole and in tiles, a map adds up the attention to a place in both.

    Example:

    ```python
    >>> import hf_vg
    >>> from PIL import Image
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor

    >>> folder = hf_vg.examples.checkpoint("spatial_transformer")
    >>> model = AutoModelForImageTextToText.from_pretrained(folder)
    >>> processor = AutoProcessor.from_pretrained(folder)
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> inputs = processor(images=image, return_tensors="pt")
    >>> with hf_vg.record_attention(model) as record:
    ...     outputs = model.generate(**inputs, num_beams=3, return_dict_in_generate=True)
    >>> words = hf_vg.word_maps(record, outputs, processor, inputs)[0]
    >>> [word for word, _ in words] == processor.decode(outputs.sequences[0], skip_special_tokens=True).split()
    True
    >>> words[0][1].shape  # height and width of the map of the first word
    torch.Size([8, 8])
    ```

    Args:
        record ([`AttentionRecord`]):
            The record that [`record_attention`] made around `generate`.
        outputs ([`ModelOutput`]):
            The output of `generate(..., return_dict_in_generate=True)`. After a beam search the maps follow the
            winning beams.
        processor ([`ProcessorMixin`] or [`PreTrainedTokenizerBase`]):
            The model's processor or tokenizer.
        inputs (`Mapping[str, Any]`):
            The inputs of `generate`. They contain the geometry of the images.
        image (`int`, *optional*, defaults to 0):
            Which image to map, if a prompt has several.
        grid (`tuple[int, int]`, *optional*):
            Height and width of the grid of image tokens, if hf_vg does not know the model's grid.
        tiles (`tuple[int, int]` or a sequence of them, *optional*):
            Rows and columns of the tiles that each image of the batch was cut into. Only for models whose inputs do
            not say it, such as InternVL. See [`tiles_of`].
        by_head (`bool`, *optional*, defaults to `False`):
            Whether to return one map per layer and head instead of their mean.

    Returns:
        `list[list[tuple[str, torch.Tensor]]]`: For each returned sequence its words, each with a map of shape
        `(height, width)` that sums to 1: the mean over layers, heads, and the pieces of the word. With `by_head` the
        maps have the shape `(layers, heads, height, width)`, and their mean over layers and heads sums to 1.
    """
    attention, rows = attention_of_tokens(record, outputs)
    attention = attention.float()
    if not by_head:
        attention = attention.mean(dim=(1, 2), keepdim=True)  # (sequences, 1, 1, tokens, image tokens)
    tokenizer = getattr(processor, "tokenizer", processor)
    layouts = [] if grid is not None else layouts_of_rows(record, inputs, tiles)
    found = []
    for ids, weights, row in zip(generated_ids(record, outputs).tolist(), attention, rows.tolist(), strict=True):
        if grid is not None:
            layout = [grid_by_hand(grid, weights)]
        else:
            layout = _image_of(layouts, row * len(layouts) // record.rows, image)
        maps = fold(weights, layout)  # (layers, heads, tokens, height, width)
        words = []
        for word, pieces in words_of(tokenizer, ids):
            of_word = maps[:, :, pieces].mean(dim=2)
            of_word = of_word / of_word.mean(dim=(0, 1)).sum().clamp(min=1e-12)
            words.append((word, of_word if by_head else of_word[0, 0]))
        found.append(words)
    return found


def attention_of_tokens(record: AttentionRecord, outputs: ModelOutput) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Computes the attention to the image behind each generated token, along the winning beams.

    Returns:
        `tuple`: A tensor of shape `(sequences, layers, heads, tokens, image tokens)`, which is zero after the end of a
        sequence, and the row in which each sequence was generated.
    """
    if not record.calls or not record.calls[0].attention:
        raise ValueError("Nothing was recorded: run `model.generate(...)` inside `with record_attention(model)`.")
    device = next(iter(record.calls[0].attention.values())).device  # layers may be on several
    # (tokens, rows, layers, heads, columns)
    steps = torch.stack(
        [torch.stack([a[:, :, -1].to(device) for a in call.attention.values()], dim=1) for call in record.calls]
    )
    steps = record.to_patches(steps)
    beams = _beams_of(outputs)
    if beams is None:
        return steps.permute(1, 2, 3, 0, 4), torch.arange(steps.shape[1])
    beams = beams.to(device)
    steps = steps[torch.arange(beams.shape[1], device=device), beams.clamp(min=0)]
    steps = steps * (beams >= 0)[..., None, None, None]  # (sequences, tokens, layers, heads, columns)
    return steps.permute(0, 2, 3, 1, 4), beams[:, 0].cpu()


def generated_ids(record: AttentionRecord, outputs: ModelOutput) -> torch.Tensor:
    """The ids of the generated tokens, without those of the prompt."""
    beams = _beams_of(outputs)
    if beams is None and outputs.sequences.shape[1] != record.prompt_length + len(record.calls):
        raise ValueError(
            f"The record has {len(record.calls)} passes after a prompt of {record.prompt_length} tokens, but the "
            f"sequences have {outputs.sequences.shape[1]} tokens. They may be of another run, or of assisted "
            "generation."
        )
    return outputs.sequences[:, -(len(record.calls) if beams is None else beams.shape[1]) :]


def _beams_of(outputs: ModelOutput) -> torch.Tensor | None:
    """The row in which each token of each sequence was generated, `(sequences, tokens)`, if there were beams."""
    if not hasattr(outputs, "sequences"):
        raise ValueError(
            "`outputs` must be what `generate(..., return_dict_in_generate=True)` returns: it holds the words and "
            f"their beams. Got {type(outputs).__name__}. For a text that the model only reads, use "
            '`explain_words(model, processor, inputs, ["a text"])`.'
        )
    return getattr(outputs, "beam_indices", None)


def layout_of(
    record: AttentionRecord,
    inputs: Mapping[str, Any],
    row: int,
    image: int = 0,
    tiles: Tiles | None = None,
) -> list[torch.Tensor]:
    """The grids of an image of a row: places among the row's image tokens, -1 where there is none."""
    return _image_of(layouts_of_rows(record, inputs, tiles), row, image)


def layouts_of_rows(
    record: AttentionRecord,
    inputs: Mapping[str, Any],
    tiles: Tiles | None = None,
) -> list[list[list[torch.Tensor]]]:
    """For each row of the inputs, and each image of it, its grids."""
    # The beams, or sampled sequences, of one row are neighbors.
    names = ("input_ids", "pixel_values", "flattened_patches", "image_features")
    rows = next(len(inputs[name]) for name in names if inputs.get(name) is not None)
    tokens = record.image_tokens()[:: record.rows // rows]
    inputs = {**inputs, "feature_map": record.feature_map} | ({} if tiles is None else {"tiles": tiles})
    return deal(record.family.layout(record.config, inputs), tokens)


def _image_of(layouts: list[list[list[torch.Tensor]]], row: int, image: int) -> list[torch.Tensor]:
    if not 0 <= image < len(layouts[row]):
        raise ValueError(f"Row {row} has {len(layouts[row])} images, counted from 0, so there is no image {image}.")
    return layouts[row][image]


def grid_by_hand(grid: tuple[int, int], weights: torch.Tensor) -> torch.Tensor:
    height, width = grid
    if height * width != weights.shape[-1]:
        raise ValueError(f"A grid of {height} x {width} does not hold {weights.shape[-1]} image tokens.")
    return torch.arange(height * width).view(height, width)


def fold(weights: torch.Tensor, layout: Sequence[torch.Tensor]) -> torch.Tensor:
    """Puts weights of shape `(..., image tokens)` onto the finest grid of an image: `(..., height, width)`."""
    height, width = max((places.shape for places in layout), key=lambda shape: shape[0] * shape[1])
    total = weights.new_zeros(*weights.shape[:-1], height, width)
    for places in layout:
        values = weights[..., places.clamp(min=0).to(weights.device)] * (places >= 0).to(weights)
        if values.shape[-2:] != total.shape[-2:]:
            rows, columns = shares(values.shape[-2], height), shares(values.shape[-1], width)
            values = rows.to(values) @ values @ columns.to(values).T
        total = total + values
    return total


def shares(cells: int, parts: int) -> torch.Tensor:
    """Cuts a line of cells into parts: the share of each cell that lies in each part, `(parts, cells)`."""
    starts, cuts = torch.arange(cells).double() / cells, (torch.arange(parts).double() / parts)[:, None]
    overlap = torch.minimum(starts + 1 / cells, cuts + 1 / parts) - torch.maximum(starts, cuts)
    return overlap.clamp(min=0) * cells


def words_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Merges the pieces of tokens into words: each word with the places of its tokens."""
    special = set(tokenizer.all_special_ids)
    kept = [place for place, id in enumerate(ids) if id not in special]

    def decode(number: int) -> str:
        return tokenizer.decode([ids[place] for place in kept[:number]], clean_up_tokenization_spaces=False)

    text = decode(len(kept))
    ends = [len(decode(number)) for number in range(1, len(kept) + 1)]
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        inside = [end for end in ends if match.start() < end < match.end()] if _UNSPACED.search(match[0]) else []
        spans += pairwise(sorted({match.start(), *inside, match.end()}))
    words: list[tuple[str, list[int]]] = []
    for first, after in spans:
        # A token belongs to the word that its last character but spaces lies in.
        places = []
        start = 0
        for place, end in zip(kept, ends, strict=True):
            last = start + len(text[start:end].rstrip()) - 1
            if first <= last < after and text[start:end].strip():
                places.append(place)
            start = end
        if places:
            words.append((text[first:after], places))
    return words


def caption_examples(
    captioner: "Pipeline", images: Sequence[Image.Image], names: Sequence[str] | None = None, **kwargs: Any
) -> list[list[dict[str, Any]]]:
    r"""
    Captions images, and collects where the captioner looked. [`plot_attention`] and [`save_html`] draw it.

    Example:

    ```python
    >>> import hf_vg
    >>> from hf_vg.interpretation import caption_examples, save_html
    >>> from PIL import Image
    >>> from transformers import pipeline

    >>> captioner = pipeline("image-to-text", model=hf_vg.examples.checkpoint("spatial_transformer"))
    >>> image = Image.open(hf_vg.examples.scenes()[0]["image"])
    >>> ((example,),) = caption_examples(captioner, [image], names=["a scene"])
    >>> save_html(example, "scene.html").name
    'scene.html'
    ```

    Args:
        captioner ([`Pipeline`]):
            A `pipeline("image-to-text")`.
        images (`Sequence[PIL.Image.Image]`):
            The images.
        names (`Sequence[str]`, *optional*):
            A title for each image.
        kwargs (`dict`, *optional*):
            Arguments of the pipeline, such as `prompt="What is this?"`, `num_beams=5`, `num_return_sequences=5`,
            `batch_size=8` and `test_deletion=True`.

    Returns:
        `list[list[dict]]`: For each image the dictionaries that the pipeline returns, one per sequence. Each also has
        its `image`, `seen` (see [`seen_box`]) and, if you gave names, its `name`.
    """
    outputs = captioner(list(images), return_attention="heads", **kwargs)
    examples = []
    for index, (image, records) in enumerate(zip(images, outputs, strict=True)):
        shared = {"image": image, "seen": seen_box(captioner.image_processor, image.size)}
        if names is not None:
            shared["name"] = names[index]
        examples.append([{**shared, **record} for record in records])
    return examples


__all__ = [
    "attention_of_tokens",
    "caption_examples",
    "fold",
    "generated_ids",
    "layout_of",
    "layouts_of_rows",
    "shares",
    "word_maps",
    "words_of",
]
