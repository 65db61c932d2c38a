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
"""The regions of an image, as GroundedVisualBert sees them."""

import torch
from torch import nn
from transformers.backbone_utils import load_backbone

from ..vgg.modeling_vgg import VggBackbone
from .configuration_grounded_visual_bert import GroundedVisualBertConfig


def roi_align(
    feature_map: torch.Tensor, boxes: torch.Tensor, output_size: int = 1, sampling_ratio: int = 2
) -> torch.Tensor:
    r"""
    RoI align as torchvision's with `aligned=True`, in plain torch. Bilinear sampling is linear in the map and apart in
    its two dimensions, so that all boxes of an image are one matrix product.

    Args:
        feature_map (`torch.Tensor` of shape `(batch, channels, height, width)`):
            The map to pool from.
        boxes (`torch.Tensor` of shape `(batch, boxes, 4)`):
            Left, top, right and bottom, in cells of the map.
        output_size (`int`, *optional*, defaults to 1):
            Bins a side.
        sampling_ratio (`int`, *optional*, defaults to 2):
            Points a side of a bin.

    Returns:
        `torch.Tensor` of shape `(batch, boxes, channels, output_size, output_size)`.
    """

    def weights(start: torch.Tensor, end: torch.Tensor, cells: int) -> torch.Tensor:
        """The share of every cell in every bin, of shape `(batch, boxes, output_size, cells)`."""
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
    """Sinusoids of the centre, width and height of relative boxes, of shape `(batch, boxes, 8 * frequencies)`."""
    left, top, right, bottom = boxes.float().unbind(-1)
    position = 100 * torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], dim=-1)
    periods = 1000 ** (torch.arange(frequencies, device=boxes.device) / frequencies)
    angles = position.unsqueeze(-1) / periods
    return torch.stack([angles.sin(), angles.cos()], dim=-2).flatten(-3)


class GroundedVisualBertRegionEncoder(nn.Module):
    """What is in each box of an image, and where the box is."""

    def __init__(self, config: GroundedVisualBertConfig):
        super().__init__()
        self.config = config
        if config.backbone_config.model_type == "vgg":
            self.backbone = VggBackbone(config.backbone_config)
        else:
            self.backbone = load_backbone(config)
        if self.backbone.channels[-1] != config.region_feature_size:
            raise ValueError(
                f"`region_feature_size` is {config.region_feature_size}, but the backbone's last feature map has "
                f"{self.backbone.channels[-1]} channels. Set `region_feature_size={self.backbone.channels[-1]}`."
            )
        if config.freeze_backbone:
            self.backbone.requires_grad_(False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(
            config.region_feature_size + 8 * config.geometry_frequencies, config.visual_embedding_dim
        )

    def train(self, mode: bool = True):
        super().train(mode)
        if self.config.freeze_backbone:
            # Batch statistics and dropout of a frozen network stay as pretrained. Its parameters are frozen once more
            # as `from_pretrained` makes new ones, which it leaves in evaluation mode.
            self.backbone.eval().requires_grad_(False)
        return self

    def feature_map(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The backbone's last map, `(batch, height, width, region_feature_size)`."""
        # Convolutions are faster on channels-last images, and their map is then of this shape without a copy.
        pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_backbone):
            return self.backbone(pixel_values).feature_maps[-1].permute(0, 2, 3, 1)

    def forward(
        self, image_features: torch.Tensor, boxes: torch.Tensor, pixel_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        height, width = image_features.shape[1:3]
        cells = boxes.float() * torch.tensor([width, height, width, height], device=boxes.device)
        if pixel_mask is not None:
            # Boxes are relative to the image, which fills only a part of the tensor where it was padded.
            rows, columns = pixel_mask.amax(dim=2).float().mean(dim=1), pixel_mask.amax(dim=1).float().mean(dim=1)
            cells = cells * torch.stack([columns, rows, columns, rows], dim=-1).unsqueeze(1)
        image_features = image_features.to(self.projection.weight.dtype).permute(0, 3, 1, 2)
        regions = roi_align(image_features, cells, sampling_ratio=self.config.region_samples)[..., 0, 0]
        geometry = geometry_embedding(boxes, self.config.geometry_frequencies).to(regions.dtype)
        return torch.relu(self.projection(self.dropout(torch.cat([regions, geometry], dim=-1))))


__all__ = ["GroundedVisualBertRegionEncoder", "geometry_embedding", "roi_align"]
