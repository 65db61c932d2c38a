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
"""What GroundedVisualBert computes of spans, masks and labels, as plain functions."""

import torch
from torch import nn


def pool_spans(hidden_states: torch.Tensor, spans: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Maximum over the tokens of each span that is not empty: the vectors `(spans, hidden_size)`, and a mask of shape
    `(batch, spans)` that says which spans they are.
    """
    start, end = spans.unbind(-1)
    is_span = end > start
    position = torch.arange(hidden_states.shape[1], device=spans.device)
    outside = (position < start[is_span].unsqueeze(-1)) | (position >= end[is_span].unsqueeze(-1))
    rows = hidden_states[is_span.nonzero()[:, 0]]  # (N, T, D)
    return rows.masked_fill(outside.unsqueeze(-1), torch.finfo(rows.dtype).min).amax(dim=1), is_span


def repeat_images(images: torch.Tensor, num_texts: int) -> torch.Tensor:
    """Repeats the rows of images for the texts that share them: rows `b * K` to `b * K + K - 1` are of image `b`."""
    if len(images) == num_texts:
        return images
    if num_texts % len(images):
        raise ValueError(f"{num_texts} texts cannot be shared evenly among {len(images)} images.")
    return images.repeat_interleave(num_texts // len(images), dim=0)


def mask_of(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """`mask`, of shape `(texts, length)`, with a row for each text, or ones if there is none."""
    if mask is None:
        return torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
    return repeat_images(mask, len(states))


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy summed over labels, and the number of labels. Labels of -100 do not count."""
    summed = nn.functional.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
    return summed, (labels != -100).sum()


__all__ = [
    "mask_of",
    "pool_spans",
    "repeat_images",
    "summed_cross_entropy",
]
