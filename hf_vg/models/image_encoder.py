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
"""The vision front end of every model: a backbone that sees pixels, or features that were computed before."""

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.backbone_utils import load_backbone
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING

from .vgg.modeling_vgg import VggBackbone


class RenamedBackbone(WeightRenaming):
    """Version 0.1 saved `backbone.*` where the model now has `image_encoder.backbone.*`. Only loading renames."""

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
    Turns `pixel_values` into the last feature map of `config.backbone_config`, or checks `image_features` that were
    computed before. With `config.freeze_backbone` the backbone takes no gradient and stays in evaluation mode.

    Args:
        config ([`PreTrainedConfig`]):
            The config of the model, with `backbone_config` and `freeze_backbone`.
        size_field (`str`, *optional*, defaults to `"feature_size"`):
            The field of `config` that holds the number of channels.
        pooled (`bool`, *optional*, defaults to `False`):
            Whether the features of an image are one vector, the mean over locations, instead of a map.
    """

    def __init__(self, config: PreTrainedConfig, size_field: str = "feature_size", pooled: bool = False):
        super().__init__()
        self.feature_size = getattr(config, size_field)
        self.frozen = config.freeze_backbone
        self.pooled = pooled
        if config.backbone_config is None:
            self.backbone = None
            return
        # A published checkpoint also loads where "vgg" is not registered with the Auto classes.
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
            # Batch statistics and dropout stay as pretrained. `from_pretrained` makes new parameters and then calls
            # `eval`, which comes here, so the loaded ones are frozen too.
            self.backbone.eval().requires_grad_(False)
        return self

    def forward(
        self, pixel_values: torch.Tensor | None = None, image_features: torch.Tensor | None = None
    ) -> torch.Tensor:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch, channels, height, width)`, *optional*):
                Images, as the image processor makes them.
            image_features (`torch.FloatTensor`, *optional*):
                Features computed before: `(batch, feature_size)` if pooled, else `(batch, locations, feature_size)` or
                `(batch, height, width, feature_size)`.

        Returns:
            `torch.Tensor`: `(batch, feature_size)` if pooled, `(batch, height, width, feature_size)` from pixels, and
            the shape of `image_features` if these were given.
        """
        if image_features is not None and pixel_values is None:
            return self.check(image_features)
        if pixel_values is None or image_features is not None:
            raise ValueError("Give either `pixel_values` or `image_features`, and not both.")
        if self.backbone is None:
            raise ValueError("This model has no backbone (`backbone_config=None`): give it `image_features`.")
        if pixel_values.dim() != 4:
            shape = tuple(pixel_values.shape)
            raise ValueError(f"`pixel_values` must be (batch, channels, height, width), got {shape}.")
        # Convolutions are faster on channels-last images, and their map is then (B, H, W, D) without a copy.
        pixel_values = pixel_values.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            feature_map = self.backbone(pixel_values).feature_maps[-1]  # (B, D, H, W)
        return feature_map.mean(dim=(2, 3)) if self.pooled else feature_map.permute(0, 2, 3, 1)

    def check(self, image_features: torch.Tensor) -> torch.Tensor:
        size = self.feature_size
        if self.pooled:
            ranks, shapes = (2,), f"(batch, {size})"
        else:
            ranks, shapes = (3, 4), f"(batch, locations, {size}) or (batch, height, width, {size})"
        if image_features.dim() not in ranks or image_features.shape[-1] != size:
            raise ValueError(f"`image_features` must be {shapes}, got {tuple(image_features.shape)}.")
        return image_features


def spare_backbone(model: PreTrainedModel, attn_implementation: str | dict) -> str | dict:
    """
    The argument of `set_attn_implementation` for a model with an [`ImageEncoder`]. transformers also sets it on the
    backbone, and refuses `"sdpa"` for one of convolutions (ResNet, ConvNeXt), which has no attention.
    """
    for module in model.modules():
        if isinstance(module, ImageEncoder) and module.backbone is not None and isinstance(attn_implementation, str):
            if not module.backbone._supports_sdpa:
                return {"": attn_implementation, "backbone_config": "eager"}
    return attn_implementation


__all__ = ["ImageEncoder", "spare_backbone"]
