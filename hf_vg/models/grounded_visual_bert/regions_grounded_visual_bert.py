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
"""The region encoder of GroundedVisualBert: RoI align and box geometry."""

import torch
from torch import nn

from ..image_encoder import ImageEncoder
from .configuration_grounded_visual_bert import GroundedVisualBertConfig


def roi_align(
    feature_map: torch.Tensor, boxes: torch.Tensor, output_size: int = 1, sampling_ratio: int = 2
) -> torch.Tensor:
    r"""
    RoI align in plain torch. The result equals torchvision's `roi_align` with `aligned=True`.

    Bilinear sampling is linear in the map and separable in its two dimensions. So one matrix product pools all boxes
    of an image.

    Args:
        feature_map (`torch.Tensor` of shape `(batch, channels, height, width)`):
            The map to pool from.
        boxes (`torch.Tensor` of shape `(batch, boxes, 4)`):
            Left, top, right and bottom, in cells of the map.
        output_size (`int`, *optional*, defaults to 1):
            Number of bins per side.
        sampling_ratio (`int`, *optional*, defaults to 2):
            Number of sampling points per side of a bin.

    Returns:
        `torch.Tensor` of shape `(batch, boxes, channels, output_size, output_size)`: The pooled features.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg.models.grounded_visual_bert.regions_grounded_visual_bert import roi_align

    >>> roi_align(torch.rand(1, 8, 7, 7), torch.tensor([[[0.0, 0.0, 3.5, 7.0]]]), output_size=2).shape
    torch.Size([1, 1, 8, 2, 2])
    ```
    """

    def weights(start: torch.Tensor, end: torch.Tensor, cells: int) -> torch.Tensor:
        """Returns the weight of each cell in each bin, of shape `(batch, boxes, output_size, cells)`."""
        points = output_size * sampling_ratio
        steps = (torch.arange(points, device=boxes.device) + 0.5) / points
        position = (start.unsqueeze(-1) + (end - start).unsqueeze(-1) * steps - 0.5).unsqueeze(-1)
        inside = (position >= -1) & (position <= cells)
        distance = position.clamp(0, cells - 1) - torch.arange(cells, device=boxes.device)
        share = (1 - distance.abs()).clamp(min=0) * inside
        return share.unflatten(-2, (output_size, sampling_ratio)).mean(dim=-2)

    left, top, right, bottom = boxes.float().unbind(-1)
    rows = weights(top, bottom, feature_map.shape[2])
    columns = weights(left, right, feature_map.shape[3])
    shares = torch.einsum("brph,brqw->brpqhw", rows, columns).flatten(4).flatten(1, 3)  # (B, R * P * P, H * W)
    pooled = shares.to(feature_map.dtype) @ feature_map.flatten(2).transpose(1, 2)
    return pooled.unflatten(1, (-1, output_size, output_size)).permute(0, 1, 4, 2, 3)


def geometry_embedding(boxes: torch.Tensor, frequencies: int) -> torch.Tensor:
    r"""
    Encodes the center, width and height of boxes with sinusoids.

    Args:
        boxes (`torch.Tensor` of shape `(batch, boxes, 4)`):
            Left, top, right and bottom, relative to the image size.
        frequencies (`int`):
            The number of frequencies.

    Returns:
        `torch.Tensor` of shape `(batch, boxes, 8 * frequencies)`: The encodings.
    """
    left, top, right, bottom = boxes.float().unbind(-1)
    position = 100 * torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], dim=-1)
    periods = 1000 ** (torch.arange(frequencies, device=boxes.device) / frequencies)
    angles = position.unsqueeze(-1) / periods
    return torch.stack([angles.sin(), angles.cos()], dim=-2).flatten(-3)


class GroundedVisualBertRegionEncoder(nn.Module):
    """Encodes the content and the position of each box of an image."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.region_samples = config.region_samples
        self.geometry_frequencies = config.geometry_frequencies
        self.image_encoder = ImageEncoder(config, size_field="region_feature_size")
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(
            config.region_feature_size + 8 * config.geometry_frequencies, config.visual_embedding_dim
        )

    def forward(
        self,
        boxes: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        pixel_mask: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
    ) -> torch.Tensor:
        feature_map = self.image_encoder(pixel_values, image_features)
        if feature_map.dim() != 4:
            raise ValueError(
                "`image_features` must be a map of shape (batch, height, width, region_feature_size), because boxes "
                f"are positions in it. Got {tuple(feature_map.shape)}."
            )
        height, width = feature_map.shape[1:3]
        cells = boxes.float() * torch.tensor([width, height, width, height], device=boxes.device)
        if pixel_mask is not None:
            # Boxes are relative to the image. A padded image fills only a part of the tensor.
            rows, columns = pixel_mask.amax(dim=2).float().mean(dim=1), pixel_mask.amax(dim=1).float().mean(dim=1)
            cells = cells * torch.stack([columns, rows, columns, rows], dim=-1).unsqueeze(1)
        feature_map = feature_map.to(self.projection.weight.dtype).permute(0, 3, 1, 2)
        regions = roi_align(feature_map, cells, sampling_ratio=self.region_samples)[..., 0, 0]  # (B, R, D)
        geometry = geometry_embedding(boxes, self.geometry_frequencies).to(regions.dtype)
        return torch.relu(self.projection(self.dropout(torch.cat([regions, geometry], dim=-1))))


__all__ = ["GroundedVisualBertRegionEncoder", "geometry_embedding", "roi_align"]
