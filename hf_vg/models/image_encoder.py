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
"""The vision front end of every model: a backbone for pixels, or a check of precomputed features."""

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.backbone_utils import load_backbone
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

from .vgg.modeling_vgg import VggBackbone


class RenamedBackbone(WeightRenaming):
    """Version 0.1 saved `backbone.*`, now `image_encoder.backbone.*`. Weights are renamed on loading only."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(r"(?<!image_encoder\.)backbone\.", "image_encoder.backbone.")

    def reverse_transform(self) -> WeightRenaming:
        return WeightRenaming("image_encoder.backbone.", "image_encoder.backbone.")


for model_type in (
    "grounded_visual_bert",
    "self_attn_grounded_encoder",
    "show_attend_tell",
    "spatial_transformer_captioner",
    "vse_scnlm",
):
    register_checkpoint_conversion_mapping(model_type, [RenamedBackbone()], overwrite=True)


class ImageEncoder(nn.Module):
    r"""
    Turns `pixel_values` into the last feature map of the backbone, or checks the shape of precomputed
    `image_features`. With `config.freeze_backbone` the backbone gets no gradients and stays in evaluation mode.

    Args:
        config ([`PreTrainedConfig`]):
            The config of the model, with the fields `backbone_config` and `freeze_backbone`.
        size_field (`str`, *optional*, defaults to `"feature_size"`):
            The field of `config` that holds the number of channels.
        pooled (`bool`, *optional*, defaults to `False`):
            Whether to average the feature map over its locations, which gives one vector per image.

    Example:

    ```python
    >>> import torch
    >>> from hf_vg import ShowAttendTellConfig, VggConfig
    >>> from hf_vg.models.image_encoder import ImageEncoder

    >>> backbone_config = VggConfig(depths=[1, 1], hidden_sizes=[8, 16])
    >>> encoder = ImageEncoder(ShowAttendTellConfig(backbone_config=backbone_config, feature_size=16))
    >>> encoder(torch.rand(2, 3, 32, 32)).shape  # (batch, height, width, feature_size)
    torch.Size([2, 16, 16, 16])
    ```
    """

    def __init__(self, config: PreTrainedConfig, size_field: str = "feature_size", pooled: bool = False):
        super().__init__()
        self.feature_size = getattr(config, size_field)
        self.frozen = config.freeze_backbone
        self.pooled = pooled
        if config.backbone_config is None:
            self.backbone = None
            return
        # Not by the Auto class: a published checkpoint also loads where "vgg" is not registered.
        if config.backbone_config.model_type == "vgg":
            self.backbone = VggBackbone(config.backbone_config)
        else:
            if not MODEL_FOR_BACKBONE_MAPPING[type(config.backbone_config)]._supports_sdpa:
                config.backbone_config._attn_implementation = "eager"  # see `spare_backbone`
            self.backbone = load_backbone(config)
        channels = self.backbone.channels[-1]
        if channels != self.feature_size:
            raise ValueError(
                f"`{size_field}` is {self.feature_size}, but the last feature map of the backbone has {channels} "
                f"channels. Set `{size_field}={channels}`."
            )
        self.train(self.training)

    def train(self, mode: bool = True) -> "ImageEncoder":
        super().train(mode)
        if self.backbone is not None and self.frozen:
            # Batch statistics and dropout stay as pretrained. `from_pretrained` creates new parameters and then calls
            # `eval`, which calls `train`. So loaded parameters are frozen too.
            self.backbone.eval().requires_grad_(False)
        return self

    def forward(
        self, pixel_values: torch.Tensor | None = None, image_features: torch.Tensor | None = None
    ) -> torch.Tensor:
        r"""
        Encodes images, or checks features that you computed before. Pass one of the two.

        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch, channels, height, width)`, *optional*):
                Images from the image processor.
            image_features (`torch.FloatTensor`, *optional*):
                Precomputed features of shape `(batch, feature_size)` if pooled, otherwise
                `(batch, locations, feature_size)` or `(batch, height, width, feature_size)`.

        Returns:
            `torch.Tensor`: `image_features` unchanged, if you passed them. Otherwise features of shape
            `(batch, feature_size)` if pooled, or `(batch, height, width, feature_size)`.
        """
        if image_features is not None and pixel_values is None:
            return self.check(image_features)
        if pixel_values is None or image_features is not None:
            raise ValueError("Pass either `pixel_values` or `image_features`, not both.")
        if self.backbone is None:
            raise ValueError("This model has no backbone (`backbone_config=None`). Pass `image_features` instead.")
        if pixel_values.dim() != 4:
            shape = tuple(pixel_values.shape)
            raise ValueError(f"`pixel_values` must be (batch, channels, height, width), got {shape}.")
        # Convolutions are faster on channels-last images. Their output is then (B, H, W, D) without a copy.
        pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            feature_map = self.backbone(pixel_values).feature_maps[-1]  # (B, D, H, W)
        return feature_map.mean(dim=(2, 3)) if self.pooled else feature_map.permute(0, 2, 3, 1)

    def check(self, image_features: torch.Tensor) -> torch.Tensor:
        """Returns `image_features`, or raises a `ValueError` if their shape is wrong."""
        size = self.feature_size
        if self.pooled:
            ranks, shapes = (2,), f"(batch, {size})"
        else:
            ranks, shapes = (3, 4), f"(batch, locations, {size}) or (batch, height, width, {size})"
        if image_features.dim() not in ranks or image_features.shape[-1] != size:
            raise ValueError(f"`image_features` must be {shapes}, got {tuple(image_features.shape)}.")
        return image_features


def spare_backbone(model: PreTrainedModel, attn_implementation: str | dict) -> str | dict:
    r"""
    Changes the argument of `set_attn_implementation`, so that it works for a model with a convolutional backbone.

    transformers sets the implementation on the backbone too, and rejects `"sdpa"` for a backbone without attention
    (ResNet, ConvNeXt).

    Args:
        model ([`PreTrainedModel`]):
            A model with an [`ImageEncoder`].
        attn_implementation (`str` or `dict`):
            The implementation that the user asked for.

    Returns:
        `str` or `dict`: The same, with `"eager"` for such a backbone.
    """
    for module in model.modules():
        if isinstance(module, ImageEncoder) and module.backbone is not None and isinstance(attn_implementation, str):
            if not module.backbone._supports_sdpa:
                return {"": attn_implementation, "backbone_config": "eager"}
    return attn_implementation


__all__ = ["ImageEncoder", "spare_backbone"]
