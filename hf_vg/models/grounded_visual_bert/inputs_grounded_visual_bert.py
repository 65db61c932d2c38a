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
"""Reads and checks the inputs of GroundedVisualBert: captions with marked phrases, and boxes."""

import re
from typing import Any

import numpy as np


MAX_BOXES = 1000  # per image: memory grows with the square of this number, and 12,000 boxes needed more than 12 GB
_START = "[/EN#"
_ENTITY = re.compile(r"\[/EN#(\d+)((?:/\w+)+) ([^\]]*)\]")


def parse_entities(text: str) -> tuple[str, list[dict[str, Any]]]:
    r"""
    Reads the mark-up of Flickr30k Entities, `[/EN#20101/people A child] in [/EN#20102/clothing a pink dress]`.

    Args:
        text (`str`):
            A caption, with or without mark-up.

    Returns:
        `tuple[str, list[dict]]`: The caption without mark-up, and its phrases. Each phrase is a dict with `start` and
        `end` (character positions in that caption), `text`, `entity` (its number as a string) and `types`.

    Example:

    ```python
    >>> from hf_vg.models.grounded_visual_bert.inputs_grounded_visual_bert import parse_entities

    >>> caption, phrases = parse_entities("[/EN#20101/people A child] runs")
    >>> caption, phrases[0]["entity"], phrases[0]["types"]
    ('A child runs', '20101', ['people'])
    ```
    """
    parts, phrases, length, position = [], [], 0, 0
    while (start := text.find(_START, position)) >= 0:
        # Find the end before matching the pattern: the time then grows linearly with the length of the text.
        end = text.find("]", start) + 1
        match = _ENTITY.fullmatch(text, start, end) if end else None
        if match is None or _START in match[3]:
            raise ValueError(f"The mark-up is broken at character {start}: {text[start : start + 60]!r}.")
        before = text[position:start]
        entity, types, words = match.groups()
        length += len(before)
        phrases.append(
            {
                "start": length,
                "end": length + len(words),
                "text": words,
                "entity": entity,
                "types": types.strip("/").split("/"),
            }
        )
        length += len(words)
        parts += [before, words]
        position = end
    return "".join([*parts, text[position:]]), phrases


def check_boxes(boxes: Any, where: str, max_boxes: int = MAX_BOXES) -> np.ndarray:
    r"""
    Checks the boxes of one image, and returns them as an array.

    Args:
        boxes (`Sequence` or `np.ndarray` of shape `(boxes, 4)`):
            The boxes, each with four finite numbers.
        where (`str`):
            The name of the image in error messages.
        max_boxes (`int`, *optional*, defaults to 1000):
            The largest number of boxes to accept.

    Returns:
        `np.ndarray` of shape `(boxes, 4)`: The boxes.
    """
    if len(boxes) > max_boxes:
        raise ValueError(
            f"{where} has {len(boxes):,} boxes, and the limit is {max_boxes:,}: memory grows with the square of this "
            "number. Pass fewer boxes, or raise `max_boxes` of the processor."
        )
    checked = np.zeros((len(boxes), 4))
    for index, box in enumerate(boxes):
        try:
            numbers = np.asarray(box, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.zeros(0)
        if numbers.shape != (4,) or not np.isfinite(numbers).all():
            raise ValueError(f"Box {index} of {where} must be four finite numbers, got {str(box)[:80]}.")
        checked[index] = numbers
    return checked


__all__ = ["MAX_BOXES", "check_boxes", "parse_entities"]
