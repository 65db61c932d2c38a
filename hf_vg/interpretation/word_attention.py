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
"""Where a captioner looked while it wrote each word."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from transformers import PreTrainedTokenizerBase
from transformers.generation import GenerateBeamEncoderDecoderOutput
from transformers.utils import ModelOutput

from ..data.images import seen_box


if TYPE_CHECKING:
    # transformers' pipelines import ours, which imports this module.
    from transformers import Pipeline


def attention_of_generated(outputs: ModelOutput, by_head: bool = False) -> torch.Tensor:
    r"""
    The attention over image locations behind each generated token.

    Args:
        outputs ([`ModelOutput`]):
            Of `generate(..., output_attentions=True, return_dict_in_generate=True)` of an encoder-decoder captioner.
            After a beam search the maps follow the winning beams.
        by_head (`bool`, *optional*, defaults to `False`):
            Whether to keep layers and heads apart.

    Returns:
        `torch.Tensor` of shape `(sequences, generated tokens, locations)`: the mean over layers and heads; or of shape
        `(sequences, layers, heads, generated tokens, locations)`. Rows after a sequence's end are zeros.
    """
    steps = getattr(outputs, "cross_attentions", None)
    if not steps or not steps[0] or steps[0][0] is None:
        raise ValueError(
            "There are no attention maps in these outputs. They come from an encoder-decoder captioner, by "
            "`generate(..., output_attentions=True, return_dict_in_generate=True)`; a transformers model may also "
            'need `attn_implementation="eager"`.'
        )
    # A step holds one tensor a layer, of shape (rows, heads, tokens, locations); its last token is the new one.
    # (tokens, rows, layers, heads, locations)
    weights = torch.stack([torch.stack([layer[:, :, -1] for layer in step], dim=1) for step in steps])
    if not by_head:
        weights = weights.mean(dim=(2, 3))
    if isinstance(outputs, GenerateBeamEncoderDecoderOutput):
        rows = outputs.beam_indices  # (sequences, tokens), -1 after the end
        weights = weights[: rows.shape[1]]
        tokens = torch.arange(rows.shape[1], device=rows.device)
        weights = weights[tokens, rows.clamp(min=0)]  # (sequences, tokens, ...)
        weights = weights * (rows >= 0).view(*rows.shape, *[1] * (weights.dim() - 2))
    else:
        weights = weights.transpose(0, 1)
    return weights.movedim(1, -2) if by_head else weights


def word_maps(
    outputs: ModelOutput, tokenizer: PreTrainedTokenizerBase, image_height: int, image_width: int
) -> list[list[tuple[str, torch.Tensor]]]:
    r"""
    The words that were generated, each with where the model looked in the image it was given.

    Args:
        outputs ([`ModelOutput`]):
            As for [`attention_of_generated`].
        tokenizer ([`PreTrainedTokenizerBase`]):
            The captioner's tokenizer.
        image_height (`int`), image_width (`int`):
            Size of the maps: that of `pixel_values`, or of the part of the image that the processor made them of.

    Returns:
        `list[list[tuple[str, torch.Tensor]]]`: For each sequence its words without special tokens, each with a map of
        shape `(image_height, image_width)` that sums to 1.
    """
    attention = attention_of_generated(outputs)
    maps = attention_maps(attention, image_height, image_width)
    maps = torch.nn.functional.interpolate(
        maps.float(), size=(image_height, image_width), mode="bilinear", align_corners=False
    )
    maps = maps / maps.sum(dim=(-2, -1), keepdim=True).clamp(min=1e-12)
    special_ids = set(tokenizer.all_special_ids)
    generated = outputs.sequences[:, -attention.shape[1] :]  # without the start token
    return [
        [
            (tokenizer.decode([id]).strip(), word_map)
            for id, word_map in zip(ids, sequence_maps, strict=True)
            if id not in special_ids
        ]
        for ids, sequence_maps in zip(generated.tolist(), maps, strict=True)
    ]


def caption_examples(
    captioner: "Pipeline", images: Sequence[Image.Image], names: Sequence[str] | None = None, **kwargs: Any
) -> list[list[dict[str, Any]]]:
    r"""
    Captions images, and gathers what shows where the captioner looked: what [`plot_attention`] and [`save_html`] draw.

    Args:
        captioner ([`Pipeline`]):
            A `pipeline("image-to-text")`.
        images (`Sequence[PIL.Image.Image]`):
            The images.
        names (`Sequence[str]`, *optional*):
            What is written above each.
        kwargs:
            Of the pipeline, such as `num_beams=5`, `num_return_sequences=5` and `batch_size=8`.

    Returns:
        `list[list[dict]]`: For each image the dictionaries of the pipeline, one a sequence, with `image`, `seen` (see
        [`seen_box`]) and, if there are names, `name`.
    """
    outputs = captioner(list(images), return_attention="heads", **kwargs)
    examples = []
    for index, (image, records) in enumerate(zip(images, outputs, strict=True)):
        shared = {"image": image, "seen": seen_box(captioner.image_processor, image.size)}
        if names is not None:
            shared["name"] = names[index]
        examples.append([{**shared, **record} for record in records])
    return examples


def attention_maps(attention: torch.Tensor, image_height: int = 1, image_width: int = 1) -> torch.Tensor:
    r"""
    Folds rows of attention over locations into maps.

    Args:
        attention (`torch.Tensor` of shape `(..., locations)`):
            Weights of the locations, row by row of the image.
        image_height (`int`, *optional*, defaults to 1), image_width (`int`, *optional*, defaults to 1):
            Size of the image the model was given, which tells the shape of the grid. Square by default.

    Returns:
        `torch.Tensor` of shape `(..., height, width)`.
    """
    locations = attention.shape[-1]
    heights = [height for height in range(1, locations + 1) if locations % height == 0]
    # The grid has the aspect of the image: height / width = height^2 / locations.
    height = min(heights, key=lambda height: abs(height**2 * image_width - locations * image_height))
    return attention.unflatten(-1, (height, locations // height))
