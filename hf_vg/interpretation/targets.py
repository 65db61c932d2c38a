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
"""From boxes to the image tokens that show them."""

from collections.abc import Sequence

import torch


def targets_of_boxes(layout: Sequence[torch.Tensor], boxes: torch.Tensor, tokens: int) -> torch.Tensor:
    r"""
    Which image tokens show what is in each box: those whose center lies in it, on each grid that the image has. A box
    that is too small for any center is shown by the token that its own center lies in.

    Args:
        layout (`Sequence[torch.Tensor]`):
            The grids of an image, see [`Layout`].
        boxes (`torch.Tensor` of shape `(boxes, 4)`):
            Left, top, right and bottom as shares of the width and height of what the model is given.
        tokens (`int`):
            The number of image tokens of the row.

    Returns:
        `torch.Tensor`: Of shape `(boxes, tokens)`, 1 for the tokens of a box.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.interpretation import targets_of_boxes

    >>> grid = torch.arange(4).view(2, 2)  # an image of 2 x 2 tokens
    >>> targets_of_boxes([grid], torch.tensor([[0.0, 0.0, 1.0, 0.5]]), tokens=4)  # the upper half
    tensor([[1., 1., 0., 0.]])
    ```
    """
    targets = torch.zeros(len(boxes), tokens)
    left, top, right, bottom = boxes.float().unsqueeze(1).unbind(-1)  # (boxes, 1) each
    for places in layout:
        height, width = places.shape
        inside = []
        for first, after, cells in ((top, bottom, height), (left, right, width)):
            centers = (torch.arange(cells) + 0.5) / cells
            within = (centers >= first) & (centers < after)  # (boxes, cells)
            middle = ((first + after) / 2 * cells).long().clamp(0, cells - 1)
            inside.append(within | (~within.any(dim=1, keepdim=True) & (torch.arange(cells) == middle)))
        is_shown = (inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).flatten(1)  # (boxes, cells)
        is_patch = places.flatten() >= 0
        targets[:, places.flatten()[is_patch]] += is_shown[:, is_patch].float()
    return targets.clamp(max=1)


__all__ = ["targets_of_boxes"]
