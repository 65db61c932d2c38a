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
"""Attention in the form that `bertviz` draws."""

from collections.abc import Sequence
from typing import Any

import torch


def bertviz_arguments(
    attentions: Sequence[torch.Tensor],
    tokens: Sequence[str],
    seen: Sequence[str] | None = None,
    second_start: int | None = None,
    example: int = 0,
) -> dict[str, Any]:
    r"""
    Turns attention into the arguments of `bertviz.head_view` and `bertviz.model_view`.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.interpretation import bertviz_arguments

    >>> attentions = [torch.full((1, 2, 3, 3), 1 / 3)]  # one layer with two heads
    >>> arguments = bertviz_arguments(attentions, ["two", "dogs", "play"])
    >>> sorted(arguments)  # for `bertviz.head_view(**arguments)`
    ['attention', 'tokens']
    ```

    Args:
        attentions (`Sequence[torch.Tensor]`):
            The attentions of any transformers model: one tensor of shape `(batch, heads, positions, positions)` per
            layer. Or the cross-attentions of an encoder-decoder, of shape `(batch, heads, tokens, locations)`.
        tokens (`Sequence[str]`):
            Names of the positions that look, such as words. Positions after them count as padding and are dropped.
        seen (`Sequence[str]`, *optional*):
            For cross-attentions: names of what is looked at. See [`location_names`].
        second_start (`int`, *optional*):
            For self-attention of two parts, such as two sentences, or words and regions of an image: the position
            where the second part begins. bertviz then offers a choice of parts.
        example (`int`, *optional*, defaults to 0):
            Which example of the batch to show.

    Returns:
        `dict[str, Any]`: Keyword arguments for `bertviz.head_view` or `bertviz.model_view`.
    """
    columns = tokens if seen is None else seen
    layers = []
    for index, layer in enumerate(attentions):
        if layer is None or layer.dim() != 4 or layer.shape[2] < len(tokens) or layer.shape[3] < len(columns):
            raise ValueError(
                f"Layer {index} must be of shape (batch, heads, {len(tokens)}, {len(columns)}) or larger, got "
                f"{None if layer is None else tuple(layer.shape)}."
            )
        part = layer[example : example + 1, :, : len(tokens), : len(columns)]
        layers.append(part.detach().float().cpu())
    if seen is not None:
        return {"cross_attention": layers, "encoder_tokens": list(seen), "decoder_tokens": list(tokens)}
    arguments = {"attention": layers, "tokens": list(tokens)}
    return arguments if second_start is None else {**arguments, "sentence_b_start": second_start}


def location_names(height: int, width: int) -> list[str]:
    r"""
    Names the cells of a map, row by row.

    Example:

    ```python
    >>> from hf_vg.interpretation import location_names

    >>> location_names(2, 2)  # "1,1" is the upper left cell, "1,2" is to the right of it
    ['1,1', '1,2', '2,1', '2,2']
    ```

    Args:
        height (`int`):
            The number of rows of the map.
        width (`int`):
            The number of columns of the map.

    Returns:
        `list[str]`: The names, row and column counted from 1.
    """
    return [f"{row},{column}" for row in range(1, height + 1) for column in range(1, width + 1)]
